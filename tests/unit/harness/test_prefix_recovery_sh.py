# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The script's error paths: its own message, the right status, no process left.

Run in a small checkout whose base test ends, hangs, fails or publishes snapshots as a
phase is told to."""

import os
import shutil
import signal
import subprocess
import time

import pytest
from prefix_recovery_evidence import FUNCTIONAL
from test_gym_prefix_recovery_snapshot import write_snapshot

NAME = "grpo_async_gym_single_controller_prefix_recovery"
BASE_TEST = """
echo "started with $*"
for phase in reference phase1 phase2; do
  [[ $* != *logger.log_dir=*/$phase-logs* ]] || behaviour=STUB_$phase
done
[[ $* =~ checkpointing.checkpoint_dir=([^ ]*) ]]
snapshots=${BASH_REMATCH[1]}/bootstrap/rollout_snapshots
case ${!behaviour} in
hang) sleep 1000 & setsid --fork true; sleep 1000 ;;
publish)
  mkdir -p "$snapshots"
  while cp -r "$STUB_SNAPSHOT" "$snapshots/.partial"; do
    mv "$snapshots/.partial" "$snapshots/snapshot_$(date +%s%N)"
    sleep 0.2
  done
  ;;
*) exit "${!behaviour}" ;;
esac
"""


def heed_signals():
    """What a background job, or one of nohup, was told to ignore can't be trapped."""
    for name in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)


class Run:
    """The script in a small checkout; settings and phases are keyword arguments."""

    def __init__(self, root, **settings):
        folder = root / "tests/functional"
        folder.mkdir(parents=True)
        for path in FUNCTIONAL.glob("_*.py"):
            shutil.copy(path, folder)
        self.script = folder / f"{NAME}.sh"
        shutil.copy(FUNCTIONAL / self.script.name, folder)
        (folder / "grpo_async_gym_single_controller.sh").write_text(BASE_TEST)
        self.out = folder / NAME
        snapshot = write_snapshot(root / "snapshot")
        defaults = {"MIN_FREE_MB": 1, "TIMEOUT_S": 60, "MIN_PREFIX": 2}
        phases = {"reference": 0, "phase1": "hang", "phase2": 0}
        phases |= {x: settings.pop(x) for x in phases.keys() & settings.keys()}
        prefix = "SC_PREFIX_RECOVERY_"
        environment = {prefix + x: str(y) for x, y in (defaults | settings).items()}
        environment |= {f"STUB_{x}": str(y) for x, y in phases.items()}
        environment["STUB_SNAPSHOT"] = str(snapshot)
        self.process = subprocess.Popen(
            ["bash", self.script],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=heed_signals,
        )

    def wait_for(self, name):
        """Until the phase writes its log."""
        deadline = time.monotonic() + 30
        while not (path := self.out / name).exists() or not path.read_text():
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.05)

    def ends(self):
        """Exit status and what stderr says; nothing of the run may be left."""
        _, error = self.process.communicate(timeout=60)
        left = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True)
        assert str(self.out) not in left.stdout
        assert not (self.process.returncode in (0, 1) and error)
        return self.process.returncode, error


@pytest.mark.parametrize(
    ("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)]
)
@pytest.mark.parametrize("phase", ["reference", "phase1", "phase2"])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_interrupted_in_a_phase(tmp_path, name, status, phase, send):
    run = Run(tmp_path, **{"phase1": "publish", phase: "hang"})
    run.wait_for(f"{phase}.log")
    send(run.process.pid, getattr(signal, name))
    found, error = run.ends()
    assert found == status and "error: interrupted\n" in error
    assert f"{run.out / phase}.log" in error
    assert (run.out / f"{phase}.log").read_text().startswith("started with ")


@pytest.mark.parametrize("phase", ["reference", "phase1", "phase2"])
def test_a_phase_that_fails(tmp_path, phase):
    run = Run(tmp_path, **{"phase1": "publish", phase: 7})
    status, error = run.ends()
    assert status == 2 and error.startswith(f"error: {phase}")
    assert "started with " in error


def test_a_run_that_ends_before_it_is_cut(tmp_path):
    status, error = Run(tmp_path, phase1=0).ends()
    assert status == 2 and "phase1 ended before it could be killed" in error


def test_a_run_that_takes_too_long(tmp_path):
    status, error = Run(tmp_path, reference="hang", TIMEOUT_S=1).ends()
    assert status == 2 and "not within 1 s" in error


def test_nothing_but_the_selected_snapshot_is_left_and_no_evidence_is_no_pass(tmp_path):
    run = Run(tmp_path, phase1="publish", CRASHES=2)
    status, error = run.ends()
    assert status == 2 and error.startswith("error: the evidence cannot be judged")
    (selected,) = (run.out / "selected-snapshot").iterdir()
    recovery = run.out / "recovery-checkpoints"
    (kept,) = (recovery / "bootstrap/rollout_snapshots").iterdir()
    assert kept.name == selected.name and [*recovery.iterdir()] == [kept.parents[1]]


def test_no_snapshot_to_crash_at(tmp_path):
    status, error = Run(tmp_path, TIMEOUT_S=6).ends()
    assert status == 2 and "none of 0 snapshots is usable" in error


@pytest.mark.parametrize(
    ("name", "value"),
    [("STEPS", "0"), ("LISTS", "40"), ("TOP_P", "x"), ("HOOK", "/no"), ("KEEP", "2")],
)
def test_a_setting_that_is_wrong(tmp_path, name, value):
    status, error = Run(tmp_path, **{name: value}).ends()
    assert (status, error.count("\n")) == (2, 1)
    assert error.startswith(f"error: SC_PREFIX_RECOVERY_{name}")


def test_too_little_disk_space(tmp_path):
    status, error = Run(tmp_path, MIN_FREE_MB=10**12).ends()
    assert (status, error.count("\n")) == (2, 1) and "MB free" in error


def test_a_step_of_the_script_itself_that_fails(tmp_path):
    run = Run(tmp_path, reference="hang", MIN_FREE_MB=10**12)  # only for the checkout
    run.process.communicate()
    (run.script.parent / "_gym_prefix_recovery_workload.py").write_text("raise OSError")
    environment = os.environ | {"SC_PREFIX_RECOVERY_MIN_FREE_MB": "1"}
    done = subprocess.run(
        ["bash", run.script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2 and "exit status 1 of " in done.stderr


def test_one_at_a_time_and_the_first_is_not_disturbed(tmp_path):
    run = Run(tmp_path, reference="hang")
    run.wait_for("reference.log")
    second = subprocess.run(
        ["bash", run.script],
        env=os.environ | {"SC_PREFIX_RECOVERY_MIN_FREE_MB": "1"},
        capture_output=True,
        text=True,
    )
    assert second.returncode == 2 and "in use by another run" in second.stderr
    assert run.process.poll() is None
    run.process.terminate()
    assert run.ends()[0] == 143
