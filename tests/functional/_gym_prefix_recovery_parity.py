# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Judge whether a recovered run trained exactly the rows of an uninterrupted run.

Loads the training dumps, the selected cuts, the recovered run's log and the recorded
staging keys; checks every row against itself; makes five assertions; prints a line for
each. Exit status: 0 if all hold, 1 if one fails, 2 if the evidence can't be judged.
"""

import argparse
import hashlib
import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

PER_TOKEN = ["token_ids", "token_loss_mask", "advantages", "generation_logprobs"]
SCALARS = ["input_lengths", "rewards", "sample_loss_mask"]
TRAINER_FLOATS = ["advantages", "prev_logprobs"]  # the latter only if it was computed
EXACT = ["token_ids", "token_loss_mask", *SCALARS]
TOLERANCES = 1e-4, 1e-5  # rtol and atol of the floats in all other columns
NAMES = {"idx", "step", "sample_id", "metadata"}  # they name a row, and train nothing
MIN_IDENTICAL_OF_A_CUT = 0.5
SHOWN_PROBLEMS = 3
IN_PREFIX = "inside the restored prefix, which phase 1 sampled before the crash"
NO_COLUMN = np.array([], dtype=bool)
PATHS = "reference-log-dir recovery-log-dir selection recovery-log staging-keys"
SIZES = "steps prompts-per-step generations-per-prompt"

RECORD = "generation prefix {}: rollout_id="
CALL = (
    r"(?P<rollout_id>\S+) model_call_id=(?P<model_call_id>\S+)"
    r" source_model_call_id=(?P<source>\S+) prefix_tokens=(?P<prefix_tokens>\d{1,9})"
)
RESTORED = re.compile(
    RECORD.format("restored")
    + CALL
    + r" prefix_digest=(?P<prefix_digest>[0-9a-f]{64})\b"
    r"(?: weight_version_span=\S+ prefix_ids_sha256=(?P<sha256>[0-9a-f]{64})\b"
    r"|(?! (?:weight|prefix)_))"
)
COMPLETED = re.compile(
    RECORD.format("completed") + CALL + r" tail_tokens=(?P<tail_tokens>\d{1,9})"
    r" total_generation_tokens=(?P<total_tokens>\d{1,9})\b"
)
FOLDED = re.compile(r"\[repeated \d+x across cluster\]")
LogRecord = dict[str, str]  # the named groups of RESTORED or of COMPLETED


class EvidenceError(Exception):
    """The evidence can't be judged; the message says where and what was expected."""


@dataclass
class Cut:
    """A model call that was cut in mid-decode, and what the log says became of it."""

    group_id: str
    generation_index: int
    model_call_id: str
    prefix_token_count: int
    prefix_digest: str
    staging_keys: list
    gym_rollout_id: str
    gym_attempt: int
    restored: list[LogRecord] = field(default_factory=list, init=False)
    completed: list[LogRecord] = field(default_factory=list, init=False)

    @property
    def sample_id(self) -> str:
        return f"{self.group_id}_g{self.generation_index}"


@dataclass
class Check:
    """The outcome of one assertion, which holds if there are no problems."""

    name: str
    counts: str
    problems: list[str]


# -- loading ---------------------------------------------------------------------------


def _require(holds: Any, message: str) -> None:
    if not holds:
        raise EvidenceError(message)


def _parse_json(text: bytes, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{place}: expected JSON: {error}") from error


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Each line's place, for messages, and its value; lines end at \\n alone."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            yield f"{path}:{number}", _parse_json(line, f"{path}:{number}")


def _field(record: Any, name: str, kind: Any, place: str) -> Any:
    """A field of a JSON object, of the type that it must have."""
    value = record.get(name) if isinstance(record, dict) else None
    _require(isinstance(value, kind), f"{place}: expected {name}, a {kind.__name__}")
    return value


def _keys(record: Any, name: str, place: str) -> list[str]:
    """A field with a list of staging keys."""
    keys = _field(record, name, list, place)
    are_strings = all(isinstance(key, str) for key in keys)
    _require(are_strings, f"{place}: expected strings in {name}")
    return keys


def _column(value: Any) -> np.ndarray:
    """A column in one dimension, null as NaN; what is not of numbers as one value."""
    try:
        array = np.array(value)
    except ValueError:  # lists of several lengths
        return np.array([json.dumps(value)])
    if array.dtype == object:
        array = np.array([math.nan if x is None else x for x in array.ravel()])
    is_numeric = array.dtype.kind in "biuf"
    return array.ravel() if is_numeric else np.array([json.dumps(value)])


def _generated_turns(mask: np.ndarray) -> list[list[int]]:
    """Start and end of each run of ones."""
    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0))
    return edges.reshape(-1, 2).tolist()


