# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The unit-level proof of the judge, from sound evidence on: any single change that
matters is rejected; any reordering or other representation is accepted; anything torn
or malformed is status 2 in one line, and never a traceback."""

import contextlib
import copy
import io
import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import prefix_recovery_evidence as small
from hypothesis import given, settings
from hypothesis import strategies as st

SOUND = small.sound()
EXACT = ["--min-identical-logprobs=1", "--max-logprob-difference=0"]
SCALARS = ["rewards", "sample_loss_mask", "input_lengths"]
DOCUMENTS = ["selection", "step_1/gym_checkpoint.json"]
DUMPS = [
    f"{run}/exp_001/train_data_step{n}.jsonl" for run in ("ref", "rec") for n in (1, 2)
]
LINES = [*DUMPS, "probe", "log"]
# What may be another: names, other calls' keys, log-probs of what was not generated.
FREE = re.compile(
    r"(ref|rec)\.\d\.\d\.(idx|metadata\.0\.weight_version|generation_logprobs\.0\.[014])"
    r"|(cuts|probe)\.\d\.staging_keys\.\d|successor\.gym\.\d|log\.0"
)
# What may be there once more, or not at all.
OPTIONAL = re.compile(
    r"(ref|rec)\.\d\.\d\.(idx|metadata\.0\.weight_version)"
    r"|(cuts|probe)\.\d\.staging_keys\.\d|successor\.gym(\.\d)?|log\.0"
)


def paths(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a JSON value, with its dotted path."""
    items = enumerate(value) if isinstance(value, list) else value.items()
    for key, inner in items:
        path = f"{prefix}{key}"
        yield path, inner
        if isinstance(inner, list | dict):
            yield from paths(inner, f"{path}.")


WITHIN = [
    (f"{name}.{path}", value)
    for name in ("ref", "rec", "cuts", "probe", "successor", "log")
    for path, value in paths(SOUND[name])
]
LEAVES = [
    (path, value)
    for path, value in WITHIN
    if not isinstance(value, list | dict)
    and not FREE.fullmatch(path)
    and not path.startswith("log")
]
ELEMENTS = [(path, value) for path, value in WITHIN if not OPTIONAL.fullmatch(path)]
numbers = st.one_of(st.integers(-50, 50), st.floats(-9, 9))


def many(examples: int) -> Callable:
    return settings(max_examples=examples, deadline=None)


