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

ADVANTAGE = "only the advantage differs: it follows from what else differs"
ADVANTAGE_ALONE = "only advantages differ, and nothing else: they are over other rows"
UNKNOWN = "no known cause fits"


def likely_causes(evidence: Evidence) -> dict[str, list[Identity]]:
    """Sentences, the one that fits most rows first; a run's cause names no rows."""
    if not evidence.failing():
        return {}
    found: dict[str, list[Identity]] = {}
    with np.errstate(invalid="ignore"):
        for identity, pair in evidence.suspects().items():
            found.setdefault(_cause(pair), []).append(identity)
        whole = [sentence for cause in RUN_CAUSES if (sentence := cause(evidence))]
    if not whole and found.keys() == {ADVANTAGE}:
        return {ADVANTAGE_ALONE: found[ADVANTAGE]}
    if not whole and not found:
        return {UNKNOWN: []}
    ordered = sorted(found, key=lambda x: (x == ADVANTAGE, -len(found[x])))
    return {x: [] for x in whole} | {x: found[x] for x in ordered}


def _cause(pair: Pair) -> str:
    if where := _in_which_runs(pair, lambda x: not x.columns["sample_loss_mask"].any()):
        return f"the row is masked {where}: a placeholder for a rollout that failed"
    if where := _in_which_runs(pair, lambda x: not x.turns):
        return f"the row has no generated token {where}"
    equal = pair.first("token_ids") is None
    for cause in NUMBER_CAUSES if equal else TOKEN_CAUSES:
        if sentence := cause(pair):
            return sentence
    return ADVANTAGE if equal and pair.first("advantages") is not None else UNKNOWN


def _in_which_runs(pair: Pair, holds: Callable[[parity.Row], bool]) -> str:
    """`in both runs`, `in the recovery only` and the like; empty for neither."""
    found = [holds(row) for row in (pair.reference, pair.recovery)]
    if all(found):
        return "in both runs"
    return f"in the {RUNS[found.index(True)]} only" if any(found) else ""
