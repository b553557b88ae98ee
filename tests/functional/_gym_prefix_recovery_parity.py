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
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PER_TOKEN = ["token_ids", "token_loss_mask", "advantages", "generation_logprobs"]
SCALARS = ["input_lengths", "rewards", "sample_loss_mask"]
TRAINER_FLOATS = ["advantages", "prev_logprobs"]  # the latter only if it was computed
EXACT = ["token_ids", "token_loss_mask", *SCALARS]
TOLERANCES = 1e-4, 1e-5  # rtol and atol of the floats in all other columns
NAMES = {"idx", "step", "sample_id", "metadata"}  # they name a row, and train nothing
MIN_IDENTICAL_OF_A_CUT = 0.5
SHOWN_PROBLEMS = 3

RECORD = re.compile(r"generation prefix (?:restored|completed): rollout_id=")
CALL = (
    r"rollout_id=(?P<rollout_id>\S+) model_call_id=(?P<model_call_id>\S+)"
    r" source_model_call_id=(?P<source>\S+) prefix_tokens=(?P<prefix_tokens>\d{1,9})"
)
RESTORED = re.compile(
    rf"generation prefix restored: {CALL}"
    r" prefix_digest=(?P<prefix_digest>[0-9a-f]{64})\b"
    r"(?: weight_version_span=\S+ prefix_ids_sha256=(?P<sha256>[0-9a-f]{64})\b"
    r"|(?! (?:weight|prefix)_))"
)
COMPLETED = re.compile(
    rf"generation prefix completed: {CALL} tail_tokens=(?P<tail_tokens>\d{{1,9}})"
    r" total_generation_tokens=(?P<total_tokens>\d{1,9})\b"
)
FOLDED = re.compile(r"\[repeated \d+x across cluster\]")
LogRecord = dict[str, str]  # the named groups of RESTORED or of COMPLETED


class EvidenceError(Exception):
    """The evidence can't be judged; the message says where and what was expected."""


class Identity(NamedTuple):
    """Which row this is, in either run."""

    step: int
    prompt_idx: int
    generation: int

    def __str__(self) -> str:
        return "step {}, prompt {}, generation {}".format(*self)


@dataclass
class Row:
    """One row of a dump. A numeric column is a flat array, null in it is NaN."""

    identity: Identity
    group_id: str
    sample_id: str
    columns: dict[str, Any]  # empty once the row has been compared
    reward: float
    turns: list[list[int]]  # start and end of each run of generated tokens
    has_advantage: bool  # on a generated token
    problems: list[str]  # why there is nothing to compare
    prefix_sha256: str = ""  # of the ids that a cut row trained as its prefix

    @property
    def last_turn_tokens(self) -> int:
        return self.turns[-1][1] - self.turns[-1][0] if self.turns else 0


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
    counts: dict[str, Any]
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


def _column(value: Any) -> Any:
    """A column's numbers in one dimension, null as NaN; other JSON as it is."""
    try:
        array = np.array(value)
        if array.dtype == object:
            array = np.array([math.nan if x is None else x for x in array.ravel()])
    except ValueError:
        return value
    return array.ravel() if array.dtype.kind in "biuf" else value


def _generated_turns(mask: np.ndarray) -> list[list[int]]:
    """Start and end of each run of ones."""
    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0))
    return edges.reshape(-1, 2).tolist()


def _numbers(columns: dict[str, Any], name: str, length: int, place: str) -> np.ndarray:
    """A column that must have as many numbers as expected."""
    column = columns.get(name)
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "iuf":
        raise EvidenceError(f"{place}: expected numbers in {name}")
    found = f"{place}: {len(column)} numbers in {name}"
    _require(len(column) == length, f"{found}, expected {length}")
    return column