class Row:
    """One row of a dump, which has been checked against itself.

    Its columns are dropped once it has been compared with the other run's row.
    """

    prefix_sha256 = ""  # of the ids that a cut row trained as its prefix
    difference = ""  # from the reference's row
    agreement: "Agreement | None" = None  # with a reference's row of equal tokens

    def __init__(self, record: Any, step: int, place: str) -> None:
        found = _field(record, "step", int, place)
        _require(found == step, f"{place}: step is {found}, expected the file's {step}")
        match record.get("sample_id"), record.get("metadata"):
            case [str(sample_id)], [{"prompt_idx": int(prompt_idx)}]:
                name = re.fullmatch(r"(.+)_g(\d{1,9})", sample_id, re.DOTALL)
            case _:
                name = None
        if name is None:
            message = "expected one sample_id GROUP_gN, one prompt_idx in metadata"
            raise EvidenceError(f"{place}: {message}")
        self.step, self.prompt_idx, self.generation = step, prompt_idx, int(name[2])
        self.name = f"step {step}, prompt {prompt_idx}, generation {self.generation}"
        self.sample_id, self.group_id = sample_id, name[1]
        self.columns = {x: _column(record[x]) for x in record if x not in NAMES}
        self._check_columns(place)

    def _check_columns(self, place: str) -> None:
        columns = self.columns
        length = len(columns.get("token_ids", NO_COLUMN))
        trainer_floats = [x for x in TRAINER_FLOATS if x in columns]
        for x in [*PER_TOKEN, *trainer_floats, *SCALARS]:
            column, expected = columns.get(x, NO_COLUMN), 1 if x in SCALARS else length
            what = f"{place}: {len(column)} values in {x}, expected {expected} numbers"
            _require(len(column) == expected and column.dtype.kind in "iuf", what)
        found, self.reward, sample_mask = (columns[x].item() for x in SCALARS)
        what = f"{place}: input_lengths is {found}, expected {length}"
        _require(found == length, what)
        token_ids, mask = columns["token_ids"], columns["token_loss_mask"]
        are_ids = token_ids.dtype.kind in "iu" and token_ids.min(initial=0) >= 0
        _require(are_ids, f"{place}: expected integers from 0 on in token_ids")
        generated = mask == 1
        is_mask = (generated | (mask == 0)).all()
        _require(is_mask, f"{place}: expected 0 or 1 in token_loss_mask")
        self.turns = _generated_turns(mask)
        start, end = self.turns[-1] if self.turns else (0, 0)
        self.last_turn_tokens = end - start
        self.has_advantage = columns["advantages"][generated].any()
        finite = all(np.isfinite(columns[x][generated]).all() for x in trainer_floats)
        facts = {
            "sample_loss_mask is 0, so it trained nothing": sample_mask == 0,
            "no token is generated": not generated.any(),
            "advantages or prev_logprobs of generated tokens aren't finite": not finite,
        }
        self.problems = [what for what, is_so in facts.items() if is_so]


def _load_dump(path: Path | None, step: int) -> list[Row]:
    """The rows of one train step; none if the step was not published."""
    lines = _json_lines(path) if path else []
    return [Row(record, step, place) for place, record in lines]


def _find_dumps(log_dir: Path) -> dict[int, Path]:
    """The file of each train step, in the one run folder of a log folder."""
    runs = [path for path in log_dir.glob("exp_[0-9]*") if path.is_dir()]
    _require(len(runs) == 1, f"{log_dir}: expected one folder exp_N, found {len(runs)}")
    paths = runs[0].glob("train_data_step[1-9]*.jsonl")
    numbers = {path.stem.removeprefix("train_data_step"): path for path in paths}
    dumps = {int(x): path for x, path in numbers.items() if x.isdecimal()}
    _require(dumps, f"{runs[0]}: expected a train_data_step<N>.jsonl")
    return dumps


