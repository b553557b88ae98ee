# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The bookkeeping around vLLM, whose place a fake takes that runs on a CPU."""

import asyncio
import copy
import itertools
import os
import subprocess
import sys
from dataclasses import replace

import fake_vllm
import pytest
import torch

from minirl import setup
from minirl.constraint import Constraint
from minirl.controller import SingleController
from minirl.generation import Call, Prefix
from minirl.setup import setup_single_controller
from minirl.snapshot import SnapshotWriter, read_records, restore_snapshot
from minirl.vllm_backend import PATH_VARIABLE, VllmEngine, check_vllm

VLLM = "policy.generation.backend=vllm"
LENGTH = 20
HOT = "policy.generation.temperature=1.9"


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    """The fake, in the place of the package."""
    monkeypatch.setitem(sys.modules, "vllm", fake_vllm)
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")


@pytest.fixture
def make_engine(make_config, tokenizer, shipped_policy, memory_data_plane):
    """Makes an engine, with an empty data plane if none is given."""

    def make(*overrides, data_plane=None, policy=shipped_policy):
        config = make_config(VLLM, HOT, *overrides, prompts=2)
        data_plane = data_plane or memory_data_plane()
        engine = VllmEngine(config, data_plane, tokenizer.end_id)
        engine.load(copy.deepcopy(policy))  # which update_weights changes
        return engine

    return make


@pytest.fixture
def new_call(prompts):
    def make(prompt_idx=0, generation=0, limit=LENGTH, constraint=None):
        prompt = prompts[0].prompt_ids
        key = (prompt_idx, generation, 1)
        return Call(f"rollout-{prompt_idx}", key, prompt, limit, constraint)

    return make


def run(engine, *calls, until=lambda: False):
    """Run calls in the engine's own loop to their end, or until a condition holds."""

    async def run():
        engine._wake = asyncio.Event()  # of this event loop
        loop = asyncio.create_task(engine.run())
        tasks = [asyncio.create_task(engine.generate(call)) for call in calls]
        while not (until() or loop.done() or all(task.done() for task in tasks)):
            await asyncio.sleep(0)
        loop.cancel()
        for task in [*tasks, loop]:
            if task.done():
                task.result()
            task.cancel()

    asyncio.run(run())
    return calls[0]


def bits(call):
    return call.token_ids, call.logprobs, call.finish_reason


def cut(engine, call, tokens):
    """A call's prefix after some tokens, staged as a snapshot stages it."""
    run(engine, call, until=lambda: len(call.token_ids) == tokens)
    assert engine.calls() == [call] and call.can_be_cut
    engine.stage(engine.calls())
    staged = engine.read_staged(call.staging_keys)
    request = call.request_digest
    keys, digest = call.staging_keys, call.digest()
    return Prefix(call.model_call_id, *staged, keys, 0, request, digest)


def submitted(engine):
    return engine.llm.llm_engine.submitted


# -- calls ---------------------------------------------------------------------------


def test_a_free_call_is_generated_by_vllm(make_engine, new_call):
    call = run(engine := make_engine(), new_call())
    (request,) = submitted(engine)
    assert request.prompt_ids == call.prompt_ids
    assert call.token_ids == request.token_ids
    expected = [
        entry[token].logprob
        for token, entry in zip(request.token_ids, request.logprobs, strict=True)
    ]
    assert call.logprobs == expected and len(set(expected)) > 1
    assert engine.read_staged(call.staging_keys) == (call.token_ids, call.logprobs)
    assert engine.decoded_tokens == len(call.token_ids)


def test_a_constrained_call_stays_with_minirl(
    make_engine, new_call, tokenizer, prompts
):
    engine = make_engine()
    constraint = Constraint(tokenizer, prompts[0].tool)
    call = run(engine, new_call(limit=200, constraint=constraint))
    assert tokenizer.parse_tool_call(call.token_ids)[0] == "calendar_create_event"
    assert submitted(engine) == []


