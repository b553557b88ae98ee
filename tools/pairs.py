# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""A row of both runs: what its tokens are, and where the two runs differ."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tools.harness import judge

Identity = tuple[int, int, int]  # step, prompt_idx, generation
WINDOW = 8  # tokens that have to agree before a shift is believed
PER_TOKEN = {  # the columns with a value a token, in the order they are looked at
    "token_ids": "tokens",
    "token_loss_mask": "loss mask",
    "generation_logprobs": "log-probs",
    "prev_logprobs": "trainer's log-probs",
    "advantages": "advantages",
}
PROMPT, PREFIX, TAIL = judge.PLACES
TOOL_RESULT = "the tool result"
TURN, REST = "a generated turn", "what follows"


@dataclass
class Pair:
    """A row of the reference, the same row of the recovery, and its cut if any."""

    reference: Any
    recovery: Any
    cut: Any = None
    siblings: list[Any] = field(default_factory=list)  # the reference's other rows

    @property
    def cut_at(self) -> int:
        """Where the cut call was continued, by the reference's loss mask."""
        return self.reference.start + self.cut.prefix

    def columns(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A column of both runs, empty where a run lacks it."""
        return self.reference.columns[name], self.recovery.columns[name]

    def differs(self, name: str) -> np.ndarray:
        """Whether a column differs at each position, [the longer length]."""
        a, b = self.columns(name)
        n = min(len(a), len(b))
        rtol, atol = judge.CLOSE.get(name, (0, 0))
        same = np.isclose(b[:n], a[:n], rtol, atol, equal_nan=True)
        return np.append(~same, np.ones(max(len(a), len(b)) - n, dtype=bool))

    def first(self, name: str) -> int | None:
        """The first position at which a column differs."""
        differs = self.differs(name)
        return int(differs.argmax()) if differs.any() else None


def regions(pair: Pair, row: Any) -> list[tuple[str, int, int]]:
    """What the tokens of one of the pair's rows are: (name, begin, end), in order."""
    found, end = [], 0
    generated = row.columns["token_loss_mask"] > 0
    edges = np.diff(generated, prepend=False, append=False).nonzero()[0].tolist()
    for begin, until in zip(edges[::2], edges[1::2], strict=True):
        found.append((TOOL_RESULT if end else PROMPT, end, begin))
        if pair.cut and until == row.end:
            split = min(row.start + pair.cut.prefix, until)
            found += [(PREFIX, begin, split), (TAIL, split, until)]
        else:
            found.append((TURN, begin, until))
        end = until
    length = len(row.columns["token_ids"])
    return [x for x in [*found, (REST, end, length)] if x[1] < x[2]]


def place(pair: Pair, position: int) -> str:
    """What a position of the row is, by the reference's loss mask."""
    found = regions(pair, pair.reference)
    return next((name for name, _, end in found if position < end), found[-1][0])


def tail_shift(pair: Pair) -> int:
    """By how many tokens the continued tail comes too late (> 0) or too early (< 0)."""
    (a, b), cut_at = pair.columns("token_ids"), pair.cut_at

    def holds(begin: int, expected: np.ndarray) -> bool:
        return np.array_equal(b[begin:][: len(expected)], expected)

    tail = a[cut_at:][:WINDOW]
    if holds(cut_at, tail):
        return 0
    for shift in sorted({*range(-pair.cut.prefix, pair.cut.prefix + 1)}, key=abs):
        kept, repeated = cut_at + min(shift, 0), a[cut_at - max(shift, 0) : cut_at]
        if holds(0, a[:kept]) and holds(kept, np.append(repeated, tail)):
            return shift
    # what follows a token that was sampled twice may well be something else
    twice = holds(0, a[:cut_at]) and holds(cut_at, a[cut_at - 1 : cut_at])
    return int(twice and not holds(cut_at, tail[:1]))
