# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Why a recovered run differs: a catalogue of recovery bugs, as pure functions.

A cause of `ROW_CAUSES` looks at one differing row, a cause of `RUN_CAUSES` at the whole
evidence; each returns a sentence, or None where it does not apply.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tools import pairs
from tools.evidence import Evidence
from tools.pairs import Identity, Pair, place, tail_shift

ADVANTAGE = "only the advantage differs: it follows from a sibling's reward"


def before_the_call(pair: Pair) -> str | None:
    at = pair.first("token_ids")
    first = None if at is None else place(pair, at)
    if first == pairs.PROMPT:
        return "the prompt differs: other data, or another place in the data set"
    if first == pairs.TOOL_RESULT:
        return "the tool result differs: the environment's state was lost or used twice"
    if pair.cut and first == pairs.TURN:
        return "a turn before the cut call differs: it was generated once more"
    return None


def siblings_prefix(pair: Pair) -> str | None:
    def prefix(row: Any) -> list[float]:
        part = slice(row.start, row.start + pair.cut.prefix)
        names = "token_ids", "generation_logprobs"
        return [x for name in names for x in row.columns[name][part].tolist()]

    if not pair.cut or prefix(pair.recovery) == prefix(pair.reference):
        return None
    if prefix(pair.recovery) not in map(prefix, pair.siblings):
        return None
    return "a sibling's prefix was restored: two generations of a group were mixed up"


def tail_shifted(pair: Pair) -> str | None:
    if not pair.cut or not (shift := tail_shift(pair)):
        return None
    if shift == pair.cut.prefix:
        return "the call was restarted instead of continued: the prefix is there twice"
    if shift == 1:
        return "the tail repeats the last prefix token: it was sampled once more"
    if shift > 0:
        return f"the tail repeats the last {shift} prefix tokens: it begins too early"
    if shift == -1:
        return "the prefix lost its last token: sampled, but not staged or not restored"
    return f"the prefix lost its last {-shift} tokens: a staged piece is missing"


def prefix_differs(pair: Pair) -> str | None:
    at = pair.first("token_ids")
    if not pair.cut or at is None or place(pair, at) != pairs.PREFIX:
        return None
    replayed = pair.cut.replayed(pair.recovery)
    if replayed:
        return "phase 1 itself sampled another prefix: its hash holds, it was replayed"
    hash_fails = "" if replayed is None else ", and its hash does not hold"
    return f"the prefix was damaged: it has tokens that the reference lacks{hash_fails}"


def tail_ends_elsewhere(pair: Pair) -> str | None:
    a, b = pair.columns("token_ids")
    n = min(len(a), len(b))
    if not pair.cut or len(a) == len(b) or not np.array_equal(a[:n], b[:n]):
        return None
    if len(b) < len(a):
        return "the tail stops early: the prefix counted twice against the output limit"
    return "the tail runs on past the call's end: the stop condition was lost"


def near_tie(pair: Pair) -> str | None:
    at = pair.first("token_ids")
    a, b = pair.columns("generation_logprobs")
    if at is None or at >= min(len(a), len(b)):
        return None
    noise = np.abs(a[:at] - b[:at]).max(initial=0)
    if not 0 < noise < 0.5 or abs(a[at] - b[at]) > 0.2 or max(a[at], b[at]) > -0.3:
        return None
    return "two nearly equal tokens changed places: numerical noise, run it again"


def ids_altered(pair: Pair) -> str | None:
    """Other tokens have other log-probs, unless they were changed after decoding."""
    same = pair.first("generation_logprobs") is None
    if pair.first("token_ids") is None or not same:
        return None
    return "token ids were altered after decoding: the log-probs are all the same"


def sampling_differs(pair: Pair) -> str | None:
    at = pair.first("token_ids")
    if at is None or (pair.cut and place(pair, at) != pairs.TAIL):
        return None
    known = slice(pair.cut_at if pair.cut else 0, at)
    if pair.differs("generation_logprobs")[known].any():
        return "log-probs differ before the tokens do: position ids or other weights"
    if not pair.cut:
        return "tokens part at equal log-probs: another seed or sampling state"
    if at == pair.cut_at:
        return "the tail differs from its first token: position ids, or sampling state"
    return "sampling started again at position 0: log-probs agree up to the other token"


def mask_differs(pair: Pair) -> str | None:
    at = pair.first("token_loss_mask")
    if at is None or pair.first("token_ids") is not None:
        return None
    covers = pair.recovery.columns["token_loss_mask"][at] > 0
    return f"the loss mask {'covers' if covers else 'leaves out'} {place(pair, at)}"


def reward_differs(pair: Pair) -> str | None:
    if pair.first("rewards") is None or pair.first("token_ids") is not None:
        return None
    return "reward differs, tokens equal: environment state was lost or applied twice"


def masked_in_one_run(pair: Pair) -> str | None:
    if pair.first("sample_loss_mask") is None:
        return None
    return "the row is masked in one run only: its rollout failed or timed out there"