def _row(record: Any, step: int, place: str) -> Row:
    """A row that has been checked against itself."""
    found = _field(record, "step", int, place)
    _require(found == step, f"{place}: step is {found}, expected the file's, {step}")
    match record.get("sample_id"), record.get("metadata"):
        case [str(sample_id)], [{"prompt_idx": int(prompt_idx)}]:
            group_id, _, generation = sample_id.rpartition("_g")
        case _:
            raise EvidenceError(f"{place}: expected one sample_id and one prompt_idx")
    is_name = re.fullmatch(r".+_g\d{1,9}", sample_id, re.DOTALL)
    _require(is_name, f"{place}: sample_id is {sample_id}, expected GROUP_gN")
    columns = {name: _column(record[name]) for name in record if name not in NAMES}
    length = len(columns.get("token_ids", []))
    trainer_floats = [name for name in TRAINER_FLOATS if name in columns]
    for name in [*PER_TOKEN, *trainer_floats]:
        _numbers(columns, name, length, place)
    scalars = [_numbers(columns, name, 1, place).item() for name in SCALARS]
    found, reward, sample_mask = scalars
    _require(found == length, f"{place}: input_lengths is {found}, expected {length}")
    token_ids, mask = columns["token_ids"], columns["token_loss_mask"]
    are_ids = token_ids.dtype.kind in "iu" and token_ids.min(initial=0) >= 0
    _require(are_ids, f"{place}: expected integers from 0 on in token_ids")
    generated = mask == 1
    is_mask = (generated | (mask == 0)).all()
    _require(is_mask, f"{place}: expected 0 or 1 in token_loss_mask")
    problems = [] if sample_mask else ["sample_loss_mask is 0, so it trained nothing"]
    if not generated.any():
        problems.append("no token is generated")
    for name in trainer_floats:
        if not np.isfinite(columns[name][generated]).all():
            problems.append(f"{name} is not finite on a generated token")
    return Row(
        identity=Identity(step, prompt_idx, int(generation)),
        group_id=group_id,
        sample_id=sample_id,
        columns=columns,
        reward=reward,
        turns=_generated_turns(mask),
        has_advantage=columns["advantages"][generated].any(),
        problems=problems,
    )


def _load_dump(path: Path | None, step: int) -> list[Row]:
    """The rows of one train step; none if the step was not published."""
    lines = _json_lines(path) if path else []
    return [_row(record, step, place) for place, record in lines]


def _find_dumps(log_dir: Path) -> dict[int, Path]:
    """The file of each train step, in the one run folder of a log folder."""
    runs = [x for x in log_dir.glob("exp_*") if x.is_dir() and x.name[4:].isdecimal()]
    _require(len(runs) == 1, f"{log_dir}: expected one folder exp_N, found {len(runs)}")
    paths = runs[0].glob("train_data_step[1-9]*.jsonl")
    numbers = {path.stem.removeprefix("train_data_step"): path for path in paths}
    dumps = {int(x): path for x, path in numbers.items() if x.isdecimal()}
    _require(dumps, f"{runs[0]}: expected a train_data_step<N>.jsonl")
    return dumps


def _load_cuts(path: Path) -> list[Cut]:
    """The selected cuts; the annotations of `Cut` are the selection's schema."""
    document = _parse_json(path.read_bytes(), str(path))
    cuts = []
    for number, entry in enumerate(_field(document, "cuts", list, str(path))):
        place = f"{path}: cuts[{number}]"
        _keys(entry, "staging_keys", place)
        schema = {x.name: x.type for x in fields(Cut) if x.init}
        values = {x: _field(entry, x, kind, place) for x, kind in schema.items()}
        cuts.append(Cut(**values))
    return cuts


def _read_log(path: Path) -> tuple[list[LogRecord], list[LogRecord]]:
    """The records of restored and of completed calls, in a log of any bytes."""
    restored: list[LogRecord] = []
    completed: list[LogRecord] = []
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            place, records = f"{path}:{number}", len(RECORD.findall(line))
            restores = [match.groupdict() for match in RESTORED.finditer(line)]
            completions = [match.groupdict() for match in COMPLETED.finditer(line)]
            what = "a record of a generation prefix that can't be read whole"
            _require(len(restores + completions) == records, f"{place}: {what}")
            what = "Ray folded several records into one; set RAY_DEDUP_LOGS=0"
            _require(not (records and FOLDED.search(line)), f"{place}: {what}")
            restored += restores
            completed += completions
    return restored, completed


def _load_probe(path: Path) -> list[tuple[int, set[str]]]:
    """The train step and the live staging keys of each of the probe's records."""
    probe = []
    for place, record in _json_lines(path):
        step = _field(record, "train_step", int, place)
        probe.append((step, set(_keys(record, "staging_keys", place))))
    return probe


def _load_successor_keys(checkpoint: Path) -> set[str]:
    """The staging keys that the next trainer checkpoint still refers to."""
    path = checkpoint / "gym_checkpoint.json"
    document = _parse_json(path.read_bytes(), str(path))
    instances = _field(document, "staging_keys", dict, str(path))
    return {key for name in instances for key in _keys(instances, name, str(path))}


