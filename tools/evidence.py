# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The evidence of a verdict, or of any two runs: what it holds, and how it is read."""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.harness import judge
from tools.pairs import Identity, Pair

CONTEXT, LOOKED_AT = 64, 512  # rows kept of any step, and in all with differing steps
MALFORMED = AttributeError, LookupError, OSError, TypeError, ValueError


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


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text())
    except MALFORMED as error:
        raise OSError(f"{path}: {error!r}") from None


def read_verdict(path: Path) -> Evidence:
    """The evidence of a verdict; its files may lie beside it, as in a CI artifact.

    Raises:
        OSError: verdict or evidence is missing or malformed.
    """

    def parse_verdict(text: str) -> tuple[list[dict[str, Any]], dict[str, Path]]:
        verdict = json.loads(text)
        for check in verdict["checks"]:
            _ = check["name"], check["passed"], check["counts"].items()
            _ = [problem["message"] + "" for problem in check["problems"]]
        needed = "reference_log_dir", "recovery_log_dir", "selection", "recovery_log"
        paths = {x: Path(verdict["evidence"][x]) for x in (*needed, "staging_keys")}
        beside = {name: path.parent / paths[name].name for name in paths}
        moved = {name: there for name, there in beside.items() if there.exists()}
        return verdict["checks"], paths | moved

    def parse_instances(text: str) -> dict[str, str]:
        return {
            f"{cut['group_id']}_g{cut['generation_index']}": cut.get("gym_instance_id")
            for cut in json.loads(text)["cuts"]
        }

    def parse_live(text: str) -> dict[int, set[str]]:
        records = map(json.loads, text.splitlines())
        return {x["train_step"]: set(x["staging_keys"]) for x in records}

    checks, paths = _read(path, parse_verdict)
    cuts, _ = judge._load_cuts(paths["selection"], paths["recovery_log"])
    evidence = Evidence(checks, cuts)
    evidence.instances = _read(paths["selection"], parse_instances)
    evidence.live = _read(paths["staging_keys"], parse_live)
    _load_rows(
        evidence,
        _run_dir(paths["reference_log_dir"]),
        _run_dir(paths["recovery_log_dir"]),
    )
    return evidence


def compare(reference: Path, other: Path, options: argparse.Namespace) -> Evidence:
    """Judge the rows and log-probs of two runs; the other one plays the recovery.

    Raises:
        OSError: a folder holds no run or several, a dump is malformed, or the
            runs have no train step in common.
    """
    run_dirs = {"reference": _run_dir(reference), "other": _run_dir(other)}
    steps, others = map(_steps, run_dirs.values())
    if not steps & others:
        raise OSError(f"{reference}, {other}: no train step in common")
    rows = judge._load_dump(run_dirs["reference"], min(steps & others))
    _, prompts, generations = map(set, zip(*rows, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        # evidence of a run that was never cut
        empty = Path(folder)
        for name, run_dir in run_dirs.items():
            (empty / name).mkdir()
            (empty / name / "exp_001").symlink_to(run_dir.resolve())
        (empty / "no-lines").touch()
        (empty / "no-cuts").write_text('{"cuts": []}')
        (empty / "gym_checkpoint.json").write_text('{"staging_keys": {}}')
        options = argparse.Namespace(
            **vars(options) | {"allow_pre_cut": False, "steps": max(steps)},
            prompts_per_step=len(prompts),
            generations_per_prompt=max(generations) + 1,
            reference_log_dir=empty / "reference",
            recovery_log_dir=empty / "other",
            selection=empty / "no-cuts",
            recovery_log=empty / "no-lines",
            staging_keys=empty / "no-lines",
            successor_checkpoint=empty,
        )
        checks = {check["name"]: check for check in judge.judge(options)}
    found = checks["rows match"]
    absent = [f"step {x}:" for x in {*range(max(steps | others))} - steps - others]
    found["problems"] = [
        x for x in found["problems"] if not x["message"].startswith(tuple(absent))
    ]
    found["passed"] = not found["problems"]
    evidence = Evidence([found, checks["generation log-probs agree"]])
    _load_rows(evidence, *run_dirs.values())
    return evidence


def _run_dir(log_dir: Path) -> Path:
    """The one folder with a dump: `<log_dir>/exp_<n>`, or the given one itself."""
    found = [x for x in (log_dir, *log_dir.glob("exp_*")) if _steps(x)]
    if len(found) != 1:
        names = ", ".join(sorted(x.name for x in found)) or "none"
        expected = "expected one exp_<n> with a train_data_step<n>.jsonl"
        raise OSError(f"{log_dir}: {expected}, found {names}")
    return found[0]


def _steps(run_dir: Path) -> set[int]:
    numbers = (x.stem[15:] for x in run_dir.glob("train_data_step*.jsonl"))
    return {int(number) for number in numbers if number.isdigit()}


def _load_rows(evidence: Evidence, *run_dirs: Path) -> None:
    failing = {identity[0] for identity in evidence.differing()}
    cuts = {cut.sample_id: cut for cut in evidence.cuts}
    for step in sorted(set.union(*map(_steps, run_dirs))):
        runs = [judge._load_dump(run_dir, step) for run_dir in run_dirs]
        for name, run in zip(("reference", "recovery"), runs, strict=True):
            evidence.times[name].update({x: len(twins) for x, twins in run.items()})
        if len(evidence.pairs) >= (LOOKED_AT if step in failing else CONTEXT):
            continue
        for identity in sorted(runs[0].keys() & runs[1].keys()):
            a, b = (run[identity][0] for run in runs)
            group = [x for x in runs[0] if x[:2] == identity[:2] and x != identity]
            siblings = [runs[0][x][0] for x in group]
            evidence.pairs[identity] = Pair(a, b, cuts.get(b.sample_id), siblings)
