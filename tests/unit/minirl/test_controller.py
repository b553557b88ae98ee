# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import asyncio
import json
import re
import shutil
import time
from pathlib import Path

import pytest
import torch
from ray import cloudpickle

from minirl import controller as controller_module
from minirl import setup
from minirl.bootstrap import write_anchor
from minirl.checkpoint import latest_checkpoint
from minirl.controller import SingleController
from minirl.model import load_policy
from minirl.setup import setup_single_controller
from minirl.snapshot import SnapshotWriter
from minirl.snapshot_folder import published

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
    return load_policy(folder / "checkpoints" / f"step_{step}").state_dict()


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


@pytest.mark.parametrize("baseline, trained", [("false", 3), ("true", 0)])
def test_reinforce_plus_plus_learns_from_prompts_that_differ_if_it_may(
    in_memory, set_up, tmp_path, baseline, trained
):
    """A prompt's only generation has no sibling to differ from."""
    overrides = [
        "grpo.adv_estimator.name=reinforce_plus_plus",
        f"grpo.adv_estimator.minus_baseline={baseline}",
        "grpo.max_num_steps=1",
    ]
    run(set_up(tmp_path, *overrides, generations=1))
    rows = dump(tmp_path, 1).values()
    assert len({row["rewards"][0] for row in rows}) == 2
    assert sum(any(row["advantages"][0]) for row in rows) == trained
    total = sum(sum(row["advantages"][0]) for row in rows)
    assert total == pytest.approx(0, abs=1e-4)


# -- logs ----------------------------------------------------------------------------


def test_train_steps_are_logged_with_their_maximum(in_memory, set_up, tmp_path, caplog):
    caplog.set_level("INFO", "minirl")
    run(set_up(tmp_path, generations=1))
    steps = [line for line in caplog.messages if line.startswith("train step")]
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
    job, in_memory, set_up, tmp_path, caplog
):
    caplog.set_level("INFO", "minirl")
    run_until(set_up(tmp_path), snapshot_in_lists(step=0))
    run(set_up(tmp_path))
    log = caplog.text
    assert len(re.findall("generation prefix completed", log)) == 8
    for step in (1, 2):
        assert_same_rows(dump(tmp_path, step, exp="exp_002"), dump(job, step))
        assert equal(weights(tmp_path, step), weights(job, step))


def test_job_killed_in_its_second_step_goes_on_there(
    job, in_memory, set_up, tmp_path, caplog
):
    caplog.set_level("INFO", "minirl")
    folder = copy_checkpoint(job, tmp_path / "killed", step=1)
    run_until(set_up(folder), snapshot_in_lists(step=1))
    run(set_up(folder))
    log = caplog.text
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
    run(set_up(tmp_path, FAST, keep, generations=1))
    folder = tmp_path / "checkpoints" / "step_1" / "rollout_snapshots"
    names = [path.name for path in published(folder)]
    assert len(names) == 2 and int(names[0].partition("_")[2]) > 2


def test_first_checkpoint_ends_the_bootstrap_snapshots_but_not_their_anchor(
    in_memory, set_up, tmp_path
):
    one = "grpo.max_num_steps=1"
    job = run(set_up(tmp_path, FAST, one, generations=1))
    bootstrap = tmp_path / "checkpoints" / "bootstrap"
    assert job.snapshots > 2
    assert not [*(bootstrap / "rollout_snapshots").iterdir()]
    assert (bootstrap / "manifest.json").exists()
    assert set_up(tmp_path, FAST, one, generations=1).save_state.current_step == 1


def test_bootstrap_snapshots_stay_until_a_checkpoint_is_durable(
    in_memory, set_up, tmp_path
):
    late = "checkpointing.save_period=5"
    run(set_up(tmp_path, FAST, late, "grpo.max_num_steps=1", generations=1))
    assert published(tmp_path / "checkpoints" / "bootstrap" / "rollout_snapshots")


def test_snapshot_that_is_being_published_is_pruned_as_well(
    in_memory, set_up, tmp_path, monkeypatch
):
    publish = SnapshotWriter.publish

    def slowly(writer, files):
        time.sleep(1)
        return publish(writer, files)

    monkeypatch.setattr(SnapshotWriter, "publish", slowly)
    run(set_up(tmp_path, FAST, "grpo.max_num_steps=1", generations=1))
    folder = tmp_path / "checkpoints" / "bootstrap" / "rollout_snapshots"
    assert not [*folder.iterdir()]