def test_both_kinds_run_at_the_same_time(make_engine, new_call, tokenizer, prompts):
    engine = make_engine()
    free, forced = new_call(), new_call(1, limit=200)
    forced.constraint = Constraint(tokenizer, prompts[0].tool)
    run(engine, forced, free, until=lambda: len(free.token_ids) > 3)
    assert forced.fed > 3 and engine.calls() == [forced, free]


def test_vllm_is_asked_as_configured(make_engine, new_call, tokenizer):
    engine = make_engine("policy.generation.top_p=0.5")
    run(engine, new_call(limit=7))
    params = submitted(engine)[0].params
    assert (params.temperature, params.top_p, params.max_tokens) == (1.9, 0.5, 7)
    assert params.stop_token_ids == [tokenizer.end_id]
    assert (params.logprobs, params.detokenize) == (0, False)


@pytest.mark.parametrize(
    "overrides, compiled",
    [
        ([], "inductor"),
        (["policy.generation.vllm_cfg.enforce_eager=true"], False),
        (["policy.generation.vllm_kwargs.compilation_config.backend=eager"], "eager"),
    ],
)
def test_how_vllm_compiles(make_engine, overrides, compiled):
    assert make_engine(*overrides).llm.compiled == compiled


def test_the_engine_is_in_this_process(make_engine):
    make_engine()
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_seeded_by_identity(make_engine, new_call):
    seeds = []
    for call in [new_call(), new_call(1), new_call(generation=1)]:
        run(engine := make_engine(), new_call(9), call)
        seeds.append(submitted(engine)[1].params.seed)
    assert len(set(seeds)) == 3
    run(engine := make_engine(), new_call())  # in the first slot, now
    assert submitted(engine)[0].params.seed == seeds[0]
    run(engine := make_engine("grpo.seed=5"), new_call())
    assert submitted(engine)[0].params.seed != seeds[0]


def test_ends_with_the_end_token(make_engine, new_call):
    alone = run(make_engine(), new_call())
    assert alone.finish_reason == "length" and len(alone.token_ids) == LENGTH
    engine = make_engine()
    engine.end_id = alone.token_ids[4]
    call = run(engine, new_call())
    end = alone.token_ids.index(engine.end_id) + 1
    assert bits(call) == (alone.token_ids[:end], alone.logprobs[:end], "stop")


def test_ends_at_the_longest_sequence(make_engine, new_call):
    call = new_call()
    longest = len(call.prompt_ids) + 5
    engine = make_engine(f"policy.max_total_sequence_length={longest}")
    run(engine, call)
    assert len(call.token_ids) == 5 and call.finish_reason == "length"


def test_it_waits_when_there_is_nothing_to_do(make_engine, new_call):
    engine = make_engine()

    async def idle():
        loop = asyncio.create_task(engine.run())
        await engine.generate(new_call())
        steps = engine.llm.llm_engine.steps
        assert not engine.has_work()
        for _ in range(20):
            await asyncio.sleep(0)
        assert engine.llm.llm_engine.steps == steps
        await engine.generate(new_call(1))
        loop.cancel()

    asyncio.run(idle())


# -- cuts ----------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 9, LENGTH - 1])
def test_a_continued_call_is_the_uninterrupted_one(make_engine, new_call, tokens):
    alone = run(first := make_engine(), new_call())
    prefix = cut(stopped := make_engine(), new_call(), tokens)
    engine = make_engine(data_plane=stopped.dp_client)
    engine.continue_from(call := new_call(), prefix)
    run(engine, call)
    assert bits(call) == bits(alone)
    assert engine.read_staged(call.staging_keys) == (alone.token_ids, alone.logprobs)
    (whole,), (request,) = submitted(first), submitted(engine)
    assert request.prompt_ids == alone.prompt_ids + alone.token_ids[:tokens]
    assert request.params == replace(whole.params, max_tokens=LENGTH - tokens)


