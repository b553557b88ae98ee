# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The script interrupted in a phase: the signal's status, evidence, no process."""

import os
from signal import SIGHUP, SIGINT, SIGTERM

import pytest
from script_runs import PHASES, Run, copy

SIGNALS = [(SIGHUP, os.kill), (SIGINT, os.kill), (SIGTERM, os.kill)]
SIGNALS += [(SIGINT, os.killpg)]  # as a terminal sends it


@pytest.mark.parametrize("phase", PHASES)
def test_interrupted_in_a_phase(installed, tmp_path, phase):
    runs = [
        Run(copy(installed, tmp_path / str(number)), stand_in=f"{phase}=hangs")
        for number in range(len(SIGNALS))
    ]
    for run, (signal, send) in zip(runs, SIGNALS, strict=True):
        run.wait_for(phase, "session")
        send(run.process.pid, signal)
    for run, (signal, _) in zip(runs, SIGNALS, strict=True):
        status, _, error = run.ends()
        assert status == 128 + signal
        assert "error: interrupted" in error.splitlines()[-1]
        assert f"{run.out / phase}.log" in error and run.log(phase)


def test_a_neighbours_run_survives(installed, tmp_path):
    ours, theirs = (
        Run(copy(installed, tmp_path / name), stand_in="reference=hangs")
        for name in ("ours", "theirs")
    )
    for run in (ours, theirs):
        run.wait_for("reference", "session")
    ours.process.terminate()
    assert ours.ends()[0] == 143
    assert theirs.process.poll() is None and len(theirs.processes()) > 3
    theirs.process.terminate()
    assert theirs.ends()[0] == 143
