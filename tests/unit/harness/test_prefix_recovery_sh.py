# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The script's runs to their end, on a stand-in for NeMo-RL: verdict and evidence."""

import json
import os
import pty
import re
import signal
import subprocess

import pytest
from script_runs import PATH, PHASES, Run, copy

RESULTS = [r"reference: 3 steps in \d+ s", r"phase1: killed after \d+ s"]
RESULTS += [r"phase2: 3 steps in \d+ s", *["PASS .*"] * 5]


def found_at_start(run, phase):
    """The checkpoint folder as the phase found it, down to the snapshots."""
    line = re.search(r"found (\[.*\])\n", run.log(phase))[1]
    found = [path.split("-checkpoints/")[1] for path in json.loads(line)]
    return [path for path in found if path.count("/") < 3]


def arguments(run, phase):
    line = re.search(r"started with (\[.*\])\n", run.log(phase))[1]
    return json.loads(line)


def judge_again(run, path=PATH):
    """From another folder; the exit status."""
    command, environment = ["bash", run.out / "judge.sh"], os.environ | {"PATH": path}
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True)
    return done.returncode


def test_an_ordinary_recovery_passes_with_uv_and_a_gym(checkout):
    (checkout / "uv.lock").touch()
    uv = checkout / "bin/uv"
    uv.parent.mkdir()
    uv.write_text('#!/bin/sh\n[ "$1$2$3" = run--no-syncpython ] && shift 3\n')
    uv.write_text(uv.read_text() + 'exec python3 "$@"\n')
    uv.chmod(0o755)
    for environment in ("workplace_assistant", "example_session_state_mgmt"):
        gym = checkout / "3rdparty/Gym-workspace/Gym/resources_servers" / environment
        (gym / "data").mkdir(parents=True)
        text = '{"id": 7, "responses_create_params": {"input": []}}\n'
        (gym / "data/example.jsonl").write_text(text)
    overrides = ["grpo.seed=7", "++async_rl.other=1"]
    path = f"{uv.parent}:{PATH}"
    run = Run(checkout, *overrides, path=path, small_torch=False)
    status, out, error = run.ends()
    assert (status, error) == (0, "") and "\x1b" not in out
    for line, expected in zip(out.splitlines()[1:], RESULTS, strict=True):
        assert re.fullmatch(expected, line)
    for phase in PHASES:
        assert arguments(run, phase)[2:-3][-2:] == overrides
    assert '"id": 7' in (run.out / "test-data.jsonl").read_text()
    assert json.loads((run.out / "verdict.json").read_text())["checks"]
    left = {x.suffix for x in run.out.glob("*-checkpoints/**/*") if x.is_file()}
    assert left == {".json"}  # weights are of no use after a pass
    (selected,) = (run.out / "selected-snapshot").iterdir()
    folders = ["bootstrap", "bootstrap/manifest.json", "bootstrap/rollout_snapshots"]
    folders.append(f"bootstrap/rollout_snapshots/{selected.name}")
    assert found_at_start(run, "phase2") == folders
    assert judge_again(run, path) == 0


def test_crashes_steps_older_heads_and_stray_processes(installed, tmp_path):
    cases = {
        "two": ({"CRASHES": "2", "EXACT": "1"}, "phase1=old-names phase1=writes"),
        "three": ({"CRASHES": "3", "STEPS": "4"}, ""),
    }
    runs = {
        name: Run(copy(installed, tmp_path / name), settings=settings, stand_in=what)
        for name, (settings, what) in cases.items()
    }
    for name, run in runs.items():
        status, out, error = run.ends()
        assert (status, error) == (0, ""), name
        crashes = int(cases[name][0]["CRASHES"])
        assert out.count("phase1: killed") == crashes and out.count("PASS") == 5
        cuts = json.loads((run.out / "selected-snapshot.json").read_text())["cuts"]
        assert {cut["gym_attempt"] for cut in cuts} == {crashes - 1}
        counts = [cut["prefix_token_count"] for cut in cuts]
        assert max(counts) >= 3 * crashes and "digest" not in cuts[0]
    assert not [*runs["two"].out.rglob("late.txt")]
    assert "VLLM" not in runs["three"].log("phase2")
    backend = "++policy.generation.vllm_kwargs.compilation_config.backend=inductor"
    given = {name: backend in arguments(run, "phase2") for name, run in runs.items()}
    assert given == {"two": True, "three": False}
    steps = runs["three"].out.glob("recovery-checkpoints/step_*")
    assert sorted(step.name for step in steps) == [f"step_{n}" for n in (1, 2, 3, 4)]


