# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""What is refused, in one line and with status 2, and what must not be refused."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prefix_recovery_evidence as small
import pytest
from judging import (
    COMPLETED,
    INFINITY,
    NAN,
    RESTORED,
    SOUND,
    WITHOUT_HASH,
    WITHOUT_HASH_TOO,
    Changes,
    in_each,
    judged,
)

JUDGE = small.FUNCTIONAL / "_gym_prefix_recovery_parity.py"
STEP = "rec/exp_001/train_data_step1.jsonl"
FOLDED = "[repeated 2x across cluster]"

REFUSED: dict[str, tuple[Changes, str]] = {
    "a short mask": ([("both.2.0.token_loss_mask", [[1.0] * 16])], "expected 17"),
    "a long advantage": ([("both.2.0.advantages", [[1.0] * 18])], "expected 17"),
    "no log-probs": ([("both.2.0.generation_logprobs", None)], "generation_logprobs"),
    "empty log-probs": ([("both.2.0.generation_logprobs", [[]])], "expected 17"),
    "short prev_logprobs": ([("both.2.0.prev_logprobs", [[1.0]])], "expected 17"),
    "uneven lists of ids": ([("both.2.0.token_ids.0.9", [])], "token_ids"),
    "ids that are no list": ([("both.2.0.token_ids", {"a": 1})], "token_ids"),
    "a length of 0": ([("both.2.0.input_lengths.0", 0)], "is 0, expected 17"),
    "half a mask": ([("both.2.0.token_loss_mask.0.9", 0.5)], "token_loss_mask"),
    "a mask of NaN": ([("both.2.0.token_loss_mask.0.9", NAN)], "token_loss_mask"),
    "a negative id": ([("both.2.0.token_ids.0.9", -1)], "token_ids"),
    "a fraction of an id": ([("both.2.0.token_ids.0.9", 1.5)], "token_ids"),
    "an id of NaN": ([("both.2.0.token_ids.0.9", NAN)], "token_ids"),
    "ids as floats": ([("both.2.0.token_ids.0.*", 7.0)], "token_ids"),
    "an id beyond 64 bits": ([("both.2.0.token_ids.0.9", 2**64)], "token_ids"),
    "a reward as text": ([("both.2.0.rewards.0", "1")], "rewards"),
    "a reward beyond floats": ([("both.2.0.rewards.0", 10**400)], "rewards"),
    "two rewards": ([("both.2.0.rewards", [1.0, 0.0])], "rewards, expected 1"),
    "log-probs as text": (
        [("both.2.0.generation_logprobs", [["-0.5", *[None] * 16]])],
        "generation_logprobs",
    ),
    "a mask of flags": ([("both.2.0.token_loss_mask.0.*", True)], "token_loss_mask"),
    "another step": ([("both.2.0.step", 1)], "step is 1, expected the file's 2"),
    "a step in a list": ([("both.2.0.step", [2])], "step"),
    "no generation": ([("both.2.0.sample_id.0", "group")], "GROUP_gN"),
    "no group": ([("both.2.0.sample_id.0", "_g1")], "GROUP_gN"),
    "a generation of letters": ([("both.2.0.sample_id.0", "a_gb")], "GROUP_gN"),
    "a huge generation": ([("both.2.0.sample_id.0", "a_g" + "9" * 5000)], "GROUP_gN"),
    "two sample ids": ([("both.2.0.sample_id", ["a_g0", "a_g1"])], "one sample_id"),
    "no prompt": ([("both.2.0.metadata.0", {})], "one prompt_idx"),
    "a torn row": ([("rec.2.0", '{"idx": 0')], "train_data_step2.jsonl:1:"),
    "a blank line": ([("rec.2.1", "")], "train_data_step2.jsonl:2:"),
    "no row": ([("rec.2.1", [1])], "step2.jsonl:2: expected step"),
    "deep nesting": ([("rec.2.1", "[" * 99999)], "step2.jsonl:2: expected JSON"),
    "a number of 5000 digits": ([("probe.0", "9" * 5000)], "probe:1: expected JSON"),
    "no step in the probe": ([("probe.0.train_step", None)], "probe:1: expected train"),
    "a key that is no text": ([("probe.1.staging_keys", [7])], "probe:2: expected str"),
    "a cut's key that is none": (
        [("cuts.1.staging_keys", [None])],
        "cuts[1]: expected",
    ),
    "a cut without its attempt": ([("cuts.1.gym_attempt", None)], "gym_attempt"),
    "a cut's length as text": ([("cuts.1.prefix_token_count", "2")], "prefix_token_c"),
    "no list of cuts": ([("cuts", {})], "selection: expected cuts"),
    "no keys of an instance": ([("successor.gym", "x")], "gym_checkpoint.json: expec"),
    "no instances": ([("successor", [])], "gym_checkpoint.json: expected staging_keys"),
    "a torn record": ([("log.1", RESTORED[:-1])], "log:2: expected a whole record"),
    "a torn record after a progress bar": (
        [("log.0", "1/2\r2/2"), ("log.1", RESTORED[:-1])],
        "log:2:",
    ),
    "a record torn in its hash's name": (
        [("log.1", WITHOUT_HASH + " prefix_")],
        "log:2:",
    ),
    "a hash without its versions": (
        [("log.1", f"{WITHOUT_HASH} prefix_ids_sha256={'0' * 64}")],
        "log:2: expected a whole record",
    ),
    "a long digest": (
        [("log.1", WITHOUT_HASH + "d")],
        "log:2: expected a whole record",
    ),
    "a long hash": ([("log.1", RESTORED + "0")], "log:2: expected a whole record"),
    "letters after a number": (
        [("log.2", f"{COMPLETED}k")],
        "log:3: expected a whole record",
    ),
    "a huge number": (
        [("log.2", f"{COMPLETED}{'0' * 9}")],
        "log:3: expected a whole record",
    ),
    "one of two on a line is torn": (
        [("log.2", f"{COMPLETED[:-9]} {RESTORED}")],
        "log:3",
    ),
    "a folded restore": (
        [("log.1", f"{RESTORED}\x1b[32m {FOLDED}")],
        "RAY_DEDUP_LOGS=0",
    ),
    "a folded completion": ([("log.2", f"{COMPLETED} {FOLDED}")], "RAY_DEDUP_LOGS=0"),
}
ACCEPTED: dict[str, Changes] = {
    "a folded line that is no record": [("log.0", f"train step 1/2 {FOLDED}")],
    "prose": [("log.0", "Durable generation prefix restored: from disk")],
    "all records on one line": [("log.1", f"{RESTORED} {COMPLETED}"), ("log.2", "")],
    "a record without hash at once before another": [
        ("log.1", WITHOUT_HASH + COMPLETED[COMPLETED.index("(") :]),
        ("log.2", ""),
        ("log.3", WITHOUT_HASH_TOO),
    ],
    "lists of lists": [("both.1.0.x", [[[], [1]]])],
    "text": [("both.1.0.x", ["a", None])],
    "flags": [("both.1.0.x", [[True, None]])],
    "NaN in text": [("both.1.0.x", [["a", NAN]])],
    "numbers beyond 64 bits": [("both.1.0.x", [2**64])],
    "numbers beyond floats": in_each("1.0.x", [INFINITY], [INFINITY]),
    "nesting that numpy refuses": [("both.1.0.x", json.loads("[" * 900 + "]" * 900))],
    "an empty column": [("both.1.0.x", [[]])],
    "null": [("both.1.0.x", [None])],
    "an infinite advantage of a prompt": [("both.1.0.advantages.0.0", INFINITY)],
    "a NaN log-prob of a prompt": [("rec.1.0.generation_logprobs.0.0", NAN)],
    "a lone surrogate in sample ids": [
        ("rec.2.0.sample_id.0", "\ud800_g0"),
        ("rec.2.1.sample_id.0", "\ud800_g1"),
    ],
    "a group's name with lines and _g": [
        ("rec.2.0.sample_id.0", "a_g7\n_g0"),
        ("rec.2.1.sample_id.0", "a_g7\n_g1"),
    ],
    "an empty key": [("probe.0.staging_keys", [""])],
}


