# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The evidence of a verdict, or of any two runs: what it holds, and how it is read."""

import argparse
import math
import os
from collections import Counter
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import _gym_prefix_recovery_parity as parity
from _gym_prefix_recovery_parity import EvidenceError

from tools.explain.logprobs import LogProbs
from tools.explain.pairs import RUNS, Identity, Pair, identity_of

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
        return {run: Counter(map(identity_of, self.rows[run])) for run in RUNS}

    def steps(self, run: str) -> list[int]:
        """The train steps of which a run has rows."""
        return sorted({row.step for row in self.rows[run]})

    def how_often(self) -> dict[Identity, tuple[int, int]]:
        """How often the reference and the recovery trained each row, in order."""
        a, b = (self.times[run] for run in RUNS)
        return {identity: (a[identity], b[identity]) for identity in sorted(a | b)}

    def agreements(self) -> dict[Identity, parity.Agreement]:
        """How the log-probs of each row agree, where both runs have equal tokens."""
        rows = self.rows["recovery"]
        return {identity_of(row): row.agreement for row in rows if row.agreement}

    def settle(self, unfit: set[Identity], limits: argparse.Namespace) -> None:
        """Find the rows that differ by a failed check, beside those that are unfit."""
        rows = self.rows["recovery"]
        self.differing = unfit | {identity_of(row) for row in rows if row.difference}
        if LOGPROBS in self.failing():
            noisy = {x for x, y in self.agreements().items() if _is_noisy(y, limits)}
            self.differing |= noisy
            for identity in noisy & self.pairs.keys():
                self.pairs[identity].logprobs_fail = True

    def suspects(self) -> dict[Identity, Pair]:
        """The differing rows of the first step that has some: later ones follow."""
        found = sorted(self.differing & self.pairs.keys())
        return {x: self.pairs[x] for x in found if x.step == found[0].step}


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

    written = Path(parity._field(options, "verdict", str, place))

    def located(name: str) -> Path:
        given = Path(parity._field(options, name, str, place))
        return _located(given, written, path)

    selection = located("selection")
    evidence.cuts = parity._load_cuts(selection)
    evidence.instances = _instances(selection)
    log = located("recovery_log")
    restored = parity._read_log(log, parity.RESTORED, "restored")
    completed = parity._read_log(log, parity.COMPLETED, "completed")
    for cut in evidence.cuts:
        cut.restored = [x for x in restored if x["source"] == cut.model_call_id]
        cut.completed = [x for x in completed if x["source"] == cut.model_call_id]
    calls = {cut.model_call_id for cut in evidence.cuts}
    evidence.strays = sum(x["source"] not in calls for x in restored + completed)
    probe = parity._load_probe(located("staging_keys"))
    evidence.probe = [(step, set(keys)) for step, keys in probe]
    checkpoint = located("successor_checkpoint")
    evidence.successor_keys = parity._load_successor_keys(checkpoint)
    names = "steps", "prompts_per_step", "generations_per_prompt"
    plan = [parity._field(options, name, int, place) for name in names]
    evidence.planned_rows = math.prod(plan)
    reference, recovery = (located(f"{run}_log_dir") for run in RUNS)
    _load_rows(evidence, parity._find_dumps(reference), parity._find_dumps(recovery))
    rows = [row for run in RUNS for row in evidence.rows[run]]
    limits = argparse.Namespace()
    for name in ("min_identical_logprobs", "max_logprob_difference"):
        setattr(limits, name, parity._field(options, name, float, place))
    evidence.settle({identity_of(row) for row in rows if row.problems}, limits)
    return evidence


