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
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import numpy as np

try:
    from orjson import loads as _fast_loads
except ImportError:
    _fast_loads = json.loads

SCALARS = ["sample_loss_mask", "rewards", "input_lengths"]
PER_TOKEN = ["token_ids", "token_loss_mask", "generation_logprobs", "advantages"]
OPTIONAL = ["prev_logprobs", "pre_seq_error_sample_loss_mask", "prompt_ids"]
CLOSE = {"advantages", "prev_logprobs"}  # within rtol 1e-4, atol 1e-5; others exact
MALFORMED = (ValueError, KeyError, TypeError, IndexError, AttributeError)
MALFORMED += (OverflowError, RecursionError)
LOG_LINE = re.compile(
    r"generation prefix (?P<event>restored|completed): rollout_id=(?P<rollout_id>\S+)"
    r" model_call_id=(?P<call>\S+) source_model_call_id=(?P<source>\S+)"
    r" prefix_tokens=(?P<prefix>\d+) (?:prefix_digest=(?P<digest>[0-9a-f]{64})\b"
    r"(?:.* prefix_ids_sha256=(?P<sha256>[0-9a-f]{64}))?"
    r"|tail_tokens=(?P<tail>\d+) total_generation_tokens=(?P<total>\d+))"
)
Problem = dict[str, Any]  # {"message": ...} and, for a row, where in it


class EvidenceError(Exception):
    """The evidence is missing, torn or malformed; the message says which and where."""


@dataclass
class Row:
    """One row of a dump; `columns` holds arrays, [L] for those that are per token."""

    step: int
    prompt_idx: int
    generation: int
    group_id: str
    columns: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        self.identity = self.prompt_idx, self.generation
        self.sample_id = f"{self.group_id}_g{self.generation}"
        self.name = f"step {self.step}, prompt {self.prompt_idx}"
        self.name += f", generation {self.generation}"
        self.where = {"step": self.step, "prompt_idx": self.prompt_idx}
        self.where["generation"] = self.generation
        self.generated = self.columns["token_loss_mask"] > 0
        edges = np.diff(self.generated, prepend=False, append=False).nonzero()[0]
        # a turn is a run of ones in the loss mask; what was cut is the last one
        self.start, self.end = edges[-2:].tolist() or (0, 0)
        self.problems = [] if len(edges) else ["no token is generated"]
        length = self.columns["input_lengths"].item()
        for name in self.columns.keys() & {*PER_TOKEN, "prev_logprobs"}:
            if (found := len(self.columns[name])) != length:
                self.problems.append(f"{found} {name} for {length} tokens")


@dataclass
class Cut:
    """A call cut in mid-decode, and what the log and the dump say became of it."""

    sample_id: str
    call: str
    prefix: int
    digest: str
    staging_keys: list[str]
    events: dict[str, list[re.Match[str]]] = field(default_factory=lambda: defaultdict(list))
    trained: list[tuple[int, bool]] = field(default_factory=list)

    def replayed(self, row: Row) -> bool | None:
        """Whether the row's prefix is what the log says was restored, if it says so."""
        ids = row.columns["token_ids"][row.start :][: self.prefix].tolist()
        sha256 = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
        logged = {match["sha256"] for match in self.events["restored"]} - {None}
        return logged == {sha256} if logged else None


def _read(path: Path, parse: Callable[[bytes], Any], whole: bool = False) -> list[Any]:
    """`parse` of every line, or of the whole file; errors name the file and line."""
    results: list[Any] = []
    try:
        with path.open("rb") as file:
            for text in [file.read()] if whole else file:
                results.append(parse(text))
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror}") from None
    except MALFORMED as error:
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
        raise ValueError(f"expected a list of strings, found {str(value):.50}")
    return value


def _column(name: str, value: Any) -> np.ndarray:
    (inner,) = value
    array = np.atleast_1d(np.array(inner))
    if array.dtype == object:
        array = array.astype(float)  # newer heads write a non-finite log-prob as null
    kinds = "iu" if name in ("token_ids", "prompt_ids") else "iuf"
    if array.ndim > 2 or (array.size and array.dtype.kind not in kinds):
        raise ValueError(f"{name} is not a list of one list of numbers")
    return array.reshape(-1)


