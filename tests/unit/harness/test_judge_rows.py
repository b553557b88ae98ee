# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that do not match: for each rule two runs that break this rule alone.

Beside the table that travels with the judge.
"""

from pathlib import Path

import prefix_recovery_evidence as small
import pytest
from judging import INFINITY, NAN, SOUND, Changes, in_each, judged

ROWS, PREFIXES = small.CHECKS[:2]
ROW = "step 2, prompt 2, generation 0"
PAIR = f"{ROW} (rec2_g0):"


def sample_ids(run: str, first: int, group: str) -> Changes:
    """Another group for two rows of step 2."""
    return [(f"{run}.2.{first + x}.sample_id.0", f"{group}_g{x}") for x in (0, 1)]


COLUMNS: dict[str, tuple[Changes, str]] = {
    "ids that are equal in float32": (
        in_each("2.0.token_ids.0.0", 2**24, 2**24 + 1),
        "token_ids[0] is 16777217, expected 16777216, in a row that was never cut",
    ),
    "ids within the tolerance of floats": (
        in_each("2.0.prompt_ids.0.1", 50000, 50001),
        "prompt_ids[1] is 50001, expected 50000",
    ),
    "an advantage beyond the tolerance": (
        [("rec.2.0.advantages.0.9", -0.50007)],
        "advantages[9] is -0.50007, expected -0.5, in a row that was never cut",
    ),
    "an advantage on a prompt token": (
        [("rec.2.0.advantages.0.0", 0.1)],
        "advantages[0] is 0.1, expected -0, in a row that was never cut",
    ),
    "the trainer's log-prob": (
        [("rec.2.0.prev_logprobs.0.9", -0.1)],
        "prev_logprobs[9] is -0.1, expected -0.0833333333",
    ),
    "a tool's result is trained": (
        [("rec.2.0.token_loss_mask.0.4", 1)],
        "token_loss_mask[4] is 1, expected 0, in a row that was never cut",
    ),
    "a longer row": (
        [("rec.2.0", small.row("rec", 2, 2, 0, items=13))],
        "token_ids has 18 values, expected 17, in a row that was never cut",
    ),
    "a shorter row": (
        [("rec.2.0", small.row("rec", 2, 2, 0, items=11))],
        "token_ids has 16 values, expected 17, in a row that was never cut",
    ),
    "a reward that is no number": (
        [("both.2.0.rewards.0", NAN)],
        "rewards[0] is nan, expected nan",
    ),
    "a column less in the reference": (
        [("ref.2.0.prev_logprobs", None)],
        "prev_logprobs is missing in the reference",
    ),
    "a column less in the recovery": (
        [("rec.2.0.prompt_ids", None)],
        "prompt_ids is missing in the recovery",
    ),
    "a column of distillation": (
        in_each("2.0.teacher_logprobs", [[-1.0, -1.0]], [[-1.0, -9.0]]),
        "teacher_logprobs[1] is -9, expected -1",
    ),
    "flags": (in_each("2.0.x", [[True]], [[False]]), "x[0] is False, expected True"),
    "null": (in_each("2.0.x", [[1, None]], [[1, 1]]), "x[1] is 1, expected nan"),
    "text that ends in NUL": (
        in_each("2.0.x", ["a"], ["a\0"]),
        'x[0] is ["a\\u0000"], expected ["a"]',
    ),
    "text and a number": (
        in_each("2.0.x", [1], ["1"]),
        'x[0] is ["1"], expected 1',
    ),
    "a number among texts": (
        in_each("2.0.x", [[1, "a"]], [["1", "a"]]),
        'x[0] is [["1", "a"]], expected [[1, "a"]]',
    ),
    "lists of lists": (
        in_each("2.0.x", [[[], [1]]], [[[], [2]]]),
        "x[0] is [[[], [2]]], expected [[[], [1]]]",
    ),
    "an object": (
        in_each("2.0.x", [{"a": 1}], [{"a": 2}]),
        'x[0] is [{"a": 2}], expected [{"a": 1}]',
    ),
    "numbers beyond 64 bits": (
        in_each("2.0.x", [2**64], [2**64 + 1]),
        f"x[0] is [{2**64 + 1}], expected [{2**64}]",
    ),
}
PLACES = {
    0: "in the prompt",
    2: "in a turn before the cut call",
    4: "in a turn before the cut call",
    7: "in the continued tail",
}
NOT_FINITE = "advantages or prev_logprobs of generated tokens aren't finite"
# What is wrong with each of both runs, in which it is the same.
RUNS: dict[str, tuple[Changes, str]] = {
    "a row less": (
        [("both.2.3", None)],
        "step 2, prompt 3, generation 1 is missing, expected once",
    ),
    "a row more": (
        in_each("2", *([*SOUND[x][2], SOUND[x][2][3]] for x in ("ref", "rec"))),
        "step 2, prompt 3, generation 1 is trained 2 times, expected once",
    ),
    "a step more": (
        in_each("3", *([small.row(x, 3, 9, 0, items=12)] for x in ("ref", "rec"))),
        "step 3, prompt 9, generation 0 is trained 1 times, expected 0",
    ),
    "a prompt again": (
        [
            ("both.2.0.metadata.0.prompt_idx", 1),
            ("both.2.1.metadata.0.prompt_idx", 1),
            *sample_ids("ref", 0, "ref1"),
            *sample_ids("rec", 0, "rec1"),
        ],
        "the step of prompt 1 is not one but [1, 2]",
    ),
    "two prompts in a group": (
        [*sample_ids("ref", 2, "ref2"), *sample_ids("rec", 2, "rec2")],
        "the prompt of group RUN2 is not one but [2, 3]",
    ),
    "sample ids again": (
        [*sample_ids("ref", 2, "ref1"), *sample_ids("rec", 2, "rec1")],
        "the prompt of group RUN1 is not one but [1, 3]",
    ),
    "a masked row": (
        [("both.2.0.sample_loss_mask.0", 0)],
        f"{ROW}: sample_loss_mask is 0, so it trained nothing",
    ),
    "nothing generated": (
        [("both.2.0.token_loss_mask.0.*", 0)],
        f"{ROW}: no token is generated",
    ),
    "an infinite advantage": (
        [("both.2.0.advantages.0.9", INFINITY)],
        f"{ROW}: {NOT_FINITE}",
    ),
    "no log-prob of the trainer": (
        [("both.2.0.prev_logprobs.0.9", NAN)],
        f"{ROW}: {NOT_FINITE}",
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_that_differs(tmp_path: Path, name: str) -> None:
    changes, what = COLUMNS[name]
    assert judged(tmp_path, changes) == 1
    assert small.problems(tmp_path) == {ROWS: [f"{PAIR} {what}"]}


@pytest.mark.parametrize("position", PLACES)
def test_a_token_is_located(tmp_path: Path, position: int) -> None:
    assert judged(tmp_path, [(f"rec.1.0.token_ids.0.{position}", 7)]) == 1
    what = f"token_ids[{position}] is 7, expected {1000 + position}, {PLACES[position]}"
    pair = "step 1, prompt 0, generation 0 (rec0_g0)"
    assert small.problems(tmp_path) == {ROWS: [f"{pair}: {what}"]}


def test_a_token_of_the_prefix_is_no_error_if_its_hash_holds(tmp_path: Path) -> None:
    inside = "inside the restored prefix, which phase 1 sampled before the crash"
    for position in (5, 6):
        assert judged(tmp_path, [(f"rec.1.0.token_ids.0.{position}", 7)]) == 1
        problems = small.problems(tmp_path)
        assert list(problems) == [ROWS, PREFIXES]
        assert problems[ROWS][0].endswith(inside)
        assert judged(tmp_path, [(f"ref.1.0.token_ids.0.{position}", 7)]) == 1
        ((problem,),) = small.problems(tmp_path).values()
        assert f"{inside}; its hash proves" in problem and "exact mode" in problem
    assert judged(tmp_path, [("rec.1.0.advantages.0.6", 7)]) == 1
    ((problem,),) = small.problems(tmp_path).values()
    assert problem.endswith(inside)


def test_a_cut_row_without_a_generated_token(tmp_path: Path) -> None:
    assert judged(tmp_path, [("both.1.0.token_loss_mask.0.*", 0)]) == 1
    problems = small.problems(tmp_path)
    assert list(problems) == [ROWS, PREFIXES] and len(problems[ROWS]) == 2
    what = "its row's last turn has 0 tokens, expected 12"
    assert f"rec0_g0, call old0: {what}" in problems[PREFIXES]


@pytest.mark.parametrize("name", RUNS)
def test_what_is_wrong_with_both_runs(tmp_path: Path, name: str) -> None:
    changes, what = RUNS[name]
    assert judged(tmp_path, changes) == 1
    runs = {"reference": "ref", "recovery": "rec"}
    expected = [f"{run}: {what.replace('RUN', x)}" for run, x in runs.items()]
    assert small.problems(tmp_path) == {ROWS: expected}


def test_of_a_group_in_both_runs_no_more_is_said(tmp_path: Path) -> None:
    assert judged(tmp_path, sample_ids("rec", 2, "ref3")) == 1
    assert small.problems(tmp_path) == {
        ROWS: ["group ref3 is in both runs: is one dump given twice?"]
    }


def test_a_prompt_that_is_split(tmp_path: Path) -> None:
    assert judged(tmp_path, [("rec.2.3.sample_id.0", "other_g1")]) == 1
    what = "the group of prompt 3 is not one but ['other', 'rec3']"
    assert small.problems(tmp_path) == {ROWS: [f"recovery: {what}"]}


def test_log_probs_of_another_token_are_not_compared(tmp_path: Path) -> None:
    other: Changes = [("rec.2.0.token_ids.0.9", 7)]
    other += [("rec.2.0.generation_logprobs.0.9", -9.0)]
    assert judged(tmp_path, other) == 1
    assert list(small.problems(tmp_path)) == [ROWS]


def test_a_prompt_less_in_both_runs(tmp_path: Path) -> None:
    fewer = in_each("1", SOUND["ref"][1][:2], SOUND["rec"][1][:2])
    assert judged(tmp_path, fewer) == 1
    what = "reference: step 1 has 1 prompts, expected 2"
    assert small.problems(tmp_path) == {ROWS: [what]}


def test_a_prompt_too_many(tmp_path: Path) -> None:
    changes = [("both.2.0.metadata.0.prompt_idx", 9)]
    changes += in_each("2.0.sample_id.0", "ref9_g0", "rec9_g0")
    assert judged(tmp_path, changes) == 1
    problems = small.problems(tmp_path)[ROWS]
    assert problems[0] == "reference: step 2 has 3 prompts, expected 2"