def compare(reference: Path, other: Path, limits: argparse.Namespace) -> Evidence:
    """Judge the rows and log-probs of two runs; the other one plays the recovery.

    Args:
        reference, other: log folders, each with one run in it.
        limits: `min_identical_logprobs` and `max_logprob_difference`.

    Raises:
        EvidenceError: a folder holds no run or several, a dump is malformed, or the
            runs have no train step in common.
    """
    evidence = Evidence()
    dumps = parity._find_dumps(reference), parity._find_dumps(other)
    if not dumps[0].keys() & dumps[1].keys():
        raise EvidenceError(f"{reference}, {other}: no train step in common")
    _load_rows(evidence, *dumps)
    problems = [
        f"{identity} is trained {m} times in the other run, {n} in the reference"
        for identity, (n, m) in evidence.how_often().items()
        if n != m
    ]
    rows = sorted(evidence.rows["recovery"], key=identity_of)
    different = [row for row in rows if row.difference]
    problems += [f"{identity_of(x)} ({x.sample_id}): {x.difference}" for x in different]
    agreements = {str(x): y for x, y in evidence.agreements().items()}
    noise = [*parity.assert_generation_logprobs_agree(agreements, limits)]
    tokens = sum(agreement.tokens for agreement in agreements.values())
    evidence.checks = [
        parity.Check("rows match", f"{len(rows)} rows", problems),
        parity.Check(LOGPROBS, f"{tokens} tokens", noise),
    ]
    evidence.settle(set(), limits)
    return evidence


def _check(entry: Any, place: str) -> parity.Check:
    name = parity._field(entry, "name", str, place)
    counts = parity._field(entry, "counts", str, place)
    return parity.Check(name, counts, parity._keys(entry, "problems", place))


def _located(path: Path, written: Path, verdict: Path) -> Path:
    """Where a path of the evidence is now.

    Args:
        path: as it was given to the judge, on this machine or on another.
        written: where the judge wrote the verdict.
        verdict: where the verdict is now; what lay around it may have come along.
    """
    around = verdict.parent / os.path.relpath(path, written.parent)
    candidates = around, path, verdict.parent / path.name
    return next((x for x in candidates if x.exists()), path)


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
    reference_dumps: dict[int, Path],
    recovery_dumps: dict[int, Path],
) -> None:
    """Fill in the evidence's rows, pairs and log-probs, a step at a time."""
    for step in sorted(reference_dumps | recovery_dumps):
        reference = parity._load_dump(reference_dumps.get(step), step)
        recovery = parity._load_dump(recovery_dumps.get(step), step)
        # the judge drops the columns of what it compares
        compared = [[copy(row) for row in rows] for rows in (reference, recovery)]
        parity._compare(*compared, evidence.cuts)
        for run, rows in zip(RUNS, compared, strict=True):
            evidence.rows[run] += rows
        for row, emptied in zip(recovery, compared[1], strict=True):
            row.prefix_sha256, row.difference = (
                emptied.prefix_sha256,
                emptied.difference,
            )
        pairs = _pairs(reference, recovery, evidence.cuts)
        for pair in pairs:
            evidence.logprobs.add(pair)
        different = [pair for pair in pairs if pair.recovery.difference]
        if len(evidence.pairs) < (LOOKED_AT if different else CONTEXT):
            # of a row that was trained twice, one that differs
            evidence.pairs |= {x.identity: x for x in pairs + different}


def _pairs(
    reference: list[parity.Row], recovery: list[parity.Row], cuts: list[parity.Cut]
) -> list[Pair]:
    originals = {identity_of(row): row for row in reference}
    cut_of_sample = {cut.sample_id: cut for cut in cuts}
    pairs = []
    for row in recovery:
        if original := originals.get(identity_of(row)):
            group = [x for x in reference if x.prompt_idx == row.prompt_idx]
            siblings = [x for x in group if x is not original]
            cut = cut_of_sample.get(row.sample_id)
            pairs.append(Pair(original, row, cut, siblings))
    return pairs


def _is_noisy(agreement: parity.Agreement, limits: argparse.Namespace) -> bool:
    """Whether the check of the log-probs would fail for this row alone."""
    return any(parity.assert_generation_logprobs_agree({"": agreement}, limits))
