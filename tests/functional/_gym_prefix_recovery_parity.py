# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Judge whether a recovered run trained exactly the rows an uninterrupted run trained.

Exits 0 if all five assertions hold, 1 if one fails, 2 if the evidence is unreadable."""

import argparse
import hashlib
import json
import re
import sys
from collections import Counter, namedtuple
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from fileinput import FileInput
from functools import partial
from itertools import chain
from operator import index, itemgetter
from pathlib import Path
from typing import Any

import numpy as np

EXACT = ["token_ids", "token_loss_mask", "rewards", "sample_loss_mask", "input_lengths"]
OPTIONAL = ["prev_logprobs", "pre_seq_error_sample_loss_mask", "prompt_ids"]
COLUMNS = [*EXACT, "advantages", *OPTIONAL, "generation_logprobs"]
CLOSE = {"advantages": (1e-4, 1e-5), "prev_logprobs": (1e-4, 1e-5)}  # rtol and atol
PLACES = "the prompt", "the restored prefix", "the continued tail"
LOG_LINE = re.compile(
    r"generation prefix \w+: rollout_id=(?P<sample>\S+)_a\S+ model_call_id="
    r"(?P<call>\S+) source_model_call_id=(?P<source>\S+) prefix_tokens=(?P<prefix>\d+) "
    r"(prefix_digest=(?P<digest>[0-9a-f]{64})\b(.* prefix_ids_sha256=(?P<sha256>\w*))?"
    r"|tail_tokens=(?P<tail>\d{1,9}) total_generation_tokens=(?P<total>\d{1,9})\b)"
)
Identity = namedtuple("Identity", "step prompt_idx generation")  # the same in all runs
Rows = dict[Identity, list["Row"]]  # one row each, in a sound dump
NAME = "step {}, prompt {}, generation {}"
Report = dict[str, Any]  # of a check, or of a problem: its "message" and where to look


class Row:
    """One row of a dump: float32 columns, [L] or [1]; a turn is a run of ones in its
    loss mask, and the last turn, which may have been cut, is `start:end`."""

    def __init__(self, line: str) -> None:
        record = dict.fromkeys(OPTIONAL, ()) | json.loads(line)  # with NaN and Infinity
        (self.sample_id,), (tags,) = record["sample_id"], record["metadata"]
        self.group_id, generation = self.sample_id.rsplit("_g", 1)
        step, prompt_idx = index(record["step"]), index(tags["prompt_idx"])
        self.identity = Identity(step, prompt_idx, int(generation))
        self.columns = {x: np.array(record[x], np.float32).ravel() for x in COLUMNS}
        self.reward = float(self.columns["rewards"].item())
        generated = self.columns["token_loss_mask"] > 0
        edges = np.diff(generated, prepend=False, append=False).nonzero()[0]
        self.start, self.end = map(int, edges[-2:] if len(edges) else (0, 0))


class Cut:
    """A call cut in mid-decode, and what the log says became of it."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.sample_id = f"{entry['group_id']}_g{entry['generation_index']}"
        self.call, self.digest = str(entry["model_call_id"]), str(entry["digest"])
        count = entry.get("generation_token_count") or entry["prefix_token_count"]
        self.prefix, keys = index(count), list.copy(entry["staging_keys"])
        self.staging_keys = {*keys}
        self.restored, self.completed = list[Any](), list[Any]()  # groups of LOG_LINE

    def replayed(self, row: Row) -> bool | None:
        """Whether the row's prefix is what the log says was restored, if it says so."""
        ids = row.columns["token_ids"][row.start :][: self.prefix]
        sha256 = hashlib.sha256(",".join(f"{x:.0f}" for x in ids).encode()).hexdigest()
        logged = {line["sha256"] for line in self.restored} - {None}
        return logged == {sha256} if logged else None


@contextmanager
def _reading(path: Path) -> Iterator[FileInput[str]]:
    """The lines of a file; an error in their use is an OSError that names the line."""
    with FileInput(path, encoding="utf-8") as lines:
        try:
            yield lines
        except Exception as error:
            raise OSError(f"{path}:{lines.lineno()}: {error!r}") from error


