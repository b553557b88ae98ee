# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Judge whether a recovered run trained exactly the rows an uninterrupted run trained.

Makes five assertions over the evidence of both runs, prints a line for each and exits
0 (all hold), 1 (an assertion failed) or 2 (the evidence cannot be judged).
"""

import argparse
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NAMES = ["token_ids", "token_loss_mask", "rewards", "sample_loss_mask", "input_lengths"]
NAMES += ["advantages", "generation_logprobs"]
OPTIONAL = ["prev_logprobs", "pre_seq_error_sample_loss_mask", "prompt_ids"]
CLOSE = {"advantages", "prev_logprobs"}  # within rtol 1e-4 and atol 1e-5
PER_TOKEN = {"token_ids", "token_loss_mask", "generation_logprobs", *CLOSE}
LOG_LINE = re.compile(
    r"generation prefix (?P<event>restored|completed): rollout_id=(?P<sample>\S+)_a\S+"
    r" model_call_id=(?P<call>\S+) source_model_call_id=(?P<source>\S+)"
    r" prefix_tokens=(?P<prefix>\d+) (prefix_digest=(?P<digest>[0-9a-f]{64})\b"
    r"(.* prefix_ids_sha256=(?P<sha256>[0-9a-f]{64})\b)?"
    r"|tail_tokens=(?P<tail>\d+) total_generation_tokens=(?P<total>\d+))"
)
MALFORMED = ArithmeticError, AttributeError, LookupError, TypeError, ValueError
Problem = dict[str, Any]  # a "message", and where to look
Check = dict[str, Any]  # name, passed, counts, problems


class EvidenceError(Exception):
    """The evidence is missing, torn or malformed; the message says which and where."""


class Identity(NamedTuple):
    """What names a row in every run; group ids differ between runs."""

    step: int
    prompt_idx: int
    generation: int

    def __str__(self) -> str:
        return "step {}, prompt {}, generation {}".format(*self)


@dataclass
class Row:
    """One row of a dump; its columns are float64, [L] or [1]."""

    identity: Identity
    group_id: str
    columns: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        self.sample_id = f"{self.group_id}_g{self.identity.generation}"
        self.generated = self.columns["token_loss_mask"] > 0
        edges = np.diff(self.generated, prepend=False, append=False).nonzero()[0]
        # a turn is a run of ones in the loss mask; what was cut is the last one
        self.start, self.end = map(int, edges[-2:] if len(edges) else (0, 0))
        self.problems = [] if len(edges) else ["no token is generated"]
        length = self.columns["input_lengths"].item()
        for name in sorted(PER_TOKEN & self.columns.keys()):
            if len(self.columns[name]) != length:
                self.problems.append(f"{len(self.columns[name])} {name} for {length:g}")


Rows = dict[Identity, list[Row]]  # one row each, in a sound dump


@dataclass
class Cut:
    """A call cut in mid-decode, and what the log and the dump say became of it."""

    sample_id: str
    call: str
    prefix: int
    digest: str
    staging_keys: list[str]
    restored: list[re.Match[str]] = field(default_factory=list)
    completed: list[re.Match[str]] = field(default_factory=list)
    trained: list[tuple[int, bool | None]] = field(default_factory=list)

    def replayed(self, row: Row) -> bool | None:
        """Whether the row's prefix is what the log says was restored, if it says so."""
        ids = row.columns["token_ids"][row.start :][: self.prefix].astype(int)
        sha256 = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
        logged = {line["sha256"] for line in self.restored} - {None}
        return logged == {sha256} if logged else None


def _check(name: str, problems: list[Any], **counts: Any) -> Check:
    found = [x if isinstance(x, dict) else {"message": x} for x in problems]
    return {"name": name, "passed": not found, "counts": counts, "problems": found}


def _read(path: Path, parse: Callable[[Any], Any], whole: bool = False) -> list[Any]:
    """`parse` of every line, or of the whole file; errors name the file and line."""
    results: list[Any] = []
    try:
        with path.open() as file:
            results.extend(map(parse, [file.read()] if whole else file))
    except (OSError, RecursionError, *MALFORMED) as error:
        raise EvidenceError(f"{path}:{len(results) + 1}: {error!r}") from None
    return results