def _load_cuts(path: Path) -> list[Cut]:
    """The selected cuts; the annotations of `Cut` are the selection's schema."""
    document = _parse_json(path.read_bytes(), str(path))
    schema = {x.name: x.type for x in fields(Cut) if x.init}
    cuts = []
    for number, entry in enumerate(_field(document, "cuts", list, str(path))):
        place = f"{path}: cuts[{number}]"
        _keys(entry, "staging_keys", place)
        cuts.append(Cut(**{x: _field(entry, x, schema[x], place) for x in schema}))
    return cuts


def _read_log(path: Path, pattern: re.Pattern[str], event: str) -> list[LogRecord]:
    """All records of one event, in a log of any bytes."""
    records = []
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            found = [match.groupdict() for match in pattern.finditer(line)]
            expected = line.count(RECORD.format(event))
            what = "expected a whole record, and RAY_DEDUP_LOGS=0, where it says"
            is_sound = len(found) == expected and not (found and FOLDED.search(line))
            _require(is_sound, f"{path}:{number}: {what} {RECORD.format(event)!r}")
            records += found
    return records


def _load_probe(path: Path) -> list[tuple[int, list[str]]]:
    """The train step and the live staging keys of each of the probe's records."""
    return [
        (_field(record, "train_step", int, place), _keys(record, "staging_keys", place))
        for place, record in _json_lines(path)
    ]


def _load_successor_keys(checkpoint: Path) -> set[str]:
    """The staging keys that the next trainer checkpoint still refers to."""
    path = checkpoint / "gym_checkpoint.json"
    document = _parse_json(path.read_bytes(), str(path))
    instances = _field(document, "staging_keys", dict, str(path))
    return {key for name in instances for key in _keys(instances, name, str(path))}


# -- comparing a row `a` of the reference with the same row `b` of the recovery --------


def _first_difference(a: np.ndarray, b: np.ndarray, is_exact: bool) -> int | None:
    """The first position at which two columns differ."""
    length = min(len(a), len(b))
    x, y = a[:length], b[:length]
    if is_exact or not x.dtype == y.dtype == float:
        same = x == y
    else:
        same = np.isclose(y, x, *TOLERANCES, equal_nan=True)
    if same.all():
        return None if len(a) == len(b) else length
    return int(same.argmin())


def _place(a: Row, cut: Cut | None, position: int) -> str:
    """Which part of a row a token is in."""
    if cut is None:
        return "in a row that was never cut"
    if not a.turns or position < a.turns[0][0]:
        return "in the prompt"
    start, _ = a.turns[-1]
    if position < start:
        return "in a turn before the cut call"
    if position >= start + cut.prefix_token_count:
        return "in the continued tail"
    return IN_PREFIX


def _difference(a: Row, b: Row, cut: Cut | None) -> str:
    """The first column in which two rows differ, and how; empty if none does."""
    names = dict.fromkeys([*EXACT, *a.columns, *b.columns])
    del names["generation_logprobs"]  # they have a check of their own
    for name in names:
        if name not in a.columns or name not in b.columns:
            run = "recovery" if name in a.columns else "reference"
            return f"{name} is missing in the {run}"
        x, y = a.columns[name], b.columns[name]
        at = _first_difference(x, y, name in EXACT)
        if at is None:
            continue
        what = f"{name} has {len(y)} values, expected {len(x)}"
        if at < min(len(x), len(y)):
            digits = ".9g" if x.dtype == y.dtype == float else ""
            what = f"{name}[{at}] is {y[at]:{digits}}, expected {x[at]:{digits}}"
        if name not in PER_TOKEN:
            return what
        place = _place(a, cut, at)
        hashes = [record["sha256"] for record in cut.restored] if cut else []
        if name == "token_ids" and place == IN_PREFIX and b.prefix_sha256 in hashes:
            place += "; its hash proves that it was replayed as sampled, so this is no"
            place += " error of the recovery: run again or use exact mode"
        return f"{what}, {place}"
    return ""


@dataclass
class Agreement:
    """How a row's generation log-probs agree, over its generated tokens."""

    tokens: int
    identical: int
    largest_difference: float  # infinite if one is not finite
    worst: str  # the token that has it
    some_values: set[float]  # two, if there are two different ones
    parts_of_cut: dict[str, float]  # the identical share of its prefix and of its tail