def _load_dump(run_dir: Path, step: int) -> list[Row]:
    """The rows of one train step in the file's order; none if it was not published."""

    def parse(line: bytes) -> Row:
        record = _loads(line)
        if record["step"] != step:
            raise ValueError(f"expected step {step}, found {record['step']}")
        (sample_id,), (tags,) = record["sample_id"], record["metadata"]
        if not (match := re.fullmatch(r"(.+)_g(\d+)", sample_id)):
            raise ValueError(f"expected sample_id GROUP_gN, found {sample_id}")
        names = [*SCALARS, *PER_TOKEN, *(x for x in OPTIONAL if x in record)]
        columns = {name: _column(name, record[name]) for name in names}
        return Row(step, int(tags["prompt_idx"]), int(match[2]), match[1], columns)

    path = run_dir / f"train_data_step{step}.jsonl"
    return _read(path, parse) if path.exists() else []


def _difference(name: str, a: Any, b: Any) -> Problem | None:
    """Where the reference's column `a` and the recovery's `b` differ first, if so."""
    if a is None or b is None:
        return None if a is b else {"position": 0, "reference": a, "recovery": b}
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    if name in CLOSE and differs.any():
        differs = ~np.isclose(b[:n], a[:n], rtol=1e-4, atol=1e-5, equal_nan=True)
    differs = np.append(differs, np.ones(max(len(a), len(b)) - n, dtype=bool))
    if not differs.any():
        return None
    at = int(differs.argmax())
    first, second = (x[at].item() if at < len(x) else None for x in (a, b))
    both = {"reference": first, "recovery": second}
    return {"position": at, **both, "differing": int(differs.sum())}


def _row_problem(a: Row, b: Row, cut: Cut | None, allow_pre_cut: bool) -> Problem | None:
    """How the recovery's row `b` differs from the reference's row `a`, if it does."""
    found: dict[str, Problem] = {}
    for name in [*PER_TOKEN, *SCALARS, *OPTIONAL]:
        if name != "generation_logprobs":
            if difference := _difference(name, a.columns.get(name), b.columns.get(name)):
                found[name] = difference
    if not found:
        return None
    name, first = next(iter(found.items()))
    place = "a row never cut"
    if cut:
        place = "the continued tail"
        if first["position"] < b.start + cut.prefix:
            place = "the restored prefix"
        if first["position"] < b.start:
            place = "the prompt"
    if allow_pre_cut and name == "token_ids" and place == "the restored prefix":
        if cut and cut.replayed(b) and not found.keys() & {"rewards", "sample_loss_mask"}:
            return None
    groups = {"reference_group_id": a.group_id, "recovery_group_id": b.group_id}
    message = f"{b.name} (reference {a.group_id}, recovery {b.group_id}): {name}"
    message += "[{position}] reference {reference}, recovery {recovery}".format(**first)
    message += f", in {place}; {', '.join(found)} differ"
    return {"message": message, **b.where, **groups, "place": place, "columns": found}


def assert_rows_match(
    step: int, runs: dict[str, list[Row]], cuts: dict[str, Cut], options: Any
) -> list[Problem]:
    """Both runs trained the same prompts x generations in a step, token for token."""
    problems: list[Problem] = []
    prompts = {row.prompt_idx for row in runs["reference"]}
    expected = {(p, g) for p in prompts for g in range(options.generations_per_prompt)}
    if len(prompts) != options.prompts_per_step:
        found = f"{len(prompts)} prompts, expected {options.prompts_per_step}"
        problems.append({"message": f"step {step}: the reference trained {found}"})
    for run, rows in runs.items():
        if not any(row.columns["sample_loss_mask"].item() > 0 for row in rows):
            problems.append({"message": f"step {step}: no unmasked row in the {run} run"})
        times = Counter(row.identity for row in rows)
        for prompt_idx, generation in sorted(expected | times.keys()):
            count = times[prompt_idx, generation]
            if count != ((prompt_idx, generation) in expected):
                row = f"step {step}, prompt {prompt_idx}, generation {generation}"
                problems.append({"message": f"{row}: trained {count} times by the {run}"})
        groups = {row.prompt_idx: row.group_id for row in rows}
        for row in rows:
            if row.group_id != groups[row.prompt_idx]:
                row.problems.append(f"its prompt is in group {groups[row.prompt_idx]} too")
            for problem in row.problems:
                message = f"{row.name} ({run} {row.group_id}): {problem}"
                problems.append({"message": message, **row.where})
    reference, recovery = ({row.identity: row for row in runs[run]} for run in runs)
    for identity in sorted(reference.keys() & recovery.keys()):
        a, b = reference[identity], recovery[identity]
        if problem := _row_problem(a, b, cuts.get(b.sample_id), options.allow_pre_cut):
            problems.append(problem)
    return problems


