# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""What `make faults` and `make soak` share: minirl jobs, their ends, and the judge.

A job runs in a session of its own, with a Ray of its own; all it writes is below the
folder of a workspace, which leaves no process and no folder behind.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.harness import FUNCTIONAL, harness_module

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "examples" / "configs" / "grpo_minirl_single_controller.yaml"
POLL_S = 0.005

find_cuts = harness_module("_gym_prefix_recovery_snapshot").find_cuts


class RunError(Exception):
    """A job did not do what was waited for; the message says what, and its log."""


def session_pids(session_id: int, among: Iterable[int] | None = None) -> list[int]:
    """The live processes of a session, zombies left out, of all or of some."""
    proc, pids = Path("/proc"), []
    some = [proc / str(pid) / "stat" for pid in among or []]
    for stat in proc.glob("[0-9]*/stat") if among is None else some:
        try:
            text = stat.read_text()
        except OSError:  # it has just ended
            continue
        state, _, _, session, *_ = text.rpartition(")")[2].split()
        if int(session) == session_id and state not in "ZX":
            pids.append(int(stat.parent.name))
    return pids


def wait_until(what: str, condition: Callable[[], Any], timeout_s: float) -> Any:
    """The first true value of the condition; RunError when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise RunError(f"{what}: did not happen within {timeout_s:g} s")
        time.sleep(POLL_S)
    return value


def _kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def end_session(
    session_id: int, known: Iterable[int] = (), timeout_s: float = 30
) -> None:
    """SIGKILL every process of a session, again until none is left.

    Those known already are killed before the others are looked for.
    """
    _kill(session_pids(session_id, known))

    def gone() -> bool:
        pids = session_pids(session_id)
        _kill(pids)
        return not pids

    wait_until(f"session {session_id} ends", gone, timeout_s)


@dataclass(frozen=True)
class Workload:
    """Small and varied: at this temperature calls differ in length and in reward."""

    lists: tuple[int, ...] = (45, 12, 30)
    generations: int = 6
    steps: int = 3
    max_tokens: int = 480  # in a sequence; half of it in a call
    temperature: float = 2.0

    @property
    def prompts(self) -> int:
        return len(self.lists) + 1  # the counter's

    def write(self, path: Path) -> None:
        command = [sys.executable, str(FUNCTIONAL / "_gym_prefix_recovery_workload.py")]
        command += ["--output", str(path), "--steps", str(self.steps)]
        command += ["--list-items", *map(str, self.lists)]
        subprocess.run(command, check=True)

    def overrides(self, data: Path) -> list[str]:
        step = f"num_prompts_per_step={self.prompts}"
        return [
            f"policy.max_total_sequence_length={self.max_tokens}",
            f"policy.generation.max_new_tokens={self.max_tokens // 2}",
            f"policy.generation.temperature={self.temperature}",
            f"policy.train_global_batch_size={self.prompts * self.generations}",
            f"grpo.{step}",
            f"grpo.num_generations_per_prompt={self.generations}",
            f"grpo.max_num_steps={self.steps}",
            "async_rl.log_full_train_data=true",
            f"data.train.data_path={data}",
        ]


class Job:
    """One minirl job that has been started; its files are named after it."""

    def __init__(self, folder: Path, ray_dir: Path, name: str, overrides: list[str]):
        self.name = name
        self.log = folder / f"{name}.log"
        self.log_dir = folder / f"{name}-logs"
        self.staging_keys = folder / f"{name}-staging-keys.jsonl"
        self.ray_dir = ray_dir
        environment = {
            **{key: os.environ[key] for key in os.environ if key != "RAY_ADDRESS"},
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "PYTHONUNBUFFERED": "1",
            "RAY_DEDUP_LOGS": "0",
            "RAY_TMPDIR": str(ray_dir),
            "SC_STAGING_KEYS_FILE": str(self.staging_keys),
            "TQ_LOGGING_LEVEL": "ERROR",
        }
        hook = FUNCTIONAL / "_single_controller_turn_recovery_hook.py"
        command = [sys.executable, str(hook), "--config", str(CONFIG)]
        command += [f"logger.log_dir={self.log_dir}", *overrides]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def dump(self) -> Path:
        return self.log_dir / "exp_001"

    def logged(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def wait_until(
        self, what: str, condition: Callable[[], Any], timeout_s: float
    ) -> Any:
        """As the function of this name; RunError also if the job ends before that."""

        def holds() -> Any:
            ended = self.process.poll() is not None
            value = condition()
            if ended and not value:
                raise self.error(f"{what}: the job ended before that")
            return value

        try:
            return wait_until(what, holds, timeout_s)
        except RunError as error:
            self.kill()
            known = str(self.log) in str(error)
            raise (error if known else self.error(str(error))) from None

    def finish(self, timeout_s: float) -> None:
        """The job must end by itself, with exit status 0, and leave no process."""
        self.wait_until(
            f"{self.name} ends", lambda: self.process.poll() is not None, timeout_s
        )
        status = self.process.wait()
        try:
            what = f"{self.name} leaves no process"
            wait_until(what, lambda: not session_pids(self.process.pid), 30)
        finally:
            self.kill()
        if status:
            raise self.error(f"exit status {status}")

    def kill(self, known: Iterable[int] = ()) -> None:
        """SIGKILL all of the job, its Ray included; see `end_session`."""
        end_session(self.process.pid, known)
        self.process.wait()
        shutil.rmtree(self.ray_dir, ignore_errors=True)

    def error(self, what: str) -> RunError:
        lines = self.log.read_text(errors="replace").splitlines()[-12:]
        return RunError(
            "\n".join([f"{self.name}: {what}; the end of {self.log}:", *lines])
        )


class Workspace:
    """A temporary folder, short as Ray's sockets need it, and the jobs below it."""

    def __init__(self, workload: Workload, jobs: int, keep: Path | None = None):
        self.workload = workload
        self.keep = keep
        self.jobs: list[Job] = []
        self.pool = ThreadPoolExecutor(jobs)
        self.closing = False
        self.lock = threading.Lock()  # of `jobs` and `closing`

    def __enter__(self) -> "Workspace":
        self.handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.folder = Path(tempfile.mkdtemp(prefix="minirl-"))
        self.data = self.folder / "test-data.jsonl"
        self.workload.write(self.data)
        return self

    def __exit__(self, *_: Any) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        with self.lock:
            self.closing = True
        for job in self.jobs:
            if job.process.poll() is None:
                job.kill()
        self.pool.shutdown()
        if self.keep:
            shutil.copytree(self.folder, self.keep, dirs_exist_ok=True)
        shutil.rmtree(self.folder)
        signal.signal(signal.SIGTERM, self.handler)

    def side_by_side(
        self, work: Callable[[Any], Any], items: Iterable[Any]
    ) -> Iterator[Any]:
        """What the work returns for each item, in their order."""
        return self.pool.map(work, items)

    def start(
        self,
        folder: Path,
        name: str,
        checkpoint_dir: Path,
        interval_s: float = 600,
        overrides: Sequence[str] = (),
    ) -> Job:
        """Start a job that takes a snapshot every `interval_s` seconds."""
        folder.mkdir(exist_ok=True)
        every = f"rollout_checkpointing.snapshot_attempt_interval_s={interval_s}"
        into = f"checkpointing.checkpoint_dir={checkpoint_dir}"
        settings = [*self.workload.overrides(self.data), every, into, *overrides]
        with self.lock:
            if self.closing:
                raise RunError(f"{name}: not started, for the end is near")
            ray_dir = Path(tempfile.mkdtemp(prefix="r", dir=self.folder))
            job = Job(folder, ray_dir, name, settings)
            self.jobs.append(job)
        return job

    def leftovers(self, job: Job) -> list[int]:
        """Live processes that were started for the job, in any session."""
        name, pids = os.fsencode(job.ray_dir), []
        for environment in Path("/proc").glob("[0-9]*/environ"):
            try:
                if name in environment.read_bytes():
                    pids.append(int(environment.parent.name))
            except OSError:  # it has just ended
                continue
        return pids