def judged(evidence: small.Evidence, *options: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        error = io.StringIO()
        with contextlib.redirect_stderr(error):
            status = small.judge([*small.write(Path(folder), evidence), *options])
        assert error.getvalue().count("\n") == (status == 2)
        return status


@many(150)
@given(leaf=st.sampled_from(LEAVES), offset=numbers.filter(lambda x: abs(x) > 1e-3))
def test_any_other_value_is_rejected(leaf: tuple[str, Any], offset: float) -> None:
    path, value = leaf
    other = f"{value}{offset}" if isinstance(value, str) else value + offset
    assert judged(small.change(copy.deepcopy(SOUND), path, other), *EXACT)


@many(60)
@given(leaf=st.sampled_from(LEAVES), other=st.sampled_from([float("nan"), "", [], {}]))
def test_no_value_is_rejected(leaf: tuple[str, Any], other: Any) -> None:
    assert judged(small.change(copy.deepcopy(SOUND), leaf[0], other), *EXACT)


@many(120)
@given(element=st.sampled_from(ELEMENTS), twice=st.booleans())
def test_anything_less_or_more_is_rejected(
    element: tuple[str, Any], twice: bool
) -> None:
    path, value = element
    evidence = copy.deepcopy(SOUND)
    *parents, last = path.split(".")
    holder: Any = evidence
    for key in parents:
        holder = holder[int(key) if key.isdigit() else key]
    if twice and isinstance(holder, list):
        holder.insert(int(last), copy.deepcopy(value))
    else:
        small.change(evidence, path, None)
    assert judged(evidence, *EXACT)


@many(30)
@given(rows=st.permutations(range(8)), run=st.sampled_from(["ref", "rec"]))
def test_rows_that_trade_what_they_trained_are_rejected(rows: list, run: str) -> None:
    evidence = copy.deepcopy(SOUND)
    x, y = (evidence[run][1 + row // 4][row % 4] for row in rows[:2])
    for name in x.keys() - {"idx", "step", "metadata", "sample_id"}:
        x[name], y[name] = y[name], x[name]
    assert judged(evidence)


@many(80)
@given(line=st.integers(1, 4), data=st.data())
def test_any_other_value_of_a_record_is_rejected(
    line: int, data: st.DataObject
) -> None:
    """But for the versions of the weights, which differ between heads."""
    text = SOUND["log"][line]
    values = [x for x in re.finditer(r"(\w+)=(\w\S*)", text) if x[1] != "pid"]
    start, end = data.draw(st.sampled_from(values)).span(2)
    at = data.draw(st.integers(start, end - 1))
    other = "0" if text[at] != "0" else "1"
    changed = f"{text[:at]}{other}{text[at + 1 :]}"
    assert judged(small.change(copy.deepcopy(SOUND), f"log.{line}", changed))


Change = Callable[[random.Random, small.Evidence], Any]


def shuffled(rng: random.Random, evidence: small.Evidence) -> None:
    """The order of rows, of columns and of the log's lines."""
    for run in ("ref", "rec"):
        for step, rows in evidence[run].items():
            rng.shuffle(rows)
            items = [list(row.items()) for row in rows]
            evidence[run][step] = [dict(rng.sample(x, len(x))) for x in items]
    rng.shuffle(evidence["cuts"])
    rng.shuffle(evidence["log"])


def nested_scalars(rng: random.Random, evidence: small.Evidence) -> None:
    """As some heads write them."""
    for row in evidence["rec"][1]:
        row |= {name: [row[name]] for name in SCALARS}


def numbers_of_another_type(rng: random.Random, evidence: small.Evidence) -> None:
    for row in evidence["rec"][2]:
        row["input_lengths"] = [17.0]
        row["token_loss_mask"] = [[int(x) for x in row["token_loss_mask"][0]]]


def other_groups(rng: random.Random, evidence: small.Evidence) -> None:
    name = f"group{rng.randrange(10**9)}"
    text = json.dumps(evidence).replace("rec0", name)
    evidence |= {x: y for x, y in json.loads(text).items() if x in ("cuts", "log")}
    for row in evidence["rec"][1]:
        row["sample_id"] = [row["sample_id"][0].replace("rec0", name)]


def other_calls(rng: random.Random, evidence: small.Evidence) -> None:
    name = f"call{rng.randrange(10**9)}"
    evidence["log"] = [re.sub(r"(=new\d)", rf"\1{name}", x) for x in evidence["log"]]


def older_log(rng: random.Random, evidence: small.Evidence) -> None:
    lines = evidence["log"]
    evidence["log"] = [line.partition(" weight_version_span")[0] for line in lines]


def noisy_log(rng: random.Random, evidence: small.Evidence) -> None:
    evidence["log"] += [
        "",
        "Loaded 2 unfinished rollout group(s)",
        "\x1b[36m(x)\x1b[0m",
    ]
    evidence["log"] += ["generation prefix already terminal: rollout_id=x reason=stop"]


def other_keys(rng: random.Random, evidence: small.Evidence) -> None:
    evidence["probe"][0]["staging_keys"] = []
    evidence["probe"][1]["staging_keys"] = ["y", "z"]
    evidence["successor"] = {"gym": [], "other": ["x"]}


def other_names(rng: random.Random, evidence: small.Evidence) -> None:
    for row in evidence["rec"][1]:
        row["idx"] = rng.randrange(99)
        row["metadata"][0] |= {"weight_version": rng.randrange(9), "new": [None]}
    for cut in evidence["cuts"]:
        cut |= {"gym_instance_id": rng.randrange(9), "target_step": 0}


def no_optional_columns(rng: random.Random, evidence: small.Evidence) -> None:
    for run in ("ref", "rec"):
        for row in evidence[run][1] + evidence[run][2]:
            row.pop("prev_logprobs", None)
            row.pop("prompt_ids", None)


def more_columns(rng: random.Random, evidence: small.Evidence) -> None:
    values = [[[1, 2]], [[0.5, None]], ["text"], [[[1], []]], [{"a": [None]}], None]
    for run in ("ref", "rec"):
        for row in evidence[run][1]:
            row |= {f"x{at}": value for at, value in enumerate(values)}


def within_tolerance(rng: random.Random, evidence: small.Evidence) -> None:
    for row in evidence["rec"][2]:
        for name in {"advantages", "prev_logprobs"} & row.keys():
            row[name] = [[x * (1 + 9e-5) + 9e-6 * (x > 0) for x in row[name][0]]]


def log_probs_of_the_prompt(rng: random.Random, evidence: small.Evidence) -> None:
    for row in evidence["rec"][1]:
        row["generation_logprobs"][0][0] = rng.choice([None, 1.5, float("nan")])


HARMLESS: list[Change] = [shuffled, nested_scalars, numbers_of_another_type]
HARMLESS += [other_groups, other_calls, older_log, noisy_log, other_keys, other_names]
HARMLESS += [no_optional_columns, more_columns, within_tolerance]
HARMLESS += [log_probs_of_the_prompt]


@many(80)
@given(
    chosen=st.lists(st.sampled_from(HARMLESS), min_size=1, unique=True),
    rng=st.randoms(use_true_random=False),
)
def test_order_and_representation_do_not_matter(
    chosen: list[Change], rng: random.Random
) -> None:
    evidence = copy.deepcopy(SOUND)
    for change in chosen:
        change(rng, evidence)
    assert judged(evidence, *EXACT) == 0


def judge_damaged(name: str, damage: Callable[[bytes], bytes]) -> int:
    """The status of sound evidence after damage to the bytes of one file."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = small.write(Path(folder), SOUND)
        path = Path(folder, name)
        path.write_bytes(damage(path.read_bytes()))
        error = io.StringIO()
        with contextlib.redirect_stderr(error):
            status = small.judge(arguments)
        message = error.getvalue()
        assert message.count("\n") == (status == 2)
        assert status != 2 or f"{path}:" in message
        return status


@many(60)
@given(name=st.sampled_from([*DOCUMENTS, *LINES]), data=st.data())
def test_a_torn_file_is_refused(name: str, data: st.DataObject) -> None:
    """But for a file of lines, torn between lines: that looks like fewer lines."""
    between = False

    def tear(content: bytes) -> bytes:
        nonlocal between
        size = data.draw(st.integers(0, len(content) - 2))
        between = size == 0 or b"\n" in content[size - 1 : size + 1]
        return content[:size]

    status = judge_damaged(name, tear)
    if name == "log":
        assert status in (1, 2)
    else:
        assert status == (1 if name in LINES and between else 2)


JUNK = [None, True, -1, 2.5, "x", [], [[]], [1, 2], {}, {"a": 1}, [None], "9" * 5000]
JUNK += [10**400, 2**63, 1e308, float("-inf"), "\ud800", "a\0", [[1], []], ["a", None]]


@many(150)
@given(name=st.sampled_from([*DOCUMENTS, *DUMPS, "probe"]), data=st.data())
def test_junk_in_a_document_is_never_a_traceback(
    name: str, data: st.DataObject
) -> None:
    def put_junk(content: bytes) -> bytes:
        documents = {"lines": [json.loads(line) for line in content.splitlines()]}
        path, _ = data.draw(st.sampled_from(list(paths(documents))[1:]))
        value = data.draw(st.sampled_from(JUNK))
        small.change(documents, path, value)
        return "".join(f"{json.dumps(x)}\n" for x in documents["lines"]).encode()

    judge_damaged(name, put_junk)


@many(80)
@given(
    name=st.sampled_from([*DOCUMENTS, *LINES]),
    junk=st.binary(min_size=1, max_size=9),
    data=st.data(),
)
def test_junk_bytes_are_never_a_traceback(
    name: str, junk: bytes, data: st.DataObject
) -> None:
    def put_junk(content: bytes) -> bytes:
        at = data.draw(st.integers(0, len(content)))
        return content[:at] + junk + content[at + data.draw(st.integers(0, 9)) :]

    judge_damaged(name, put_junk)


@many(40)
@given(junk=st.binary(max_size=40), name=st.sampled_from([*DOCUMENTS, *DUMPS, "probe"]))
def test_a_file_of_junk_is_not_accepted(junk: bytes, name: str) -> None:
    assert judge_damaged(name, lambda _: junk)
