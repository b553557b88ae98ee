# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The judge: sound evidence passes, and for each rule there is a change that fails."""

from pathlib import Path
from typing import Any

import prefix_recovery_evidence as small
import pytest
from prefix_recovery_evidence import parity

ROWS, PREFIXES, KEYS, REWARDS, LOGPROBS = small.CHECKS
DUMPS = Path(__file__).parents[1] / "data/nemo-rl-dump"
RESTORED, COMPLETED = small.sound()["log"][1:3]
COLUMNS = small.row("rec", 1, 0, 0, items=12)
WITHOUT_HASH = RESTORED.partition(" weight_version_span")[0]


def column(name: str, *changes: tuple[int, Any]) -> list[list[Any]]:
    """A column of the first row with other values at some tokens."""
    (values,) = COLUMNS[name]
    return [[dict(changes).get(at, value) for at, value in enumerate(values)]]


def in_both(path: str, value: Any) -> list[tuple[str, Any]]:
    return [(f"{run}.{path}", value) for run in ("ref", "rec")]


def in_all_rows(name: str, value: Any) -> list[tuple[str, Any]]:
    places = [(step, row) for step in (1, 2) for row in range(4)]
    return [x for at in places for x in in_both("{}.{}.{}".format(*at, name), value)]


NO_CHANGE: list[tuple[str, Any]] = []
SOUND = {
    "nothing is changed": NO_CHANGE,
    "another line of the log": [("log.0", "resuming from a generation prefix: 3")],
    "a call that was terminal": [
        ("log.0", "generation prefix already terminal: rollout_id=x reason=stop")
    ],
    "no hashes at all": [
        ("log.1", WITHOUT_HASH),
        ("log.3", small.sound()["log"][3].partition(" weight_version_span")[0]),
    ],
    "floats within the tolerance": [
        ("rec.1.0.advantages", column("advantages", (2, -0.50004)))
    ],
    "NaN on a prompt token": in_both(
        "1.0.prev_logprobs", column("prev_logprobs", (0, float("nan")))
    ),
    "a log-prob that differs a little": [
        ("rec.1.2.generation_logprobs.0.6", -0.2),
    ],
    "no prev_logprobs": in_all_rows("prev_logprobs", None),
    "a string column": in_both("1.0.task", ["workplace"]),
    "other tags": [("rec.1.0.metadata.0.weight_version", 9)],
}
FAILING = {
    # rows match
    "a row is lost": (ROWS, [("rec.2.3", None)]),
    "a row comes twice": (ROWS, [("rec.2.3", small.row("rec", 2, 3, 0, 12))]),
    "another prompt": (ROWS, [("rec.2.3.metadata.0.prompt_idx", 9)]),
    "a step is lost": (ROWS, [("rec.2", None)]),
    "a step too many": (
        ROWS,
        [(f"{run}.3", [small.row(run, 3, 8, 0, 12)]) for run in ("ref", "rec")],
    ),
    "a prompt again in step 2": (ROWS, in_both("2.0.metadata.0.prompt_idx", 0)),
    "a group is split": (ROWS, [("rec.2.3.sample_id.0", "other_g1")]),
    "two prompts in a group": (
        ROWS,
        [("rec.2.2.sample_id.0", "rec2_g0"), ("rec.2.3.sample_id.0", "rec2_g1")],
    ),
    "one dump given twice": (ROWS, [("rec.2.3.sample_id.0", "ref3_g1")]),
    "a masked row": (ROWS, in_both("2.0.sample_loss_mask", [0.0])),
    "nothing generated": (ROWS, in_both("2.0.token_loss_mask", [[0.0] * 17])),
    "a token": (ROWS, [("rec.2.0.token_ids.0.9", 7)]),
    "a mask": (ROWS, [("rec.2.0.token_loss_mask.0.9", 0)]),
    "a reward": (ROWS, [("rec.2.0.rewards.0", 0.5)]),
    "an advantage": (ROWS, [("rec.2.0.advantages.0.9", -0.51)]),
    "an advantage that is NaN": (ROWS, in_both("2.0.advantages.0.9", float("nan"))),
    "a trainer's log-prob": (ROWS, [("rec.2.0.prev_logprobs.0.9", -0.1)]),
    "a column is missing": (ROWS, [("rec.2.0.prev_logprobs", None)]),
    "an unknown column": (ROWS, [("rec.2.0.routed_experts", [[[1, 2]]])]),
    "a string": (ROWS, [*in_both("2.0.task", ["a"]), ("rec.2.0.task", ["b"])]),
    # prefixes trained once
    "no cut": (PREFIXES, [("cuts", []), ("log", [])]),
    "a cut listed twice": (
        PREFIXES,
        [("cuts.1", small.cut(0, 2)), ("log", [RESTORED, COMPLETED])],
    ),
    "not restored": (PREFIXES, [("log.1", None)]),
    "rejected": (PREFIXES, [("log.1", RESTORED.replace("restored", "rejected"))]),
    "restored twice": (PREFIXES, [("log.0", f"{RESTORED} {RESTORED}"), ("log.1", "")]),
    "by another attempt": (PREFIXES, [("log.1", RESTORED.replace("-a1", "-a2"))]),
    "another length": (PREFIXES, [("log.1", RESTORED.replace("tokens=2", "tokens=3"))]),
    "another digest": (PREFIXES, [("log.1", RESTORED.replace("d" * 64, "e" * 64))]),
    "other ids": (
        PREFIXES,
        [
            (
                "log.1",
                WITHOUT_HASH
                + f" weight_version_span=[0,0] prefix_ids_sha256={'0' * 64}",
            )
        ],
    ),
    "one without a hash": (PREFIXES, [("log.1", WITHOUT_HASH)]),
    "not completed": (PREFIXES, [("log.2", None)]),
    "completed twice": (PREFIXES, [("log.0", COMPLETED)]),
    "by another call": (PREFIXES, [("log.2", COMPLETED.replace("=new0", "=new7"))]),
    "no tail": (
        PREFIXES,
        [("log.2", COMPLETED.replace("tail_tokens=10", "tail_tokens=0"))],
    ),
    "another total": (
        PREFIXES,
        [
            (
                "log.2",
                COMPLETED.replace("tail_tokens=10", "tail_tokens=9").replace(
                    "=12", "=11"
                ),
            )
        ],
    ),
    "a call that is no cut": (PREFIXES, [("log.0", COMPLETED.replace("=old0", "=x"))]),
    # old keys retired
    "no staging keys": (KEYS, [("cuts.0.staging_keys", [])]),
    "a step not seen": (KEYS, [("probe.1", None)]),
    "a step begun twice": (KEYS, [("probe.1.train_step", 1)]),
    "a key is live": (
        KEYS,
        [("probe.1.staging_keys", small.cut(1, 1)["staging_keys"])],
    ),
    "a key is kept": (KEYS, [("successor.gym", small.cut(0, 1)["staging_keys"])]),
    # reward signal
    "one reward": (REWARDS, in_all_rows("rewards", [1.0])),
    "nothing learnt": (
        REWARDS,
        [x for row in range(4) for x in in_both(f"1.{row}.advantages", [[0.0] * 17])],
    ),
    # generation log-probs agree
    "all the same": (LOGPROBS, in_all_rows("generation_logprobs", [[0.0] * 17])),
    "null": (
        LOGPROBS,
        in_both("2.0.generation_logprobs", column("generation_logprobs", (9, None))),
    ),
    "too few identical": (
        LOGPROBS,
        [(f"rec.2.{row}.generation_logprobs.0.6", -0.2) for row in range(4)],
    ),
    "a large difference": (LOGPROBS, [("rec.2.0.generation_logprobs.0.9", -0.7)]),
    "a lost prefix": (
        LOGPROBS,
        [
            (
                "rec.1.0.generation_logprobs",
                column("generation_logprobs", (5, 0.0), (6, 0.0)),
            )
        ],
    ),
    "a shifted tail": (
        LOGPROBS,
        [(f"rec.1.1.generation_logprobs.0.{at}", -0.06) for at in (15, 16)],
    ),
}
MALFORMED = {
    "a short mask": in_both("2.0.token_loss_mask", [[1.0] * 16]),
    "a long advantage": in_both("2.0.advantages", [[1.0] * 18]),
    "other lengths": in_both("2.0.input_lengths", [0]),
    "half a mask": in_both("2.0.token_loss_mask.0.9", 0.5),
    "a negative id": in_both("2.0.token_ids.0.9", -1),
    "an id that is no integer": in_both("2.0.token_ids.0.9", 1.5),
    "an id that is NaN": in_both("2.0.token_ids.0.9", float("nan")),
    "another step": in_both("2.0.step", 1),
    "no generation": in_both("2.0.sample_id.0", "group"),
    "no prompt": in_both("2.0.metadata", [{}]),
    "no tokens": in_both("2.0.token_ids", None),
    "text": in_both("2.0.rewards", ["1"]),
    "no JSON": [("rec.2.0", '{"idx": 0')],
    "no object": [("probe.0", "[]")],
    "a torn record": [("log.1", RESTORED[:-1])],
    "a folded record": [("log.1", f"{RESTORED} [repeated 2x across cluster]")],
    "no successor": [("successor.gym", "keys")],
    "an older head's field": [("cuts.0.prefix_token_count", None)],
}