def _agreement(a: Row, b: Row, cut: Cut | None) -> Agreement:
    """Of two rows with equal tokens and loss masks."""
    positions = np.flatnonzero(a.columns["token_loss_mask"])
    both = np.array([x.columns["generation_logprobs"][positions] for x in (a, b)])
    x, y = both
    differences = np.where(np.isfinite(both).all(axis=0), np.abs(x - y), np.inf)
    same, worst = x == y, differences.argmax()
    last_turn, parts = same[len(same) - a.last_turn_tokens :], {}
    if cut and 0 < cut.prefix_token_count < len(last_turn):
        prefix, tail = np.split(last_turn, [cut.prefix_token_count])
        parts = {"restored prefix": prefix.mean(), "continued tail": tail.mean()}
    at = positions[worst]
    place = _place(a, cut, at)
    return Agreement(
        tokens=same.size,
        identical=int(same.sum()),
        largest_difference=differences[worst],
        worst=f"[{at}] is {y[worst]:.4g}, expected {x[worst]:.4g} {place}",
        some_values=set(np.unique(both)[:2]),
        parts_of_cut=parts,
    )


def _compare(reference: list[Row], recovery: list[Row], cuts: list[Cut]) -> None:
    """Compare the rows of one step, and drop their columns."""
    originals = {row.name: row for row in reference}
    cut_of_sample = {cut.sample_id: cut for cut in cuts}
    for b in recovery:
        a, cut = originals.get(b.name), cut_of_sample.get(b.sample_id)
        if cut and b.turns:
            last_turn = b.columns["token_ids"][b.turns[-1][0] :]
            prefix = ",".join(map(str, last_turn[: cut.prefix_token_count]))
            b.prefix_sha256 = hashlib.sha256(prefix.encode()).hexdigest()
        if a:
            b.difference = _difference(a, b, cut)
            names = "token_ids", "token_loss_mask"
            equal = [np.array_equal(a.columns[x], b.columns[x]) for x in names]
            if all(equal) and a.turns:
                b.agreement = _agreement(a, b, cut)
    for row in [*reference, *recovery]:
        row.columns = {}


# -- the five assertions ---------------------------------------------------------------


def _run_problems(rows: list[Row], expected: set[str]) -> Iterator[str]:
    """Why one run's rows are not the expected ones, each trained once."""
    times = Counter(row.name for row in rows)
    for name in sorted(expected | times.keys()):
        if times[name] != (name in expected):
            how_often = f"trained {times[name]} times" if times[name] else "missing"
            yield f"{name} is {how_often}, expected {'once' if name in expected else 0}"
    values = defaultdict[str, set[Any]](set)
    for row in rows:
        values[f"the step of prompt {row.prompt_idx}"].add(row.step)
        values[f"the group of prompt {row.prompt_idx}"].add(row.group_id)
        values[f"the prompt of group {row.group_id}"].add(row.prompt_idx)
        yield from [f"{row.name}: {what}" for what in row.problems]
    for what, several in values.items():
        if len(several) > 1:
            yield f"{what} is not one but {sorted(several)}"


def assert_rows_match(
    reference: list[Row], recovery: list[Row], options: argparse.Namespace
) -> Iterator[str]:
    """Both runs trained the same rows, value for value, and nothing else."""
    expected = set()
    for step in range(1, options.steps + 1):
        prompts = {row.prompt_idx for row in reference if row.step == step}
        if len(prompts) != options.prompts_per_step:
            found = f"reference: step {step} has {len(prompts)} prompts"
            yield f"{found}, expected {options.prompts_per_step}"
        for x in range(options.generations_per_prompt):
            expected |= {f"step {step}, prompt {y}, generation {x}" for y in prompts}
    for run, rows in (("reference", reference), ("recovery", recovery)):
        yield from [f"{run}: {what}" for what in _run_problems(rows, expected)]
    for group in {x.group_id for x in reference} & {x.group_id for x in recovery}:
        yield f"group {group} is in both runs: is one dump given twice?"
    for row in recovery:
        if row.difference:
            yield f"{row.name} ({row.sample_id}): {row.difference}"


