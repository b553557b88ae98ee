# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Where the time of one small job goes, from bash to its last process.

A stage ends with a line of the job's output; the CPU time is that of all its processes,
by then, as /proc has it.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tools import FUNCTIONAL
from tools.prove.processes import end_job, job_pids, wait_until
from tools.prove.runs import print_table
from tools.prove.workload import Workload

STAGES = {  # what has happened, by the line that says so
    "Started a local Ray instance": "Ray runs",
    "setup took": "the driver is set up",
    "train step 1/": "step 1 is trained",
    "train step 2/": "step 2 is trained",
    "train step 3/": "step 3 is trained",
}
TICKS = os.sysconf("SC_CLK_TCK")


class CpuMeter(threading.Thread):
    """Adds up the CPU time of a job's processes, polled, as they come and go."""

    def __init__(self, ray_dir: Path):
        super().__init__(daemon=True)
        self.ray_dir = ray_dir
        self.cpu_s: dict[int, float] = {}  # by process
        self.names: dict[int, str] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.1):
            self.poll()

    def poll(self) -> None:
        for pid in job_pids(self.ray_dir):
            try:
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                command = Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:  # it has just ended
                continue
            self.cpu_s[pid] = (int(stat[11]) + int(stat[12])) / TICKS
            self.names[pid] = process_name(command)

    @property
    def total_s(self) -> float:
        return sum(self.cpu_s.values())


def process_name(cmdline: str) -> str:
    """A process by its script or program, or by the name that Ray gave it."""
    words = cmdline.rstrip("\0").split("\0")
    if words[0].startswith("ray::"):
        return re.split(r"[.:#\s]", words[0][5:])[0]
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    return Path((scripts or words)[0]).name


def bench_startup(root: Path) -> None:
    """Run the base test once, with three steps, and print its stages."""
    workload = Workload(lists=(40, 60, 80, 100), generations=4, temperature=1.0)
    data = root / "data.jsonl"
    workload.write(data)
    script = FUNCTIONAL / "grpo_async_gym_single_controller.sh"
    overrides = [*workload.overrides(data), f"logger.log_dir={root}/logs"]
    overrides.append(f"checkpointing.checkpoint_dir={root}/checkpoints")
    with tempfile.TemporaryDirectory(prefix="startup.", dir="/tmp") as folder:
        ray_dir = Path(folder)
        meter = CpuMeter(ray_dir)
        meter.start()
        environment = os.environ | {"RAY_TMPDIR": folder, "RAY_ADDRESS": "local"}
        python = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        began = time.monotonic()
        stages: list[tuple[str, float, float]] = []

        def reached(stage: str) -> None:
            meter.poll()
            stages.append((stage, time.monotonic() - began, meter.total_s))

        try:
            with subprocess.Popen(
                ["bash", script, *overrides],
                env=environment | {"PATH": python, "NRL_LOG_LEVEL": "INFO"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as job:
                assert job.stdout
                for line in job.stdout:
                    for text, stage in STAGES.items():
                        if text in line:
                            reached(stage)
            wait_until("the job leaves no process", lambda: not job_pids(ray_dir), 30)
            reached("its last process has ended")
        finally:
            end_job(ray_dir)
            meter.ended.set()
            meter.join()
    if job.returncode:
        raise RuntimeError(f"{script.name} ended with exit status {job.returncode}")
    before = [("", 0.0, 0.0), *stages]
    rows = [
        [stage, f"{at:.1f}", f"{at - x[1]:.1f}", f"{cpu - x[2]:.1f}"]
        for (stage, at, cpu), x in zip(stages, before, strict=False)
    ]
    print_table("One job", ["when", "at s", "wall s", "CPU s"], rows)
    by_name: dict[str, float] = {}
    for pid, seconds in meter.cpu_s.items():
        name = meter.names[pid]
        by_name[name] = by_name.get(name, 0.0) + seconds
    ordered = sorted(by_name.items(), key=lambda pair: -pair[1])
    rows = [[name, f"{seconds:.1f}"] for name, seconds in ordered if seconds >= 0.1]
    print_table("Its processes", ["process", "CPU s"], rows)