def assert_prefixes_trained_once(cuts: list[Cut], strays: list[str]) -> list[Problem]:
    """Each cut was restored, completed and trained exactly once, at its full length."""
    problems = [f"a call that was not cut was continued: {stray}" for stray in strays]
    if not cuts:
        problems.append("no call was cut, so nothing was recovered")
    for cut in cuts:
        restored, completed = cut.events["restored"], cut.events["completed"]
        facts: list[tuple[str, Any, Any]] = [
            ("times restored", len(restored), 1),
            ("times completed", len(completed), 1),
            ("times trained", len(cut.trained), 1),
        ]
        for match in restored + completed:
            rollout = match["rollout_id"].rpartition("_a")[0]
            facts.append((f"{match['event']} rollout", rollout, cut.sample_id))
            prefix = int(match["prefix"])
            facts.append((f"{match['event']} prefix_tokens", prefix, cut.prefix))
        for match in restored:
            facts.append(("prefix_digest", match["digest"], cut.digest))
        for match in completed:
            tail, total = int(match["tail"]), int(match["total"])
            facts.append(("tail is not empty", tail > 0, True))
            facts.append(("total_generation_tokens", total, cut.prefix + tail))
            facts += [("completed call", match["call"], x["call"]) for x in restored]
            facts += [("trained tokens", length, total) for length, _ in cut.trained]
        for _, replayed in cut.trained:
            facts.append(("prefix_ids_sha256 holds", replayed is not False, True))
        for what, found, expected in facts:
            if found != expected:
                mismatch = f"{what}: {found}, expected {expected}"
                problems.append(f"{cut.sample_id}, call {cut.call}: {mismatch}")
    return [{"message": message} for message in problems]


def assert_old_keys_retired(
    cuts: list[Cut], probe: list[tuple[int, set[str]]], kept: set[str], steps: int
) -> list[Problem]:
    """No staging key of a cut is live as a step begins, or kept by the successor."""
    owner = {key: cut.sample_id for cut in cuts for key in cut.staging_keys}
    problems = [f"{x.sample_id}: no staging keys" for x in cuts if not x.staging_keys]
    for step in sorted({*range(1, steps + 1)} - {step for step, _ in probe}):
        problems.append(f"step {step}: no record of the staging keys as it began")
    for step, live in probe:
        for key in sorted(live & owner.keys()):
            problems.append(f"{owner[key]}: {key} is live as step {step} begins")
    for key in sorted(kept & owner.keys()):
        problems.append(f"{owner[key]}: the successor checkpoint still refers to {key}")
    return [{"message": message} for message in problems]


def assert_reward_signal(rewards: Counter[float]) -> list[Problem]:
    """The reference's rewards are not all the same."""
    if len(rewards) > 1:
        return []
    return [{"message": f"the reference's rewards are all the same: {dict(rewards)}"}]


def _agreement(a: Row, b: Row) -> Problem:
    """How many log-probs of generated tokens are identical, and the largest gap."""
    x, y = (row.columns["generation_logprobs"][a.generated] for row in (a, b))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        gaps = np.where(same, 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf))
    position = int(a.generated.nonzero()[0][gaps.argmax()])
    message = f"{b.name}: generation_logprobs[{position}] differ by {gaps.max():.6g}"
    counts = {"tokens": len(x), "identical": int(same.sum()), "largest": gaps.max().item()}
    return {"message": message, **b.where, "position": position, **counts}


def assert_generation_logprobs_agree(
    agreements: list[Problem], options: Any
) -> list[Problem]:
    """Log-probs of generated tokens agree, over the rows whose tokens are equal."""
    tokens = sum(row["tokens"] for row in agreements)
    identical = sum(row["identical"] for row in agreements)
    limit = options.max_logprob_difference
    problems = [row for row in agreements if row["largest"] > limit]
    if identical < options.min_identical_logprobs * tokens or not tokens:
        least = f"expected at least {options.min_identical_logprobs:.2%}"
        message = f"{identical} of {tokens} log-probs are bit-identical, {least}"
        problems.insert(0, {"message": message})
    return problems


def _run_dir(log_dir: Path) -> Path:
    """The folder of the one job that logged to `log_dir`."""
    run_dirs = sorted(log_dir.glob("exp_*"))
    if len(run_dirs) != 1 or not any(run_dirs[0].glob("train_data_step*.jsonl")):
        found = [path.name for path in run_dirs]
        raise EvidenceError(f"{log_dir}: expected one exp_N with a dump, found {found}")
    return run_dirs[0]


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
            text = line.decode()
            if not (match := LOG_LINE.search(text)):
                raise ValueError(f"torn log line: {text.strip()}")
            if cut := by_call.get(match["source"]):
                cut.events[match["event"]].append(match)
            else:
                strays.append(match[0])

    _read(log, follow)
    return cuts, strays