def _cut_problems(cut: Cut, rows: list[Row]) -> Iterator[str]:
    """What the log and the trained rows say against one cut."""
    times = {"restored": len(cut.restored), "completed": len(cut.completed)}
    for event, found in (times | {"trained": len(rows)}).items():
        if found != 1:
            yield f"{event} {found} times, expected once"
    rollout_id = f"{cut.gym_rollout_id}-a{cut.gym_attempt + 1}"
    for record in cut.restored + cut.completed:
        if record["rollout_id"] != rollout_id:
            yield f"continued as {record['rollout_id']}, expected {rollout_id}"
        if int(record["prefix_tokens"]) != cut.prefix_token_count:
            what = f"continued after {record['prefix_tokens']} tokens"
            yield f"{what}, expected {cut.prefix_token_count}"
    for record in cut.restored:
        if record["prefix_digest"] != cut.prefix_digest:
            what = f"restored with prefix_digest {record['prefix_digest'][:12]}..."
            yield f"{what}, expected {cut.prefix_digest[:12]}..."
        for row in rows:
            if record["sha256"] not in (None, row.prefix_sha256):
                what = f"prefix_ids_sha256 {record['sha256'][:12]}..."
                yield f"{what} is not that of the ids in its row"
    for record in cut.completed:
        prefix, tail = int(record["prefix_tokens"]), int(record["tail_tokens"])
        total = int(record["total_tokens"])
        if 0 in (prefix, tail) or prefix + tail != total:
            yield f"completed with {total} tokens, of prefix {prefix} and tail {tail}"
        if record["model_call_id"] not in [x["model_call_id"] for x in cut.restored]:
            yield f"completed by call {record['model_call_id']}, which restored nothing"
        for row in rows:
            if row.last_turn_tokens != total:
                what = f"its row's last turn has {row.last_turn_tokens} tokens"
                yield f"{what}, expected {total}"


def assert_prefixes_trained_once(
    cuts: list[Cut], records: list[LogRecord], recovery: list[Row]
) -> Iterator[str]:
    """Each cut was restored, completed and trained exactly once, at its length."""
    if not cuts:
        yield "no call was cut, so nothing was recovered"
    for sample_id, times in Counter(cut.sample_id for cut in cuts).items():
        if times > 1:
            yield f"{sample_id} is cut {times} times"
    calls = {cut.model_call_id for cut in cuts}
    for record in records:
        if record["source"] not in calls:
            what = f"call {record['source']} was not cut, but the log continues it"
            yield f"{record['rollout_id']}: {what}"
    for cut in cuts:
        rows = [row for row in recovery if row.sample_id == cut.sample_id]
        where = f"{cut.sample_id}, call {cut.model_call_id}"
        yield from [f"{where}: {what}" for what in _cut_problems(cut, rows)]
    hashes = [record["sha256"] for cut in cuts for record in cut.restored]
    if any(hashes) and not all(hashes):
        yield "prefix_ids_sha256 is logged with some restores, but not with all"


def assert_old_keys_retired(
    cuts: list[Cut], probe: list[Any], successor_keys: set[str], steps: int
) -> Iterator[str]:
    """No staging key of a cut is live as a step begins, or kept by the successor."""
    begun = [step for step, _ in probe]
    if begun != list(range(1, steps + 1)):
        yield f"the probe saw the steps {begun} begin, expected 1 to {steps}, each once"
    places = [(f"is live as step {step} begins", keys) for step, keys in probe]
    places.append(("is still in the next trainer checkpoint", successor_keys))
    for cut in cuts:
        if not cut.staging_keys:
            yield f"{cut.sample_id}: the cut has no staging keys"
        for key in cut.staging_keys:
            for place, keys in places:
                if key in keys:
                    yield f"{cut.sample_id}: staging key {key} {place}"


def assert_reward_signal(reference: list[Row], steps: int) -> Iterator[str]:
    """Rewards differ, and each step that a later one builds on has learnt something."""
    if len({row.reward for row in reference}) < 2:
        yield "the reference's rewards are all the same"
    for step in range(1, steps):
        rows = [row for row in reference if row.step == step]
        if rows and not any(row.has_advantage for row in rows):
            yield f"step {step}: every advantage is 0, so that nothing was learnt"


def assert_generation_logprobs_agree(
    pairs: dict[str, Agreement], options: argparse.Namespace
) -> Iterator[str]:
    """The same tokens got the same log-probs in both runs, but for engine noise."""
    tokens = sum(pair.tokens for pair in pairs.values())
    identical = sum(pair.identical for pair in pairs.values())
    if len(set().union(*(pair.some_values for pair in pairs.values()))) < 2:
        yield "there are no two different log-probs of equal tokens"
    if identical < options.min_identical_logprobs * tokens:
        expected = f"expected at least {options.min_identical_logprobs:.2%}"
        yield f"{identical} of {tokens} log-probs are bit-identical, {expected}"
    for row, pair in sorted(pairs.items()):
        if pair.largest_difference > options.max_logprob_difference:
            expected = f"finite and at most {options.max_logprob_difference:.4g} apart"
            yield f"{row}: generation_logprobs{pair.worst}, {expected}"
        for part, share in pair.parts_of_cut.items():
            if share < min(options.min_identical_logprobs, MIN_IDENTICAL_OF_A_CUT):
                yield f"{row}: {share:.2%} of the {part}'s log-probs are bit-identical"


