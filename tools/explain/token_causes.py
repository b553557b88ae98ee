# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Why a row has other tokens in the recovery: a catalogue of recovery bugs.

Each function looks at one row of both runs whose tokens differ, and returns a sentence,
or None where it does not apply. The first that applies names the cause.
"""

import math
from collections.abc import Callable

import _gym_prefix_recovery_parity as parity
import numpy as np

from tools.explain import pairs
from tools.explain.pairs import RUNS, Pair, place, tail_shift

LARGEST_TIE = math.log(0.5)  # the log-prob of two tokens that share all of it


def padding_kept(pair: Pair) -> str | None:
    rows = pair.reference, pair.recovery
    lengths = [len(row.columns["token_ids"]) for row in rows]
    longer, n = int(np.argmax(lengths)), min(lengths)
    if lengths[0] == lengths[1] or pair.differs("token_ids")[:n].any():
        return None
    if rows[longer].columns["token_loss_mask"][n:].any():
        return None
    return f"the {RUNS[longer]}'s row goes on with masked tokens: a batch's padding"


def before_the_call(pair: Pair) -> str | None:
    first = place(pair, pair.first_other_token())
    if first == pairs.PROMPT:
        return "the prompt differs: other data, or another place in the data set"
    if first == pairs.TOOL_RESULT:
        return "the tool result differs: the environment's state was lost or used twice"
    if pair.was_cut and first == pairs.TURN:
        return "a turn before the cut call differs: it was generated once more"
    return None


def siblings_prefix(pair: Pair) -> str | None:
    def prefix(row: parity.Row) -> list[float]:
        start = row.turns[-1][0] if row.turns else 0
        names = "token_ids", "generation_logprobs"
        parts = [row.columns[name][start : start + pair.prefix] for name in names]
        return [x for part in parts for x in part.tolist()]

    if not pair.was_cut or prefix(pair.recovery) == prefix(pair.reference):
        return None
    if prefix(pair.recovery) not in map(prefix, pair.siblings):
        return None
    return "a sibling's prefix was restored: two generations of a group were mixed up"


def tail_shifted(pair: Pair) -> str | None:
    shift = tail_shift(pair) if pair.was_cut else 0
    if not shift:
        return None
    if shift == pair.prefix:
        return "the call was restarted instead of continued: the prefix is there twice"
    if shift == 1:
        return "the tail repeats the last prefix token: it was sampled once more"
    if shift > 0:
        return f"the tail repeats the last {shift} prefix tokens: it begins too early"
    if shift == -1:
        return "the prefix lost its last token: sampled, but not staged or not restored"
    return f"the prefix lost its last {-shift} tokens: a staged piece was not restored"


def ends_elsewhere(pair: Pair) -> str | None:
    a, b = pair.columns("token_ids")
    n = min(len(a), len(b))
    if len(a) == len(b) or pair.differs("token_ids")[:n].any():
        return None
    if not pair.was_cut:
        return "the row ends elsewhere: another output limit or stop condition"
    if len(b) > len(a):
        return "the tail runs on past the call's end: the stop condition was lost"
    if len(b) == pair.cut_at:
        return "the call ended with its prefix: it was not continued at all"
    return "the tail stops early: the prefix counted twice against the output limit"


def ids_altered(pair: Pair) -> str | None:
    """Other tokens have other log-probs, unless they were changed after decoding."""
    at = pair.first_other_token()
    a, b = pair.columns("generation_logprobs")
    if at >= min(len(a), len(b)) or a[at] != b[at]:
        return None
    if a[at] <= LARGEST_TIE:
        return "two equally likely tokens changed places: an exact tie, run it again"
    if not a.any():  # an engine that says 0 of every token says nothing
        return None
    return "token ids were altered after decoding: the log-prob is that of the other id"


def near_tie(pair: Pair) -> str | None:
    at = pair.first_other_token()
    a, b = pair.columns("generation_logprobs")
    if at >= min(len(a), len(b)):
        return None
    known = pair.generated()[:at]
    noise = np.abs(a[:at] - b[:at])[known].max(initial=0)
    if not 0 < noise < 0.5 or abs(a[at] - b[at]) > 0.2 or max(a[at], b[at]) > -0.3:
        return None
    return "two nearly equal tokens changed places: numerical noise, run it again"


def prefix_differs(pair: Pair) -> str | None:
    if not pair.was_cut or place(pair, pair.first_other_token()) != pairs.PREFIX:
        return None
    hashes = {record["sha256"] for record in pair.cut.restored} - {None}
    if pair.recovery.prefix_sha256 in hashes:
        return "phase 1 itself sampled another prefix: its hash holds, it was replayed"
    hash_fails = ", and its hash does not hold" if hashes else ""
    return f"the prefix was damaged: it has tokens that the reference lacks{hash_fails}"


def sampling_differs(pair: Pair) -> str | None:
    at = pair.first_other_token()
    if pair.was_cut and place(pair, at) != pairs.TAIL:
        return None
    known = slice(pair.cut_at if pair.was_cut else 0, at)
    if pair.differs("generation_logprobs")[known].any():
        return "log-probs differ before the tokens do: position ids or other weights"
    if not pair.was_cut:
        return "tokens part at equal log-probs: sampled anew, or in another state"
    if at == pair.cut_at:
        return "the tail differs from its first token: position ids, or sampling state"
    return "sampling started again at position 0: log-probs agree up to the other token"


TOKEN_CAUSES: list[Callable[[Pair], str | None]] = [
    padding_kept,
    before_the_call,
    siblings_prefix,
    tail_shifted,
    ends_elsewhere,
    ids_altered,
    near_tie,
    prefix_differs,
    sampling_differs,
]