def test_a_cut_is_what_has_arrived(make_engine, new_call):
    prefix = cut(engine := make_engine(), new_call(), 6)
    assert len(prefix.token_ids) == 6
    assert prefix.token_ids == submitted(engine)[0].token_ids[:6]


def test_nothing_has_arrived_of_a_call_at_first(make_engine, new_call):
    call = new_call()
    run(engine := make_engine(), call, until=lambda: engine.llm.llm_engine.steps == 1)
    assert engine.calls() == [call] and not call.can_be_cut


def test_a_prefix_keeps_its_logprobs(make_engine, new_call):
    prefix = cut(stopped := make_engine(), new_call(), 6)
    prefix.logprobs = [-0.125 * x for x in range(6)]
    engine = make_engine(data_plane=stopped.dp_client)
    engine.continue_from(call := new_call(), prefix)
    run(engine, call)
    assert call.logprobs[:6] == prefix.logprobs and len(call.logprobs) == LENGTH


# -- weights -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_weights(shipped_policy):
    return {name: 1.1 * x for name, x in shipped_policy.state_dict().items()}


def test_new_weights_reach_vllm(make_engine, new_call, shipped_policy, other_weights):
    engine = make_engine()
    before = run(engine, new_call())
    engine.update_weights(other_weights, 1)
    changed = run(engine, new_call())
    assert changed.logprobs != before.logprobs and changed.first_weight_version == 1
    engine.update_weights(shipped_policy.state_dict(), 2)
    assert bits(run(engine, new_call())) == bits(before)


def test_it_starts_with_the_policys_weights(
    make_engine, new_call, shipped_policy, other_weights
):
    engine = make_engine()
    engine.update_weights(other_weights, 1)
    changed = run(engine, new_call())
    policy = type(shipped_policy)(shipped_policy.config).requires_grad_(False)
    policy.load_state_dict(other_weights)
    assert bits(run(make_engine(policy=policy), new_call())) == bits(changed)


def test_weights_are_not_replaced_under_a_running_call(
    make_engine, new_call, other_weights
):
    engine, call = make_engine(), new_call()
    run(engine, call, until=lambda: call.token_ids)
    with pytest.raises(RuntimeError, match="1 calls run on the old weights"):
        engine.update_weights(other_weights, 1)


# -- errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit, expected",
    [
        (4, "rollout-0: after 4 tokens vLLM's finish reason is length, expected None"),
        (99, "after 20 tokens vLLM's finish reason is None, expected length"),
    ],
)
def test_vllm_ending_a_call_elsewhere_is_an_error(
    make_engine, new_call, limit, expected
):
    engine = make_engine()

    def change_the_limit():
        for request in submitted(engine):
            request.params.max_tokens = limit

    with pytest.raises(RuntimeError, match=expected):
        run(engine, new_call(), until=change_the_limit)


def test_a_failing_step_ends_the_loop(make_engine, new_call, monkeypatch):
    engine = make_engine()

    def fail():
        raise RuntimeError("EngineCore died")

    monkeypatch.setattr(engine.llm.llm_engine, "step", fail)
    with pytest.raises(RuntimeError, match="EngineCore died"):
        run(engine, new_call())


def test_a_refused_call_fails(make_engine, new_call):
    engine = make_engine("policy.max_total_sequence_length=40")
    with pytest.raises(ValueError, match="the prompt is too long"):
        run(engine, new_call())


def test_a_gpu_is_asked_for(make_config, tokenizer, prompt_rows, tmp_path):
    with pytest.raises(ValueError, match=f"{VLLM}: expected a GPU, found .*=cpu"):
        setup_single_controller(make_config(VLLM), tokenizer)


def test_vllm_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "vllm")
    (tmp_path / "installed" / "vllm").mkdir(parents=True)
    (tmp_path / "installed" / "vllm" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "installed")])
    check_vllm("cuda")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ValueError, match=r"found none in Python's path"):
        check_vllm("cuda")
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "installed"))
    check_vllm("cuda")
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ValueError, match=f"found none in {PATH_VARIABLE}=.*none"):
        check_vllm("cuda")


