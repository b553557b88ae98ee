# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Measure the verdict, the probe, the whole parity test and one job's start.

    python -m tools.prove bench [verdict] [probe] [parity] [startup]

Prints one line a figure; docs/benchmarks.md says what they were and what they mean.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tools import FUNCTIONAL
from tools.prove.startup import bench_startup

sys.path.insert(0, str(FUNCTIONAL.parent / "unit" / "functional"))

import prefix_recovery_evidence as evidence

NAME = "grpo_async_gym_single_controller_prefix_recovery"
LOADS = """
import json, sys
for path in sys.argv[1:]:
    for line in open(path, "rb"):
        json.loads(line)
"""


class Measured(NamedTuple):
    """What a command took."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def show(what: str, value: str) -> None:
    print(f"{what:58} {value}", flush=True)


def measure(command: list[Any], **options: Any) -> Measured:
    """Time, CPU time and the peak memory of a command's whole process tree.

    The memory is the proportional set size (PSS), polled every 20 ms, so that pages
    which processes share count once.
    """
    began, cpu_before, peak = time.monotonic(), _cpu_of_children(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, **options)
    root = psutil.Process(process.pid)
    while process.poll() is None:
        total = 0
        try:
            for member in [root, *root.children(recursive=True)]:
                text = Path(f"/proc/{member.pid}/smaps_rollup").read_text()
                total += int(re.findall(r"^Pss: +(\d+)", text, re.MULTILINE)[0])
        except (OSError, IndexError, psutil.Error):  # one ended while it was read
            continue
        peak = max(peak, total)
        time.sleep(0.02)
    if process.returncode:
        raise RuntimeError(f"{command[:3]} ended with exit status {process.returncode}")
    cpu_s = _cpu_of_children() - cpu_before
    return Measured(time.monotonic() - began, cpu_s, peak / 1024)


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# -- the verdict -----------------------------------------------------------------------


def bench_verdict(root: Path) -> None:
    """CPU time as a ratio to json.loads, which a busy machine does not spoil."""
    steps = 6
    sound = evidence.sound(steps, prompts=8, generations=4, items=5_900)
    arguments = evidence.write(root, sound)
    del sound
    dumps = sorted(root.glob("*/exp_001/*.jsonl"))
    size = sum(path.stat().st_size for path in dumps)
    judge = [sys.executable, FUNCTIONAL / "_gym_prefix_recovery_parity.py", *arguments]
    loads = [sys.executable, "-c", LOADS, *dumps]
    pairs = [(measure(loads), measure(judge)) for _ in range(5)]  # in turns
    loads_s, judge_s = (min(x.cpu_s for x in runs) for runs in zip(*pairs, strict=True))
    peak = max(judged.peak_mb for _, judged in pairs) * 1024**2
    show("verdict: bytes of both runs' dumps", f"{size / 1e6:.0f} MB")
    show("verdict: CPU time of json.loads over the same bytes", f"{loads_s:.2f} s")
    ratio = judge_s / loads_s
    show("verdict: CPU time", f"{judge_s:.2f} s, {ratio:.2f} of json.loads")
    ratio = peak / (size / steps)
    show("verdict: peak memory", f"{peak / 1e6:.0f} MB, {ratio:.2f} of a step's bytes")
    for what in ("generations", "items"):
        grown = []
        for factor in (1, 2, 4):
            shape = {"generations": 4, "items": 4_000}
            shape[what] *= factor
            folder = root / f"{what}-{factor}"
            arguments = evidence.write(folder, evidence.sound(3, prompts=4, **shape))
            judge[2:] = arguments
            grown.append(min(measure(judge).cpu_s for _ in range(3)))
        times_text = ", ".join(f"{seconds:.2f} s" for seconds in grown)
        show(f"verdict: CPU time at 1x, 2x, 4x {what}", times_text)


# -- the probe -------------------------------------------------------------------------


def bench_probe(root: Path) -> None:
    """Cost per train step of listing keys, and of reading rows back instead."""
    os.environ["TQ_LOGGING_LEVEL"] = "ERROR"
    import ray
    import torch

    from minirl.data_plane import DataPlaneClient

    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    client = DataPlaneClient()
    client.start()
    staged = 0
    for keys in (10, 1_000, 100_000):
        while staged < keys:
            names = [f"call/{staged + x}" for x in range(min(5_000, keys - staged))]
            pieces = [torch.arange(8)] * len(names)
            client.put_samples(names, "rollout_staging", {"token_ids": pieces})
            staged += len(names)
        times = []
        for step in range(5):
            began = time.monotonic()
            listed = client.list_sample_ids("rollout_staging")
            with (root / "keys.jsonl").open("a") as file:
                record = {"train_step": step, "staging_keys": listed}
                file.write(json.dumps(record) + "\n")
            times.append(time.monotonic() - began)
        assert len(listed) == keys
        show(f"probe: a step with {keys} staged keys", f"{1000 * min(times):.1f} ms")
    for tokens in (1_000, 16_000):
        names = [f"row/{tokens}/{x}" for x in range(32)]
        columns = ["token_ids", "loss_mask", "advantages", "logprobs", "prev_logprobs"]
        fields = {name: [torch.rand(tokens)] * len(names) for name in columns}
        client.put_samples(names, "rollout_data", fields)
        began = time.monotonic()
        rows = client.get_samples(names, "rollout_data", columns)
        with (root / "rows.jsonl").open("w") as file:
            for row in range(len(names)):
                values = {name: rows[name][row].tolist() for name in columns}
                file.write(json.dumps(values) + "\n")
        cost = f"{1000 * (time.monotonic() - began):.0f} ms"
        show(f"probe: reading back 32 rows of {tokens} tokens instead", cost)
    client.close()
    ray.shutdown()


# -- the whole test --------------------------------------------------------------------


def bench_parity(root: Path) -> None:
    folder, log = FUNCTIONAL / NAME, root / "output"
    wrapped = 'bash "$0" >"$1"; status=$?; cat "$1" >&2; exit "$status"'
    command = ["bash", "-c", wrapped, str(FUNCTIONAL / f"{NAME}.sh"), str(log)]
    whole = measure(command, stderr=subprocess.DEVNULL)
    peak = f"{whole.peak_mb / 1024:.2f} GiB at its peak"
    show("parity: the whole test", f"{whole.wall_s:.0f} s, {peak}")
    for what, phase_s in re.findall(r"^(\S.*): (\d+) s$", log.read_text(), re.M):
        show(f"parity: {what}", f"{phase_s} s")
    (copy,) = (folder / "selected-snapshot").iterdir()
    selected = (folder / "selected-snapshot.json").stat().st_mtime
    latency = selected - (copy / "manifest.json").stat().st_mtime
    show("parity: snapshot written until selected and copied", f"{latency:.2f} s")
    command = ["bash", str(FUNCTIONAL / "grpo_async_gym_single_controller.sh")]
    command += [f"logger.log_dir={root}/logs"]
    command += [f"data.train.data_path={folder}/test-data.jsonl"]
    command += [f"checkpointing.checkpoint_dir={root}/checkpoints"]
    command += ["rollout_checkpointing.snapshot_attempt_interval_s=0.05"]
    text = subprocess.run(
        [*command, "grpo.max_num_steps=1"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    tokens, decode_s, snapshots, snapshot_s = (
        float(number)
        for number in re.findall(
            r"so far (\S+) tokens decoded in (\S+) s and (\S+) snapshots .* (\S+) s",
            text,
        )[-1]
    )
    show("minirl: decoded tokens a second", f"{tokens / decode_s:.0f}")
    share = f"{snapshot_s / decode_s:.0%} of the decode time ({snapshots:.0f} of them)"
    show("minirl: snapshots every 0.05 s take", share)


def main() -> int:
    parts = {"verdict": bench_verdict, "probe": bench_probe}
    parts |= {"parity": bench_parity, "startup": bench_startup}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    for part in parser.parse_args().parts or parts:
        if part not in parts:
            parser.error(f"no part {part}: expected {', '.join(parts)}")
        with tempfile.TemporaryDirectory(prefix="bench.") as folder:
            parts[part](Path(folder))
    return 0