def test_older_checkpoints_are_pruned(in_memory, set_up, tmp_path):
    run(set_up(tmp_path, "checkpointing.keep_top_k=1", generations=1))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["bootstrap", "step_2"]


def test_snapshots_of_a_later_step_name_the_step_they_are_based_on(
    in_memory, set_up, tmp_path
):
    run(set_up(tmp_path, FAST, generations=1))
    folder = tmp_path / "checkpoints" / "step_1" / "rollout_snapshots"
    manifest = json.loads((published(folder)[-1] / "manifest.json").read_text())
    assert manifest["base_train_step"] == manifest["trainer_version"] == 1


def test_job_that_saves_every_second_step_can_be_started_again(
    in_memory, set_up, tmp_path
):
    saving = ["checkpointing.save_period=2", FAST]
    run_until(
        set_up(tmp_path, *saving, generations=1),
        lambda job: job.state.current_step == 1 and len(job.rollouts.episodes) == 3,
    )
    args = set_up(tmp_path, *saving, generations=1)
    assert args.save_state.current_step == 0 and args.snapshot


def test_without_checkpointing_nothing_is_written(in_memory, set_up, tmp_path):
    off = ["checkpointing.enabled=false", "grpo.max_num_steps=1", FAST]
    run(set_up(tmp_path, *off, generations=1))
    assert not (tmp_path / "checkpoints").exists()


def test_without_checkpointing_nothing_is_restored(set_up, tmp_path):
    folder = tmp_path / "checkpoints"
    write_anchor(folder, set_up(tmp_path / "other", "grpo.seed=1").master_config)
    (folder / "step_1").mkdir()
    (folder / "step_1" / "training_info.json").touch()
    args = set_up(tmp_path, "checkpointing.enabled=false")
    assert (args.checkpoint, args.snapshot) == (None, None)


# -- the bootstrap anchor ------------------------------------------------------------


def anchor(folder):
    return folder / "checkpoints" / "bootstrap" / "manifest.json"


def test_anchor_is_there_before_the_job_starts(set_up, tmp_path):
    assert set_up(tmp_path).snapshot is None
    assert anchor(tmp_path).exists()


def test_job_without_its_anchor_is_refused(in_memory, set_up, tmp_path):
    run_until(set_up(tmp_path), snapshot_in_lists(step=0))
    kept = anchor(tmp_path).read_text()
    anchor(tmp_path).unlink()
    with pytest.raises(FileNotFoundError, match="the bootstrap manifest is missing"):
        set_up(tmp_path)
    anchor(tmp_path).write_text(kept)
    assert set_up(tmp_path).snapshot


def test_empty_bootstrap_folder_is_refused(set_up, tmp_path):
    anchor(tmp_path).parent.mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="the bootstrap manifest is missing"):
        set_up(tmp_path)


@pytest.mark.parametrize("mode", ["latest", "none"])
def test_job_of_another_configuration_is_refused(set_up, tmp_path, mode):
    restore = f"rollout_checkpointing.restore_mode={mode}"
    set_up(tmp_path, restore)
    with pytest.raises(ValueError, match=r"grpo\.seed was 1234, is 1$"):
        set_up(tmp_path, restore, "grpo.seed=1")
    set_up(tmp_path, restore, "policy.optimizer.lr=1", FAST)


def test_snapshots_of_another_configuration_are_refused(in_memory, set_up, tmp_path):
    other = tmp_path / "other"
    run_until(set_up(other, "grpo.seed=1"), snapshot_in_lists(step=0))
    set_up(tmp_path)
    snapshots = Path("checkpoints") / "bootstrap" / "rollout_snapshots"
    shutil.copytree(other / snapshots, tmp_path / snapshots)
    with pytest.raises(ValueError, match=r"no snapshot fits: .*bootstrap_fingerprint"):
        set_up(tmp_path)


def test_checkpoint_alone_needs_no_anchor(job, set_up, tmp_path):
    folder = copy_checkpoint(job, tmp_path / "moved", step=1)
    assert set_up(folder).save_state.current_step == 1
    assert not anchor(folder).exists()


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


def test_snapshot_that_fails_after_the_rollouts_ends_the_job(
    in_memory, set_up, tmp_path, monkeypatch
):
    def fail(writer, files):
        while writer.manager.finished < 3:
            time.sleep(0.01)
        time.sleep(0.2)
        raise OSError("disk full")

    args = set_up(tmp_path, FAST, "grpo.max_num_steps=1", generations=1)
    monkeypatch.setattr(SnapshotWriter, "publish", fail)
    with pytest.raises(OSError, match="disk full"):
        run(args)


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