def test_a_restore_that_forgets_the_snapshot_fails(checkout):
    run = Run(checkout, stand_in="phase2=forgets")
    status, out, error = run.ends()
    assert (status, error) == (1, "") and "FAIL prefixes trained once" in out
    assert [*run.out.glob("recovery-checkpoints/**/*.safetensors")]
    cuts = json.loads((run.out / "selected-snapshot.json").read_text())["cuts"]
    assert len({cut["group_id"] for cut in cuts}) == 3  # two lists and the counter
    assert judge_again(run) == 1


@pytest.mark.parametrize(
    ("what", "lacking"), [("no-dump", "dump"), ("no-entry-point", "SC_TEST_ENTRYPOINT")]
)
def test_an_older_head_is_refused_after_the_reference(checkout, what, lacking):
    run = Run(checkout, stand_in=f"reference={what}")
    status, out, error = run.ends()
    assert (status, error.count("\n")) == (2, 1) and lacking in error
    assert "reference: 3 steps" in out and not run.log("phase1")


def test_what_the_user_names_is_found_from_where_the_user_stands(installed, tmp_path):
    checkout = copy(installed, tmp_path / "check[o]ut")
    user = tmp_path / "user"
    user.mkdir()
    (user / "mine.yaml").touch()
    hook = checkout / "tests/functional/_single_controller_turn_recovery_hook.py"
    (user / "hook.py").write_text(hook.read_text())
    settings = {"CONFIG": "mine.yaml", "HOOK": "hook.py"}
    run = Run(checkout, settings=settings, cwd=user)
    run.wait_for("reference", "train step")
    second = Run(checkout, settings=settings, cwd=user)
    out, error = second.process.communicate(timeout=60)
    assert (second.process.returncode, out) == (2, "") and "in use" in error
    status, _, error = run.ends()  # undisturbed
    assert (status, error) == (0, "")
    assert arguments(run, "phase2")[1] == str(user / "mine.yaml")


# -- a terminal ------------------------------------------------------------------------


def start_on_terminal(checkout, **options):
    """The run and the other end of its terminal."""
    terminal, its_end = pty.openpty()
    run = Run(checkout, stdout=its_end, stderr=its_end, **options)
    os.close(its_end)
    return run, terminal


def screen(terminal):
    """The lines as they stand there in the end."""
    written = b""
    while True:
        try:
            written += os.read(terminal, 1 << 16)
        except OSError:  # EIO: the last process has closed it
            break
    os.close(terminal)
    assert b"reference ... " in written  # there was progress
    lines = []
    for line in written.decode().replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in line.split("\r"):
            erased = part.startswith("\x1b[K")
            part = part.removeprefix("\x1b[K")
            shown = part if erased else part + shown[len(part) :]
        lines.append(shown)
    return lines


def test_on_a_terminal_each_phase_leaves_its_result(checkout):
    run, terminal = start_on_terminal(checkout)
    _, *lines, last = screen(terminal)
    for line, expected in zip(lines, RESULTS, strict=True):
        assert re.fullmatch(expected, line)
    assert (run.ends()[0], last) == (0, "")


def test_on_a_terminal_a_failed_job_leaves_only_its_log(checkout):
    run, terminal = start_on_terminal(checkout, stand_in="reference=fails")
    _, first, *_, last, end = screen(terminal)
    assert not first.startswith("reference") and last.startswith("error: reference")
    assert (run.ends()[0], end) == (2, "")


def test_on_a_terminal_an_interrupted_run_leaves_no_progress(checkout):
    run, terminal = start_on_terminal(checkout, stand_in="reference=hangs")
    run.wait_for("reference", "session")
    os.killpg(run.process.pid, signal.SIGINT)
    _, *lines, last, end = screen(terminal)
    assert not [line for line in lines if line.startswith("reference")]
    assert last.startswith("error: interrupted") and (run.ends()[0], end) == (130, "")


def test_nothing_goes_on_without_its_terminal(checkout):
    run, terminal = start_on_terminal(checkout, stand_in="reference=hangs")
    run.wait_for("reference", "session")
    os.close(terminal)
    os.killpg(run.process.pid, signal.SIGHUP)
    assert run.ends()[0] in (2, 129)
    assert run.log("reference")
