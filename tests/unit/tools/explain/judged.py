# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The small evidence with longer lists, changed and judged in exact mode.

Both siblings of prompt 0 were cut: a row is 2 tokens of the prompt, 2 of a turn, 1 of a
tool's result, and a call of 20 tokens, of which 8 are the prefix.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import prefix_recovery_evidence as small

ITEMS, PREFIX = 20, 8
CUT_AT, LENGTH = small.LIST + PREFIX, small.LIST + ITEMS
PER_TOKEN = [*small.parity.PER_TOKEN, "prev_logprobs"]
Change = Callable[[dict[str, list]], Any]  # of a row's columns, in place


def sound() -> small.Evidence:
    evidence = small.sound(items=ITEMS)
    evidence["cuts"] = [small.cut(generation, PREFIX) for generation in (0, 1)]
    del evidence["log"][1:]
    for entry, row in zip(evidence["cuts"], evidence["rec"][1], strict=False):
        evidence["log"] += small.log_lines(entry, ITEMS, row["token_ids"][0])
    return evidence


def changed(path: str, value: Any) -> small.Evidence:
    return small.change(sound(), path, value)


def change_row(row: dict[str, Any], change: Change) -> None:
    """Change a row's per-token columns; its length follows."""
    change({name: row[name][0] for name in PER_TOKEN})
    row["input_lengths"] = [len(row["token_ids"][0])]


def with_cut_rows(change: Change) -> small.Evidence:
    """Evidence in which both rows that were cut are changed in the recovery."""
    evidence = sound()
    for row in evidence["rec"][1][:2]:
        change_row(row, change)
    return evidence


def judge(folder: Path, evidence: small.Evidence, status: int | None = None) -> Path:
    """Write and judge the evidence; returns the verdict's path."""
    arguments = small.write(folder, evidence)
    arguments += ["--min-identical-logprobs=1", "--max-logprob-difference=0"]
    found = small.judge(arguments)
    assert found in (0, 1) if status is None else found == status
    return folder / "verdict.json"


def alter_token(row: dict[str, list]) -> None:
    row["token_ids"][CUT_AT + 2] = 99


def write_run(log_dir: Path, evidence: small.Evidence, run: str) -> Path:
    """One run's log folder alone."""
    small.write(log_dir, evidence)
    return log_dir / run