def judged(root: Path, changes: list[tuple[str, Any]]) -> int:
    evidence = small.sound()
    for path, value in changes:
        small.change(evidence, path, value)
    return small.judge(small.write(root, evidence))


@pytest.mark.parametrize("name", SOUND)
def test_what_does_not_matter_passes(tmp_path: Path, name: str) -> None:
    assert judged(tmp_path, SOUND[name]) == 0
    assert small.problems(tmp_path) == {}


@pytest.mark.parametrize("name", FAILING)
def test_only_the_rule_that_is_broken_fails(tmp_path: Path, name: str) -> None:
    check, changes = FAILING[name]
    assert judged(tmp_path, changes) == 1
    assert list(small.problems(tmp_path)) == [check]


@pytest.mark.parametrize("name", MALFORMED)
def test_what_cannot_be_judged_is_one_line(
    tmp_path: Path, name: str, capfd: Any
) -> None:
    assert judged(tmp_path, MALFORMED[name]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1) and str(tmp_path) in err
    assert not (tmp_path / "verdict.json").exists()


def test_reads_what_nemo_rls_own_writer_wrote() -> None:
    dumps = parity._find_dumps(DUMPS)
    rows = parity._load_dump(dumps[1], 1)
    assert [row.identity for row in rows] == [
        (1, 0, 0),
        (1, 0, 1),
        (1, 1, 0),
        (1, 1, 1),
    ]
    assert (rows[3].group_id, rows[3].turns) == ("00000001-prompt", [[3, 5], [6, 11]])