def append(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes((path.read_bytes() if path.exists() else b"") + content)


def replace(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new))


FILES: dict[str, tuple[int, Callable[[Path], Any]]] = {
    "CRLF in a dump": (0, lambda root: replace(root / STEP, b"\n", b"\r\n")),
    "CRLF in the log": (0, lambda root: replace(root / "log", b"\n", b"\r\n")),
    "no newline at the end": (
        0,
        lambda root: (root / "log").write_bytes((root / "log").read_bytes()[:-1]),
    ),
    "bytes that are no text": (
        0,
        lambda root: append(root / "log", b"\xff\0\r\x1b[1m"),
    ),
    "U+2028 in a line": (
        0,
        lambda root: replace(root / "log", b"train", b"\xe2\x80\xa8\x85\x0c"),
    ),
    "an archive of the run": (0, lambda root: append(root / "rec/exp_001.tar.gz", b"")),
    "a file that is named like a run": (
        0,
        lambda root: append(root / "rec/exp_2", b""),
    ),
    "a copy of a step": (0, lambda root: append(root / f"{STEP}.bak", b"x")),
    "a step of another name": (
        0,
        lambda root: append(root / "rec/exp_001/train_data_step1_old.jsonl", b"x"),
    ),
    "a step in the making": (0, lambda root: append(root / f"{STEP}.partial", b"x")),
    "a step with a leading zero": (
        0,
        lambda root: append(root / "rec/exp_001/train_data_step03.jsonl", b"x"),
    ),
    "a second run": (
        2,
        lambda root: shutil.copytree(root / "rec/exp_001", root / "rec/exp_002"),
    ),
    "no run": (2, lambda root: shutil.rmtree(root / "rec/exp_001")),
    "no log folder": (2, lambda root: shutil.rmtree(root / "ref")),
    "no step of a run": (
        2,
        lambda root: [x.unlink() for x in root.glob("ref/*/*.jsonl")],
    ),
    "a folder that is named like a step": (
        2,
        lambda root: (root / "rec/exp_001/train_data_step3.jsonl").mkdir(),
    ),
    "steps without rows": (
        1,
        lambda root: [x.write_text("") for x in root.glob("*/*/*l")],
    ),
    "NUL in a dump": (2, lambda root: append(root / STEP, b"\0")),
    "bytes that are no text in a dump": (
        2,
        lambda root: append(root / STEP, b'"\xff"'),
    ),
    "an empty selection": (2, lambda root: (root / "selection").write_text("")),
    "null for a selection": (2, lambda root: (root / "selection").write_text("null")),
    "no log": (2, lambda root: (root / "log").unlink()),
    "no probe": (2, lambda root: (root / "probe").unlink()),
    "no successor": (2, lambda root: shutil.rmtree(root / "step_1")),
    "a link to the log folder": (
        0,
        lambda root: (
            (root / "rec").rename(root / "x").joinpath("../rec").symlink_to("x")
        ),
    ),
}
OPTIONS = [
    *(f"--min-identical-logprobs={x}" for x in ("nan", "inf", "-0.1", "1.1", "most")),
    *(f"--max-logprob-difference={x}" for x in ("nan", "inf", "-1", "little")),
    "--steps=all",
    "--verdict=.",
    "--verdict=",
    "--verdict=/dev/null/verdict.json",
    "--allow-pre-cut",
]


