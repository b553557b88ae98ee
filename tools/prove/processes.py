# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The processes of a job, found by what they carry in their environment, and killed.

All that a job starts inherits the environment, also a child with a session of its own.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

POLL_S = 0.005


class RunError(Exception):
    """A job did not do what was waited for; the message says what, and its log."""


def wait_until(what: str, condition: Callable[[], Any], timeout_s: float) -> Any:
    """The first true value of the condition; RunError when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise RunError(f"{what}: did not happen within {timeout_s:g} s")
        time.sleep(POLL_S)
    return value


def _environ(process: Path) -> list[bytes]:
    """The entries of a process's environment; none of a zombie or a kernel thread.

    While a process is replaced by exec it has neither environment nor arguments.
    """
    while True:
        environ = (process / "environ").read_bytes()
        is_whole = environ or (process / "cmdline").read_bytes()
        if is_whole or not (process / "exe").exists():
            return environ.split(b"\0")
        time.sleep(POLL_S)


def job_pids(ray_dir: Path) -> list[int]:
    """The live processes that were started with RAY_TMPDIR=ray_dir."""
    entry, pids = os.fsencode(f"RAY_TMPDIR={ray_dir}"), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if entry in _environ(process):
                pids.append(int(process.name))
        except OSError:  # it has just ended, or is another user's
            continue
    return pids


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def end_job(ray_dir: Path, known: Iterable[int] = (), timeout_s: float = 30) -> None:
    """SIGKILL every process of a job, again until none is left.

    Those known already, from `job_pids`, are killed before the others are looked for;
    the job still runs then, so that they are its own.
    """
    _kill(known)

    def gone() -> bool:
        pids = job_pids(ray_dir)
        _kill(pids)
        return not pids

    wait_until(f"the job of {ray_dir} ends", gone, timeout_s)
