# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The evidence of a verdict, or of any two runs: what it holds, and how it is read."""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import _gym_prefix_recovery_parity as parity
from _gym_prefix_recovery_parity import EvidenceError, Identity

from tools.explain.logprobs import LogProbs
from tools.explain.pairs import RUNS, Pair

CONTEXT, LOOKED_AT = 64, 512  # rows kept of any step, and in all with differing steps
LOGPROBS = "generation log-probs agree"


@dataclass
class Evidence:
    """Both runs and what was judged of them.

    `pairs` holds the rows to look at: all of a small run, the first differing ones of a
    large one. `rows` has every trained row, without its columns.
    """

    checks: list[parity.Check] = field(default_factory=list)
    cuts: list[parity.Cut] = field(default_factory=list)
    strays: int = 0  # log records of calls that were not cut
    instances: dict[str, str] = field(default_factory=dict)  # of cut rows, by sample_id
    probe: list[tuple[int, set[str]]] = field(default_factory=list)
    successor_keys: set[str] = field(default_factory=set)
    planned_rows: int | None = None  # of a run, where a plan is known
    rows: dict[str, list[parity.Row]] = field(
        default_factory=lambda: {run: [] for run in RUNS}
    )
    pairs: dict[Identity, Pair] = field(default_factory=dict)
    differing: set[Identity] = field(default_factory=set)
    logprobs: LogProbs = field(default_factory=LogProbs)

    def failing(self) -> list[str]:
        """The names of the checks that failed."""
        return [check.name for check in self.checks if check.problems]

    @cached_property
    def times(self) -> dict[str, Counter[Identity]]:
        """How often each run trained each row."""
        return {run: Counter(x.identity for x in self.rows[run]) for run in RUNS}

    def steps(self, run: str) -> list[int]:
        """The train steps of which a run has rows."""
        return sorted({row.identity.step for row in self.rows[run]})

    def how_often(self) -> dict[Identity, tuple[int, int]]:
        """How often the reference and the recovery trained each row, in order."""
        a, b = (self.times[run] for run in RUNS)
        return {identity: (a[identity], b[identity]) for identity in sorted(a | b)}

    def settle(self, different: set[Identity], noisy: set[Identity]) -> None:
        """Which rows differ by a failed check; the noisy ones if log-probs failed."""
        self.differing = different
        if LOGPROBS in self.failing():
            self.differing = different | noisy
            for identity in noisy & self.pairs.keys():
                self.pairs[identity].logprobs_fail = True

    def suspects(self) -> dict[Identity, Pair]:
        """The differing rows of the first step that has some: later ones follow."""
        found = sorted(self.differing & self.pairs.keys())
        return {x: self.pairs[x] for x in found if x.step == found[0].step}


@dataclass
class Findings:
    """What the judge says of the rows that were loaded."""

    differences: list[str] = field(default_factory=list)
    agreements: list[parity.Agreement] = field(default_factory=list)
    different: set[Identity] = field(default_factory=set)
    unfit: set[Identity] = field(default_factory=set)  # they trained nothing, or NaN
    noisy: set[Identity] = field(default_factory=set)  # with too different log-probs


def read_verdict(path: Path) -> Evidence:
    """The evidence of a verdict; its files may lie beside it, as in a CI artifact.

    Raises:
        EvidenceError: verdict or evidence is malformed.
        OSError: a file is missing.
    """
    document = parity._parse_json(path.read_bytes(), str(path))
    entries = parity._field(document, "checks", list, str(path))
    evidence = Evidence(
        [_check(x, f"{path}: checks[{n}]") for n, x in enumerate(entries)]
    )
    options = parity._field(document, "evidence", dict, str(path))
    place = f"{path}: evidence"

    def located(name: str) -> Path:
        return _located(parity._field(options, name, str, place), path.parent)

    def number(name: str) -> float:
        text = parity._field(options, name, str, place)
        try:
            return float(text)
        except ValueError:
            raise EvidenceError(
                f"{place}: {name} is {text!r}, expected a number"
            ) from None

    selection = located("selection")
    evidence.cuts = parity._load_cuts(selection)
    evidence.instances = _instances(selection)
    records = parity._read_log(located("recovery_log"))
    sources = {cut.model_call_id for cut in evidence.cuts}
    evidence.strays = sum(
        x["source"] not in sources for found in records for x in found
    )
    for cut in evidence.cuts:
        cut.restored, cut.completed = (
            [x for x in found if x["source"] == cut.model_call_id] for found in records
        )
    evidence.probe = parity._load_probe(located("staging_keys"))
    evidence.successor_keys = parity._load_successor_keys(
        located("successor_checkpoint")
    )
    plan = [number(x) for x in ("steps", "prompts_per_step", "generations_per_prompt")]
    evidence.planned_rows = int(plan[0] * plan[1] * plan[2])
    thresholds = number("min_identical_logprobs"), number("max_logprob_difference")
    reference, recovery = (located(f"{run}_log_dir") for run in RUNS)
    dumps = parity._find_dumps(reference), parity._find_dumps(recovery)
    found = _load_rows(evidence, dumps, thresholds)
    evidence.settle(found.different | found.unfit, found.noisy)
    return evidence


