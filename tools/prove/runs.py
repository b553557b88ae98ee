# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""What `make faults` and `make soak` share: minirl jobs and their ends.

A job has a Ray of its own, whose folder is in the environment of all its processes; all
it writes is below the folder of a workspace, which leaves no process and no folder.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools import FUNCTIONAL
from tools.prove.processes import RunError, end_job, job_pids, wait_until
from tools.prove.workload import Workload

ROOT = FUNCTIONAL.parents[1]
CONFIG = ROOT / "examples" / "configs" / "grpo_minirl_single_controller.yaml"


def copy_checkout(folder: Path) -> None:
    """Copy what the parity test needs, without the evidence of earlier runs."""
    ignored = shutil.ignore_patterns(
        "grpo_*recovery", "grpo_*controller", "__pycache__"
    )
    for part in ("tests/functional", "minirl", "examples"):
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)


class Job:
    """One minirl job that has been started; its files are named after it."""

    def __init__(self, folder: Path, ray_dir: Path, name: str, overrides: list[str]):
        self.name = name
        self.log = folder / f"{name}.log"
        self.log_dir = folder / f"{name}-logs"
        self.staging_keys = folder / f"{name}-staging-keys.jsonl"
        self.ray_dir = ray_dir
        environment = {
            **os.environ,
            "NRL_LOG_LEVEL": "INFO",
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "PYTHONUNBUFFERED": "1",
            "RAY_ADDRESS": "local",
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
            wait_until(what, lambda: not job_pids(self.ray_dir), 30)
        finally:
            self.kill()
        if status:
            raise self.error(f"exit status {status}")

    def kill(self, known: Iterable[int] = ()) -> None:
        """SIGKILL all of the job, its Ray included; see `end_job`."""
        end_job(self.ray_dir, known)
        self.process.wait()
        shutil.rmtree(self.ray_dir, ignore_errors=True)

    def error(self, what: str) -> RunError:
        lines = self.log.read_text(errors="replace").splitlines()[-12:]
        return RunError(
            "\n".join([f"{self.name}: {what}; the end of {self.log}:", *lines])
        )


class Workspace:
    """A temporary folder, short as Ray's sockets need it, and the jobs below it."""

    def __init__(
        self,
        workload: Workload,
        jobs: int,
        keep: Path | None = None,
        overrides: Sequence[str] = (),  # of every job
    ):
        self.workload = workload
        self.overrides = overrides
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
        settings = [*self.workload.overrides(self.data), every, into]
        settings += [*self.overrides, *overrides]
        with self.lock:
            if self.closing:
                raise RunError(f"{name}: not started, for the end is near")
            ray_dir = Path(tempfile.mkdtemp(prefix="r", dir=self.folder))
            job = Job(folder, ray_dir, name, settings)
            self.jobs.append(job)
        return job


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
