# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Why a row with equal tokens differs: its mask, its reward or its numbers.

Each function looks at one row of both runs, and returns a sentence, or None where it
does not apply. The first that applies names the cause.
"""

from collections.abc import Callable

import _gym_prefix_recovery_parity as parity
import numpy as np

from tools.explain.pairs import PER_TOKEN, RUNS, Pair, place


def mask_differs(pair: Pair) -> str | None:
    at = pair.first("token_loss_mask")
    if at is None:
        return None
    covers = pair.recovery.columns["token_loss_mask"][at] == 1
    return f"the loss mask {'covers' if covers else 'leaves out'} {place(pair, at)}"


def reward_differs(pair: Pair) -> str | None:
    if pair.first("rewards") is None:
        return None
    return (
        "reward differs, tokens equal: environment state was lost or applied twice, or"
        " another session was verified"
    )


def column_missing(pair: Pair) -> str | None:
    a, b = pair.reference.columns, pair.recovery.columns
    for name in sorted(a.keys() ^ b.keys()):
        run = RUNS[name in a]
        return f"column {name!r} is missing in the {run}: other settings, or code"
    return None


def prefix_logprobs_zero(pair: Pair) -> str | None:
    if not (pair.was_cut and pair.logprobs_fail):
        return None
    prefix = slice(pair.start, pair.cut_at)
    a, b = (np.nan_to_num(x[prefix]) for x in pair.columns("generation_logprobs"))
    if b.any() or not a.any():
        return None
    return "prefix log-probs are zero or no numbers: not staged, or not restored"


def logprobs_say_nothing(pair: Pair) -> str | None:
    if not pair.logprobs_fail:
        return None
    found = np.append(
        *(x[pair.generated()] for x in pair.columns("generation_logprobs"))
    )
    if not np.isfinite(found).any():
        return "no log-prob is a number in either run: the engine gave none"
    if found.size > 2 and (found == found[0]).all():
        return "all log-probs are the same number: not those of the model itself"
    return None


def logprobs_differ(pair: Pair) -> str | None:
    at = pair.first("generation_logprobs")
    if at is None or not pair.logprobs_fail:
        return None
    if not pair.was_cut:
        return "log-probs differ, tokens equal: other weights, or numerical noise"
    if at < pair.cut_at:
        return "log-probs differ before the cut: phase 1 had other weights, or noise"
    a, b = (x[pair.cut_at :] for x in pair.columns("generation_logprobs"))
    if len(a) > 1 and (np.array_equal(a[1:], b[:-1]) or np.array_equal(a[:-1], b[1:])):
        return (
            "log-probs of the tail are shifted by a token: staged beside their tokens"
        )
    return "log-probs differ only after the cut: position ids or other weights"


def not_finite(pair: Pair) -> str | None:
    generated = pair.generated()
    for name in (*parity.TRAINER_FLOATS, "generation_logprobs"):
        for run, column in zip(RUNS, pair.columns(name), strict=True):
            if column.size and not np.isfinite(column[generated]).all():
                return f"{name} of the {run} is no number on some generated token"
    return None


def trainer_differs(pair: Pair) -> str | None:
    if pair.first("prev_logprobs") is None:
        return None
    return "only the trainer's log-probs differ: its weights were not recovered"


def other_column(pair: Pair) -> str | None:
    for name in sorted(pair.reference.columns.keys() - PER_TOKEN.keys()):
        a, b = (x.columns[name] for x in (pair.reference, pair.recovery))
        if parity._first_difference(a, b, name in parity.EXACT) is not None:
            return f"column {name!r} differs, tokens equal"
    return None


NUMBER_CAUSES: list[Callable[[Pair], str | None]] = [
    mask_differs,
    column_missing,
    reward_differs,
    prefix_logprobs_zero,
    logprobs_say_nothing,
    logprobs_differ,
    not_finite,
    trainer_differs,
    other_column,
]
