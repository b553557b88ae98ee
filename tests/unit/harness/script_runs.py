# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The installed script in a small checkout whose base test is the stand-in's."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
STAND_IN = Path(__file__).parent / "stand_in"
NAME = "grpo_async_gym_single_controller_prefix_recovery"
PHASES = ("reference", "phase1", "phase2")
SETTINGS = {"LISTS": "12,14", "MIN_PREFIX": "3", "TIMEOUT_S": "60"}
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
# torch alone takes seconds to import; of it, the ledger needs only these.
SMALL_TORCH = """
import pickle
def save(value, path):
    with open(path, "wb") as file: pickle.dump(value, file)
def load(path, weights_only):
    with open(path, "rb") as file: return pickle.load(file)
"""


def install(root: Path) -> Path:
    """A checkout with the stand-in and, by install_into.sh, the harness."""
    functional = root / "tests/functional"
    functional.mkdir(parents=True)
    shutil.copy(STAND_IN / "grpo_async_gym_single_controller.sh", functional)
    shutil.copytree(STAND_IN / "nemo_rl", root / "nemo_rl")
    shutil.copytree(STAND_IN / "examples", root / "examples")
    command = ["bash", ROOT / "tools/install_into.sh", root]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (root / "small/torch.py").parent.mkdir()
    (root / "small/torch.py").write_text(SMALL_TORCH)
    return root


def copy(checkout: Path, to: Path) -> Path:
    return shutil.copytree(checkout, to)


def heed_signals() -> None:
    """What a background job, or one of nohup, was told to ignore can't be trapped."""
    for name in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)


class Run:
    """The script in a checkout.

    `settings` are without SC_PREFIX_RECOVERY_; `stand_in` is what its phases do.
    """

    def __init__(
        self,
        checkout: Path,
        *arguments: str,
        stand_in: str = "",
        settings: dict[str, str] | None = None,
        path: str = PATH,
        before_exec: Callable[[], None] = heed_signals,
        small_torch: bool = True,
        **options: Any,
    ) -> None:
        self.out = checkout / "tests/functional" / NAME
        environment = os.environ | {"PATH": path, "STAND_IN": stand_in}
        environment["PYTHONPATH"] = f"{checkout}/small" if small_torch else ""
        # another Ray and another log level, which the script must overrule
        environment |= {"RAY_ADDRESS": "auto", "NRL_LOG_LEVEL": "ERROR"}
        for name, value in (SETTINGS | (settings or {})).items():
            environment[f"SC_PREFIX_RECOVERY_{name}"] = value
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(
            ["bash", f"{self.out}.sh", *arguments],
            env=environment,
            text=True,
            start_new_session=True,
            preexec_fn=before_exec,
            **(pipes | options),
        )

    def ends(self) -> tuple[int, str, str]:
        """Exit status, standard output and standard error; no process is left."""
        out, error = self.process.communicate(timeout=100)
        left = self.processes()
        assert not left, left
        return self.process.returncode, out, error

    def log(self, phase: str) -> str:
        path = self.out / f"{phase}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def processes(self) -> list[str]:
        """Whatever was started in this checkout and has not ended, by its environment,
        command line or session."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                texts = [(process / x).read_bytes() for x in ("environ", "cmdline")]
                state, _, _, session = (
                    (process / "stat").read_text().rpartition(") ")[2].split()[:4]
                )
            except OSError:  # it has just ended, or is another user's
                continue
            is_ours = any(str(self.out).encode() in text for text in texts)
            if (is_ours or int(session) in self.sessions()) and state != "Z":
                found.append(f"{process.name}: {texts[1]!r}")
        return found

    def sessions(self) -> set[int]:
        """Of the jobs, which say them as they start."""
        texts = "".join(map(self.log, PHASES))
        return {int(number) for number in re.findall(r"session (\d+)\n", texts)}

    def wait_for(self, phase: str, text: str) -> None:
        """Until the phase's log has the text."""
        deadline = time.monotonic() + 60
        while text not in self.log(phase):
            assert time.monotonic() < deadline and self.process.poll() is None, text
            time.sleep(0.02)