def compare(reference: Path, other: Path, thresholds: tuple[float, float]) -> Evidence:
    """Judge the rows and log-probs of two runs; the other one plays the recovery.

    Args:
        reference, other: log folders, each with one run in it.
        thresholds: the least share of bit-identical log-probs, and their largest
            difference.

    Raises:
        EvidenceError: a folder holds no run or several, a dump is malformed, or the
            runs have no train step in common.
    """
    evidence = Evidence()
    dumps = parity._find_dumps(reference), parity._find_dumps(other)
    if not dumps[0].keys() & dumps[1].keys():
        raise EvidenceError(f"{reference}, {other}: no train step in common")
    found = _load_rows(evidence, dumps, thresholds)
    problems = [
        f"{identity} is trained {m} times in the other run, {n} in the reference"
        for identity, (n, m) in evidence.how_often().items()
        if n != m
    ]
    counts = {"rows": len(evidence.rows["recovery"]), "steps": len(dumps[1])}
    evidence.checks = [
        parity.Check("rows match", counts, problems + sorted(found.differences)),
        parity.assert_generation_logprobs_agree(found.agreements, *thresholds),
    ]
    evidence.settle(found.different, found.noisy)
    return evidence


def _check(entry: Any, place: str) -> parity.Check:
    name = parity._field(entry, "name", str, place)
    counts = parity._field(entry, "counts", dict, place)
    return parity.Check(name, counts, parity._keys(entry, "problems", place))


def _located(text: str, folder: Path) -> Path:
    """A path as the judge was given it, or its last parts if they lie in the folder."""
    path = Path(text)
    for count in range(1, len(path.parts) + 1):
        beside = folder.joinpath(*path.parts[-count:])
        if beside.exists():
            return beside
    return path


def _instances(selection: Path) -> dict[str, str]:
    """The Gym instance of each cut rollout, where the selection names it."""
    document = parity._parse_json(selection.read_bytes(), str(selection))
    return {
        f"{cut['group_id']}_g{cut['generation_index']}": str(cut["gym_instance_id"])
        for cut in document["cuts"]
        if "gym_instance_id" in cut
    }


def _load_rows(
    evidence: Evidence,
    dumps: tuple[dict[int, Path], dict[int, Path]],
    thresholds: tuple[float, float],
) -> Findings:
    """Fill in the evidence's rows, pairs and log-probs, a step at a time."""
    found = Findings()
    for step in sorted(dumps[0] | dumps[1]):
        reference, recovery = (parity._load_dump(x.get(step), step) for x in dumps)
        pairs = _pairs(reference, recovery, evidence.cuts)
        wrong: dict[Identity, Pair] = {}
        for pair in pairs:
            evidence.logprobs.add(pair)
            if not _is_sound(pair, found, thresholds):
                wrong[pair.recovery.identity] = pair
        if len(evidence.pairs) < (LOOKED_AT if wrong else CONTEXT):
            # of a row that was trained twice, one that differs
            evidence.pairs |= {pair.recovery.identity: pair for pair in pairs} | wrong
        for run, rows in zip(RUNS, (reference, recovery), strict=True):
            evidence.rows[run] += [replace(row, columns={}) for row in rows]
    return found


def _pairs(
    reference: list[parity.Row], recovery: list[parity.Row], cuts: list[parity.Cut]
) -> list[Pair]:
    originals = {row.identity: row for row in reference}
    cut_of_sample = {cut.sample_id: cut for cut in cuts}
    pairs = []
    for row in recovery:
        if original := originals.get(row.identity):
            prompt = row.identity[:2]
            group = [x for x in reference if x.identity[:2] == prompt]
            siblings = [x for x in group if x is not original]
            pairs.append(
                Pair(original, row, cut_of_sample.get(row.sample_id), siblings)
            )
    return pairs


def _is_sound(pair: Pair, found: Findings, thresholds: tuple[float, float]) -> bool:
    """Whether the judge finds nothing in one pair; what it finds is added."""
    identity = pair.recovery.identity
    a, b = (
        replace(pair.reference),
        replace(pair.recovery),
    )  # it empties what it compares
    cuts = [pair.cut] if pair.cut else []
    differences, agreements = parity._compare_step([a], [b], cuts)
    pair.recovery.prefix_sha256 = b.prefix_sha256
    found.differences += differences
    found.agreements += agreements
    noise = parity.assert_generation_logprobs_agree(agreements, *thresholds).problems
    is_different, is_unfit = bool(differences), bool(a.problems or b.problems)
    is_noisy = bool(agreements and noise)
    found.different |= {identity} if is_different else set()
    found.unfit |= {identity} if is_unfit else set()
    found.noisy |= {identity} if is_noisy else set()
    return not (is_different or is_unfit or is_noisy)
