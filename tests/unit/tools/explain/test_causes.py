# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import random

import pytest
from explain_evidence import CUT_AT, LENGTH, PER_TOKEN, PREFIX, START, cut_rows, judged

from tools.causes import likely_causes, near_tie
from tools.evidence import read_verdict


def causes(folder, *args, **kwargs):
    evidence = read_verdict(judged(folder, *args, **kwargs))
    return list(likely_causes(evidence))


def insert(row, at, begin, end):
    for name in PER_TOKEN:
        row[name][at:at] = row[name][begin:end]


def repeat_last_token(row):
    insert(row, CUT_AT, CUT_AT - 1, CUT_AT)


def repeat_three_tokens(row):
    insert(row, CUT_AT, CUT_AT - 3, CUT_AT)


def lose_last_token(row):
    for name in PER_TOKEN:
        del row[name][CUT_AT - 1]


def lose_last_piece(row):
    for name in PER_TOKEN:
        del row[name][CUT_AT - 3 : CUT_AT]


def restart(row):
    insert(row, CUT_AT, START, CUT_AT)


def sample_last_token_again_then_others(row):
    row["token_ids"][CUT_AT] = row["token_ids"][CUT_AT - 1]
    for i in range(CUT_AT + 1, LENGTH):
        row["token_ids"][i] += 500
        row["generation_logprobs"][i] -= 1


def sample_anew(row):
    for i in range(CUT_AT + 4, LENGTH):
        row["token_ids"][i] += 500
        row["generation_logprobs"][i] -= 1


def part_in_logprobs_then_tokens(row):
    row["generation_logprobs"][CUT_AT + 1] -= 1
    sample_anew(row)


def part_at_first_token(row):
    for i in range(CUT_AT, LENGTH):
        row["token_ids"][i] += 500
        row["generation_logprobs"][i] -= 1


def alter_an_id(row):
    row["token_ids"][CUT_AT + 5] += 500


def damage_prefix(row):
    row["token_ids"][START + 2] += 500
    row["generation_logprobs"][START + 2] -= 1


def stop_early(row):
    for name in PER_TOKEN:
        del row[name][-5:]


def run_on(row):
    insert(row, LENGTH, LENGTH - 5, LENGTH - 2)


def flip_a_near_tie(row):
    row["generation_logprobs"][CUT_AT + 1] -= 0.01
    row["token_ids"][CUT_AT + 4] += 500
    row["generation_logprobs"][CUT_AT + 4] -= 0.01


def zero_prefix_logprobs(row):
    row["generation_logprobs"][START:CUT_AT] = [0.0] * PREFIX


def change_tail_logprobs(row):
    for i in range(CUT_AT, LENGTH):
        row["generation_logprobs"][i] -= 0.1


def change_all_logprobs(row):
    for i in range(START - 5, LENGTH):
        row["generation_logprobs"][i] -= 0.1


def cover_tool_result(row):
    row["token_loss_mask"][START - 3 : START] = [1.0] * 3


def leave_out_prefix(row):
    row["token_loss_mask"][START:CUT_AT] = [0.0] * PREFIX


def change_prompt(row):
    row["token_ids"][1] += 500


def change_tool_result(row):
    row["token_ids"][START - 2] += 500


def change_first_turn(row):
    row["token_ids"][5] += 500


def change_trainer(row):
    row["prev_logprobs"][CUT_AT] -= 1


ROW_FAULTS = {
    repeat_last_token: "the tail repeats the last prefix token",
    repeat_three_tokens: "the tail repeats the last 3 prefix tokens",
    lose_last_token: "the prefix lost its last token",
    lose_last_piece: "the prefix lost its last 3 tokens",
    restart: "the call was restarted instead of continued",
    sample_last_token_again_then_others: "the tail repeats the last prefix token",
    sample_anew: "sampling started again at position 0",
    part_in_logprobs_then_tokens: "log-probs differ before the tokens do",
    part_at_first_token: "the tail differs from its first token",
    alter_an_id: "token ids were altered after decoding",
    damage_prefix: "the prefix was damaged",
    stop_early: "the tail stops early",
    run_on: "the tail runs on past the call's end",
    zero_prefix_logprobs: "prefix log-probs are zero",
    change_tail_logprobs: "log-probs differ only after the cut",
    change_all_logprobs: "log-probs differ before the cut",
    cover_tool_result: "the loss mask covers the tool result",
    leave_out_prefix: "the loss mask leaves out the restored prefix",
    change_prompt: "the prompt differs",
    change_tool_result: "the tool result differs",
    change_first_turn: "a turn before the cut call differs",
    change_trainer: "only the trainer's log-probs differ",
}


