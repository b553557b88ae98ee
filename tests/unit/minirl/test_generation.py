# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import asyncio
import hashlib
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minirl.constraint import Constraint
from minirl.generation import (
    MAX_PIECES,
    Call,
    GenerationEngine,
    Prefix,
    prefix_digest,
)

PROMPT = [3, 20, 30, 40, 1, 4]
LENGTH = 10
STAGING = "rollout_staging"
CUTS = st.sets(st.integers(1, LENGTH - 1), min_size=1).map(sorted)
LOGPROBS = st.floats(-50, 0, width=32)


@pytest.fixture(scope="module")
def make_engine(random_policy, tokenizer, make_config, memory_data_plane):
    """Makes an engine of four slots, with an empty data plane if none is given."""

    def make(*overrides, data_plane=None):
        overrides = ["policy.max_total_sequence_length=64", *overrides]
        config = make_config(*overrides, prompts=2)
        data_plane = data_plane or memory_data_plane()
        engine = GenerationEngine(config, data_plane, tokenizer.end_id)
        engine.load(random_policy)
        return engine

    return make


def new_call(prompt_idx=0, generation=0, turn=0, prompt=PROMPT, limit=LENGTH):
    key = (prompt_idx, generation, turn)
    return Call(f"rollout-{prompt_idx}", key, list(prompt), limit, None)


def others():
    """Two calls of other prompts, of other lengths."""
    return [new_call(8, prompt=PROMPT[2:], limit=4), new_call(9, limit=12)]


def run(engine, calls, tokens=None, stage_at=()):
    """Run calls to their end, or only until the last one has some tokens.

    The last one is staged whenever it has as many tokens as `stage_at` says.
    """
    last = calls[-1]

    async def decode():
        tasks = [asyncio.create_task(engine.generate(call)) for call in calls]
        await asyncio.sleep(0)
        while engine.running or engine._waiting:
            engine.step()
            if len(last.token_ids) in stage_at:
                engine.stage([last])
            if len(last.token_ids) == tokens:
                return [task.cancel() for task in tasks]
        await asyncio.gather(*tasks)

    asyncio.run(decode())
    return last


def cut(engine, tokens, stage_at=(), call=None):
    """Cut a call after some of its tokens; what a snapshot refers to."""
    call = run(engine, [call or new_call()], tokens, stage_at)
    assert call.can_be_cut
    engine.stage([call])
    staged = engine.read_staged(call.staging_keys)
    version, request = call.first_weight_version, call.request_digest
    name, keys, digest = call.model_call_id, call.staging_keys, call.digest()
    return Prefix(name, *staged, list(keys), version, request, digest)


def go_on(engine, prefix):
    """A new call, after a restart, that goes on from the prefix to its end."""
    call = new_call()
    engine.continue_from(call, prefix)
    return run(engine, [call])


def bits(call):
    return call.token_ids, [logprob.hex() for logprob in call.logprobs]


@pytest.fixture(scope="module")
def alone(make_engine):
    """The call that others are compared with, run alone and uninterrupted."""
    call = run(make_engine(), [new_call()])
    assert len(call.token_ids) == LENGTH and call.slot == 0
    return call


# -- what a call's tokens depend on --------------------------------------------------


def test_call_beside_others_is_the_call_alone(make_engine, alone):
    engine = make_engine()
    call = new_call()
    run(engine, [call, *others()])
    assert call.slot == alone.slot and bits(call) == bits(alone)


def test_call_in_another_slot_is_the_call_alone(make_engine, alone):
    call = run(make_engine(), [*others(), new_call()])
    assert call.slot == 2 and bits(call) == bits(alone)


def test_call_that_waited_for_a_slot_is_the_call_alone(make_engine, alone):
    before = [*others(), new_call(6, limit=14), new_call(7, limit=20)]
    call = run(make_engine(), [*before, new_call()])
    assert call.slot == 0 and bits(call) == bits(alone)


def test_calls_do_not_depend_on_their_order(make_engine):
    first, second = others(), others()
    run(make_engine(), first)
    run(make_engine(), second[::-1])
    assert list(map(bits, first)) == list(map(bits, second))