def judge(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All five checks as {name, passed, counts, problems}; EvidenceError if it can't."""
    cuts, strays = _load_cuts(options.selection, options.recovery_log)
    probe = _read(
        options.staging_keys,
        lambda line: ((x := _loads(line))["train_step"], {*_strings(x["staging_keys"])}),
    )
    kept = _read(
        options.successor_checkpoint / "gym_checkpoint.json",
        lambda text: [_strings(x) for x in _loads(text)["staging_keys"].values()],
        whole=True,
    )
    by_sample = {cut.sample_id: cut for cut in cuts}
    mismatches, rows, agreements, rewards = [], 0, [], Counter()
    run_dirs = [_run_dir(options.reference_log_dir), _run_dir(options.recovery_log_dir)]
    last = [options.steps]
    for path in (x for run in run_dirs for x in run.glob("train_data_step*.jsonl")):
        last += map(int, re.findall(r"step(\d+)\.jsonl$", path.name))
    with ProcessPoolExecutor(2) as pool:
        for step in range(1, max(last) + 1):
            loaded = pool.map(_load_dump, run_dirs, [step, step])
            runs = dict(zip(("reference", "recovery"), loaded))
            mismatches += assert_rows_match(step, runs, by_sample, options)
            reference = {row.identity: row for row in runs["reference"]}
            rewards.update(x.columns["rewards"].item() for x in runs["reference"])
            for row in runs["recovery"]:
                rows += 1
                if cut := by_sample.get(row.sample_id):
                    cut.trained.append((row.end - row.start, cut.replayed(row)))
                twin = reference.get(row.identity)
                if twin and not twin.problems and not row.problems:
                    if np.array_equal(twin.columns["token_ids"], row.columns["token_ids"]):
                        agreements.append(_agreement(twin, row))
    tokens, same = (sum(x[key] for x in agreements) for key in ("tokens", "identical"))
    largest = max((x["largest"] for x in agreements), default=0.0)
    restored = sum(len(cut.events["restored"]) for cut in cuts)
    keys = sum(len(cut.staging_keys) for cut in cuts)
    outcomes = {
        "rows match": ({"rows": rows, "steps": max(last)}, mismatches),
        "prefixes trained once": (
            {"cuts": len(cuts), "restored": restored, "tokens": sum(c.prefix for c in cuts)},
            assert_prefixes_trained_once(cuts, strays),
        ),
        "old keys retired": (
            {"keys": keys, "probed steps": len(probe)},
            assert_old_keys_retired(cuts, probe, {*sum(sum(kept, []), [])}, options.steps),
        ),
        "reward signal": (
            {f"reward {x:g}": n for x, n in sorted(rewards.items())},
            assert_reward_signal(rewards),
        ),
        "generation log-probs agree": (
            {"tokens": tokens, "identical": same, "largest difference": largest},
            assert_generation_logprobs_agree(agreements, options),
        ),
    }
    return [
        {"name": name, "passed": not problems, "counts": counts, "problems": problems}
        for name, (counts, problems) in outcomes.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("reference-log-dir", "recovery-log-dir", "selection", "recovery-log"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("staging-keys", "successor-checkpoint"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("steps", "prompts-per-step", "generations-per-prompt"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--verdict", type=Path, help="also write the outcome as JSON")
    parser.add_argument("--min-identical-logprobs", type=float, default=0.99)
    parser.add_argument("--max-logprob-difference", type=float, default=0.5)
    parser.add_argument("--allow-pre-cut", action="store_true")
    options = parser.parse_args()
    try:
        checks = judge(options)
    except EvidenceError as error:
        print(f"error: the evidence cannot be judged: {error}", file=sys.stderr)
        return 2
    passed = all(check["passed"] for check in checks)
    for check in checks:
        counts = ", ".join(f"{n} {what}" for what, n in check["counts"].items())
        print(f"{'PASS' if check['passed'] else 'FAIL'} {check['name']}: {counts}")
        for problem in check["problems"][:1]:
            print(f"     {problem['message']}")
        if len(check["problems"]) > 1:
            print(f"     and {len(check['problems']) - 1} more")
    if options.verdict:
        partial = options.verdict.with_suffix(".partial")
        partial.write_text(json.dumps({"passed": passed, "checks": checks}, indent=1))
        os.replace(partial, options.verdict)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