@dataclass(frozen=True)
class Evidence:
    """What the judge is given, beside the workload's sizes."""

    reference_log_dir: Path
    recovery_log_dir: Path
    selection: Path
    recovery_log: Path
    staging_keys: Path
    successor_checkpoint: Path


def judge(evidence: Evidence, workload: Workload) -> list[dict[str, Any]]:
    """The verdict's checks; RunError, with its words, if the judge cannot judge."""
    verdict = evidence.selection.with_name("verdict.json")
    command = [sys.executable, str(FUNCTIONAL / "_gym_prefix_recovery_parity.py")]
    for name, path in vars(evidence).items():
        command += ["--" + name.replace("_", "-"), str(path)]
    command += ["--steps", str(workload.steps)]
    command += ["--prompts-per-step", str(workload.prompts)]
    command += ["--generations-per-prompt", str(workload.generations)]
    command += ["--min-identical-logprobs", "1", "--max-logprob-difference", "0"]
    command += ["--verdict", str(verdict)]
    verdict.unlink(missing_ok=True)
    judged = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if judged.returncode not in (0, 1) or not verdict.exists():
        raise RunError(f"the judge: {(judged.stderr or judged.stdout).strip()}")
    return json.loads(verdict.read_text())["checks"]


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table, drawn on a terminal, and of plain columns elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*columns, title=title)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    print(title)
    for row in [columns, *rows]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