def _parse_row(line: str) -> Row:
    record = json.loads(line)  # older heads write NaN and Infinity, which it takes
    (sample_id,), (tags,) = record["sample_id"], record["metadata"]
    group_id, generation = sample_id.rsplit("_g", 1)
    identity = int(record["step"]), int(tags["prompt_idx"]), int(generation)
    names = NAMES + [name for name in OPTIONAL if name in record]
    columns = {name: np.array(record[name], dtype=float).ravel() for name in names}
    return Row(Identity(*identity), group_id, columns)


def _load_dump(run_dir: Path, step: int) -> Rows:
    """The rows of one train step; none if it was not published."""
    path, rows = run_dir / f"train_data_step{step}.jsonl", Rows()
    for row in _read(path, _parse_row) if path.exists() else []:
        rows.setdefault(row.identity, []).append(row)
    return rows


def _row_problem(
    a: Row, b: Row, cut: Cut | None, allow_pre_cut: bool
) -> Problem | None:
    """How the recovery's row `b` differs from the reference's row `a`, if it does."""
    found: dict[str, int] = {}  # where each column differs first
    for name in [*NAMES[:-1], *OPTIONAL]:
        x, y = (row.columns.get(name, np.empty(0)) for row in (a, b))
        shared = min(len(x), len(y))
        differs = x[:shared] != y[:shared]
        if name in CLOSE and differs.any():
            differs = ~np.isclose(y[:shared], x[:shared], 1e-4, 1e-5, equal_nan=True)
        if differs.any() or len(x) != len(y):
            found[name] = int(differs.argmax()) if differs.any() else shared
    if not found:
        return None
    (name, at), place = next(iter(found.items())), "a row never cut"
    if cut:
        places = "the prompt", "the restored prefix", "the continued tail"
        place = places[(at >= b.start) + (at >= b.start + cut.prefix)]
        pre_cut = allow_pre_cut and name == "token_ids" and place == places[1]
        if pre_cut and cut.replayed(b) and not found.keys() & {*NAMES[2:4]}:
            return None
    values = [
        f"{x:g}" for row in (a, b) for x in row.columns.get(name, [])[at : at + 1]
    ]
    message = (
        f"{b.identity} (reference {a.group_id}, recovery {b.group_id}): {name}[{at}]"
    )
    message += f" in {place}: {' became '.join(values)}; {', '.join(found)} differ"
    groups = {"reference_group_id": a.group_id, "recovery_group_id": b.group_id}
    where = {**b.identity._asdict(), **groups, "place": place, "columns": found}
    return {"message": message, **where}


def assert_rows_match(
    step: int, runs: dict[str, Rows], cuts: dict[str, Cut], options: Any
) -> Iterator[Problem]:
    """Both runs trained the same prompts x generations in a step, token for token."""
    prompts = {identity.prompt_idx for identity in runs["reference"]}
    generations = range(options.generations_per_prompt)
    expected = {Identity(step, prompt, g) for prompt in prompts for g in generations}
    if len(prompts) != options.prompts_per_step:
        found = f"{len(prompts)} prompts, expected {options.prompts_per_step}"
        yield {"message": f"step {step}: the reference trained {found}"}
    for run, rows in runs.items():
        trained = [row for twins in rows.values() for row in twins]
        if not any(row.columns["sample_loss_mask"].item() > 0 for row in trained):
            yield {"message": f"step {step}: the {run} run trained no unmasked row"}
        for identity in sorted(expected | rows.keys()):
            times = len(rows.get(identity, []))
            if times != (identity in expected):
                yield {"message": f"{identity}: trained {times} times by the {run} run"}
        groups = {row.identity.prompt_idx: row.group_id for row in trained}
        for row in trained:
            if row.group_id != groups[row.identity.prompt_idx]:
                row.problems.append("its prompt is split over two groups")
            for problem in row.problems:
                message = f"{row.identity} ({run} {row.group_id}): {problem}"
                yield {"message": message, **row.identity._asdict()}
    for identity in sorted(runs["reference"].keys() & runs["recovery"].keys()):
        a, b = runs["reference"][identity][0], runs["recovery"][identity][0]
        cut = cuts.get(b.sample_id)
        if problem := _row_problem(a, b, cut, options.allow_pre_cut):
            yield problem