# -- comparing a row `a` of the reference with the same row `b` of the recovery --------


def _first_difference(a: np.ndarray, b: np.ndarray, are_exact: bool) -> int | None:
    """The first position at which two columns differ."""
    length = min(len(a), len(b))
    x, y = a[:length], b[:length]
    close = x == y if are_exact else np.isclose(y, x, *TOLERANCES, equal_nan=True)
    same = np.append(close, len(a) == len(b))
    return None if same.all() else int(same.argmin())


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
    return "inside the restored prefix, which phase 1 sampled before the crash"


def _column_difference(name: str, a: Row, b: Row, cut: Cut | None) -> str:
    """Where a column differs and how; empty if it does not."""
    for run, row in (("reference", a), ("recovery", b)):
        if name not in row.columns:
            return f"{name} is missing in the {run}"
    x, y = a.columns[name], b.columns[name]
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
        return "" if type(x) is type(y) and x == y else f"{name} differs"
    are_floats = x.dtype.kind == y.dtype.kind == "f"
    at = _first_difference(x, y, name in EXACT or not are_floats)
    if at is None:
        return ""
    if at < min(len(x), len(y)):
        what = f"{name}[{at}] is {y[at]:.10g}, expected {x[at]:.10g}"
    else:
        what = f"{name} has {len(y)} values, expected {len(x)}"
    if name in PER_TOKEN:
        what += f", {_place(a, cut, at)}"
    replayed = cut and b.prefix_sha256 in [x["sha256"] for x in cut.restored]
    if name == "token_ids" and "restored prefix" in what and replayed:
        what += "; its hash proves that it was replayed as it was sampled, so this is"
        what += " no error of the recovery: run again or use exact mode"
    return what


def _difference(a: Row, b: Row, cut: Cut | None) -> list[str]:
    """The first column in which two rows differ, if there is one."""
    names = dict.fromkeys([*EXACT, *a.columns, *b.columns])
    del names["generation_logprobs"]  # they have a check of their own
    for name in names:
        what = _column_difference(name, a, b, cut)
        if what:
            return [f"{b.identity} ({a.sample_id} became {b.sample_id}): {what}"]
    return []


@dataclass
class Agreement:
    """How the generation log-probs of a row agree, over its generated tokens."""

    identity: Identity
    tokens: int
    identical: int
    not_finite: int
    some_values: set[float]  # two, if there are two different ones
    largest_difference: float
    at: int  # the token of the largest difference
    parts_of_cut: dict[str, float]  # the identical share of its prefix and of its tail


def _agreement(a: Row, b: Row, cut: Cut | None) -> Agreement:
    """Of two rows with equal tokens and loss masks."""
    positions = np.flatnonzero(a.columns["token_loss_mask"])
    both = np.array([x.columns["generation_logprobs"][positions] for x in (a, b)])
    x, y = np.nan_to_num(both, posinf=0, neginf=0)
    differences, same = np.abs(x - y), x == y
    last_turn, parts = same[len(same) - a.last_turn_tokens :], {}
    if cut and 0 < cut.prefix_token_count < len(last_turn):
        prefix, tail = np.split(last_turn, [cut.prefix_token_count])
        parts = {"restored prefix": prefix.mean(), "continued tail": tail.mean()}
    return Agreement(
        identity=b.identity,
        tokens=same.size,
        identical=int(same.sum()),
        not_finite=int((~np.isfinite(both)).sum()),
        some_values=set(np.unique(both)[:2]),
        largest_difference=float(differences.max()),
        at=positions[differences.argmax()],
        parts_of_cut=parts,
    )


def _compare_step(
    reference: list[Row], recovery: list[Row], cuts: list[Cut]
) -> tuple[list[str], list[Agreement]]:
    """Differences and agreements of a step's rows, whose columns are then dropped."""
    differences, agreements = [], []
    originals = {row.identity: row for row in reference}
    cut_of_sample = {cut.sample_id: cut for cut in cuts}
    for b in recovery:
        a, cut = originals.get(b.identity), cut_of_sample.get(b.sample_id)
        if cut and b.turns:
            last_turn = b.columns["token_ids"][b.turns[-1][0] :]
            prefix = ",".join(map(str, last_turn[: cut.prefix_token_count]))
            b.prefix_sha256 = hashlib.sha256(prefix.encode()).hexdigest()
        if a:
            differences += _difference(a, b, cut)
            names = ("token_ids", "token_loss_mask")
            equal = [np.array_equal(a.columns[x], b.columns[x]) for x in names]
            if all(equal) and a.turns:
                agreements.append(_agreement(a, b, cut))
    for row in [*reference, *recovery]:
        row.columns = {}
    return differences, agreements


