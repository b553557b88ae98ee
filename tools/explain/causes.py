# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The likely causes of a failed verdict, of the whole run and of each differing row."""

from collections.abc import Callable

import _gym_prefix_recovery_parity as parity
import numpy as np

from tools.explain.evidence import Evidence
from tools.explain.number_causes import NUMBER_CAUSES
from tools.explain.pairs import RUNS, Identity, Pair
from tools.explain.run_causes import RUN_CAUSES
from tools.explain.token_causes import TOKEN_CAUSES

ADVANTAGE = "only the advantage differs: it follows from another row's reward"
ADVANTAGE_ALONE = "only the advantage differs, no reward does: it is over other rows"
UNKNOWN = "no known cause fits"


def likely_causes(evidence: Evidence) -> dict[str, list[Identity]]:
    """Sentences, the one that fits most rows first; a run's cause names no rows."""
    if not evidence.failing():
        return {}
    suspects = evidence.suspects()
    rewards = any(pair.first("rewards") is not None for pair in suspects.values())
    advantage = ADVANTAGE if rewards else ADVANTAGE_ALONE
    found: dict[str, list[Identity]] = {}
    with np.errstate(invalid="ignore"):
        for identity, pair in suspects.items():
            found.setdefault(_cause(pair, advantage), []).append(identity)
        whole = [sentence for cause in RUN_CAUSES if (sentence := cause(evidence))]
    ordered = sorted(found, key=lambda x: (x == ADVANTAGE, -len(found[x])))
    if not whole and not found:
        return {UNKNOWN: []}
    return {x: [] for x in whole} | {x: found[x] for x in ordered}


def _cause(pair: Pair, advantage: str) -> str:
    """Why one row differs; the given sentence if nothing but its advantage does."""
    if where := _in_which_runs(pair, lambda x: not x.columns["sample_loss_mask"].any()):
        return f"the row is masked {where}: a placeholder for a rollout that failed"
    if where := _in_which_runs(pair, lambda x: not x.turns):
        return f"the row has no generated token {where}"
    equal = pair.first("token_ids") is None
    for cause in NUMBER_CAUSES if equal else TOKEN_CAUSES:
        if sentence := cause(pair):
            return sentence
    return advantage if equal and pair.first("advantages") is not None else UNKNOWN


def _in_which_runs(pair: Pair, holds: Callable[[parity.Row], bool]) -> str:
    """`in both runs`, `in the recovery only` and the like; empty for neither."""
    found = [holds(row) for row in (pair.reference, pair.recovery)]
    if all(found):
        return "in both runs"
    return f"in the {RUNS[found.index(True)]} only" if any(found) else ""