def test_vllm_from_a_folder_of_its_own(tmp_path):
    """For this process and those that vLLM starts, and not before it is imported."""
    (tmp_path / "vllm.py").write_text("where = 'the folder'\n")
    (tmp_path / "more.pth").write_text("import sys; sys.stand_ins = True\n")
    code = (
        "import subprocess, sys\n"
        "from minirl import vllm_backend\n"
        "assert 'vllm' not in sys.modules and not hasattr(sys, 'stand_ins')\n"
        "assert vllm_backend._import_vllm().where == 'the folder' and sys.stand_ins\n"
        "subprocess.run([sys.executable, '-c', 'import vllm, minirl'], check=True)\n"
    )
    path = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {PATH_VARIABLE: str(tmp_path), "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


# -- rollouts and the controller -----------------------------------------------------


def test_rollouts_of_a_step(make_run, prompts):
    run = make_run(VLLM)
    run.manager.begin_step(0)
    run.decode()
    rows = run.rows()
    assert len(rows) == 6 and len(submitted(run.engine)) == 4  # two lists, twice
    for (prompt_idx, _), row in rows.items():
        generated = row["fields"]["token_loss_mask"].tolist()
        turns = generated[0] + sum(b > a for a, b in itertools.pairwise(generated))
        assert turns == (1 if prompt_idx == 2 else 2)


def test_snapshot_restores_what_vllm_had_generated(make_run, tmp_path):
    whole = make_run(VLLM)
    whole.manager.begin_step(0)
    whole.decode()
    stopped = make_run(VLLM)
    stopped.manager.begin_step(0)

    def in_lists():
        calls = [call for call in stopped.engine.calls() if not call.constraint]
        return len(calls) == 4 and min(len(call.token_ids) for call in calls) > 2

    stopped.decode(in_lists)
    writer = SnapshotWriter(tmp_path, stopped.manager, 3)
    snapshot = writer.publish(writer.cut(0, 0))
    cuts = [
        cut["continuation"]["prefix_token_count"]
        for record in read_records(snapshot, "model").values()
        for cut in record["generation_cuts"]
        if cut["continuation"]
    ]
    assert len(cuts) == 4 and min(cuts) > 2
    restored = make_run(VLLM)
    restore_snapshot(snapshot, restored.manager)
    restored.decode()
    expected, found = whole.rows(), restored.rows()
    assert sorted(found) == sorted(expected)
    for key, row in found.items():
        for name, column in row["fields"].items():
            assert torch.equal(column, expected[key]["fields"][name])


def test_two_steps_train_with_vllm(
    make_config,
    tokenizer,
    write_workload,
    memory_data_plane,
    monkeypatch,
    tmp_path,
):
    """The controller takes the engine, and hands it each step's weights."""
    monkeypatch.setattr(setup, "DataPlaneClient", memory_data_plane)
    monkeypatch.setattr(setup, "check_vllm", lambda device: None)
    config = make_config(
        VLLM,
        "policy.optimizer.lr=0.01",
        f"data.train.data_path={write_workload(tmp_path / 'rows.jsonl', [5, 6], 2)}",
        f"checkpointing.checkpoint_dir={tmp_path / 'checkpoints'}",
        f"logger.log_dir={tmp_path / 'logs'}",
        "grpo.max_num_steps=2",
    )
    controller = SingleController(setup_single_controller(config, tokenizer)[0])
    asyncio.run(controller.run())
    engine = controller.rollouts.engine
    assert isinstance(engine, VllmEngine) and len(submitted(engine)) == 8
    trained = controller.policy.weights()
    inside = engine.llm.model.policy.state_dict()
    assert all(torch.equal(trained[name], inside[name]) for name in trained)
    assert not all(
        torch.equal(trained[name], weight)
        for name, weight in setup.load_policy(config.policy.model_name)
        .state_dict()
        .items()
    )
