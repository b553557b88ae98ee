# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""What the script refuses: one line, exit status 2, and before any job if it can."""

import ctypes
import fcntl
import os
import shutil
import sys

import pytest
from script_runs import NAME, PATH, Run, copy, heed_signals

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


def refused(run, *words):
    """No job has run, and the one line has the words; its text."""
    status, _, error = run.ends()
    assert status == 2 and error.startswith("error: ") and error.count("\n") == 1
    assert all(word in error for word in words), error
    assert not run.log("reference")
    return error


def tool(checkout, name, text):
    """A PATH on which a tool is this script."""
    path = checkout / "tools" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"{path.parent}:{PATH}"


def heed_permissions():
    """As every user but root does."""
    heed_signals()
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("GENERATIONS", "two"), ("STEPS", "0"), ("MAX_TOKENS", "1e3"), ("CRASHES", "-1")]
    + [("MIN_PREFIX", "3 4"), ("TIMEOUT_S", "1.5"), ("EXACT", "2")],
)
def test_a_setting_that_is_no_number(checkout, name, value):
    run = Run(checkout, settings={name: value})
    refused(run, f"{name}: ", f"'{value}'")


@pytest.mark.parametrize("value", ["40", "40,x", "40,,60"])
def test_lists_that_are_no_two_lengths(checkout, value):
    error = refused(Run(checkout, settings={"LISTS": value}))
    assert "list" in error.lower()


@pytest.mark.parametrize("name", ["HOOK", "CONFIG"])
def test_a_file_that_is_missing(checkout, name):
    run = Run(checkout, settings={name: "missing/file"})
    assert "missing/file: No such file" in refused(run)


def test_a_blank_which_the_base_test_would_split(checkout, tmp_path):
    refused(Run(copy(checkout, tmp_path / "a checkout")), "blank", "a checkout")
    refused(Run(checkout, "a=1", "b=2 c=3"), "blank", "b=2 c=3")
    (tmp_path / "my hook.py").touch()
    settings = {"HOOK": f"{tmp_path}/my hook.py"}
    refused(Run(checkout, settings=settings), "blank", "my hook.py")


@pytest.mark.parametrize("missing", ["numpy", "torch"])
def test_a_python_that_lacks_a_package(checkout, missing):
    path = tool(checkout, "python3", f'exec "{sys.executable}" -S "$@"')
    there = {"numpy", "torch"} - {missing}
    metadata = checkout / f"small/{there.pop()}-1.0.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Version: 1.0\n")
    refused(Run(checkout, path=path), "python3", missing)


def test_no_room_in_tmp(checkout):
    path = tool(checkout, "mktemp", "echo mktemp: No space left on device >&2; exit 1")
    refused(Run(checkout, path=path), "No space left on device")


def test_a_folder_that_cannot_be_written(checkout):
    functional = checkout / "tests/functional"
    functional.chmod(0o555)
    refused(Run(checkout, before_exec=heed_permissions), "Permission denied")
    functional.chmod(0o755)
    out = functional / NAME
    out.write_text("a file")
    refused(Run(checkout), str(out))


def test_old_evidence_that_cannot_be_deleted(checkout):
    old = checkout / "tests/functional" / NAME / "old"
    old.mkdir(parents=True)
    (old / "file").touch()
    old.chmod(0o555)
    run = Run(checkout, before_exec=heed_permissions)
    refused(run, "old/file", "Permission denied")
    old.chmod(0o755)


def test_only_a_lock_that_is_held_is_in_use(checkout):
    path = tool(checkout, "flock", "echo flock: bad >&2; exit 66")
    assert "in use" not in refused(Run(checkout, path=path), "flock")
    out = checkout / "tests/functional" / NAME
    folder = os.open(out, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    refused(Run(checkout), "in use", str(out))
    os.close(folder)


def test_without_flock(checkout):
    tools = checkout / "tools"
    tool(checkout, "python3", f'exec "{sys.executable}" "$@"')
    for name in ("bash", "dirname", "realpath", "mkdir", "find"):
        (tools / name).symlink_to(shutil.which(name))
    run = Run(checkout, path=str(tools))
    status, _, error = run.ends()
    assert status == 2 and "flock: command not found" in error
    assert "in use" not in error and not run.log("reference")


# -- jobs that fail --------------------------------------------------------------------


def failed(run, phase, *words):
    """Exit status 2, and a last line that has the words; what stands before it."""
    status, out, error = run.ends()
    *log, last = error.splitlines()
    assert status == 2 and last.startswith(f"error: {phase}")
    assert all(word in last for word in [*words, f"{run.out / phase}.log"])
    assert "PASS" not in out and "\x1b" not in out
    return "\n".join(log)


def test_a_job_that_fails_shows_the_end_of_its_log(installed, tmp_path):
    phases = ("reference", "phase1", "phase2")
    runs = {
        phase: Run(copy(installed, tmp_path / phase), stand_in=f"{phase}=fails")
        for phase in phases
    }
    for phase, run in runs.items():
        log = failed(run, phase)
        assert log.count("\n") in (199, 200) and log.endswith(
            "RayTaskError: out of memory"
        )
        assert "line 299, in train" in log and "line 150, in train" in log


def test_a_phase_1_without_a_cut(installed, tmp_path):
    cases = {
        "early": ({}, "phase1=ends"),
        "short": ({"TIMEOUT_S": "6", "MIN_PREFIX": "99"}, ""),
    }
    runs = {
        name: Run(copy(installed, tmp_path / name), settings=settings, stand_in=what)
        for name, (settings, what) in cases.items()
    }
    failed(runs["early"], "phase1", "ended before")
    snapshots = runs["short"].out / "recovery-checkpoints/bootstrap/rollout_snapshots"
    failed(runs["short"], "phase1", str(snapshots.name), "snapshot_0", "99 tokens")


def test_a_job_that_takes_too_long(checkout):
    run = Run(checkout, stand_in="reference=hangs", settings={"TIMEOUT_S": "1"})
    status, _, error = run.ends()
    assert status == 2 and "error: reference: not within 1 s" in error


def test_a_script_of_ours_that_breaks_is_no_failed_check(checkout):
    script = checkout / "tests/functional/_gym_prefix_recovery_workload.py"
    script.write_text("raise SystemExit(1)")
    status, _, error = Run(checkout).ends()
    assert status == 2 and error.count("\n") <= 1
