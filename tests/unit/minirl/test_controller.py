# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from ray import cloudpickle
from safetensors.torch import load_file

from minirl import controller as controller_module
from minirl import setup
from minirl.controller import SingleController
from minirl.setup import latest_checkpoint, setup_single_controller
from minirl.snapshot import SnapshotWriter, published

LISTS = [5, 6]
COLUMNS = ["token_ids", "token_loss_mask", "advantages", "generation_logprobs"]
COLUMNS += ["prev_logprobs"]


@pytest.fixture(scope="module")
def workload(tmp_path_factory, write_workload):
    folder = tmp_path_factory.mktemp("workload")
    return write_workload(folder / "prompts.jsonl", LISTS, steps=2)


@pytest.fixture(scope="module")
def set_up(make_config, tokenizer, workload):
    """Sets a job up that writes below a folder, with overrides."""

    def set_up(folder, *overrides, generations=4):
        config = make_config(
            f"data.train.data_path={workload}",
            f"checkpointing.checkpoint_dir={folder / 'checkpoints'}",
            f"logger.log_dir={folder / 'logs'}",
            "async_rl.log_full_train_data=true",
            "grpo.max_num_steps=2",
            *overrides,
            generations=generations,
        )
        return setup_single_controller(config, tokenizer)[0]

    return set_up


@pytest.fixture
def in_memory(monkeypatch, memory_data_plane):
    """Lets controllers run on a data plane without Ray."""
    monkeypatch.setattr(setup, "DataPlaneClient", memory_data_plane)


def run(actor_args):
    """Run a job to its end; the controller."""
    controller = SingleController(actor_args)
    asyncio.run(controller.run())
    return controller


def run_until(actor_args, condition):
    """Run a job until a condition holds of its controller, then drop it."""
    controller = SingleController(actor_args)

    async def interrupted():
        job = asyncio.create_task(controller.run())
        while not (condition(controller) or job.done()):
            await asyncio.sleep(0)
        assert not job.done()
        job.cancel()

    asyncio.run(interrupted())
    return controller


def dump(folder, step, exp="exp_001"):
    """The rows of a step by (prompt_idx, generation)."""
    path = folder / "logs" / exp / f"train_data_step{step}.jsonl"
    rows = map(json.loads, path.read_text().splitlines())
    return {
        (tag["prompt_idx"], int(row["sample_id"][0].rpartition("_g")[2])): row
        for row in rows
        for tag in row["metadata"]
    }


def weights(folder, step):
    return load_file(folder / "checkpoints" / f"step_{step}" / "model.safetensors")


def equal(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)


def assert_same_rows(found, expected):
    assert sorted(found) == sorted(expected)
    for key, row in found.items():
        for column in [*COLUMNS, "rewards", "sample_loss_mask"]:
            assert row[column] == expected[key][column]


# -- one job, on Ray and TransferQueue -----------------------------------------------


@pytest.fixture(scope="module")
def job(ray_session, set_up, tmp_path_factory):
    """The folder of a job of two steps that ran to its end."""
    folder = tmp_path_factory.mktemp("job")
    run(set_up(folder)).dp_client.close()
    return folder


@pytest.mark.parametrize("step", [1, 2])
def test_dump_of_every_step_has_every_row_once(job, step):
    first = 3 * (step - 1)
    expected = [(first + p, g) for p in range(3) for g in range(4)]
    assert sorted(dump(job, step)) == expected
    assert [row["idx"] for row in dump(job, step).values()] == list(range(12))


def test_dump_folder_holds_nothing_else(job):
    names = sorted(path.name for path in (job / "logs").rglob("*.*"))
    assert names == ["train_data_step1.jsonl", "train_data_step2.jsonl"]


def test_siblings_share_their_group(job):
    groups = {}
    for (prompt, _), row in dump(job, 1).items():
        groups.setdefault(prompt, set()).add(row["metadata"][0]["group_id"])
    assert [len(names) for names in groups.values()] == [1, 1, 1]
    assert len(set.union(*groups.values())) == 3


