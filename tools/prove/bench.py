# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Measure the verdict, the probe and the whole parity test: `make bench`.

    python tools/bench.py [verdict] [probe] [parity]

Prints one line a figure; docs/benchmarks.md says what they were and what they mean.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parent.parent
FUNCTIONAL = ROOT / "tests/functional"
NAME = "grpo_async_gym_single_controller_prefix_recovery"
LOADS = "import json, sys\nfor x in sys.argv[1:]:\n    [*map(json.loads, open(x))]"


def show(what: str, value: str) -> None:
    print(f"{what:58} {value}", flush=True)


def measure(command: list[Any], **options: Any) -> tuple[float, float]:
    """Seconds of a command, and the peak of its whole process tree in MB.

    The memory is the proportional set size (PSS), polled every 20 ms, so that pages
    which processes share count once.
    """
    began, peak = time.monotonic(), 0
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
    return time.monotonic() - began, peak / 1024


# -- the verdict -----------------------------------------------------------------------


def write_evidence(root: Path, steps: int, rows: int, tokens: int) -> list[Any]:
    """Sound evidence of two runs, with one cut; returns the judge's command."""
    rng = np.random.default_rng(0)
    mask = [0.0] * (tokens // 4) + [1.0] * (tokens - tokens // 4)
    cut = {"group_id": "rec0", "generation_index": 0, "model_call_id": "old"}
    cut |= {"generation_token_count": 9, "digest": "d" * 64, "staging_keys": ["k"]}
    generations = 4
    for step in range(1, steps + 1):
        lines: dict[str, list[str]] = {"ref": [], "rec": []}
        for row in range(rows):
            group, generation = divmod(row, generations)
            group += (step - 1) * rows // generations
            logprobs = (-rng.random(tokens)).astype(np.float32).tolist()
            columns = {
                "token_ids": [rng.integers(0, 150_000, tokens).tolist()],
                "token_loss_mask": [mask],
                "advantages": [[0.5 * x for x in mask]],
                "generation_logprobs": [logprobs],
                "prev_logprobs": [logprobs],
                "input_lengths": [tokens],
                "sample_loss_mask": [1.0],
                "rewards": [float(row % 2)],
                "metadata": [{"prompt_idx": group}],
            }
            for run in lines:
                sample_id = [f"{run}{group}_g{generation}"]
                record = {"idx": row, "step": step, "sample_id": sample_id, **columns}
                lines[run].append(json.dumps(record) + "\n")
        for run in lines:
            folder = root / run / "exp_001"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"train_data_step{step}.jsonl"
            path.write_text("".join(lines[run]))
    total = tokens - tokens // 4
    event = "generation prefix {}: rollout_id=rec0_g0_aff model_call_id=new"
    event += " source_model_call_id=old prefix_tokens=9 "
    completed = f"tail_tokens={total - 9} total_generation_tokens={total}\n"
    log = event.format("restored") + f"prefix_digest={'d' * 64}\n"
    (root / "log").write_text(log + event.format("completed") + completed)
    (root / "selection").write_text(json.dumps({"cuts": [cut]}))
    records = [{"train_step": x + 1, "staging_keys": []} for x in range(steps)]
    (root / "probe").write_text("".join(json.dumps(x) + "\n" for x in records))
    (root / "gym_checkpoint.json").write_text('{"staging_keys": {}}')
    arguments = {"reference-log-dir": root / "ref", "recovery-log-dir": root / "rec"}
    arguments |= {"selection": root / "selection", "recovery-log": root / "log"}
    arguments |= {"staging-keys": root / "probe", "successor-checkpoint": root}
    arguments["verdict"] = root / "verdict.json"
    numbers = {"steps": steps, "prompts-per-step": rows // generations}
    numbers |= {"generations-per-prompt": generations}
    command: list[Any] = [sys.executable, FUNCTIONAL / "_gym_prefix_recovery_parity.py"]
    for name, value in {**arguments, **numbers}.items():
        command += [f"--{name}", str(value)]
    return command


def bench_verdict(root: Path) -> None:
    command = write_evidence(root, steps=6, rows=32, tokens=6000)
    dumps = sorted(root.glob("*/exp_001/*.jsonl"))
    size = sum(path.stat().st_size for path in dumps)
    loads_s = min(measure([sys.executable, "-c", LOADS, *dumps])[0] for _ in range(3))
    times, peaks = zip(*(measure(command) for _ in range(3)), strict=True)
    show("verdict: bytes of both runs' dumps", f"{size / 1e6:.0f} MB")
    show("verdict: json.loads alone over the same bytes", f"{loads_s:.2f} s")
    ratio = min(times) / loads_s
    show("verdict: time", f"{min(times):.2f} s, {ratio:.2f} of json.loads alone")
    ratio = max(peaks) * 1024**2 / (size / 6)
    show("verdict: peak memory", f"{max(peaks):.0f} MB, {ratio:.2f} of a step's bytes")
    for what in ("rows", "tokens"):
        grown = []
        for factor in (1, 2, 4):
            shutil.rmtree(root)
            shape = {"rows": 16, "tokens": 4000}
            shape[what] *= factor
            command = write_evidence(root, steps=3, **shape)
            grown.append(min(measure(command)[0] for _ in range(3)))
        times_text = ", ".join(f"{seconds:.2f} s" for seconds in grown)
        show(f"verdict: time at 1x, 2x, 4x {what}", times_text)


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
    evidence, log = FUNCTIONAL / NAME, root / "output"
    wrapped = 'bash "$0" >"$1"; status=$?; cat "$1" >&2; exit "$status"'
    command = ["bash", "-c", wrapped, str(FUNCTIONAL / f"{NAME}.sh"), str(log)]
    seconds, peak = measure(command, stderr=subprocess.DEVNULL)
    show(
        "parity: the whole test", f"{seconds:.0f} s, {peak / 1024:.2f} GiB at its peak"
    )
    for what, phase_s in re.findall(r"^(\S.*): (\d+) s$", log.read_text(), re.M):
        show(f"parity: {what}", f"{phase_s} s")
    (copy,) = (evidence / "selected-snapshot").iterdir()
    selected = (evidence / "selected-snapshot.json").stat().st_mtime
    latency = selected - (copy / "manifest.json").stat().st_mtime
    show("parity: snapshot written until selected and copied", f"{latency:.2f} s")
    command = ["bash", str(FUNCTIONAL / "grpo_async_gym_single_controller.sh")]
    command += [f"logger.log_dir={root}/logs"]
    command += [f"data.train.data_path={evidence}/test-data.jsonl"]
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


def main() -> None:
    parts = {"verdict": bench_verdict, "probe": bench_probe, "parity": bench_parity}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    sys.path.insert(0, str(ROOT))
    for part in parser.parse_args().parts or parts:
        if part not in parts:
            parser.error(f"no part {part}: expected {', '.join(parts)}")
        with tempfile.TemporaryDirectory(prefix="bench.") as folder:
            parts[part](Path(folder))


if __name__ == "__main__":
    main()