@pytest.mark.parametrize(
    "other",
    [{"prompt_idx": 1}, {"generation": 1}, {"turn": 1}],
    ids=lambda other: next(iter(other)),
)
def test_calls_of_another_identity_sample_otherwise(make_engine, alone, other):
    assert run(make_engine(), [new_call(**other)]).token_ids != alone.token_ids


def test_another_seed_samples_otherwise(make_engine, alone):
    call = run(make_engine("grpo.seed=1"), [new_call()])
    assert call.token_ids != alone.token_ids


def test_global_random_state_does_not_matter(make_engine, alone):
    torch.manual_seed(123)
    assert bits(run(make_engine(), [new_call()])) == bits(alone)


def test_limit_does_not_change_what_is_sampled_below_it(make_engine, alone):
    call = run(make_engine(), [new_call(limit=LENGTH // 2)])
    assert call.token_ids == alone.token_ids[: LENGTH // 2]


def test_logprobs_are_those_of_the_whole_sequence(alone, random_policy):
    sequence = torch.tensor(alone.prompt_ids + alone.token_ids)
    logprobs = random_policy(sequence[None, :-1])[0].log_softmax(-1)
    expected = logprobs.gather(-1, sequence[1:, None]).squeeze(-1)[-LENGTH:]
    torch.testing.assert_close(torch.tensor(alone.logprobs), expected)


def test_tiny_top_p_is_greedy(make_engine, random_policy):
    call = run(make_engine("policy.generation.top_p=0.000001"), [new_call()])
    sequence = torch.tensor(call.prompt_ids + call.token_ids)
    most_likely = random_policy(sequence[None, :-1])[0].argmax(-1)
    assert call.token_ids == most_likely[-LENGTH:].tolist()


@pytest.mark.parametrize("cut_at", [0, 4])
def test_without_batch_invariance_calls_agree_but_for_rounding(
    make_engine, alone, cut_at
):
    engine, call = make_engine("policy.generation.batch_invariant=false"), new_call()
    if cut_at:
        engine.continue_from(
            call, cut(make_engine(data_plane=engine.dp_client), cut_at)
        )
    run(engine, [*others(), call])
    assert call.token_ids == alone.token_ids
    assert call.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


# -- how a call ends -----------------------------------------------------------------


def test_call_ends_at_its_limit(make_engine):
    call = run(make_engine(), [new_call(limit=3)])
    assert (call.finish_reason, len(call.token_ids)) == ("length", 3)


def test_call_ends_where_the_sequence_is_full(make_engine):
    engine = make_engine(f"policy.max_total_sequence_length={len(PROMPT) + 4}")
    call = run(engine, [new_call()])
    assert (call.finish_reason, len(call.token_ids)) == ("length", 4)


def test_call_stops_at_the_end_token(make_engine, alone):
    engine = make_engine()
    engine.end_id = alone.token_ids[4]
    call = run(engine, [new_call()])
    assert call.finish_reason == "stop"
    assert call.token_ids == alone.token_ids[: alone.token_ids.index(engine.end_id) + 1]


def test_finished_calls_give_their_slots_back(make_engine):
    engine = make_engine()
    run(engine, [*others(), new_call(6), new_call(7), new_call(5), new_call(4)])
    assert engine.running == {} and engine._free == [0, 1, 2, 3]


def constrained_call(tokenizer):
    """A call of which the schema leaves no token to the policy."""
    properties = {"number": {"type": "integer", "enum": [7]}}
    call = new_call(prompt_idx=7, limit=30)
    tool = {"name": "count", "parameters": {"properties": properties}}
    call.constraint = Constraint(tokenizer, tool)
    return call


def test_constraint_masks_what_is_sampled(make_engine, tokenizer):
    call = run(make_engine(), [constrained_call(tokenizer)])
    assert tokenizer.parse_tool_call(call.token_ids) == ("count", {"number": 7})


def test_constraint_binds_no_other_call(make_engine, tokenizer, alone):
    call = run(make_engine(), [constrained_call(tokenizer), new_call()])
    assert bits(call) == bits(alone)


def test_weights_are_not_replaced_under_a_running_call(make_engine, random_policy):
    engine = make_engine()
    run(engine, [new_call()], tokens=1)
    with pytest.raises(RuntimeError, match="1 calls run on the old weights"):
        engine.update_weights(random_policy.state_dict(), 1)


def test_new_weights_change_what_is_generated(make_engine, random_policy, alone):
    engine = make_engine()
    before = {name: x.clone() for name, x in random_policy.state_dict().items()}
    engine.update_weights({name: 1.1 * x for name, x in before.items()}, 1)
    call = run(engine, [new_call()])
    engine.update_weights(before, 2)
    assert call.logprobs != alone.logprobs and call.first_weight_version == 1
    assert bits(run(engine, [new_call()])) == bits(alone)


# -- staging and cuts ----------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(stage_at=CUTS)
def test_staged_pieces_are_the_calls_tokens(make_engine, alone, stage_at):
    engine = make_engine()
    call = run(engine, [new_call()], stage_at=stage_at)
    assert len(call.staging_keys) <= MAX_PIECES
    assert engine.read_staged(call.staging_keys) == (alone.token_ids, alone.logprobs)


def test_staging_does_not_change_the_call(make_engine, alone):
    assert bits(run(make_engine(), [new_call()], stage_at=[1, 5])) == bits(alone)


@pytest.mark.parametrize("pieces", range(1, LENGTH))
def test_keys_of_a_call_are_all_that_is_staged(make_engine, pieces):
    engine = make_engine()
    call = run(engine, [new_call()], stage_at=range(pieces))
    staged = engine.dp_client.list_sample_ids(STAGING)
    assert staged == sorted(call.staging_keys)


def test_staging_again_without_new_tokens_adds_no_key(make_engine):
    engine = make_engine()
    call = run(engine, [new_call()])
    keys = list(call.staging_keys)
    engine.stage([call])
    assert call.staging_keys == keys


def test_staged_loss_mask_is_one(make_engine):
    engine = make_engine()
    call = run(engine, [new_call()])
    keys = call.staging_keys
    (mask,) = engine.dp_client.get_samples(keys, STAGING, ["loss_mask"])["loss_mask"]
    assert mask.tolist() == [1.0] * LENGTH


@pytest.mark.parametrize("tokens, cuttable", [(1, True), (5, True), (LENGTH, False)])
def test_call_can_be_cut_while_it_generates(make_engine, tokens, cuttable):
    assert run(make_engine(), [new_call()], tokens).can_be_cut is cuttable


def test_call_without_a_token_cannot_be_cut():
    assert not new_call().can_be_cut


def test_constrained_call_cannot_be_cut(make_engine, tokenizer):
    call = run(make_engine(), [constrained_call(tokenizer)], tokens=3)
    assert call.token_ids and not call.can_be_cut


@pytest.mark.parametrize("tokens", range(1, LENGTH))
def test_continued_call_is_the_uninterrupted_one(make_engine, alone, tokens):
    engine = make_engine()
    prefix = cut(engine, tokens)
    call = go_on(make_engine(data_plane=engine.dp_client), prefix)
    assert bits(call) == bits(alone)


@settings(deadline=None, max_examples=20)
@given(cuts=CUTS)
def test_call_cut_again_and_again_is_the_uninterrupted_one(make_engine, alone, cuts):
    engine = make_engine()
    prefix = cut(engine, cuts[0])
    for tokens in cuts[1:]:
        engine = make_engine(data_plane=engine.dp_client)
        call = new_call()
        engine.continue_from(call, prefix)
        prefix = cut(engine, tokens, call=call)
    call = go_on(make_engine(data_plane=engine.dp_client), prefix)
    assert bits(call) == bits(alone)


def test_continued_call_beside_others_is_the_uninterrupted_one(make_engine, alone):
    engine = make_engine()
    prefix = cut(engine, 4)
    call = new_call()
    engine = make_engine(data_plane=engine.dp_client)
    engine.continue_from(call, prefix)
    run(engine, [*others(), call])
    assert call.slot == 2 and bits(call) == bits(alone)


@settings(deadline=None, max_examples=20)
@given(cuts=CUTS)
def test_prefix_and_tail_are_the_whole_call(make_engine, alone, cuts):
    engine = make_engine()
    prefix = cut(engine, cuts[-1], stage_at=cuts)
    assert prefix.token_ids == alone.token_ids[: cuts[-1]]
    call = go_on(engine := make_engine(data_plane=engine.dp_client), prefix)
    assert engine.read_staged(call.staging_keys) == (alone.token_ids, alone.logprobs)


def test_call_cut_while_its_prefix_is_fed_keeps_all_of_it(make_engine, alone):
    engine = make_engine()
    prefix = cut(engine, 4)
    engine = make_engine(data_plane=engine.dp_client)
    call = new_call()
    engine.continue_from(call, prefix)
    again = cut(engine, 4, call=call)
    assert call.fed < len(PROMPT) + 4
    assert again.token_ids == prefix.token_ids and again.digest == prefix.digest
    assert bits(go_on(make_engine(data_plane=engine.dp_client), again)) == bits(alone)


def test_keys_of_the_cut_call_are_retired(make_engine):
    engine = make_engine()
    prefix = cut(engine, 4, stage_at=[1, 2])
    call = go_on(make_engine(data_plane=engine.dp_client), prefix)
    staged = engine.dp_client.list_sample_ids(STAGING)
    assert staged == sorted(call.staging_keys)
    assert not set(staged) & set(prefix.staging_keys)


def test_continued_call_keeps_its_first_weight_version(make_engine):
    engine = make_engine()
    engine.weight_version = 1
    prefix = cut(engine, 4)
    engine = make_engine(data_plane=engine.dp_client)
    engine.weight_version = 3
    assert go_on(engine, prefix).first_weight_version == 1


@pytest.mark.parametrize(
    "other",
    [{"prompt": [*PROMPT, 4]}, {"prompt": [5, *PROMPT[1:]]}, {"limit": LENGTH + 1}],
    ids=["longer prompt", "other prompt", "other limit"],
)
def test_prefix_of_another_request_is_refused(make_engine, other):
    engine = make_engine()
    prefix = cut(engine, 4)
    with pytest.raises(RuntimeError, match=f"not that of call {prefix.model_call_id}"):
        engine.continue_from(new_call(**other), prefix)
    assert engine.dp_client.list_sample_ids(STAGING) == sorted(prefix.staging_keys)


# -- digests and log lines -----------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 500), LOGPROBS), min_size=1, max_size=5),
    st.data(),
)
def test_digest_names_every_token_and_bit(prefix, data):
    token_ids, logprobs = map(list, zip(*prefix, strict=True))
    digest = prefix_digest("request", token_ids, logprobs)
    assert prefix_digest("request", list(token_ids), list(logprobs)) == digest
    assert prefix_digest("other request", token_ids, logprobs) != digest
    at = data.draw(st.integers(0, len(prefix) - 1))
    logprobs[at] -= 2.0**-20
    assert prefix_digest("request", token_ids, logprobs) != digest
    logprobs[at] += 2.0**-20
    token_ids[at] += 1
    assert prefix_digest("request", token_ids, logprobs) != digest


def test_restored_prefix_is_logged(make_engine, caplog):
    caplog.set_level("INFO", "minirl")
    engine = make_engine()
    prefix = cut(engine, 4)
    engine = make_engine(data_plane=engine.dp_client)
    engine.weight_version = 2
    call = go_on(engine, prefix)
    joined = ",".join(map(str, prefix.token_ids))
    assert (
        f"generation prefix restored: rollout_id=rollout-0-a0"
        f" model_call_id={call.model_call_id}"
        f" source_model_call_id={prefix.model_call_id}"
        f" prefix_tokens=4 prefix_digest={prefix.digest} weight_version_span=[0,2]"
        f" prefix_ids_sha256={hashlib.sha256(joined.encode()).hexdigest()}"
    ) in caplog.messages
    assert re.fullmatch("[0-9a-f]{64}", prefix.digest)


def test_completed_prefix_is_logged(make_engine, caplog):
    caplog.set_level("INFO", "minirl")
    engine = make_engine()
    prefix = cut(engine, 4)
    call = go_on(make_engine(data_plane=engine.dp_client), prefix)
    assert (
        f"generation prefix completed: rollout_id=rollout-0-a0"
        f" model_call_id={call.model_call_id}"
        f" source_model_call_id={prefix.model_call_id}"
        f" prefix_tokens=4 tail_tokens=6 total_generation_tokens=10"
    ) in caplog.messages


def test_uninterrupted_call_logs_no_prefix(make_engine, caplog):
    caplog.set_level("INFO", "minirl")
    run(make_engine(), [new_call()])
    assert caplog.messages == []
