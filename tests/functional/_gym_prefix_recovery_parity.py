# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Judge whether a recovered run trained exactly the rows an uninterrupted run trained.

Reads the evidence of both runs, makes five assertions, prints a line for each and exits
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
from typing import Any

import numpy as np

try:
    from orjson import loads as _fast_loads
except ImportError:
    _fast_loads = json.loads

PER_TOKEN = ["token_ids", "token_loss_mask", "advantages", "generation_logprobs"]
SCALARS = ["rewards", "sample_loss_mask", "input_lengths"]
OPTIONAL = ["prev_logprobs", "pre_seq_error_sample_loss_mask", "prompt_ids"]
LOG_LINE = re.compile(
    r"generation prefix (?P<event>restored|completed): rollout_id=(?P<rollout_id>\S+)"
    r" model_call_id=(?P<call>\S+) source_model_call_id=(?P<source>\S+)"
    r" prefix_tokens=(?P<prefix>\d+) (prefix_digest=(?P<digest>[0-9a-f]{64})\b"
    r"(.* prefix_ids_sha256=(?P<sha256>[0-9a-f]{64})\b)?"
    r"|tail_tokens=(?P<tail>\d+) total_generation_tokens=(?P<total>\d+))"
)
MALFORMED = ArithmeticError, AttributeError, LookupError, TypeError, ValueError
Problem = dict[str, Any]  # "message", and where it is


class EvidenceError(Exception):
    """The evidence is missing, torn or malformed; the message says which and where."""


@dataclass
class Row:
    """One row of a dump; `columns` holds arrays, [L] for those that are per token."""

    where: dict[str, int]  # step, prompt_idx, generation
    group_id: str
    columns: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        self.name = "step {step}, prompt {prompt_idx}, generation {generation}".format(
            **self.where
        )
        self.sample_id = f"{self.group_id}_g{self.where['generation']}"
        self.generated = self.columns["token_loss_mask"] > 0
        edges = np.diff(self.generated, prepend=False, append=False).nonzero()[0]
        # a turn is a run of ones in the loss mask; what was cut is the last one
        self.start, self.end = map(int, edges[-2:] if len(edges) else (0, 0))
        self.problems = [] if len(edges) else ["no token is generated"]
        length = self.columns["input_lengths"].item()
        for name in self.columns.keys() & {*PER_TOKEN, "prev_logprobs"}:
            if len(self.columns[name]) != length:
                self.problems.append(f"{name} has not the {length} of input_lengths")


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
        ids = row.columns["token_ids"][row.start :][: self.prefix].tolist()
        sha256 = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
        logged = {match["sha256"] for match in self.restored} - {None}
        return logged == {sha256} if logged else None


def _check(name: str, problems: list[Any], **counts: Any) -> dict[str, Any]:
    found = [x if isinstance(x, dict) else {"message": x} for x in problems]
    return {"name": name, "passed": not found, "counts": counts, "problems": found}