def _load_dump(run_dir: Path, step: int) -> Rows:
    """The rows of one train step; none if it was not published."""
    path, rows = run_dir / f"train_data_step{step}.jsonl", Rows()
    with _reading(path) as lines:
        for row in map(Row, lines if path.exists() else []):
            rows.setdefault(row.identity, []).append(row)
    return rows


def _load_cuts(selection: Path, log: Path) -> tuple[list[Cut], list[Any]]:
    """The cuts with the log lines of each, and the log lines that fit none."""
    with _reading(selection) as lines:
        cuts = [*map(Cut, json.loads("".join(lines))["cuts"])]
    lists, strays = {x.call: (x.restored, x.completed) for x in cuts}, list[Any]()
    with _reading(log) as lines:
        for text in lines:
            if "generation prefix " in text:
                (line,) = LOG_LINE.finditer(text)  # a ValueError if it is torn
                restored, completed = lists.get(line["source"], (strays, strays))
                (restored if line["digest"] else completed).append(line.groupdict())
    return cuts, strays


def _check(name: str, problems: list[Any], **counts: Any) -> Report:
    found = [x if isinstance(x, dict) else {"message": x} for x in problems]
    return {"name": name, "passed": not found, "counts": counts, "problems": found}


def _row_problem(a: Row, b: Row, what: str, **where: Any) -> Report:
    groups = {"reference_group_id": a.group_id, "recovery_group_id": b.group_id}
    name = f"{NAME.format(*b.identity)} (reference {a.group_id}, recovery {b.group_id})"
    return {"message": f"{name}: {what}", **b.identity._asdict(), **groups, **where}


def _differences(a: Row, b: Row, cut: Cut | None, allow_pre_cut: bool) -> list[Report]:
    """Where the recovery's row `b` first differs from the reference's row `a`."""
    first: dict[str, int] = {}  # by column
    for name in COLUMNS:
        x, y = a.columns[name], b.columns[name]
        n, tolerance = min(len(x), len(y)), CLOSE.get(name, (0, 0))
        same = np.isclose(y[:n], x[:n], *tolerance, equal_nan=name in CLOSE)
        if len(x) != len(y) or (not same.all() and name != "generation_logprobs"):
            first[name] = int(np.append(same, False).argmin())
    if not first:
        return []
    (name, at), place = next(iter(first.items())), "a row never cut"
    if cut:
        place = PLACES[(at >= a.start) + (at >= a.start + cut.prefix)]
        excused = allow_pre_cut and name == "token_ids" and place == PLACES[1]
        if excused and cut.replayed(b) and not first.keys() & {*EXACT[2:4]}:
            return []
    values = [f"{x:.9g}" for row in (a, b) for x in row.columns[name][at : at + 1]]
    what = f"{name}[{at}] in {place}: {' became '.join(values)}"
    return [_row_problem(a, b, what, place=place, columns=first)]


def assert_rows_match(
    step: int, reference: Rows, recovery: Rows, cuts: dict[str, Cut], options: Any
) -> Iterator[Report]:
    """Both runs trained the same prompts x generations in a step, token for token."""
    prompts = {identity.prompt_idx for identity in reference}
    generations = range(options.generations_per_prompt)
    expected = {Identity(step, prompt, g) for prompt in prompts for g in generations}
    due = options.prompts_per_step if 1 <= step <= options.steps else 0
    if len(prompts) != due:
        yield {"message": f"step {step}: {len(prompts)} prompts, expected {due}"}
    if not any(x.columns["sample_loss_mask"].any() for x in chain(*reference.values())):
        yield {"message": f"step {step}: the reference trained no unmasked row"}
    groups: dict[int, tuple[str, str]] = {}
    for identity in sorted(expected | reference.keys() | recovery.keys()):
        x, y = reference.get(identity, []), recovery.get(identity, [])
        if [len(x), len(y)] != [identity in expected] * 2:
            times = f"{len(x)} times by the reference, {len(y)} by the recovery"
            yield {"message": f"{NAME.format(*identity)}: trained {times}"}
        for a, b in zip(x, y, strict=False):
            pair = a.group_id, b.group_id
            if groups.setdefault(identity.prompt_idx, pair) != pair:
                yield _row_problem(a, b, "its prompt is split over two groups")
            if not a.end:
                yield _row_problem(a, b, "no token is generated")
            yield from _differences(a, b, cuts.get(b.sample_id), options.allow_pre_cut)