# -- the verdict -----------------------------------------------------------------------


def judge(options: argparse.Namespace) -> list[Check]:
    """All five checks; raises EvidenceError or OSError if they can't be made."""
    cuts = _load_cuts(options.selection)
    restored = _read_log(options.recovery_log, RESTORED, "restored")
    completed = _read_log(options.recovery_log, COMPLETED, "completed")
    for cut in cuts:
        cut.restored = [x for x in restored if x["source"] == cut.model_call_id]
        cut.completed = [x for x in completed if x["source"] == cut.model_call_id]
    probe = _load_probe(options.staging_keys)
    successor_keys = _load_successor_keys(options.successor_checkpoint)
    reference_dumps = _find_dumps(options.reference_log_dir)
    recovery_dumps = _find_dumps(options.recovery_log_dir)
    reference, recovery = list[Row](), list[Row]()
    for step in sorted(reference_dumps | recovery_dumps):
        originals = _load_dump(reference_dumps.get(step), step)
        rows = _load_dump(recovery_dumps.get(step), step)
        _compare(originals, rows, cuts)
        reference += originals
        recovery += rows
    pairs = {row.name: row.agreement for row in recovery if row.agreement}
    matching = assert_rows_match(reference, recovery, options)
    prefixes = assert_prefixes_trained_once(cuts, restored + completed, recovery)
    retired = assert_old_keys_retired(cuts, probe, successor_keys, options.steps)
    signal = assert_reward_signal(reference, options.steps)
    agreeing = assert_generation_logprobs_agree(pairs, options)
    keys = sum(len(cut.staging_keys) for cut in cuts)
    rewards = {f"{row.reward:.4g}" for row in reference}
    identical = sum(pair.identical for pair in pairs.values())
    return [
        Check("rows match", f"{len(recovery)} rows", [*matching]),
        Check("prefixes trained once", f"{len(cuts)} cuts", [*prefixes]),
        Check("old keys retired", f"{keys} keys, {len(probe)} steps", [*retired]),
        Check("reward signal", f"rewards {' and '.join(sorted(rewards))}", [*signal]),
        Check("generation log-probs agree", f"{identical} identical", [*agreeing]),
    ]


def _report(checks: list[Check]) -> Iterator[str]:
    for check in checks:
        outcome = "FAIL" if check.problems else "PASS"
        yield f"{outcome} {check.name}: {check.counts}\n"
        yield from [f"     {what}\n" for what in check.problems[:SHOWN_PROBLEMS]]
        if len(check.problems) > SHOWN_PROBLEMS:
            yield f"     and {len(check.problems) - SHOWN_PROBLEMS} more\n"


def main() -> int:
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS)
    for name in [*PATHS.split(), "successor-checkpoint"]:
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in SIZES.split():
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--min-identical-logprobs", type=float, default=0.97)
    parser.add_argument("--max-logprob-difference", type=float, default=0.5)
    parser.add_argument("--verdict", type=Path, help="all problems go here, as JSON")
    options = parser.parse_args()
    is_share = 0 <= options.min_identical_logprobs <= 1
    if not (is_share and 0 <= options.max_logprob_difference < math.inf):
        parser.error("thresholds: expected a share from 0 to 1, and a number from 0 on")
    np.seterr(all="ignore")  # a number that is too large is found, and needs no warning
    try:
        if options.verdict:
            options.verdict.unlink(missing_ok=True)
        checks = judge(options)
        passed = not any(check.problems for check in checks)
        # Descriptor 1 itself, so that a full or closed standard output is an OSError.
        with open(1, "w", errors="backslashreplace", closefd=False) as stdout:
            stdout.writelines(_report(checks))
        if options.verdict:
            verdict = {"passed": passed, "checks": [asdict(check) for check in checks]}
            verdict["evidence"] = vars(options)
            partial = options.verdict.with_name(f"{options.verdict.name}.partial")
            partial.write_text(json.dumps(verdict, indent=1, default=str))
            partial.replace(options.verdict)
    except (EvidenceError, OSError) as error:
        parser.exit(2, f"error: the evidence can't be judged: {error}\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