def _read(path: Path, parse: Callable[[bytes], Any], whole: bool = False) -> list[Any]:
    """`parse` of every line, or of the whole file; errors name the file and line."""
    results: list[Any] = []
    try:
        with path.open("rb") as file:
            results.extend(map(parse, [file.read()] if whole else file))
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror}") from None
    except (*MALFORMED, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise EvidenceError(f"{path}:{len(results) + 1}: {reason}") from None
    return results


def _loads(text: bytes) -> Any:
    try:
        return _fast_loads(text)
    except ValueError:
        return json.loads(text)  # older heads write NaN and Infinity


def _strings(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"expected a list of strings, found {value!s:.50}")
    return value


def _column(name: str, value: Any) -> np.ndarray:
    (inner,) = value
    array = np.atleast_1d(np.array(inner))
    if array.dtype == object:
        array = array.astype(float)  # newer heads write a non-finite log-prob as null
    kinds = "iu" if name in ("token_ids", "prompt_ids") else "iuf"
    if array.ndim > 1 or (array.size and array.dtype.kind not in kinds):
        raise ValueError(f"{name} is not a list of one list of numbers")
    return array


def _load_dump(run_dir: Path, step: int) -> list[Row]:
    """The rows of one train step in the file's order; none if it was not published."""

    def parse(line: bytes) -> Row:
        record = _loads(line)
        (sample_id,), (tags,) = record["sample_id"], record["metadata"]
        match = re.fullmatch(r"(.+)_g(\d+)", sample_id)
        if record["step"] != step or not match:
            raise ValueError(f"step {record['step']}, sample_id {sample_id}")
        where = {"step": step, "prompt_idx": int(tags["prompt_idx"])}
        names = [*PER_TOKEN, *SCALARS, *(name for name in OPTIONAL if name in record)]
        columns = {name: _column(name, record[name]) for name in names}
        return Row(where | {"generation": int(match[2])}, match[1], columns)

    path = run_dir / f"train_data_step{step}.jsonl"
    return _read(path, parse) if path.exists() else []


def _difference(name: str, a: Any, b: Any) -> Problem | None:
    """Where the reference's column `a` and the recovery's `b` differ first, if so."""
    if a is None or b is None:  # a head that does not write the column writes neither
        return None if a is b else {"position": 0, "in_both": False}
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    if name in ("advantages", "prev_logprobs") and differs.any():
        differs = ~np.isclose(b[:n], a[:n], rtol=1e-4, atol=1e-5, equal_nan=True)
    differs = np.append(differs, np.ones(max(len(a), len(b)) - n, dtype=bool))
    if not differs.any():
        return None
    at = int(differs.argmax())
    values = [column[at].item() if at < len(column) else None for column in (a, b)]
    found = {"position": at, "reference": values[0], "recovery": values[1]}
    return found | {"differing": int(differs.sum())}


def _row_problem(
    a: Row, b: Row, cut: Cut | None, allow_pre_cut: bool
) -> Problem | None:
    """How the recovery's row `b` differs from the reference's row `a`, if it does."""
    found: dict[str, Problem] = {}
    for name in [*PER_TOKEN[:3], *SCALARS, *OPTIONAL]:
        if difference := _difference(name, a.columns.get(name), b.columns.get(name)):
            found[name] = difference
    if not found:
        return None
    (name, first), place = next(iter(found.items())), "a row never cut"
    if cut:
        ends = b.start, b.start + cut.prefix
        places = ["the prompt", "the restored prefix", "the continued tail"]
        place = places[sum(first["position"] >= end for end in ends)]
    in_prefix = name == "token_ids" and place == "the restored prefix"
    if cut and allow_pre_cut and in_prefix and cut.replayed(b):
        if not found.keys() & {"rewards", "sample_loss_mask"}:
            return None
    groups = {"reference_group_id": a.group_id, "recovery_group_id": b.group_id}
    message = f"{b.name} (reference {a.group_id}, recovery {b.group_id}): {name}"
    message += f"[{first['position']}] in {place}: reference {first.get('reference')}"
    message += f", recovery {first.get('recovery')}; {', '.join(found)} differ"
    return {"message": message, **b.where, **groups, "place": place, "columns": found}


def assert_rows_match(
    step: int, runs: dict[str, dict[Any, list[Row]]], cuts: dict[str, Cut], options: Any
) -> Iterator[Problem]:
    """Both runs trained the same prompts x generations in a step, token for token."""
    prompts = {prompt_idx for prompt_idx, _ in runs["reference"]}
    expected = {(p, g) for p in prompts for g in range(options.generations_per_prompt)}
    if len(prompts) != options.prompts_per_step:
        found = f"{len(prompts)} prompts, expected {options.prompts_per_step}"
        yield {"message": f"step {step}: the reference trained {found}"}
    for run, rows in runs.items():
        unmasked, groups = 0, {}
        for identity in sorted(expected | rows.keys()):
            twins = rows.get(identity, [])
            if len(twins) != (identity in expected):
                name = "step {}, prompt {}, generation {}".format(step, *identity)
                yield {
                    "message": f"{name}: trained {len(twins)} times by the {run} run"
                }
            for row in twins:
                unmasked += row.columns["sample_loss_mask"].item() > 0
                if groups.setdefault(identity[0], row.group_id) != row.group_id:
                    row.problems.append(f"in group {row.group_id}, siblings are not")
                for problem in row.problems:
                    yield {"message": f"{row.name} ({run}): {problem}", **row.where}
        if not unmasked:
            yield {"message": f"step {step}: the {run} run trained no unmasked row"}
    for identity in sorted(runs["reference"].keys() & runs["recovery"].keys()):
        a, b = (runs[run][identity][0] for run in ("reference", "recovery"))
        cut = cuts.get(b.sample_id)
        if problem := _row_problem(a, b, cut, options.allow_pre_cut):
            yield problem


def assert_prefixes_trained_once(cuts: list[Cut], strays: list[str]) -> dict[str, Any]:
    """Each cut was restored, completed and trained exactly once, at its full length."""
    problems = [f"a call that was not cut: {stray}" for stray in strays]
    if not cuts:
        problems.append("no call was cut, so nothing was recovered")
    for cut in cuts:
        facts: list[tuple[str, Any, Any]] = [
            ("times restored", len(cut.restored), 1),
            ("times completed", len(cut.completed), 1),
            ("times trained", len(cut.trained), 1),
        ]
        for line in cut.restored + cut.completed:
            rollout = line["rollout_id"].rpartition("_a")[0]
            facts.append((f"{line['event']} rollout", rollout, cut.sample_id))
            facts.append((f"{line['event']} prefix", int(line["prefix"]), cut.prefix))
        for line in cut.restored:
            facts.append(("prefix_digest", line["digest"], cut.digest))
        for line in cut.completed:
            tail, total = int(line["tail"]), int(line["total"])
            facts.append(("tail tokens", tail, max(tail, 1)))
            facts.append(("total_generation_tokens", total, cut.prefix + tail))
            facts += [("completed call", line["call"], x["call"]) for x in cut.restored]
            facts += [("trained tokens", length, total) for length, _ in cut.trained]
        facts += [
            ("prefix_ids_sha256 holds", x is not False, True) for _, x in cut.trained
        ]
        for what, found, expected in facts:
            if found != expected:
                name = f"{cut.sample_id}, call {cut.call}"
                problems.append(f"{name}: {what}: {found}, expected {expected}")
    tokens, restored = sum(x.prefix for x in cuts), sum(len(x.restored) for x in cuts)
    counts = {"cuts": len(cuts), "restored": restored, "prefix tokens": tokens}
    return _check("prefixes trained once", problems, **counts)


def assert_old_keys_retired(
    cuts: list[Cut], probe: list[tuple[int, set[str]]], kept: set[str], steps: int
) -> dict[str, Any]:
    """No staging key of a cut is live as a step begins, or kept by the successor."""
    owner = {key: cut.sample_id for cut in cuts for key in cut.staging_keys}
    problems = [f"{x.sample_id}: no staging keys" for x in cuts if not x.staging_keys]
    for step in sorted({*range(1, steps + 1)} - {step for step, _ in probe}):
        problems.append(f"step {step}: no record of the live staging keys")
    for step, live in probe:
        for key in sorted(live & owner.keys()):
            problems.append(f"{owner[key]}: {key} is live as step {step} begins")
    for key in sorted(kept & owner.keys()):
        problems.append(f"{owner[key]}: {key} is still in the successor checkpoint")
    counts = {"keys": len(owner), "probed steps": len(probe)}
    return _check("old keys retired", problems, **counts)


def assert_reward_signal(rewards: Counter[float]) -> dict[str, Any]:
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
    at = int(a.generated.nonzero()[0][gaps.argmax()])
    message = f"{b.name}: generation_logprobs[{at}] differ by {gaps.max():.6g}"
    counts = {"tokens": len(x), "identical": int(same.sum())}
    counts["largest"] = float(gaps.max())
    return {"message": message, **b.where, "position": at, **counts}


def assert_generation_logprobs_agree(
    rows: list[Problem], options: Any
) -> dict[str, Any]:
    """Log-probs of generated tokens agree, over the rows whose tokens are equal."""
    tokens, identical = (sum(row[x] for row in rows) for x in ("tokens", "identical"))
    problems = [row for row in rows if row["largest"] > options.max_logprob_difference]
    if not tokens or identical < options.min_identical_logprobs * tokens:
        least = f"expected at least {options.min_identical_logprobs:.2%}"
        message = f"{identical} of {tokens} log-probs are bit-identical, {least}"
        problems.insert(0, {"message": message})
    largest = max((row["largest"] for row in rows), default=0.0)
    counts = {"tokens": tokens, "identical": identical, "largest difference": largest}
    return _check("generation log-probs agree", problems, **counts)


def _load_cuts(selection: Path, log: Path) -> tuple[list[Cut], list[str]]:
    """The cuts with the log lines of each, and the log lines that fit none."""

    def parse(text: bytes) -> list[Cut]:
        cuts = []
        for cut in _loads(text)["cuts"]:
            sample_id = f"{cut['group_id']}_g{int(cut['generation_index'])}"
            count = cut.get("generation_token_count") or cut["prefix_token_count"]
            digest, keys = cut["digest"], _strings(cut["staging_keys"])
            cuts.append(Cut(sample_id, cut["model_call_id"], int(count), digest, keys))
        return cuts

    (cuts,) = _read(selection, parse, whole=True)
    by_call, strays = {cut.call: cut for cut in cuts}, []

    def follow(line: bytes) -> None:
        if b"generation prefix " in line:
            if not (match := LOG_LINE.search(line.decode())):
                raise ValueError("a torn line")
            if cut := by_call.get(match["source"]):
                getattr(cut, match["event"]).append(match)
            else:
                strays.append(match[0])

    _read(log, follow)
    return cuts, strays


def judge(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All five checks as {name, passed, counts, problems}; EvidenceError if it can't."""

    def keys_at_step(line: bytes) -> tuple[int, set[str]]:
        record = _loads(line)
        return int(record["train_step"]), {*_strings(record["staging_keys"])}

    def kept_keys(text: bytes) -> set[str]:
        return {
            x for keys in _loads(text)["staging_keys"].values() for x in _strings(keys)
        }

    cuts, strays = _load_cuts(options.selection, options.recovery_log)
    probe = _read(options.staging_keys, keys_at_step)
    successor = options.successor_checkpoint / "gym_checkpoint.json"
    (kept,) = _read(successor, kept_keys, whole=True)
    run_dirs, last_step = [], options.steps
    for log_dir in (options.reference_log_dir, options.recovery_log_dir):
        jobs = sorted(log_dir.glob("exp_*"))
        dumps = [
            path.stem[15:] for path in log_dir.glob("exp_*/train_data_step*.jsonl")
        ]
        if len(jobs) != 1 or not dumps:
            found = f"{len(jobs)} with {len(dumps)} steps"
            raise EvidenceError(
                f"{log_dir}: expected one exp_N with a dump, found {found}"
            )
        run_dirs.append(jobs[0])
        last_step = max(last_step, *(int(step) for step in dumps if step.isdigit()))
    by_sample = {cut.sample_id: cut for cut in cuts}
    mismatches: list[Problem] = []
    agreements: list[Problem] = []
    rewards: Counter[float] = Counter()
    with ProcessPoolExecutor(2) as pool:
        for step in range(1, last_step + 1):
            runs: dict[str, dict[Any, list[Row]]] = {"reference": {}, "recovery": {}}
            loaded = pool.map(_load_dump, run_dirs, [step] * 2)
            for by_identity, rows in zip(runs.values(), loaded, strict=True):
                for row in rows:
                    identity = row.where["prompt_idx"], row.where["generation"]
                    by_identity.setdefault(identity, []).append(row)
            mismatches += assert_rows_match(step, runs, by_sample, options)
            for a in sum(runs["reference"].values(), []):
                rewards[a.columns["rewards"].item()] += 1
            for identity, twins in runs["recovery"].items():
                for b in twins:
                    if cut := by_sample.get(b.sample_id):
                        cut.trained.append((b.end - b.start, cut.replayed(b)))
                    for a in runs["reference"].get(identity, []):
                        ids = a.columns["token_ids"], b.columns["token_ids"]
                        if np.array_equal(*ids) and not a.problems + b.problems:
                            agreements.append(_agreement(a, b))
    counts = {"rows": sum(rewards.values()), "steps": last_step}
    return [
        _check("rows match", mismatches, **counts),
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
        if check["problems"]:
            more = f" (and {len(check['problems']) - 1} more)"
            print(f"     {check['problems'][0]['message']}{more}")
    passed = all(check["passed"] for check in checks)
    if options.verdict:
        partial = options.verdict.with_suffix(".partial")
        partial.write_text(json.dumps({"passed": passed, "checks": checks}, indent=1))
        os.replace(partial, options.verdict)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