def assert_prefixes_trained_once(cuts: list[Cut], strays: Any, trained: Any) -> Report:
    """Each cut was restored, completed and trained exactly once, at its full length."""
    problems = [f"{x['sample']}: call {x['source']}, which was not cut" for x in strays]
    if not cuts:
        problems.append("no call was cut, so nothing was recovered")
    for cut in cuts:
        calls = [line["call"] for line in cut.restored]
        rows = [row for row in trained if row[0] == cut.sample_id]
        totals = [int(line["total"]) for line in cut.completed]
        sums = [cut.prefix + tail for x in cut.completed if (tail := int(x["tail"]))]
        restored = [*map(itemgetter("sample", "prefix", "digest"), cut.restored)]
        completed = [*map(itemgetter("sample", "prefix", "call"), cut.completed)]
        for what, found, expected in (
            ("restored as", restored, [(cut.sample_id, str(cut.prefix), cut.digest)]),
            ("completed as", completed, [(cut.sample_id, str(cut.prefix), *calls)]),
            ("total tokens, with a tail", totals, sums),
            ("trained as", rows, [(cut.sample_id, *totals, True)]),
        ):
            if found != expected:
                mismatch = f"{what} {found}, expected {expected}"
                problems.append(f"{cut.sample_id}, call {cut.call}: {mismatch}")
    counts = {"cuts": len(cuts), "prefix tokens": sum(cut.prefix for cut in cuts)}
    return _check("prefixes trained once", problems, **counts)


def assert_old_keys_retired(
    cuts: list[Cut], probe: list[tuple[int, set[str]]], kept: set[str], steps: range
) -> Report:
    """No staging key of a cut is live as a step begins, or kept by the successor."""
    owner = {key: cut.sample_id for cut in cuts for key in cut.staging_keys}
    problems = [f"{x.sample_id}: no staging keys" for x in cuts if not x.staging_keys]
    problems += [f"step {x}: no record of keys" for x in steps if x not in dict(probe)]
    places = [(f"live as step {step} begins", keys) for step, keys in probe]
    for place, keys in [*places, ("still in the successor checkpoint", kept)]:
        problems += [f"{owner[x]}: {x} is {place}" for x in owner if x in keys]
    return _check("old keys retired", problems, keys=len(owner), steps=len(probe))


def assert_reward_signal(rewards: Counter[float]) -> Report:
    """The reference's rewards are not all the same."""
    same = f"the reference's rewards are all the same: {dict(rewards)}"
    counts = {f"of reward {x:g}": n for x, n in sorted(rewards.items())}
    return _check("reward signal", [same] if len(rewards) < 2 else [], **counts)


def _agreement(a: Row, b: Row) -> Report:
    """How many log-probs of generated tokens are identical, and the largest gap."""
    at = (a.columns["token_loss_mask"] > 0).nonzero()[0]
    x, y = (np.resize(z.columns["generation_logprobs"], at[-1] + 1)[at] for z in (a, b))
    x, y = (np.nan_to_num(z, nan=1e30, posinf=2e30, neginf=-2e30) for z in (x, y))
    gaps = np.abs(x - y)
    worst, largest = int(at[gaps.argmax()]), float(gaps.max())
    identical = int((gaps == 0).sum())
    counts = {"tokens": len(at), "identical": identical, "largest": largest}
    what = f"generation_logprobs[{worst}] differ by {largest:.6g}"
    return _row_problem(a, b, what, position=worst, **counts)