def assert_prefixes_trained_once(cuts: list[Cut], strays: list[str]) -> Check:
    """Each cut was restored, completed and trained exactly once, at its full length."""
    problems = [f"a call that was not cut: {stray}" for stray in strays]
    if not cuts:
        problems.append("no call was cut, so nothing was recovered")
    for cut in cuts:
        restored = [(x["sample"], int(x["prefix"]), x["digest"]) for x in cut.restored]
        completed = [(x["sample"], int(x["prefix"]), x["call"]) for x in cut.completed]
        call = cut.restored[0]["call"] if cut.restored else "a restored call"
        facts: list[Any] = [
            ("restored", restored, [(cut.sample_id, cut.prefix, cut.digest)]),
            ("completed", completed, [(cut.sample_id, cut.prefix, call)]),
            ("times trained", len(cut.trained), 1),
        ]
        for line in cut.completed:
            tail, total = int(line["tail"]), int(line["total"])
            facts.append(("total tokens", total, cut.prefix + max(tail, 1)))
            facts += [("trained tokens", length, total) for length, _ in cut.trained]
        facts += [("ids_sha256 holds", x is not False, True) for _, x in cut.trained]
        for what, found, expected in facts:
            if found != expected:
                mismatch = f"{what} {found}, expected {expected}"
                problems.append(f"{cut.sample_id}, call {cut.call}: {mismatch}")
    counts = {"cuts": len(cuts), "restored": sum(len(cut.restored) for cut in cuts)}
    counts["prefix tokens"] = sum(cut.prefix for cut in cuts)
    return _check("prefixes trained once", problems, **counts)


def assert_old_keys_retired(
    cuts: list[Cut], probe: dict[int, set[str]], kept: set[str], steps: int
) -> Check:
    """No staging key of a cut is live as a step begins, or kept by the successor."""
    owner = {key: cut.sample_id for cut in cuts for key in cut.staging_keys}
    problems = [f"{x.sample_id}: no staging keys" for x in cuts if not x.staging_keys]
    for step in sorted({*range(1, steps + 1)} - probe.keys()):
        problems.append(f"step {step}: no record of the live staging keys")
    places = {f"live as step {step} begins": live for step, live in probe.items()}
    places["still in the successor checkpoint"] = kept
    for place, keys in places.items():
        problems += [f"{owner[x]}: {x} is {place}" for x in sorted(keys & owner.keys())]
    return _check("old keys retired", problems, keys=len(owner), steps=len(probe))


def assert_reward_signal(rewards: Counter[float]) -> Check:
    """The reference's rewards are not all the same."""
    same = f"the reference's rewards are all the same: {dict(rewards)}"
    counts = {f"of reward {x:g}": n for x, n in sorted(rewards.items())}
    return _check("reward signal", [same] if len(rewards) < 2 else [], **counts)


def _agreement(a: Row, b: Row) -> Problem:
    """How many log-probs of generated tokens are identical, and the largest gap."""
    x, y = (row.columns["generation_logprobs"][a.generated] for row in (a, b))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        gaps = np.where(same, 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf))
    at, largest = int(a.generated.nonzero()[0][gaps.argmax()]), float(gaps.max())
    message = f"{b.identity}: generation_logprobs[{at}] differ by {largest:.6g}"
    counts = {"tokens": len(x), "identical": int(same.sum()), "largest": largest}
    return {"message": message, **b.identity._asdict(), "position": at, **counts}


def assert_generation_logprobs_agree(rows: list[Problem], options: Any) -> Check:
    """Log-probs of generated tokens agree, over the rows whose tokens are equal."""
    tokens, identical = (sum(row[x] for row in rows) for x in ("tokens", "identical"))
    problems = [row for row in rows if row["largest"] > options.max_logprob_difference]
    if not tokens or identical < options.min_identical_logprobs * tokens:
        least = f"expected at least {options.min_identical_logprobs:.2%}"
        message = f"{identical} of {tokens} log-probs are bit-identical, {least}"
        problems.insert(0, {"message": message})
    counts = {"tokens": tokens, "identical": identical}
    counts["largest difference"] = max((row["largest"] for row in rows), default=0.0)
    return _check("generation log-probs agree", problems, **counts)


def _load_cuts(selection: Path, log: Path) -> tuple[list[Cut], list[str]]:
    """The cuts with the log lines of each, and the log lines that fit none."""

    def parse_cut(cut: Any) -> Cut:
        sample_id = f"{cut['group_id']}_g{cut['generation_index']}"
        count = cut.get("generation_token_count") or cut["prefix_token_count"]
        call, keys = cut["model_call_id"], list.copy(cut["staging_keys"])
        return Cut(sample_id, call, int(count), cut["digest"], keys)

    def parse_line(text: str) -> re.Match[str] | None:
        line = LOG_LINE.search(text)
        if "generation prefix " in text and not line:
            raise ValueError("a torn line")
        return line

    (cuts,) = _read(selection, lambda x: [*map(parse_cut, json.loads(x)["cuts"])], True)
    strays: list[str] = []
    by_call = {cut.call: cut for cut in cuts}
    for line in filter(None, _read(log, parse_line)):
        cut = by_call.get(line["source"])
        (getattr(cut, line["event"]) if cut else strays).append(
            line if cut else line[0]
        )
    return cuts, strays