# -- the five assertions ---------------------------------------------------------------


def _several(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """What is paired with more than one other, and with which."""
    partners = defaultdict(set)
    for one, other in pairs:
        partners[one].add(other)
    return {one: sorted(found) for one, found in partners.items() if len(found) > 1}


def _identity_problems(rows: list[Row], expected: set[Identity]) -> Iterator[str]:
    """Why one run's rows are not the expected ones, each trained once."""
    times = Counter(row.identity for row in rows)
    for identity in sorted(expected | times.keys()):
        found = times[identity]
        if found != (identity in expected):
            how_often = f"is trained {found} times" if found else "is missing"
            yield f"{identity} {how_often}, expected {int(identity in expected)}"
    for prompt, steps in _several((x.prompt_idx, x.step) for x in times).items():
        yield f"prompt {prompt} is in the steps {steps}, expected one"
    groups = [(row.identity.prompt_idx, row.group_id) for row in rows]
    for prompt, several in _several(groups).items():
        yield f"prompt {prompt} is split over the groups {several}, expected one"
    for group, several in _several((y, x) for x, y in groups).items():
        yield f"group {group} has the prompts {several}, expected one"


def assert_rows_match(
    runs: dict[str, list[Row]], differences: list[str], options: argparse.Namespace
) -> Check:
    """Both runs trained the same rows, value for value, and nothing else."""
    problems: list[str] = []
    prompts = {
        (row.identity.step, row.identity.prompt_idx) for row in runs["reference"]
    }
    for step in range(1, options.steps + 1):
        found, expected = sum(x == step for x, _ in prompts), options.prompts_per_step
        if found != expected:
            what = f"step {step} has {found} prompts, expected {expected}"
            problems.append(f"reference: {what}")
    generations = range(options.generations_per_prompt)
    planned = [Identity(*x, number) for x in prompts for number in generations]
    expected_rows = {row for row in planned if 1 <= row.step <= options.steps}
    for run, rows in runs.items():
        problems += [f"{run}: {x}" for x in _identity_problems(rows, expected_rows)]
        for row in rows:
            problems += [f"{run}: {row.identity}: {what}" for what in row.problems]
    reference, recovery = ({row.group_id for row in rows} for rows in runs.values())
    shared = sorted(reference & recovery)
    problems += [f"group {group} is in both runs: one dump?" for group in shared]
    counts = {"rows": len(runs["recovery"]), "steps": options.steps}
    return Check("rows match", counts, problems + sorted(differences))


def _cut_problems(cut: Cut, rows: list[Row]) -> Iterator[str]:
    """What the log and the trained rows say against one cut."""
    rollout_id = f"{cut.gym_rollout_id}-a{cut.gym_attempt + 1}"
    for what, records in (("restored", cut.restored), ("completed", cut.completed)):
        if len(records) != 1:
            yield f"{what} {len(records)} times, expected once"
        for record in records:
            if record["rollout_id"] != rollout_id:
                yield f"{what} as {record['rollout_id']}, expected {rollout_id}"
            if int(record["prefix_tokens"]) != cut.prefix_token_count:
                found = f"{what} with {record['prefix_tokens']} prefix tokens"
                yield f"{found}, expected {cut.prefix_token_count}"
    for record in cut.restored:
        if record["prefix_digest"] != cut.prefix_digest:
            found, expected = record["prefix_digest"][:12], cut.prefix_digest[:12]
            yield f"restored with prefix_digest {found}..., expected {expected}..."
    for record in cut.completed:
        names = "prefix_tokens", "tail_tokens", "total_tokens"
        prefix, tail, total = (int(record[name]) for name in names)
        if 0 in (prefix, tail):
            yield f"completed with a prefix of {prefix} and a tail of {tail} tokens"
        if prefix + tail != total:
            yield f"completed with {total} tokens, expected {prefix} + {tail}"
        if record["model_call_id"] not in [x["model_call_id"] for x in cut.restored]:
            yield f"completed by call {record['model_call_id']}, which restored nothing"
    if len(rows) != 1:
        yield f"its row is trained {len(rows)} times, expected once"
    for row in rows:
        for total in [int(record["total_tokens"]) for record in cut.completed]:
            if row.last_turn_tokens != total:
                found = f"its row's last turn has {row.last_turn_tokens} tokens"
                yield f"{found}, expected {total}"
        for sha256 in [record["sha256"] for record in cut.restored]:
            if sha256 and sha256 != row.prefix_sha256:
                yield f"prefix_ids_sha256 {sha256[:12]}... is not that of its row's ids"


def assert_prefixes_trained_once(
    cuts: list[Cut], records: list[LogRecord], recovery: list[Row]
) -> Check:
    """Each cut was restored, completed and trained exactly once, at its length."""
    problems = [] if cuts else ["no call was cut, so nothing was recovered"]
    times = Counter(cut.sample_id for cut in cuts)
    problems += [f"{x}: cut {n} times" for x, n in times.items() if n > 1]
    calls = {cut.model_call_id for cut in cuts}
    for record in records:
        if record["source"] not in calls:
            what = f"call {record['source']} was not cut, but the log continues it"
            problems.append(f"{record['rollout_id']}: {what}")
    for cut in cuts:
        rows = [row for row in recovery if row.sample_id == cut.sample_id]
        for what in _cut_problems(cut, rows):
            problems.append(f"{cut.sample_id}, call {cut.model_call_id}: {what}")
    hashes = [record["sha256"] for cut in cuts for record in cut.restored]
    if any(hashes) and not all(hashes):
        found = f"{sum(map(bool, hashes))} of {len(hashes)} restores"
        problems.append(f"only {found} are logged with prefix_ids_sha256")
    tokens = sum(cut.prefix_token_count for cut in cuts)
    counts = {"cuts": len(cuts), "prefix tokens": tokens}
    return Check("prefixes trained once", counts, problems)


def assert_old_keys_retired(
    cuts: list[Cut], probe: list[Any], successor_keys: set[str], steps: int
) -> Check:
    """No staging key of a cut is live as a step begins, or kept by the successor."""
    owners = {key: cut.sample_id for cut in cuts for key in cut.staging_keys}
    keyless = [cut.sample_id for cut in cuts if not cut.staging_keys]
    problems = [f"{sample_id}: its cut has no staging keys" for sample_id in keyless]
    found = [step for step, _ in probe]
    if found != list(range(1, steps + 1)):
        what = f"the probe saw the steps {found} begin, expected 1 to {steps}"
        problems.append(f"{what}, each once")
    places = [(f"live as step {step} begins", keys) for step, keys in probe]
    places.append(("still in the next trainer checkpoint", successor_keys))
    for place, keys in places:
        for key in sorted(owners.keys() & keys):
            problems.append(f"{owners[key]}: staging key {key} is {place}")
    counts = {"keys": len(owners), "steps": len(probe)}
    return Check("old keys retired", counts, problems)


def assert_reward_signal(reference: list[Row], steps: int) -> Check:
    """Rewards differ, and each step that a later one builds on has learnt something."""
    rewards = Counter(row.reward for row in reference)
    problems = []
    if len(rewards) < 2:
        problems.append("the reference's rewards are all the same")
    for step in range(1, steps):
        rows = [row for row in reference if row.identity.step == step]
        if rows and not any(row.has_advantage for row in rows):
            what = "every advantage is 0, so later steps say nothing about training"
            problems.append(f"reference: step {step}: {what}")
    counts = {f"of reward {x:.4g}": n for x, n in sorted(rewards.items())}
    return Check("reward signal", counts, problems)


def assert_generation_logprobs_agree(
    agreements: list[Agreement], min_identical: float, max_difference: float
) -> Check:
    """The same tokens got the same log-probs in both runs, but for engine noise."""
    problems = []
    tokens = sum(row.tokens for row in agreements)
    identical = sum(row.identical for row in agreements)
    largest = max((row.largest_difference for row in agreements), default=0.0)
    if len(set().union(*(row.some_values for row in agreements))) < 2:
        problems.append("there are no two different log-probs of equal tokens")
    if identical < min_identical * tokens:
        what = f"{identical} of {tokens} log-probs are bit-identical"
        problems.append(f"{what}, expected at least {min_identical:.2%}")
    for row in agreements:
        if row.not_finite:
            what = f"{row.not_finite} log-probs of generated tokens are not finite"
            problems.append(f"{row.identity}: {what}")
        if row.largest_difference > max_difference:
            what = f"generation_logprobs[{row.at}] differs"
            what += f" by {row.largest_difference:.4g}, expected {max_difference:.4g}"
            problems.append(f"{row.identity}: {what} at most")
        for part, share in row.parts_of_cut.items():
            if share < min(min_identical, MIN_IDENTICAL_OF_A_CUT):
                what = f"only {share:.2%} of the log-probs of its {part}"
                problems.append(f"{row.identity}: {what} are bit-identical")
    rounded = float(f"{largest:.3g}")
    counts = {"tokens": tokens, "identical": identical, "largest difference": rounded}
    return Check("generation log-probs agree", counts, problems)


# -- the verdict -----------------------------------------------------------------------


def judge(options: argparse.Namespace) -> list[Check]:
    """All five checks; raises EvidenceError or OSError if they can't be made."""
    cuts = _load_cuts(options.selection)
    restored, completed = _read_log(options.recovery_log)
    for cut in cuts:
        cut.restored = [x for x in restored if x["source"] == cut.model_call_id]
        cut.completed = [x for x in completed if x["source"] == cut.model_call_id]
    probe = _load_probe(options.staging_keys)
    successor_keys = _load_successor_keys(options.successor_checkpoint)
    reference_dumps = _find_dumps(options.reference_log_dir)
    recovery_dumps = _find_dumps(options.recovery_log_dir)
    runs: dict[str, list[Row]] = {"reference": [], "recovery": []}
    differences: list[str] = []
    agreements: list[Agreement] = []
    for step in sorted(reference_dumps | recovery_dumps):
        reference = _load_dump(reference_dumps.get(step), step)
        recovery = _load_dump(recovery_dumps.get(step), step)
        found = _compare_step(reference, recovery, cuts)
        differences += found[0]
        agreements += found[1]
        runs["reference"] += reference
        runs["recovery"] += recovery
    thresholds = options.min_identical_logprobs, options.max_logprob_difference
    return [
        assert_rows_match(runs, differences, options),
        assert_prefixes_trained_once(cuts, restored + completed, runs["recovery"]),
        assert_old_keys_retired(cuts, probe, successor_keys, options.steps),
        assert_reward_signal(runs["reference"], options.steps),
        assert_generation_logprobs_agree(agreements, *thresholds),
    ]


def _report(checks: list[Check]) -> str:
    lines = []
    for check in checks:
        counts = ", ".join(f"{n} {what}" for what, n in check.counts.items())
        lines.append(f"{'FAIL' if check.problems else 'PASS'} {check.name}: {counts}")
        lines += [f"     {what}" for what in check.problems[:SHOWN_PROBLEMS]]
        if len(check.problems) > SHOWN_PROBLEMS:
            lines.append(f"     and {len(check.problems) - SHOWN_PROBLEMS} more")
    return "\n".join(lines) + "\n"


def main() -> int:
    summary = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(description=summary, usage=argparse.SUPPRESS)
    for name in ("reference-log-dir", "recovery-log-dir", "selection", "recovery-log"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("staging-keys", "successor-checkpoint"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("steps", "prompts-per-step", "generations-per-prompt"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--min-identical-logprobs", type=float, default=0.97)
    parser.add_argument("--max-logprob-difference", type=float, default=0.5)
    parser.add_argument("--verdict", type=Path, help="all problems go here, as JSON")
    options = parser.parse_args()
    if not 0 <= options.min_identical_logprobs <= 1:
        parser.error("--min-identical-logprobs: expected a share from 0 to 1")
    if not 0 <= options.max_logprob_difference < math.inf:
        parser.error("--max-logprob-difference: expected a number from 0 on")
    np.seterr(all="ignore")  # a number that is too large is found, and needs no warning
    try:
        if options.verdict:
            options.verdict.unlink(missing_ok=True)
        checks = judge(options)
        passed = not any(check.problems for check in checks)
        # Descriptor 1 itself, so that a full or closed standard output is an OSError.
        with open(1, "w", errors="backslashreplace", closefd=False) as stdout:
            stdout.write(_report(checks))
        if options.verdict:
            verdict = {"passed": passed, "checks": [asdict(check) for check in checks]}
            verdict["evidence"] = {x: str(y) for x, y in vars(options).items()}
            partial = options.verdict.with_name(f"{options.verdict.name}.partial")
            partial.write_text(json.dumps(verdict, indent=1))
            os.replace(partial, options.verdict)
    except (EvidenceError, OSError) as error:
        parser.exit(2, f"error: the evidence can't be judged: {error}\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