@pytest.mark.parametrize("change", ROW_FAULTS, ids=lambda change: change.__name__)
def test_a_fault_of_the_cut_rows_is_named_alone(tmp_path, change):
    (cause,) = causes(tmp_path, cut_rows(change))
    assert cause.startswith(ROW_FAULTS[change])


def test_a_passing_run_has_no_cause(tmp_path):
    assert causes(tmp_path) == []


def test_near_tie_needs_noise_before_and_unlikely_tokens(tmp_path):
    evidence = read_verdict(judged(tmp_path, cut_rows(flip_a_near_tie)))
    pair = evidence.pairs[1, 0, 0]
    a, b = pair.columns("generation_logprobs")
    a[CUT_AT + 4], b[CUT_AT + 4] = -0.7, -0.71
    assert any("numerical noise" in x for x in likely_causes(evidence))
    b[CUT_AT + 4] = -0.01
    assert near_tie(pair) is None
    b[CUT_AT + 4], b[CUT_AT + 1] = -0.71, a[CUT_AT + 1]
    assert near_tie(pair) is None


def test_a_siblings_prefix_is_recognised(tmp_path):
    def swap(step, rows):
        for name in ("token_ids", "generation_logprobs") if step == 1 else ():
            a, b = (row[name][0] for row in rows[:2])
            a[START:CUT_AT], b[START:CUT_AT] = b[START:CUT_AT], a[START:CUT_AT]
        return rows

    (cause,) = causes(tmp_path, swap)
    assert cause.startswith("a sibling's prefix was restored")


def test_a_reward_comes_before_the_advantages_that_follow_from_it(tmp_path):
    def edit(step, rows):
        for row in rows[:2] if step == 1 else []:
            row["advantages"] = [[x * 2 for x in row["advantages"][0]]]
        rows[1]["rewards"] = [rows[1]["rewards"][0] + (step == 1)]
        return rows

    assert [x.split(":")[0] for x in causes(tmp_path, edit)] == [
        "reward differs, tokens equal",
        "only the advantage differs",
    ]


def test_a_row_masked_in_one_run_is_named(tmp_path):
    def edit(step, rows):
        rows[0]["sample_loss_mask"] = [0.0]
        return rows

    (cause,) = causes(tmp_path, edit)
    assert cause.startswith("the row is masked in one run only")


def test_rows_of_later_steps_only_point_to_the_training_state(tmp_path):
    def edit(step, rows):
        for row in rows if step == 2 else []:
            rng = random.Random(0)
            for name in ("generation_logprobs", "prev_logprobs"):
                row[name] = [[x * (1 + rng.random()) for x in row[name][0]]]
        return rows

    assert causes(tmp_path, edit)[0].startswith("rows of step >= 2 only")


def test_a_lost_row_is_named(tmp_path):
    (cause,) = causes(tmp_path, lambda step, rows: rows[step - 1 :])
    assert cause.startswith("a row was lost")


def test_a_row_trained_twice_is_named(tmp_path):
    (cause,) = causes(tmp_path, lambda step, rows: rows + rows[3:])
    assert cause.startswith("2 rows were trained twice")


def test_a_row_of_another_step_is_neither_lost_nor_twice(tmp_path):
    moved = []

    def edit(step, rows):
        if step == 1:
            moved.append(rows.pop() | {"step": 2})
        return rows + moved * (step == 2)

    (cause,) = causes(tmp_path, edit)
    assert "trained in another step (step 2 instead of 1)" in cause


def test_a_cut_that_was_never_restored_is_named(tmp_path):
    (cause,) = causes(tmp_path, restored=False)
    assert cause.startswith("2 of 2 cut calls were restarted instead of continued")


def test_keys_that_stay_live_are_named(tmp_path):
    (cause,) = causes(tmp_path, live=["old1/0-8"])
    assert cause.startswith("old prefix keys never retired")


def test_live_keys_of_other_calls_are_no_cause(tmp_path):
    assert causes(tmp_path, live=["new1/0-8"]) == []


def test_constant_rewards_are_named(tmp_path):
    evidence = read_verdict(judged(tmp_path))
    evidence.checks[3]["passed"] = False
    (cause,) = likely_causes(evidence)
    assert cause.startswith("all rewards are the same")