def test_advantages_lie_on_generated_tokens_and_are_not_all_zero(job):
    rows = dump(job, 1).values()
    for row in rows:
        advantages, mask = row["advantages"][0], row["token_loss_mask"][0]
        assert all(m or not a for a, m in zip(advantages, mask, strict=True))
    assert any(any(row["advantages"][0]) for row in rows)


def test_advantage_has_the_sign_of_the_reward(job):
    rows = [row for row in dump(job, 1).values() if any(row["advantages"][0])]
    for row in rows:
        assert (max(row["advantages"][0]) > 0) == (row["rewards"][0] == 1.0)


def test_prev_logprobs_agree_with_generation_in_every_step(job):
    """Also in step 2: generation has the weights that step 1 trained."""
    for step in (1, 2):
        for row in dump(job, step).values():
            prev, generated, mask = (
                torch.tensor(row[name][0])
                for name in ("prev_logprobs", "generation_logprobs", "token_loss_mask")
            )
            torch.testing.assert_close(prev * mask, generated, rtol=0, atol=1e-4)


def test_rows_name_the_weights_they_were_generated_with(job):
    for step in (1, 2):
        versions = {
            row["metadata"][0]["weight_version"] for row in dump(job, step).values()
        }
        assert versions == {step - 1}


def test_first_step_changes_the_weights(job, shipped_policy):
    assert not equal(weights(job, 1), shipped_policy.state_dict())


@pytest.mark.parametrize("step", [1, 2])
def test_trainer_checkpoint_names_its_step_and_refers_to_no_key(job, step):
    folder = job / "checkpoints" / f"step_{step}"
    info = json.loads((folder / "training_info.json").read_text())
    assert info == {"current_step": step, "trainer_version": step}
    gym = json.loads((folder / "gym_checkpoint.json").read_text())
    assert gym["staging_keys"] == gym["instances"] == {"nemo_gym_0": []}
    assert (folder / "data_plane").is_dir()


# -- logs ----------------------------------------------------------------------------


def test_train_steps_are_logged_with_their_maximum(in_memory, set_up, tmp_path, capsys):
    run(set_up(tmp_path, generations=1))
    lines = capsys.readouterr().out.splitlines()
    steps = [line for line in lines if line.startswith("train step")]
    assert steps == ["train step 1/2", "train step 2/2"]


def test_without_the_dump_no_dump_is_written(in_memory, set_up, tmp_path):
    overrides = ["async_rl.log_full_train_data=false", "grpo.max_num_steps=1"]
    run(set_up(tmp_path, *overrides, generations=1))
    assert list((tmp_path / "logs" / "exp_001").iterdir()) == []


# -- what travels into the actor -----------------------------------------------------


def test_actor_args_keep_one_data_plane_when_they_are_pickled(set_up, tmp_path):
    args = cloudpickle.loads(cloudpickle.dumps(set_up(tmp_path)))
    assert args.trainer_handle.dp_client is args.dp_client
    assert args.rollout_manager.dp_client is args.dp_client


def test_probe_on_the_trainer_is_called_once_a_step(in_memory, set_up, tmp_path):
    args = set_up(tmp_path, generations=1)
    begin, live = args.trainer_handle.begin_train_step, []

    def probe(*arguments, **named):
        live.append(args.dp_client.list_sample_ids("rollout_staging"))
        return begin(*arguments, **named)

    args.trainer_handle.begin_train_step = probe
    run(args)
    assert live == [[], []]


# -- going on after a crash ----------------------------------------------------------

FAST = "rollout_checkpointing.snapshot_attempt_interval_s=0.001"


def snapshot_in_lists(step):
    """Whether the lists of a step are being written; a snapshot of them if so."""

    def condition(job):
        if job.state.current_step != step or not hasattr(job.rollouts, "engine"):
            return False
        calls = job.rollouts.engine.running.values()
        found = [call for call in calls if call.key[2] == 1 and len(call.token_ids) > 2]
        if len(found) < 8:
            return False
        writer = SnapshotWriter(job._snapshot_dir, job.rollouts, 1)
        writer.publish(writer.cut(step, step))
        return True

    return condition


