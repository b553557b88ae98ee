# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
import torch

from minirl.rollout import Attempt, Group, Sibling, ledger_document, load_ledger

SHORT, LONG, COUNTER = 0, 1, 2  # prompts: lists of 4 and 24 integers, a counter


@pytest.fixture(scope="module")
def rows(whole_run):
    return whole_run.rows()


def column(row, name):
    return row["fields"][name].tolist()


def runs(row):
    """The row's runs of equal loss mask: (mask, token ids)."""
    found = []
    for token, mask in zip(
        column(row, "token_ids"), column(row, "token_loss_mask"), strict=True
    ):
        if not found or found[-1][0] != mask:
            found.append((mask, []))
        found[-1][1].append(token)
    return found


def texts(row, tokenizer):
    return [(mask, tokenizer.decode(tokens)) for mask, tokens in runs(row)]


# -- rows ----------------------------------------------------------------------------


def test_every_sibling_of_every_group_has_a_row(rows):
    assert sorted(rows) == [(prompt, g) for prompt in range(3) for g in range(2)]


@pytest.mark.parametrize("prompt", [SHORT, LONG])
def test_workplace_row_is_prompt_call_result_and_list(rows, tokenizer, prompts, prompt):
    first, call, result, listed = texts(rows[prompt, 0], tokenizer)
    assert first == (0.0, tokenizer.decode(prompts[prompt].prompt_ids))
    assert call[0] == 1.0 and call[1].startswith("<|call|>calendar_create_event{")
    assert result == (0.0, '<|tool|>{"event_id":"00000003"}<|end|><|assistant|>')
    assert listed[0] == 1.0 and listed[1].startswith("1\n2\n3\n")
    assert call[1].endswith("<|end|>") and listed[1].endswith("<|end|>")


def test_counter_row_is_prompt_and_call(rows, tokenizer, prompts):
    first, call = texts(rows[COUNTER, 0], tokenizer)
    assert first == (0.0, tokenizer.decode(prompts[COUNTER].prompt_ids))
    assert call[0] == 1.0 and call[1].startswith('<|call|>increment_counter{"count":1,')


def test_logprobs_are_zero_outside_the_loss_mask_and_negative_within(rows):
    for row in rows.values():
        logprobs = row["fields"]["generation_logprobs"]
        generated = row["fields"]["token_loss_mask"] == 1
        assert (logprobs[~generated] == 0).all()
        assert (logprobs[generated] <= 0).all() and logprobs[generated].sum() < 0


def test_columns_are_as_long_as_the_row(rows):
    for row in rows.values():
        assert len({len(values) for values in row["fields"].values()}) == 1


def test_logprobs_are_the_policys(rows, shipped_policy):
    for row in rows.values():
        token_ids = row["fields"]["token_ids"]
        logprobs = shipped_policy(token_ids[None, :-1])[0].log_softmax(-1)
        expected = logprobs.gather(-1, token_ids[1:, None]).squeeze(-1)
        expected = expected * row["fields"]["token_loss_mask"][1:]
        found = row["fields"]["generation_logprobs"][1:]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_tags_name_the_row(whole_run, prompts):
    (group,) = (g for g in whole_run.manager.groups if g.prompt_idx == LONG)
    tags = whole_run.rows()[LONG, 1]["tags"]
    assert tags["group_id"] == group.group_id
    assert tags["prompt_length"] == len(prompts[LONG].prompt_ids)
    assert tags["sample_loss_mask"] == 1.0 and tags["weight_version"] == 0


def test_reward_follows_from_the_call(rows, tokenizer):
    for (prompt, _), row in rows.items():
        call = tokenizer.parse_tool_call(runs(row)[1][1])[1]
        wanted = {SHORT: ("duration", "30"), LONG: ("duration", "60")}
        name, value = wanted.get(prompt, ("count", 1))
        assert row["tags"]["reward"] == float(call[name] == value)


def test_sample_id_is_group_and_generation(whole_run):
    for key, sample in whole_run.data_plane.partitions["rollout_data"].items():
        tags = sample["tags"]
        assert key == f"{tags['group_id']}_g{tags['generation']}"


def test_finished_rollouts_leave_nothing_staged(whole_run):
    assert whole_run.data_plane.list_sample_ids("rollout_staging") == []


def test_finished_rollouts_are_completed_in_the_ledger(whole_run):
    manager = whole_run.manager
    statuses = [s.current.status for group in manager.groups for s in group.siblings]
    assert statuses == ["completed"] * 6 and manager.finished == 6
    assert manager.episodes == {}
    stored = whole_run.data_plane.list_sample_ids("rollout_data")
    assert sorted(manager.completed_samples()) == stored