def assert_generation_logprobs_agree(rows: list[Report], options: Any) -> Report:
    """Log-probs of generated tokens agree, over the rows whose tokens are equal."""
    tokens, identical = (sum(row[x] for row in rows) for x in ("tokens", "identical"))
    limit, least = options.max_logprob_difference, options.min_identical_logprobs
    problems = [row for row in rows if row["largest"] > limit]
    if not tokens or identical < least * tokens:
        share = f"{identical} of {tokens} log-probs are bit-identical"
        problems.insert(0, {"message": f"{share}, expected at least {least:.2%}"})
    largest = max((row["largest"] for row in rows), default=0.0)
    counts = {"tokens": tokens, "identical": identical, "largest difference": largest}
    return _check("generation log-probs agree", problems, **counts)


def _judge_step(options: Any, run_dirs: list[Path], cuts: Any, step: int) -> Any:
    """What is unequal in a step, how log-probs agree, rewards, and the cuts' rows."""
    reference, recovery = (_load_dump(run_dir, step) for run_dir in run_dirs)
    unequal = [*assert_rows_match(step, reference, recovery, cuts, options)]
    agreements, trained = [], []
    for b in chain(*recovery.values()):
        if cut := cuts.get(b.sample_id):
            # its tokens, and whether their ids are as logged
            trained.append((b.sample_id, b.end - b.start, cut.replayed(b) is not False))
        for a in reference.get(b.identity, []):
            pairs = [(a.columns[x], b.columns[x]) for x in EXACT[:2]]
            if a.end and all(np.array_equal(*pair) for pair in pairs):
                agreements.append(_agreement(a, b))
    return unequal, agreements, [a.reward for a in chain(*reference.values())], trained


def judge(options: argparse.Namespace) -> list[Report]:
    """All five checks; raises OSError if evidence is missing, torn or malformed."""
    cuts, strays = _load_cuts(options.selection, options.recovery_log)
    with _reading(options.staging_keys) as lines:
        records = [(x["train_step"], x["staging_keys"]) for x in map(json.loads, lines)]
        probe = [(index(step), {*list.copy(keys)}) for step, keys in records]
    with _reading(options.successor_checkpoint / "gym_checkpoint.json") as lines:
        instances = json.loads("".join(lines))["staging_keys"].values()
        kept = set[str]().union(*map(list.copy, instances))
    run_dirs, steps = list[Path](), {*range(1, options.steps + 1)}
    for log_dir in (options.reference_log_dir, options.recovery_log_dir):
        dumps = [*log_dir.glob("exp_*/train_data_step*.jsonl")]
        if len([*log_dir.glob("exp_*")]) != 1 or not dumps:
            raise OSError(f"{log_dir}: expected one exp_N, with a dump")
        run_dirs.append(dumps[0].parent)
        steps |= {int(x.stem[15:]) for x in dumps if x.stem[15:].isdecimal()}
    judge_step = partial(_judge_step, options, run_dirs, {x.sample_id: x for x in cuts})
    with ProcessPoolExecutor(2) as pool:
        found = zip(*pool.map(judge_step, sorted(steps)), strict=True)
        unequal, agreements, rewards, trained = ([*chain(*x)] for x in found)
    return [
        _check("rows match", unequal, rows=len(rewards), steps=len(steps)),
        assert_prefixes_trained_once(cuts, strays, trained),
        assert_old_keys_retired(cuts, probe, kept, range(1, options.steps + 1)),
        assert_reward_signal(Counter(rewards)),
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
    parser.add_argument("--verdict", type=Path, default=Path("verdict.json"))
    options = parser.parse_args()
    try:
        checks = judge(options)
        passed = all(check["passed"] for check in checks)
        verdict = {"passed": passed, "evidence": vars(options), "checks": checks}
        unpublished = options.verdict.with_suffix(".partial")
        unpublished.write_text(json.dumps(verdict, indent=1, default=str))
        unpublished.replace(options.verdict)
    except (OSError, BrokenExecutor) as error:
        print(f"error: the evidence cannot be judged: {error}", file=sys.stderr)
        return 2
    for check in checks:
        counts = ", ".join(f"{n} {what}" for what, n in check["counts"].items())
        print(f"{'PASS' if check['passed'] else 'FAIL'} {check['name']}: {counts}")
        for problem in check["problems"][:1]:
            more = len(check["problems"]) - 1
            print(f"     {problem['message']}" + f" (and {more} more)" * (more > 0))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
