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


def job_pids(ray_dir: Path) -> list[int]:
    """The live processes that were started with RAY_TMPDIR=ray_dir."""
    entry, pids = os.fsencode(f"RAY_TMPDIR={ray_dir}"), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if entry in environ.read_bytes().split(b"\0"):  # none of a zombie
                pids.append(int(environ.parent.name))
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