def copy_checkpoint(job, folder, step):
    """A folder that holds one trainer checkpoint of the job, and nothing else."""
    name = Path("checkpoints") / f"step_{step}"
    shutil.copytree(job / name, folder / name)
    return folder


def test_job_killed_in_mid_decode_trains_the_rows_of_a_whole_one(
    job, in_memory, set_up, tmp_path, capsys
):
    run_until(set_up(tmp_path), snapshot_in_lists(step=0))
    run(set_up(tmp_path))
    log = capsys.readouterr().out
    assert len(re.findall("generation prefix completed", log)) == 8
    for step in (1, 2):
        assert_same_rows(dump(tmp_path, step, exp="exp_002"), dump(job, step))
        assert equal(weights(tmp_path, step), weights(job, step))


def test_job_killed_in_its_second_step_goes_on_there(
    job, in_memory, set_up, tmp_path, capsys
):
    folder = copy_checkpoint(job, tmp_path / "killed", step=1)
    run_until(set_up(folder), snapshot_in_lists(step=1))
    run(set_up(folder))
    log = capsys.readouterr().out
    assert len(re.findall("generation prefix completed", log)) == 8
    assert_same_rows(dump(folder, 2, exp="exp_002"), dump(job, 2))
    assert equal(weights(folder, 2), weights(job, 2))


def test_job_goes_on_from_a_trainer_checkpoint_without_a_snapshot(
    job, in_memory, set_up, tmp_path
):
    folder = copy_checkpoint(job, tmp_path / "stopped", step=1)
    run(set_up(folder))
    names = [path.name for path in (folder / "logs" / "exp_001").iterdir()]
    assert names == ["train_data_step2.jsonl"]
    assert_same_rows(dump(folder, 2), dump(job, 2))
    assert equal(weights(folder, 2), weights(job, 2))


def test_finished_job_trains_nothing_more(job, in_memory, set_up, tmp_path):
    folder = copy_checkpoint(job, tmp_path / "finished", step=2)
    run(set_up(folder))
    assert list((folder / "logs" / "exp_001").iterdir()) == []


def test_restore_mode_none_starts_anew(job, set_up, tmp_path):
    folder = copy_checkpoint(job, tmp_path / "anew", step=2)
    args = set_up(folder, "rollout_checkpointing.restore_mode=none")
    assert args.checkpoint is None and args.save_state.current_step == 0


def test_snapshots_are_taken_while_rollouts_run_and_pruned(in_memory, set_up, tmp_path):
    keep = "rollout_checkpointing.keep_latest_k=2"
    run(set_up(tmp_path, FAST, keep, "grpo.max_num_steps=1", generations=1))
    bootstrap = tmp_path / "checkpoints" / "bootstrap" / "rollout_snapshots"
    names = [path.name for path in published(bootstrap)]
    assert len(names) == 2 and int(names[0].partition("_")[2]) > 2


def test_snapshots_of_a_later_step_name_the_step_they_are_based_on(
    in_memory, set_up, tmp_path
):
    run(set_up(tmp_path, FAST, generations=1))
    folder = tmp_path / "checkpoints" / "step_1" / "rollout_snapshots"
    manifest = json.loads((published(folder)[-1] / "manifest.json").read_text())
    assert manifest == {"base_train_step": 1, "trainer_version": 1}


def test_job_that_saves_every_second_step_can_be_started_again(
    in_memory, set_up, tmp_path
):
    saving = ["checkpointing.save_period=2", FAST]
    second = "grpo.max_num_steps=3"
    run_until(
        set_up(tmp_path, *saving, second, generations=1),
        lambda job: job.state.current_step == 1 and len(job.rollouts.episodes) == 3,
    )
    assert set_up(tmp_path, *saving, generations=1).save_state.current_step == 0


