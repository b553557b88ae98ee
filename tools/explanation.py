# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Why a recovered run differs: a catalogue of recovery bugs, as pure functions.

A cause of `ROW_CAUSES` looks at one differing row, a cause of `RUN_CAUSES` at the whole
evidence; each returns a sentence, or None where it does not apply.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Identity = tuple[int, int, int]  # step, prompt_idx, generation
WINDOW = 8  # tokens that have to agree before a shift is believed
PER_TOKEN = {  # the columns with a value a token, in the order they are looked at
    "token_ids": "tokens",
    "token_loss_mask": "loss mask",
    "generation_logprobs": "log-probs",
    "prev_logprobs": "trainer's log-probs",
    "advantages": "advantages",
}
ADVANTAGE = "only the advantage differs: it follows from a sibling's reward"
PREFIX, TAIL = "the restored prefix", "the continued tail"
PROMPT, TOOL_RESULT = "the prompt", "the tool result"
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
        rows = self.reference, self.recovery
        a, b = (row.columns.get(name, np.empty(0)) for row in rows)
        return a, b

    def differs(self, name: str) -> np.ndarray:
        """Whether a column differs at each position, [the longer length]."""
        a, b = self.columns(name)
        n = min(len(a), len(b))
        close = (1e-4, 1e-5) if name in ("advantages", "prev_logprobs") else (0, 0)
        same = np.isclose(b[:n], a[:n], close[0], close[1], equal_nan=True)
        return np.append(~same, np.ones(max(len(a), len(b)) - n, dtype=bool))

    def first(self, name: str) -> int | None:
        """The first position at which a column differs."""
        differs = self.differs(name)
        return int(differs.argmax()) if differs.any() else None


@dataclass
class Evidence:
    """Both runs and what was judged of them.

    `pairs` holds the rows to look at: all of a small run, the first differing ones of a
    large one. `times` counts how often each run trained each row.
    """

    checks: list[dict[str, Any]]
    cuts: list[Any] = field(default_factory=list)
    pairs: dict[Identity, Pair] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)  # of cut rows, by sample_id
    live: dict[int, set[str]] = field(default_factory=dict)  # staging keys, by step

    def __post_init__(self) -> None:
        self.times: dict[str, Counter[Identity]]
        self.times = {"reference": Counter(), "recovery": Counter()}

    def failing(self) -> list[str]:
        """The names of the checks that failed."""
        return [check["name"] for check in self.checks if not check["passed"]]

    def how_often(self) -> dict[Identity, tuple[int, int]]:
        """How often the reference and the recovery trained each row."""
        a, b = self.times["reference"], self.times["recovery"]
        return {identity: (a[identity], b[identity]) for identity in a | b}

    def differing(self) -> list[Identity]:
        """The rows that differ by a failed check, in order."""
        problems = [x for check in self.checks for x in check["problems"]]
        found = {
            (x["step"], x["prompt_idx"], x["generation"])
            for x in problems
            if x.keys() >= {"step", "prompt_idx", "generation"}
        }
        if "generation log-probs agree" in self.failing():
            for identity, pair in self.pairs.items():
                if pair.first("generation_logprobs") is not None:
                    found.add(identity)
        return sorted(found)

    def suspects(self) -> dict[Identity, Pair]:
        """The differing rows of the first step that has some: later ones follow."""
        found = [identity for identity in self.differing() if identity in self.pairs]
        return {x: self.pairs[x] for x in found if x[0] == found[0][0]}


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


def before_the_call(pair: Pair) -> str | None:
    at = pair.first("token_ids")
    first = None if at is None else place(pair, at)
    if first == PROMPT:
        return "the prompt differs: other data, or another place in the data set"
    if first == TOOL_RESULT:
        return "the tool result differs: the environment's state was lost or used twice"
    if pair.cut and first == TURN:
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
    if not pair.cut or not (shift := _shift(pair)):
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


def _shift(pair: Pair) -> int:
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


def prefix_differs(pair: Pair) -> str | None:
    at = pair.first("token_ids")
    if not pair.cut or at is None or place(pair, at) != PREFIX:
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
    if at is None or (pair.cut and place(pair, at) != TAIL):
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
    lost, extra = (
        _lost(evidence),
        evidence.times["recovery"] - evidence.times["reference"],
    )
    moved = {x[1:]: x[0] for x in lost if x[1:] in {y[1:] for y in extra}}
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