def _run_dir(log_dir: Path) -> tuple[Path, int]:
    """The folder of the one job that logged there, and its last published step."""
    jobs, dumps = [*log_dir.glob("exp_*")], [*log_dir.glob("*/train_data_step*.jsonl")]
    if len(jobs) != 1 or not dumps:
        found = f"{len(jobs)} with {len(dumps)} steps"
        raise EvidenceError(f"{log_dir}: expected one exp_N with a dump, found {found}")
    return jobs[0], max(int(path.stem[15:]) for path in dumps)


def judge(options: argparse.Namespace) -> list[Check]:
    """All five checks; raises EvidenceError when they cannot be made."""

    def keys_at_step(line: str) -> tuple[int, set[str]]:
        record = json.loads(line)
        return int(record["train_step"]), {*list.copy(record["staging_keys"])}

    def kept_keys(text: str) -> set[str]:
        return set().union(*map(list.copy, json.loads(text)["staging_keys"].values()))

    cuts, strays = _load_cuts(options.selection, options.recovery_log)
    probe = dict(_read(options.staging_keys, keys_at_step))
    (kept,) = _read(
        options.successor_checkpoint / "gym_checkpoint.json", kept_keys, True
    )
    log_dirs = options.reference_log_dir, options.recovery_log_dir
    run_dirs, ends = zip(*map(_run_dir, log_dirs), strict=True)
    by_sample = {cut.sample_id: cut for cut in cuts}
    mismatches, agreements = list[Problem](), list[Problem]()
    rewards: Counter[float] = Counter()
    with ProcessPoolExecutor(2) as pool:
        for step in range(1, max(options.steps, *ends) + 1):
            loaded = pool.map(_load_dump, run_dirs, [step] * 2)
            runs = dict(zip(("reference", "recovery"), loaded, strict=True))
            mismatches += assert_rows_match(step, runs, by_sample, options)
            for twins in runs["reference"].values():
                rewards.update(row.columns["rewards"].item() for row in twins)
            for identity, rows in runs["recovery"].items():
                for b in rows:
                    if cut := by_sample.get(b.sample_id):
                        cut.trained.append((b.end - b.start, cut.replayed(b)))
                    for a in runs["reference"].get(identity, []):
                        ids = a.columns["token_ids"], b.columns["token_ids"]
                        if np.array_equal(*ids) and not a.problems + b.problems:
                            agreements.append(_agreement(a, b))
    return [
        _check("rows match", mismatches, rows=rewards.total(), steps=max(ends)),
        assert_prefixes_trained_once(cuts, strays),
        assert_old_keys_retired(cuts, probe, kept, options.steps),
        assert_reward_signal(rewards),
        assert_generation_logprobs_agree(agreements, options),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    paths = ["reference-log-dir", "recovery-log-dir", "selection", "recovery-log"]
    for name in [*paths, "staging-keys", "successor-checkpoint"]:
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("steps", "prompts-per-step", "generations-per-prompt"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--min-identical-logprobs", type=float, default=0.99)
    parser.add_argument("--max-logprob-difference", type=float, default=0.5)
    parser.add_argument("--allow-pre-cut", action="store_true")
    parser.add_argument("--verdict", type=Path)
    options = parser.parse_args()
    try:
        checks = judge(options)
    except EvidenceError as error:
        print(f"error: the evidence cannot be judged: {error}", file=sys.stderr)
        return 2
    for check in checks:
        counts = ", ".join(f"{n} {what}" for what, n in check["counts"].items())
        print(f"{'PASS' if check['passed'] else 'FAIL'} {check['name']}: {counts}")
        for problem in check["problems"][:1]:
            print(f"     {problem['message']} (and {len(check['problems']) - 1} more)")
    passed = all(check["passed"] for check in checks)
    if options.verdict:
        partial = options.verdict.with_suffix(".partial")
        evidence = {name: str(value) for name, value in vars(options).items()}
        verdict = {"passed": passed, "evidence": evidence, "checks": checks}
        partial.write_text(json.dumps(verdict, indent=1))
        os.replace(partial, options.verdict)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
