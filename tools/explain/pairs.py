# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""A row of both runs: what its tokens are, and where the two runs differ."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import _gym_prefix_recovery_parity as parity
import numpy as np

RUNS = "reference", "recovery"
WINDOW = 8  # tokens that have to agree before a shift is believed
PER_TOKEN = {  # the columns with a value a token, in the order they are looked at
    "token_ids": "tokens",
    "token_loss_mask": "loss mask",
    "generation_logprobs": "log-probs",
    "prev_logprobs": "trainer's log-probs",
    "advantages": "advantages",
}
PROMPT, TURN, TOOL_RESULT = "the prompt", "a generated turn", "the tool result"
PREFIX, TAIL = "the restored prefix", "the continued tail"
REST = "what follows the last turn"


class Identity(NamedTuple):
    """Which row this is, in either run."""

    step: int
    prompt_idx: int
    generation: int

    def __str__(self) -> str:
        return "step {}, prompt {}, generation {}".format(*self)


def identity_of(row: parity.Row) -> Identity:
    """Which row this is: rows of both runs with one identity are compared."""
    return Identity(row.step, row.prompt_idx, row.generation)


@dataclass
class Pair:
    """A row of the reference, the same row of the recovery, and its cut if any."""

    reference: parity.Row
    recovery: parity.Row
    cut: Any = None  # a parity.Cut, if there is one
    siblings: list[parity.Row] = field(default_factory=list)  # of the reference
    logprobs_fail: bool = False  # its log-probs are among those that failed their check

    @property
    def identity(self) -> Identity:
        """The identity of both rows."""
        return identity_of(self.recovery)

    @property
    def was_cut(self) -> bool:
        """Whether its last turn was cut; a row that generated nothing has no turn."""
        return bool(self.cut and self.reference.turns and self.recovery.turns)

    @property
    def start(self) -> int:
        """Where the last turn begins in the reference."""
        return self.reference.turns[-1][0]

    @property
    def prefix(self) -> int:
        """The tokens of the cut call's prefix, as far as the last turn has them."""
        return min(max(self.cut.prefix_token_count, 0), self.reference.last_turn_tokens)

    @property
    def cut_at(self) -> int:
        """Where the cut call was continued, by the reference's loss mask."""
        return self.start + self.prefix

    def columns(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A column of numbers of both runs, empty where a run lacks it."""
        a, b = (
            x.columns.get(name, np.empty(0)) for x in (self.reference, self.recovery)
        )
        return a, b

    def generated(self) -> np.ndarray:
        """Whether a token is generated in either run, [the shorter length]."""
        a, b = self.columns("token_loss_mask")
        n = min(len(a), len(b))
        return (a[:n] == 1) | (b[:n] == 1)

    def differs(self, name: str) -> np.ndarray:
        """Whether a column differs at each position, [the longer length].

        Generation log-probs count where a token is generated, and to the last bit.
        """
        a, b = self.columns(name)
        n = min(len(a), len(b))
        exact = name in (*parity.EXACT, "generation_logprobs")
        rtol, atol = (0, 0) if exact else parity.TOLERANCES
        differs = ~np.isclose(b[:n], a[:n], rtol, atol, equal_nan=True)
        if name == "generation_logprobs":
            differs &= self.generated()
        return np.append(differs, np.ones(max(len(a), len(b)) - n, dtype=bool))

    def first(self, name: str) -> int | None:
        """The first position at which a column differs."""
        differs = self.differs(name)
        return int(differs.argmax()) if differs.any() else None

    def first_differences(self) -> dict[str, int]:
        """Where each per-token column differs first; no log-probs that hold."""
        names = [
            x for x in PER_TOKEN if x != "generation_logprobs" or self.logprobs_fail
        ]
        return {x: at for x in names if (at := self.first(x)) is not None}

    def first_other_token(self) -> int:
        """The first position at which the tokens differ, which they must."""
        return int(self.differs("token_ids").argmax())


def regions(pair: Pair, row: parity.Row) -> list[tuple[str, int, int]]:
    """What the tokens of one of the pair's rows are: (name, begin, end), in order."""
    found, end = [], 0
    for number, (begin, until) in enumerate(row.turns, start=1):
        found.append((TOOL_RESULT if end else PROMPT, end, begin))
        if pair.was_cut and number == len(row.turns):
            split = min(begin + pair.prefix, until)
            found += [(PREFIX, begin, split), (TAIL, split, until)]
        else:
            found.append((TURN, begin, until))
        end = until
    found.append((REST if end else PROMPT, end, len(row.columns["token_ids"])))
    return [x for x in found if x[1] < x[2]]


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
    for shift in sorted(range(-pair.prefix, pair.prefix + 1), key=abs):
        kept, repeated = cut_at + min(shift, 0), a[cut_at - max(shift, 0) : cut_at]
        if holds(0, a[:kept]) and holds(kept, np.append(repeated, tail)):
            return shift
    # what follows a token that was sampled twice may well be something else
    twice = pair.prefix and holds(0, np.append(a[:cut_at], a[cut_at - 1]))
    return int(twice and not holds(cut_at, tail[:1]))
