# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""How the two runs' generation log-probs agree, by the part of the row they are in.

Tokens are compared up to a row's first other token: what follows it has other contexts.
"""

from dataclasses import dataclass, field

import numpy as np

from tools.explain.pairs import PREFIX, TAIL, TURN, Pair, regions

PREFIXES, TAILS = "restored prefixes", "continued tails"
EARLIER, UNCUT = "earlier turns of cut rows", "rows never cut"


@dataclass
class Part:
    """The log-probs of all rows' tokens in one part."""

    tokens: int = 0
    identical: int = 0  # to the last bit, and finite
    largest: float = 0.0  # absolute difference of finite log-probs

    @property
    def share(self) -> float:
        """How many of the log-probs are identical, from 0 to 1; 1 of none."""
        return self.identical / self.tokens if self.tokens else 1.0


def _parts() -> dict[str, Part]:
    return {name: Part() for name in (PREFIXES, TAILS, EARLIER, UNCUT)}


@dataclass
class LogProbs:
    """What was counted over the rows that both runs trained."""

    parts: dict[str, Part] = field(default_factory=_parts)
    rows: int = 0
    flipped: int = 0  # rows with another token, or with more or fewer of them

    def add(self, pair: Pair) -> None:
        """Count the tokens of one more row."""
        flip = pair.first("token_ids")
        self.rows += 1
        self.flipped += flip is not None
        turn = EARLIER if pair.was_cut else UNCUT
        names = {PREFIX: PREFIXES, TAIL: TAILS, TURN: turn}
        x, y = pair.columns("generation_logprobs")
        for region, begin, end in regions(pair, pair.reference):
            if region in names:
                until = end if flip is None else min(end, flip)
                _count(self.parts[names[region]], x[begin:until], y[begin:until])


def _count(part: Part, x: np.ndarray, y: np.ndarray) -> None:
    finite = np.isfinite(x) & np.isfinite(y)
    differences = np.abs(x[finite] - y[finite])
    part.tokens += x.size
    part.identical += int((differences == 0).sum())
    part.largest = max(part.largest, float(differences.max(initial=0)))