def test_without_checkpointing_nothing_is_written(in_memory, set_up, tmp_path):
    off = ["checkpointing.enabled=false", "grpo.max_num_steps=1", FAST]
    run(set_up(tmp_path, *off, generations=1))
    assert not (tmp_path / "checkpoints").exists()


# -- failures ------------------------------------------------------------------------


def test_decoding_that_fails_ends_the_job(in_memory, set_up, tmp_path, monkeypatch):
    def fail(engine):
        raise OSError("device lost")

    monkeypatch.setattr(controller_module.GenerationEngine, "step", fail)
    with pytest.raises(OSError, match="device lost"):
        run(set_up(tmp_path, generations=1))


@pytest.mark.parametrize("part", ["cut", "publish"])
def test_snapshot_that_fails_ends_the_job(
    in_memory, set_up, tmp_path, monkeypatch, part
):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(SnapshotWriter, part, fail)
    with pytest.raises(OSError, match="disk full"):
        run(set_up(tmp_path, FAST, generations=1))


def test_train_step_that_fails_publishes_nothing(
    in_memory, set_up, tmp_path, monkeypatch
):
    def fail(policy):
        raise OSError("device lost")

    monkeypatch.setattr(setup.Policy, "finish_train_step", fail)
    with pytest.raises(OSError, match="device lost"):
        run(set_up(tmp_path, generations=1))
    names = [path.name for path in (tmp_path / "logs" / "exp_001").iterdir()]
    assert names and all(".part-" in name for name in names)
    assert latest_checkpoint(tmp_path / "checkpoints") is None


def test_stall_ends_the_job(in_memory, set_up, tmp_path, monkeypatch):
    async def hang(engine):
        await asyncio.Event().wait()

    monkeypatch.setattr(controller_module.GenerationEngine, "run", hang)
    watchdog = "async_rl.stall_watchdog"
    limits = [f"{watchdog}.interval_s=0.01", f"{watchdog}.stall_timeout_s=0.05"]
    with pytest.raises(TimeoutError, match=r"no progress for 0\.05 s"):
        run(set_up(tmp_path, *limits, generations=1))


def test_missing_policy_is_refused_before_the_job_starts(set_up, tmp_path):
    with pytest.raises(FileNotFoundError, match="is missing"):
        set_up(tmp_path, f"policy.model_name={tmp_path}")


def test_missing_prompts_are_refused_before_the_job_starts(set_up, tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        set_up(tmp_path, f"data.train.data_path={tmp_path / 'none.jsonl'}")


def test_longer_sequences_than_the_policys_are_refused_before_the_job_starts(
    set_up, tmp_path
):
    with pytest.raises(ValueError, match="max_total_sequence_length"):
        set_up(tmp_path, "policy.max_total_sequence_length=9999")


def test_prompt_that_fills_the_sequence_is_refused_before_the_job_starts(
    set_up, tmp_path
):
    with pytest.raises(ValueError, match="prompt 0"):
        set_up(tmp_path, "policy.max_total_sequence_length=60")


# -- trainer checkpoints -------------------------------------------------------------


def checkpoint(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    (folder / name / "training_info.json").write_text("{}")
    return folder / name


def test_latest_checkpoint_is_picked_by_number(tmp_path):
    for name in ("step_9", "step_10", "step_2"):
        checkpoint(tmp_path, name)
    assert latest_checkpoint(tmp_path) == tmp_path / "step_10"


def test_partial_and_other_folders_are_no_checkpoint(tmp_path):
    for name in (".step_3.partial", "step_4.old", "bootstrap", "step_"):
        checkpoint(tmp_path, name)
    assert latest_checkpoint(tmp_path) is None


def test_folder_with_snapshots_alone_is_no_checkpoint(tmp_path):
    expected = checkpoint(tmp_path, "step_1")
    (tmp_path / "step_2" / "rollout_snapshots").mkdir(parents=True)
    assert latest_checkpoint(tmp_path) == expected


def test_missing_folder_has_no_checkpoint(tmp_path):
    assert latest_checkpoint(tmp_path / "none") is None
