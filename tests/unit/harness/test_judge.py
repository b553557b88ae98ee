# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The other four checks, the thresholds and what is printed and written.

For each rule evidence that breaks this rule alone, beside the table that travels with
the judge; rows are in test_judge_rows.py.
"""

import json
from pathlib import Path
from typing import Any

import prefix_recovery_evidence as small
import pytest
from judging import (
    COMPLETED,
    INFINITY,
    NAN,
    RESTORED,
    SOUND,
    WITHOUT_HASH,
    WITHOUT_HASH_TOO,
    Changes,
    judged,
)

_, PREFIXES, KEYS, REWARDS, LOGPROBS = small.CHECKS
ROLLOUT, KEY = SOUND["cuts"][0]["gym_rollout_id"], SOUND["cuts"][0]["staging_keys"][1]
ROW = "step 2, prompt 2, generation 0"
CUT = "rec0_g0, call old0:"


def logged(old: str, *changes: tuple[str, str]) -> str:
    for before, after in changes:
        old = old.replace(before, after)
    return old


CUTS: dict[str, tuple[Changes, list[str]]] = {
    "none": (
        [("cuts", []), ("log", [])],
        ["no call was cut, so nothing was recovered"],
    ),
    "two of one sample": (
        [
            ("cuts", [*SOUND["cuts"], small.cut(0, 2) | {"model_call_id": "old9"}]),
            ("log.0", f"{RESTORED} {COMPLETED}".replace("old0", "old9")),
        ],
        ["rec0_g0 is cut 2 times"],
    ),
    "restored twice on a line": (
        [("log.1", f"{RESTORED} {RESTORED}")],
        [f"{CUT} restored 2 times, expected once"],
    ),
    "aborted": (
        [("log.2", COMPLETED.replace("completed", "aborted"))],
        [f"{CUT} completed 0 times, expected once"],
    ),
    "restored at another length": (
        [("log.1", RESTORED.replace("tokens=2", "tokens=3"))],
        [f"{CUT} continued after 3 tokens, expected 2"],
    ),
    "completed at another length": (
        [("log.2", logged(COMPLETED, ("tokens=2", "tokens=3"), ("=10", "=9")))],
        [f"{CUT} continued after 3 tokens, expected 2"],
    ),
    "completed by another attempt": (
        [("log.2", COMPLETED.replace("-a1", "-a2"))],
        [f"{CUT} continued as {ROLLOUT}-a2, expected {ROLLOUT}-a1"],
    ),
    "completed by another call": (
        [("log.2", COMPLETED.replace("=new0", "=new7"))],
        [f"{CUT} completed by call new7, which restored nothing"],
    ),
    "no prefix": (
        [
            ("cuts.0.prefix_token_count", 0),
            ("log.1", WITHOUT_HASH.replace("tokens=2", "tokens=0")),
            ("log.2", logged(COMPLETED, ("tokens=2", "tokens=0"), ("=10", "=12"))),
            ("log.3", WITHOUT_HASH_TOO),
        ],
        [f"{CUT} completed with 12 tokens, of prefix 0 and tail 12"],
    ),
    "no tail": (
        [("log.2", logged(COMPLETED, ("=10", "=0"), ("=12", "=2")))],
        [
            f"{CUT} completed with 2 tokens, of prefix 2 and tail 0",
            f"{CUT} its row's last turn has 12 tokens, expected 2",
        ],
    ),
    "another sum": (
        [("log.2", COMPLETED.replace("=10", "=9"))],
        [f"{CUT} completed with 12 tokens, of prefix 2 and tail 9"],
    ),
    "another total": (
        [("log.2", logged(COMPLETED, ("=10", "=9"), ("=12", "=11")))],
        [f"{CUT} its row's last turn has 12 tokens, expected 11"],
    ),
    "no row": (
        [("cuts.0.generation_index", 7)],
        ["rec0_g7, call old0: trained 0 times, expected once"],
    ),
    "a hash that does not hold": (
        [
            (
                "log.1",
                f"{WITHOUT_HASH} weight_version_span=0 prefix_ids_sha256={'0' * 64}",
            )
        ],
        [f"{CUT} prefix_ids_sha256 000000000000... is not that of the ids in its row"],
    ),
    "one of two without a hash": (
        [("log.1", WITHOUT_HASH)],
        ["prefix_ids_sha256 is logged with some restores, but not with all"],
    ),
    "restored, but not cut": (
        [("log.0", RESTORED.replace("=old0", "=x"))],
        [f"{ROLLOUT}-a1: call x was not cut, but the log continues it"],
    ),
}
KEPT: dict[str, tuple[Changes, str]] = {
    "as the first step begins": (
        [("probe.0.staging_keys", [KEY])],
        f"rec0_g0: staging key {KEY} is live as step 1 begins",
    ),
    "by another instance": (
        [("successor.other", ["x", KEY])],
        f"rec0_g0: staging key {KEY} is still in the next trainer checkpoint",
    ),
    "unknown, for nothing was seen": (
        [("probe", [])],
        "the probe saw the steps [] begin, expected 1 to 2, each once",
    ),
    "unknown, for a step began twice": (
        [("probe", [SOUND["probe"][0], *SOUND["probe"]])],
        "the probe saw the steps [1, 1, 2] begin, expected 1 to 2, each once",
    ),
    "unknown, for steps are in no order": (
        [("probe", SOUND["probe"][::-1])],
        "the probe saw the steps [2, 1] begin, expected 1 to 2, each once",
    ),
    "unknown, for the cut had none": (
        [("cuts.0.staging_keys", [])],
        "rec0_g0: the cut has no staging keys",
    ),
}
DISAGREEING: dict[str, tuple[Changes, str]] = {
    "all 0": (
        [("both.*.*.generation_logprobs.0.*", 0)],
        "there are no two different log-probs of equal tokens",
    ),
    "one infinite in both": (
        [("both.2.0.generation_logprobs.0.9", -INFINITY)],
        f"{ROW}: generation_logprobs[9] is -inf, expected -inf in a row that was"
        " never cut, finite and at most 0.5 apart",
    ),
    "one null in the recovery": (
        [("rec.2.0.generation_logprobs.0.9", NAN)],
        f"{ROW}: generation_logprobs[9] is nan, expected -0.09091 in a row that was"
        " never cut, finite and at most 0.5 apart",
    ),
    "one far off": (
        [("rec.2.0.generation_logprobs.0.9", -0.7)],
        f"{ROW}: generation_logprobs[9] is -0.7, expected -0.09091 in a row that was"
        " never cut, finite and at most 0.5 apart",
    ),
    "4 of 112": (
        [("rec.2.*.generation_logprobs.0.6", -0.2)],
        "108 of 112 log-probs are bit-identical, expected at least 97.00%",
    ),
    "a shifted tail": (
        [("rec.1.1.generation_logprobs.0.15", -0.06)]
        + [("rec.1.1.generation_logprobs.0.16", -0.06)],
        "step 1, prompt 0, generation 1: 0.00% of the continued tail's"
        " log-probs are bit-identical",
    ),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_that_was_not_continued_once(tmp_path: Path, name: str) -> None:
    changes, problems = CUTS[name]
    assert judged(tmp_path, changes) == 1
    assert small.problems(tmp_path) == {PREFIXES: problems}


@pytest.mark.parametrize("name", KEPT)
def test_a_key_that_was_kept(tmp_path: Path, name: str) -> None:
    changes, problem = KEPT[name]
    assert judged(tmp_path, changes) == 1
    assert small.problems(tmp_path) == {KEYS: [problem]}


@pytest.mark.parametrize("name", DISAGREEING)
def test_log_probs_that_disagree(tmp_path: Path, name: str) -> None:
    changes, problem = DISAGREEING[name]
    assert judged(tmp_path, changes) == 1
    assert small.problems(tmp_path) == {LOGPROBS: [problem]}


def test_nothing_was_learnt(tmp_path: Path) -> None:
    """But for the last step, which no later one builds on."""
    for value in (0, -0.0):
        assert judged(tmp_path, [("both.1.*.advantages.0.*", value)]) == 1
        what = "step 1: every advantage is 0, so that nothing was learnt"
        assert small.problems(tmp_path) == {REWARDS: [what]}
    assert judged(tmp_path, [("both.2.*.advantages.0.*", 0)]) == 0
    outside = [("both.1.*.advantages.0.*", 0), ("both.1.*.advantages.0.4", 1)]
    assert judged(tmp_path, outside) == 1
    one_token = [("both.1.*.advantages.0.*", 0), ("both.1.3.advantages.0.9", 1)]
    assert judged(tmp_path, one_token) == 0


def test_rewards_that_say_nothing(tmp_path: Path) -> None:
    assert judged(tmp_path, [("both.*.*.rewards.0", 0.5)]) == 1
    assert list(small.problems(tmp_path)) == [REWARDS]
    one_differs = [("both.*.*.rewards.0", 0.5), ("both.1.0.rewards.0", 0.25)]
    assert judged(tmp_path, one_differs) == 0


def test_thresholds(tmp_path: Path) -> None:
    """At the threshold is enough; a cut needs half of each part, or what is asked."""
    exact = "--min-identical-logprobs=1", "--max-logprob-difference=0"
    assert judged(tmp_path, [], *exact) == 0
    one_far_off: Changes = [("both.2.0.generation_logprobs.0.9", -0.25)]
    one_far_off += [("rec.2.0.generation_logprobs.0.9", -0.75)]
    assert judged(tmp_path, one_far_off) == 0
    assert judged(tmp_path, one_far_off, exact[0]) == 1
    assert judged(tmp_path, one_far_off, "--max-logprob-difference=0.49") == 1
    quarter = [(f"rec.*.*.generation_logprobs.0.{x}", -0.4) for x in (9, 10, 11)]
    quarter += [("rec.1.*.generation_logprobs.0.12", -0.4)]  # 28 of 112
    assert judged(tmp_path, quarter, "--min-identical-logprobs=0.75") == 0
    assert judged(tmp_path, quarter, "--min-identical-logprobs=0.76") == 1
    half = [("rec.1.0.generation_logprobs.0.5", -0.2)]
    assert judged(tmp_path, half) == 0
    whole = [*half, ("rec.1.0.generation_logprobs.0.6", -0.2)]
    assert judged(tmp_path, whole) == 1
    assert judged(tmp_path, whole, "--min-identical-logprobs=0") == 0


def test_a_line_a_check_is_printed_and_at_most_five(tmp_path: Path, capfd: Any) -> None:
    changes: Changes = [("rec.2.*.rewards.0", 7)]
    changes += [("probe.*.staging_keys", [KEY]), ("successor.gym", [KEY])]
    changes += [("rec.2.0.generation_logprobs.0.9", -0.2)]
    assert judged(tmp_path, changes) == 1
    rows = [(prompt, generation) for prompt in (2, 3) for generation in (0, 1)]
    problems = [
        f"step 2, prompt {x}, generation {y} (rec{x}_g{y}):"
        f" rewards[0] is 7, expected {y:.1f}"
        for x, y in rows
    ]
    assert capfd.readouterr().out.splitlines() == [
        "FAIL rows match: 8 rows",
        *(f"     {problem}" for problem in problems[:3]),
        "     and 1 more",
        "PASS prefixes trained once: 2 cuts",
        "FAIL old keys retired: 4 keys, 2 steps",
        f"     rec0_g0: staging key {KEY} is live as step 1 begins",
        f"     rec0_g0: staging key {KEY} is live as step 2 begins",
        f"     rec0_g0: staging key {KEY} is still in the next trainer checkpoint",
        "PASS reward signal: rewards 0 and 1",
        "PASS generation log-probs agree: 111 identical",
    ]
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert list(verdict) == ["passed", "checks", "evidence"]
    assert verdict["passed"] is False
    assert verdict["checks"][0] == {
        "name": "rows match",
        "counts": "8 rows",
        "problems": problems,
    }
    assert verdict["evidence"]["recovery_log"] == str(tmp_path / "log")
    assert verdict["evidence"]["min_identical_logprobs"] == 0.97