def prefix_logprobs_zero(pair: Pair) -> str | None:
    if not pair.cut:
        return None
    prefix = slice(pair.reference.start, pair.cut_at)
    a, b = (x[prefix] for x in pair.columns("generation_logprobs"))
    if b.any() or not a.any():
        return None
    return "prefix log-probs are zero: they were not staged, or not restored"


def logprobs_differ(pair: Pair) -> str | None:
    at = pair.first("generation_logprobs")
    if at is None or pair.first("token_ids") is not None:
        return None
    if not pair.cut:
        return "log-probs differ, tokens equal: other weights, or numerical noise"
    if at < pair.cut_at:
        return "log-probs differ before the cut: phase 1 had other weights, or noise"
    return "log-probs differ only after the cut: position ids or other weights"


def trainer_differs(pair: Pair) -> str | None:
    if pair.first("token_ids") is not None:
        return None
    if pair.first("prev_logprobs") is not None:
        return "only the trainer's log-probs differ: its weights were not recovered"
    if pair.first("advantages") is not None:
        return ADVANTAGE
    return None


ROW_CAUSES: list[Callable[[Pair], str | None]] = [
    before_the_call,
    siblings_prefix,
    tail_shifted,
    tail_ends_elsewhere,
    ids_altered,
    near_tie,
    prefix_differs,
    sampling_differs,
    mask_differs,
    reward_differs,
    masked_in_one_run,
    prefix_logprobs_zero,
    logprobs_differ,
    trainer_differs,
]


def training_state_lost(evidence: Evidence) -> str | None:
    found = evidence.differing()
    steps = {step for step, _, _ in evidence.times["reference"]}
    if not found or found[0][0] == min(steps):
        return None
    return (
        f"rows of step >= {found[0][0]} only: training state (weights, optimizer,"
        " schedule) was not recovered, or the step before was trained differently"
    )


def rows_elsewhere(evidence: Evidence) -> str | None:
    extra = evidence.times["recovery"] - evidence.times["reference"]
    moved = {x[1:]: x[0] for x in _lost(evidence) if x[1:] in {y[1:] for y in extra}}
    if not moved:
        return None
    where = next(y[0] for y in sorted(extra) if y[1:] in moved)
    return (
        f"{_rows(len(moved))} trained in another step (step {where} instead of"
        f" {min(moved.values())}): buffered rollouts or the sampler's place were lost"
    )


def rows_lost(evidence: Evidence) -> str | None:
    extra = {x[1:] for x in evidence.times["recovery"] - evidence.times["reference"]}
    if not (lost := [x for x in _lost(evidence) if x[1:] not in extra]):
        return None
    return (
        f"{_rows(len(lost))} lost: neither resumed from the snapshot nor started again"
    )


def rows_twice(evidence: Evidence) -> str | None:
    twice = [x for x, n in evidence.times["recovery"].items() if n > 1]
    if not twice:
        return None
    return f"{_rows(len(twice))} trained twice: resumed, and started again as well"


def _lost(evidence: Evidence) -> list[Identity]:
    return sorted(evidence.times["reference"] - evidence.times["recovery"])


def _rows(n: int) -> str:
    return "a row was" if n == 1 else f"{n} rows were"


def not_restored(evidence: Evidence) -> str | None:
    n = sum(not cut.restored for cut in evidence.cuts)
    if not n:
        return None
    return (
        f"{n} of {len(evidence.cuts)} cut calls were restarted instead of continued,"
        " or dropped: the log has no restored line of them"
    )


def old_keys_live(evidence: Evidence) -> str | None:
    keys = {key for cut in evidence.cuts for key in cut.staging_keys}
    steps = [step for step, live in sorted(evidence.live.items()) if live & keys]
    if not steps:
        return None
    if steps == sorted(evidence.live):
        return "old prefix keys never retired: they are live as every step begins"
    return f"old prefix keys retired late: still live as step {steps[-1]} begins"


def constant_reward(evidence: Evidence) -> str | None:
    if "reward signal" not in evidence.failing():
        return None
    return "all rewards are the same: the workload gives nothing to learn, so no proof"


RUN_CAUSES: list[Callable[[Evidence], str | None]] = [
    training_state_lost,
    rows_elsewhere,
    rows_lost,
    rows_twice,
    not_restored,
    old_keys_live,
    constant_reward,
]


def likely_causes(evidence: Evidence) -> dict[str, list[Identity]]:
    """Sentences, the one that fits most rows first; a run's cause names no rows."""
    found: dict[str, list[Identity]] = {}
    for identity, pair in evidence.suspects().items():
        fitting = (sentence for cause in ROW_CAUSES if (sentence := cause(pair)))
        sentence = next(fitting, "no known cause fits")
        found.setdefault(sentence, []).append(identity)
    whole = [sentence for cause in RUN_CAUSES if (sentence := cause(evidence))]
    ordered = sorted(found, key=lambda x: (x == ADVANTAGE, -len(found[x])))
    return {x: [] for x in whole} | {x: found[x] for x in ordered}