def test_rows_do_not_depend_on_the_other_rollouts(make_run, rows):
    run = make_run()
    run.manager.begin_step(0)
    run.manager.groups = [g for g in run.manager.groups if g.prompt_idx == LONG]
    run.decode()
    for name in ("token_ids", "generation_logprobs"):
        found = run.rows()[LONG, 1]["fields"][name]
        assert torch.equal(found, rows[LONG, 1]["fields"][name])


# -- limits --------------------------------------------------------------------------


def test_call_cut_off_by_the_token_limit_completes_without_reward(make_run):
    run = make_run("policy.generation.max_new_tokens=20")
    run.manager.begin_step(0)
    run.decode()
    for row in run.rows().values():
        assert [mask for mask, _ in runs(row)] == [0.0, 1.0]
        assert len(runs(row)[1][1]) == 20
        assert row["tags"]["reward"] == 0.0


def test_list_cut_off_by_the_token_limit_completes(make_run, rows, prompts):
    call = runs(rows[LONG, 0])[1][1]
    run = make_run(f"policy.generation.max_new_tokens={len(call)}")
    run.manager.begin_step(0)
    run.decode()
    whole, limited = runs(rows[LONG, 0]), runs(run.rows()[LONG, 0])
    assert limited[:3] == whole[:3]
    assert limited[3][1] == whole[3][1][: len(call)]


def test_limit_of_the_data_row_holds(make_run, prompts):
    run = make_run(prompts=[replace(p, max_output_tokens=9) for p in prompts])
    run.manager.begin_step(0)
    run.decode()
    assert {len(runs(row)[1][1]) for row in run.rows().values()} == {9}


@pytest.mark.parametrize("room, segments", [(-1, 2), (0, 2), (1, 4)])
def test_sequence_without_room_for_the_list_completes(make_run, rows, room, segments):
    full = sum(len(tokens) for _, tokens in runs(rows[LONG, 0])[:3])
    run = make_run(f"policy.max_total_sequence_length={full + room}")
    run.manager.begin_step(0)
    run.manager.groups = [g for g in run.manager.groups if g.prompt_idx == LONG]
    run.decode()
    row = run.rows()[LONG, 0]
    assert runs(row)[:2] == runs(rows[LONG, 0])[:2] and len(runs(row)) == segments
    assert len(column(row, "token_ids")) <= full + room


def test_rollout_that_takes_too_long_is_an_error(make_run):
    run = make_run("async_rl.rollout_failure.nemo_gym.rollout_timeout_s=0")
    run.manager.begin_step(0)
    with pytest.raises(TimeoutError):
        run.decode()


# -- groups and the ledger -----------------------------------------------------------


def test_step_takes_the_next_prompts(make_run):
    manager = make_run().manager
    manager.begin_step(2)
    assert [group.prompt_idx for group in manager.groups] == [6, 7, 8]
    assert {group.target_step for group in manager.groups} == {2}


def test_data_starts_over_at_its_end(make_run, prompts):
    manager = make_run().manager
    assert [manager.prompt(index) for index in range(3, 6)] == prompts


def test_groups_and_attempts_have_names_of_their_own(make_run):
    manager = make_run().manager
    manager.begin_step(0)
    names = [g.rollout_id(s) for g in manager.groups for s in g.siblings]
    assert len({name.partition("_g")[0] for name in names}) == 3
    assert len({name.rpartition("_a")[2] for name in names}) == 6


def test_rollout_id_is_group_generation_and_attempt():
    sibling = Sibling(3, [Attempt(b"\x00" * 16), Attempt(b"\xab" * 16)])
    group = Group("some-group", 0, 0, [sibling])
    assert group.rollout_id(sibling) == "some-group_g3_a" + "ab" * 16


def test_ledger_survives_its_file(make_run, tmp_path):
    manager = make_run().manager
    manager.begin_step(1)
    manager.groups[1].siblings[0].current.status = "completed"
    manager.groups[2].siblings[1].current.gym_attempt = 4
    torch.save(ledger_document(manager.groups), tmp_path / "ledger.pt")
    loaded = torch.load(tmp_path / "ledger.pt", weights_only=True)
    assert load_ledger(loaded) == manager.groups


def test_ledger_has_the_documented_keys(make_run):
    manager = make_run().manager
    manager.begin_step(1)
    group = ledger_document(manager.groups)["groups"][0]
    assert {"group_id", "target_step", "restore_level", "siblings"} <= set(group)
    assert group["target_step"] == 1 and group["restore_level"] == "prefix"
    (attempt,) = group["siblings"][1].pop("attempts")
    assert group["siblings"][1] == {"generation_index": 1}
    assert len(attempt.pop("attempt_uuid")) == 16
    expected = {"gym_attempt": 0, "status": "dispatched"}
    assert attempt == {**expected, "gym_instance_id": "nemo_gym_0"}