def assert_refused(root: Path, status: int, capfd: Any, *words: str) -> None:
    error = capfd.readouterr().err
    assert (status, error.count("\n")) == (2, 1)
    assert all(word in error for word in words), error
    assert not (root / "verdict.json").exists()


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str, capfd: Any) -> None:
    changes, words = REFUSED[name]
    assert_refused(tmp_path, judged(tmp_path, changes), capfd, str(tmp_path), words)


@pytest.mark.parametrize("name", ACCEPTED)
def test_not_refused(tmp_path: Path, name: str) -> None:
    assert judged(tmp_path, ACCEPTED[name]) == 0


@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path: Path, name: str, capfd: Any) -> None:
    expected, damage = FILES[name]
    arguments = small.write(tmp_path, SOUND)
    damage(tmp_path)
    status = small.judge(arguments)
    if expected == 2:
        assert_refused(tmp_path, status, capfd, str(tmp_path))
    else:
        assert status == expected


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_cannot_be(tmp_path: Path, option: str, capfd: Any) -> None:
    status = judged(tmp_path, [], option)
    assert_refused(tmp_path, status, capfd)


@pytest.mark.parametrize(
    "name", ["steps", "prompts-per-step", "generations-per-prompt"]
)
@pytest.mark.parametrize("number", [-1, 0, 1])
def test_nothing_expected_is_no_pass(tmp_path: Path, name: str, number: int) -> None:
    assert judged(tmp_path, [], f"--{name}={number}") == 1


def test_an_older_verdict_is_gone(tmp_path: Path, capfd: Any) -> None:
    assert judged(tmp_path, []) == 0 and (tmp_path / "verdict.json").exists()
    assert_refused(tmp_path, judged(tmp_path, [("cuts", {})]), capfd)


def test_without_verdict_nothing_is_written(tmp_path: Path) -> None:
    arguments = small.write(tmp_path, SOUND)
    before = sorted(tmp_path.rglob("*"))
    assert small.judge([x for x in arguments if not x.startswith("--verdict")]) == 0
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("redirection", "status"),
    [
        ("", 0),
        (">/dev/full", 2),
        (">/dev/full 2>&1", 2),
        (">&-", 2),
        ("<&- >&- 2>&-", 2),
        ("2>&-", 0),
        ("| true; exit ${PIPESTATUS[0]}", 2),
    ],
)
def test_an_output_that_cannot_be_written(
    tmp_path: Path, redirection: str, status: int
) -> None:
    command = [sys.executable, str(JUDGE), *small.write(tmp_path, SOUND)]
    line = f"{shlex.join(command)} {redirection}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == status
    assert done.stderr.count("\n") == (status == 2 and "2>" not in redirection)
    assert (tmp_path / "verdict.json").exists() == (status == 0)


def test_numbers_near_the_end_of_floats_make_no_noise(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    assert judged(tmp_path, in_each("2.0.x", [-1.7e308], [1.7e308])) == 1
    assert not recwarn.list


def test_a_lone_surrogate_is_printed(tmp_path: Path, capfd: Any) -> None:
    changes = [(f"rec.2.{x}.sample_id.0", f"\ud800_g{x}") for x in (0, 1)]
    assert judged(tmp_path, [*changes, ("rec.2.0.rewards.0", 7)]) == 1
    assert "(\\ud800_g0): rewards[0]" in capfd.readouterr().out
