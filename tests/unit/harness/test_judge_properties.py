# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The unit-level proof of the judge, from sound evidence on: any single change that
matters is rejected; any reordering or other representation is accepted; anything torn
or malformed is status 2 in one line, and never a traceback."""

import copy
import json
import random
import tempfile
from pathlib import Path

import prefix_recovery_evidence as small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prefix_recovery_evidence import MASK, PER_TOKEN

SOUND = small.sound()
GENERATED = [at for at, mask in enumerate(MASK) if mask]
SCALARS = ["rewards", "sample_loss_mask", "input_lengths"]
DUMPS = [
    f"{run}/exp_001/train_data_step{n}.jsonl" for run in ("ref", "rec") for n in (1, 2)
]
DOCUMENTS, LINES = ["cuts", "gym_checkpoint.json"], [*DUMPS, "probe", "log"]
runs, steps, positions = (
    st.sampled_from(["ref", "rec"]),
    st.sampled_from([1, 2]),
    st.integers(0, 6),
)
offsets = st.one_of(st.integers(-50, 50), st.floats(-9, 9)).filter(
    lambda x: abs(x) > 1e-3
)
many = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def judged(evidence, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        return small.judged(Path(folder), evidence, *arguments)


def a_row(draw, evidence):
    return draw(st.sampled_from(evidence[draw(runs)][draw(steps)]))


def a_token(draw, evidence):
    column = draw(st.sampled_from(PER_TOKEN))
    at = draw(
        st.sampled_from(GENERATED) if column == "generation_logprobs" else positions
    )
    a_row(draw, evidence)[column][0][at] += draw(offsets)


def a_mask(draw, evidence):
    mask = a_row(draw, evidence)["token_loss_mask"][0]
    at = draw(positions)
    mask[at] = 1.0 - mask[at]


def a_scalar(draw, evidence):
    a_row(draw, evidence)[draw(st.sampled_from(SCALARS))][0] += draw(offsets)


def not_a_number(draw, evidence):
    row, column = a_row(draw, evidence), draw(st.sampled_from([*PER_TOKEN, *SCALARS]))
    if column in SCALARS:
        row[column] = [None]
    else:
        row[column][0][draw(st.sampled_from(GENERATED))] = None


def a_length(draw, evidence):
    row, column = (
        a_row(draw, evidence),
        draw(st.sampled_from([*PER_TOKEN, "prompt_ids"])),
    )
    if draw(st.booleans()):
        row[column][0].append(draw(st.integers(0, 9)))
    else:
        row[column][0].pop()


def all_lengths(draw, evidence):
    """A row that is consistent, but one token shorter or longer than it was."""
    row = a_row(draw, evidence)
    longer = draw(st.booleans())
    for column in PER_TOKEN:
        row[column][0] = (
            row[column][0] + row[column][0][-1:] if longer else row[column][0][:-1]
        )
    row["input_lengths"] = [8 if longer else 6]


def a_column(draw, evidence):
    names = [*PER_TOKEN, *SCALARS, "prompt_ids", "sample_id", "metadata", "step"]
    del a_row(draw, evidence)[draw(st.sampled_from(names))]


def an_identity(draw, evidence):
    row, other = a_row(draw, evidence), draw(st.integers(4, 9))
    group_id, generation = row["sample_id"][0].split("_g")
    row |= draw(
        st.sampled_from(
            [
                {"step": other},
                {"metadata": [{"prompt_idx": other}]},
                {"metadata": [{"prompt_idx": str(other)}]},
                {"sample_id": [f"{group_id}_g{1 - int(generation)}"]},
                {"sample_id": [f"{group_id}_g{other}"]},
                {"sample_id": [f"{group_id}x_g{generation}"]},
            ]
        )
    )


def a_row_less(draw, evidence):
    rows = evidence[draw(runs)][draw(steps)]
    rows.pop(draw(st.integers(0, 3)))


def a_row_more(draw, evidence):
    row = copy.deepcopy(a_row(draw, evidence))
    evidence[draw(runs)][draw(steps)].append(row)


def rows_exchanged(draw, evidence):
    """Two rows trade what they were trained on."""
    rows, (x, y) = (
        evidence[draw(runs)][draw(steps)],
        draw(st.permutations(range(4)))[:2],
    )
    kept = "step", "metadata", "sample_id"
    contents = [
        {k: v for k, v in row.items() if k not in kept} for row in (rows[x], rows[y])
    ]
    rows[x] |= contents[1]
    rows[y] |= contents[0]


def a_step(draw, evidence):
    del evidence[draw(runs)][draw(steps)]


def a_cut(draw, evidence):
    (cut,) = evidence["cuts"]
    name = draw(st.sampled_from([x for x in cut if x != "staging_keys"]))
    other = {
        "generation_index": 1,
        "generation_token_count": draw(st.sampled_from([1, 3])),
    }
    cut[name] = other.get(name, "other")


def a_cut_less_or_more(draw, evidence):
    if draw(st.booleans()):
        evidence["cuts"].clear()
    else:
        evidence["cuts"].append(copy.deepcopy(evidence["cuts"][0]))


def a_cut_key(draw, evidence):
    keys = draw(st.sampled_from([[], ["z"], ["k", "z"], ["k", "z", "l"]]))
    evidence["cuts"][0]["staging_keys"] = keys


def a_live_key(draw, evidence):
    keys = st.sampled_from(
        [evidence["kept"]["gym"], *(x["staging_keys"] for x in evidence["probe"])]
    )
    draw(keys).append(draw(st.sampled_from(["k", "l"])))


def a_probe_record(draw, evidence):
    if draw(st.booleans()):
        evidence["probe"].pop(draw(st.integers(0, 1)))
    else:
        evidence["probe"][draw(st.integers(0, 1))]["train_step"] += 5


def a_log_line(draw, evidence):
    line = draw(st.sampled_from(evidence["log"][1:]))
    if draw(st.booleans()):
        evidence["log"].remove(line)
    else:
        evidence["log"].append(line)


def a_log_field(draw, evidence):
    """One character of a value of a log line, but for what may differ in any run."""
    at = draw(st.sampled_from([1, 2]))
    head, *fields = evidence["log"][at].split(" ", 4)[-1].split(" ")
    fields = [head, *fields]
    chosen = draw(st.sampled_from([x for x in range(len(fields)) if "=" in fields[x]]))
    name, value = fields[chosen].split("=")
    end = value.rindex("_a") if name == "rollout_id" else len(value)
    where = draw(st.integers(0, end - 1))
    other = "0" if value[where] != "0" else "1"
    fields[chosen] = f"{name}={value[:where]}{other}{value[where + 1 :]}"
    evidence["log"][at] = (
        f"generation prefix {('restored', 'completed')[at - 1]}: {' '.join(fields)}"
    )


CHANGES = [a_token, a_mask, a_scalar, not_a_number, a_length, all_lengths, a_column]
CHANGES += [an_identity, a_row_less, a_row_more, rows_exchanged, a_step, a_cut]
CHANGES += [a_cut_less_or_more, a_cut_key, a_live_key, a_probe_record, a_log_line]
CHANGES += [a_log_field]


@settings(many, max_examples=600)
@given(data=st.data())
def test_any_single_change_that_matters_is_rejected(data):
    evidence = copy.deepcopy(SOUND)
    change = data.draw(st.sampled_from(CHANGES))
    change(data.draw, evidence)
    status, found = judged(evidence)
    assert status in (1, 2), change.__name__
    assert status == 1 or found.count("\n") == 1


def shuffled(rng, evidence):
    for rows in (rows for run in ("ref", "rec") for rows in evidence[run].values()):
        rng.shuffle(rows)
    for run in ("ref", "rec"):
        evidence[run] = dict(sorted(evidence[run].items(), key=lambda _: rng.random()))
        for step, rows in evidence[run].items():
            items = [list(row.items()) for row in rows]
            evidence[run][step] = [dict(rng.sample(x, len(x))) for x in items]
    rng.shuffle(evidence["probe"])
    rng.shuffle(evidence["log"])


def nested_scalars(rng, evidence):
    for row in evidence["rec"][1]:
        for name in SCALARS:
            row[name] = [row[name]]


def floats_for_integers(rng, evidence):
    for row in evidence["rec"][2]:
        row["token_ids"] = [[float(x) for x in row["token_ids"][0]]]
        row["input_lengths"] = [7.0]
        row["token_loss_mask"] = [[int(x) for x in row["token_loss_mask"][0]]]


def other_groups(rng, evidence):
    text = json.dumps(evidence).replace("rec0", f"group{rng.random()}")
    evidence |= {x: v for x, v in json.loads(text).items() if x not in ("ref", "rec")}
    for row in evidence["rec"][1]:
        if row["sample_id"][0].startswith("rec0"):
            group = evidence["cuts"][0]["group_id"]
            row["sample_id"] = [row["sample_id"][0].replace("rec0", group)]


def newer_cut(rng, evidence):
    cut = evidence["cuts"][0]
    cut["prefix_token_count"] = cut.pop("generation_token_count")
    cut |= {"gym_attempt": 0, "gym_instance_id": "gym", "target_step": 0}


def older_log(rng, evidence):
    evidence["log"] = [line.partition(" prefix_ids")[0] for line in evidence["log"]]


def newer_log(rng, evidence):
    span = " weight_version_span=[0,0] prefix_ids"
    evidence["log"] = [x.replace(" prefix_ids", span) for x in evidence["log"]]


def noisy_log(rng, evidence):
    noise = [
        "train step 1/2",
        "Loaded 2 unfinished rollout group(s)",
        "\x1b[36m(x)\x1b[0m",
    ]
    evidence["log"] += noise
    rng.shuffle(evidence["log"])


def another_call_id(rng, evidence):
    names = {"id=new": f"id={rng.random()}", "_aff": f"_a{rng.random()}"}
    for old, new in names.items():
        evidence["log"] = [line.replace(old, new) for line in evidence["log"]]


def other_keys(rng, evidence):
    evidence["probe"][0]["staging_keys"] = []
    evidence["probe"].append({"train_step": 2, "staging_keys": ["y", "z"]})
    evidence["kept"] = {"gym": [], "other": ["x"]}


def extra_columns(rng, evidence):
    for row in evidence["rec"][1]:
        row |= {"idx": rng.randrange(99), "weights": [[1]], "note": None}
        row["metadata"][0]["weight_version"] = rng.randrange(9)


def no_optional_columns(rng, evidence):
    for rows in (rows for run in ("ref", "rec") for rows in evidence[run].values()):
        for row in rows:
            del row["prev_logprobs"], row["prompt_ids"]


def within_tolerance(rng, evidence):
    for row in evidence["rec"][2]:
        for name in {"advantages", "prev_logprobs"} & row.keys():
            row[name] = [[x * (1 + 5e-5) + 5e-6 for x in row[name][0]]]


def log_probs_of_the_prompt(rng, evidence):
    for row in evidence["rec"][1]:
        row["generation_logprobs"][0][0] = rng.choice([None, 1.5, float("nan")])


HARMLESS = [shuffled, nested_scalars, floats_for_integers, other_groups, newer_cut]
HARMLESS += [
    older_log,
    newer_log,
    noisy_log,
    another_call_id,
    other_keys,
    extra_columns,
]
HARMLESS += [no_optional_columns, within_tolerance, log_probs_of_the_prompt]


@many
@given(
    chosen=st.sets(st.sampled_from(range(len(HARMLESS))), min_size=1),
    seed=st.integers(),
)
def test_order_and_representation_do_not_matter(chosen, seed):
    if {HARMLESS.index(older_log), HARMLESS.index(newer_log)} <= chosen:
        chosen.remove(HARMLESS.index(newer_log))
    evidence, rng = copy.deepcopy(SOUND), random.Random(seed)
    for x in sorted(chosen):
        HARMLESS[x](rng, evidence)
    assert judged(evidence) == (0, []), [HARMLESS[x].__name__ for x in chosen]


def judge_damaged(name, damage):
    """Status of sound evidence after `damage` of the bytes of one file."""
    with tempfile.TemporaryDirectory() as folder:
        small.write(Path(folder), SOUND)
        path = Path(folder, name)
        path.write_bytes(damage(path.read_bytes()))
        status, found = small.judge(Path(folder))
        assert status != 2 or (found.count("\n") == 1 and f"{path}:" in found)
        return status


@many
@given(name=st.sampled_from([*DOCUMENTS, *LINES]), data=st.data())
def test_a_torn_file_is_status_2(name, data):
    """But for a file of lines, torn between lines: that looks like fewer lines."""

    def tear(content):
        nonlocal between, whole
        size = data.draw(st.integers(0, len(content) - 2))
        whole = content[size : size + 1] == b"\n"  # only its newline is lost
        between = size == 0 or whole or content[size - 1 : size] == b"\n"
        return content[:size]

    between = whole = False
    status = judge_damaged(name, tear)
    if name == "log":
        assert status in (1, 2)
    else:
        assert status == (1 if between and name in LINES else 2)


JUNK = [
    None,
    True,
    -1,
    2.5,
    "x",
    [],
    [[]],
    [1, 2],
    {},
    {"a": 1},
    [None],
    "9" * 5000,
    10**400,
]


def paths(value, prefix=()):
    """The path of everything in a JSON value."""
    yield prefix
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from paths(inner, (*prefix, key))


@settings(many, max_examples=300)
@given(name=st.sampled_from([*DOCUMENTS, *DUMPS, "probe"]), data=st.data())
def test_junk_in_a_document_is_never_a_traceback(name, data):
    def put_junk(content):
        lines = [json.loads(line) for line in content.decode().splitlines()]
        path = data.draw(st.sampled_from(list(paths(lines))[1:]))
        value = lines
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = data.draw(st.sampled_from(JUNK))
        return "".join(json.dumps(line) + "\n" for line in lines).encode()

    judge_damaged(name, put_junk)


@many
@given(name=st.sampled_from([*DOCUMENTS, *LINES]), data=st.data())
def test_junk_bytes_are_never_a_traceback(name, data):
    def put_junk(content):
        at = data.draw(st.integers(0, len(content)))
        junk = data.draw(st.binary(min_size=1, max_size=9))
        return content[:at] + junk + content[at + data.draw(st.integers(0, 9)) :]

    judge_damaged(name, put_junk)


@many
@given(junk=st.binary(max_size=40), name=st.sampled_from([*DOCUMENTS, *DUMPS, "probe"]))
def test_a_file_of_junk_is_not_accepted(junk, name):
    assert judge_damaged(name, lambda _: junk) in (1, 2)
