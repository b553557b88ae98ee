# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import prefix_recovery_evidence as small
import pytest
from judged import (
    CUT_AT,
    LENGTH,
    PER_TOKEN,
    PREFIX,
    changed,
    judge,
    sound,
    with_cut_rows,
)

from tools.explain.causes import likely_causes
from tools.explain.evidence import read_verdict
from tools.explain.token_causes import near_tie


def causes(folder, evidence):
    return list(likely_causes(read_verdict(judge(folder, evidence, status=1))))


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
    insert(row, CUT_AT, small.LIST, CUT_AT)


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


def alter_an_id_and_stop_early(row):
    alter_an_id(row)
    stop_early(row)


def alter_an_id_of_the_prefix(row):
    row["token_ids"][small.LIST + 2] += 500


def damage_prefix(row):
    row["token_ids"][small.LIST + 2] += 500
    row["generation_logprobs"][small.LIST + 2] -= 1


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
    row["generation_logprobs"][small.LIST : CUT_AT] = [0.0] * PREFIX


def change_tail_logprobs(row):
    for i in range(CUT_AT, LENGTH):
        row["generation_logprobs"][i] -= 0.1


def change_all_logprobs(row):
    for i in range(2, LENGTH):
        row["generation_logprobs"][i] -= 0.1


def cover_tool_result(row):
    row["token_loss_mask"][small.LIST - 1] = 1.0


def leave_out_prefix(row):
    row["token_loss_mask"][small.LIST : CUT_AT] = [0.0] * PREFIX


def change_prompt(row):
    row["token_ids"][1] += 500


def change_tool_result(row):
    row["token_ids"][small.LIST - 1] += 500


def change_first_turn(row):
    row["token_ids"][2] += 500


def shift_tail_logprobs(row):
    tail = row["generation_logprobs"][CUT_AT:]
    row["generation_logprobs"][CUT_AT:] = [-0.9, *tail[:-1]]


def end_with_the_prefix(row):
    for name in PER_TOKEN:
        del row[name][CUT_AT:]


def keep_padding(row):
    for name in PER_TOKEN:
        row[name] += [0] * 4


def generate_nothing(row):
    row["token_loss_mask"][:] = [0.0] * LENGTH


def lose_an_advantage(row):
    row["advantages"][CUT_AT] = None


def change_advantages(row):
    row["advantages"][:] = [2 * x for x in row["advantages"]]


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
    alter_an_id_and_stop_early: "token ids were altered after decoding",
    alter_an_id_of_the_prefix: "token ids were altered after decoding",
    damage_prefix: "the prefix was damaged",
    stop_early: "the tail stops early",
    run_on: "the tail runs on past the call's end",
    end_with_the_prefix: "the call ended with its prefix",
    keep_padding: "the recovery's row goes on with masked tokens: a batch's padding",
    generate_nothing: "the row has no generated token in the recovery only",
    zero_prefix_logprobs: "prefix log-probs are zero",
    change_tail_logprobs: "log-probs differ only after the cut",
    shift_tail_logprobs: "log-probs of the tail are shifted by a token",
    change_all_logprobs: "log-probs differ before the cut",
    cover_tool_result: "the loss mask covers the tool result",
    leave_out_prefix: "the loss mask leaves out the restored prefix",
    change_prompt: "the prompt differs",
    change_tool_result: "the tool result differs",
    change_first_turn: "a turn before the cut call differs",
    lose_an_advantage: "advantages of the recovery is no number",
    change_advantages: "only advantages differ, and nothing else",
    change_trainer: "only the trainer's log-probs differ",
}


@pytest.mark.parametrize("change", ROW_FAULTS, ids=lambda change: change.__name__)
def test_a_fault_of_the_cut_rows_is_the_only_cause_of_the_rows(tmp_path, change):
    evidence = read_verdict(judge(tmp_path, with_cut_rows(change), status=1))
    named = [cause for cause, rows in likely_causes(evidence).items() if rows]
    assert [cause.startswith(ROW_FAULTS[change]) for cause in named] == [True]


def test_a_passing_run_has_no_cause(tmp_path):
    assert likely_causes(read_verdict(judge(tmp_path, sound(), status=0))) == {}


def test_near_tie_needs_noise_before_and_unlikely_tokens(tmp_path):
    verdict = read_verdict(judge(tmp_path, with_cut_rows(flip_a_near_tie)))
    pair = verdict.pairs[1, 0, 0]
    a, b = pair.columns("generation_logprobs")
    a[CUT_AT + 4], b[CUT_AT + 4] = -0.7, -0.71
    assert any("numerical noise" in x for x in likely_causes(verdict))
    b[CUT_AT + 4] = -0.01
    assert near_tie(pair) is None
    b[CUT_AT + 4], b[CUT_AT + 1] = -0.71, a[CUT_AT + 1]
    assert near_tie(pair) is None


def test_a_tie_is_no_altered_id(tmp_path):
    verdict = read_verdict(judge(tmp_path, with_cut_rows(alter_an_id)))
    for pair in verdict.pairs.values():
        for column in pair.columns("generation_logprobs"):
            column[CUT_AT + 5] = -0.7
    assert any("an exact tie" in x for x in likely_causes(verdict))


def test_a_siblings_prefix_is_recognised(tmp_path):
    evidence = sound()
    a, b = (row["token_ids"][0] for row in evidence["rec"][1][:2])
    part = slice(small.LIST, CUT_AT)
    a[part], b[part] = b[part], a[part]
    assert any(x.startswith("a sibling's prefix") for x in causes(tmp_path, evidence))


def test_a_reward_comes_before_the_advantages_that_follow_from_it(tmp_path):
    evidence = sound()
    for row in evidence["rec"][1][:2]:
        row["advantages"] = [[x * 2 for x in row["advantages"][0]]]
    evidence["rec"][1][1]["rewards"] = [2.0]
    assert [x.split(":")[0] for x in causes(tmp_path, evidence)] == [
        "reward differs, tokens equal",
        "only the advantage differs",
    ]


def test_noise_within_the_limits_is_no_cause(tmp_path):
    evidence = with_cut_rows(change_advantages)
    for row in evidence["rec"][1]:
        row["generation_logprobs"][0][-1] -= 0.01
    arguments = small.write(tmp_path, evidence)
    assert small.judge([*arguments, "--min-identical-logprobs=0.9"]) == 1
    (cause,) = likely_causes(read_verdict(tmp_path / "verdict.json"))
    assert cause.startswith("only advantages differ, and nothing else")


def test_an_unknown_column_is_named(tmp_path):
    (cause,) = causes(tmp_path, changed("rec.1.0.teacher", ["a\ud800$"]))
    assert (
        cause == "column 'teacher' is missing in the reference: other settings, or code"
    )
    evidence = changed("rec.1.0.teacher", [[1.0, 2.0]])
    small.change(evidence, "ref.1.0.teacher", [[1.0, 3.0]])
    (cause,) = causes(tmp_path, evidence)
    assert cause == "column 'teacher' differs, tokens equal"


def test_log_probs_without_a_number_are_named(tmp_path):
    evidence = sound()
    for row in [
        x for run in ("ref", "rec") for step in (1, 2) for x in evidence[run][step]
    ]:
        row["generation_logprobs"] = [[None] * LENGTH]
    (cause,) = causes(tmp_path, evidence)
    assert cause.startswith("no log-prob is a number in either run")
