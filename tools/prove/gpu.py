# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Run the parity test again and again on a GPU, and print what docs/gpu.md reports.

    python -m tools.prove gpu [--repeat 5] [--jobs 5] [--only NAME ...] [--keep DIR]

Each run has a copy of the checkout of its own, so that several can share the GPU. The
exit status is 1 if a run that must pass did not.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _gym_prefix_recovery_parity as parity
import numpy as np

from tools.prove.runs import copy_checkout

NAME = "grpo_async_gym_single_controller_prefix_recovery"
LONG = {"LISTS": "40,120,180,240,300,360,450", "GENERATIONS": "8"}
LONG |= {"MAX_TOKENS": "2368", "MIN_PREFIX": "64"}
NOISY = {"MIN_IDENTICAL": "0.99", "MAX_DIFFERENCE": "0.5"}
BFLOAT16 = ["policy.precision=bfloat16"]
VARIANT = ["policy.generation.batch_invariant=false"]
# temperatures at which a last bit can turn a choice
HOT, LONG_HOT = (["policy.generation.temperature=" + x] for x in ("1.6", "1.5"))
MEASURE = """
import resource, subprocess, sys, time
began = time.monotonic()
subprocess.run(["bash", sys.argv[1]])
print(time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
PLACE = re.compile(r"expected \w+, (in[^,;]*)")  # of a difference, in a problem's words
RUNS: dict[str, tuple[dict[str, str], list[str], bool]] = {
    # name: settings, overrides, whether it must pass
    "float32": ({}, [], True),
    "bfloat16": ({}, BFLOAT16, True),
    "float32-long": (LONG, [], True),
    "bfloat16-long": (LONG, BFLOAT16, True),
    "float32-long-variant": (LONG | NOISY, VARIANT, False),
    "bfloat16-long-variant": (LONG | NOISY, BFLOAT16 + VARIANT, False),
    "bfloat16-hot": ({}, BFLOAT16 + HOT, True),
    "float32-hot-variant": (NOISY, HOT + VARIANT, False),
    "bfloat16-hot-variant": (NOISY, BFLOAT16 + HOT + VARIANT, False),
    "bfloat16-long-hot-variant": (LONG | NOISY, BFLOAT16 + LONG_HOT + VARIANT, False),
}


def run_once(name: str, folder: Path) -> dict[str, Any]:
    """One run of the parity test in a copy of the checkout; its figures."""
    settings, overrides, _ = RUNS[name]
    copy_checkout(folder)
    variables = {f"SC_PREFIX_RECOVERY_{key}": value for key, value in settings.items()}
    script = folder / f"tests/functional/{NAME}.sh"

    with (folder / "output").open("w") as output:
        status = subprocess.run(
            ["bash", script, *overrides],
            env={**os.environ, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    figures = {"run": name, "status": status}
    return figures | (_figures(script.with_suffix("")) if status < 2 else {})


def _figures(evidence: Path) -> dict[str, Any]:
    text = (evidence.parents[2] / "output").read_text()
    phases = re.findall(r"^(\S.*): (\d+) s$", text, re.MULTILINE)
    log = (evidence / "phase2.log").read_text()
    decoded = re.findall(r"so far (\d+) tokens decoded in ([\d.]+) s", log)[-1]
    cuts = json.loads((evidence / "selected-snapshot.json").read_text())["cuts"]
    prefixes = sorted(cut["prefix_token_count"] for cut in cuts)
    dumps = evidence.glob("phase2-logs/*/train_data_step*.jsonl")
    judged = subprocess.run(
        [sys.executable, "-c", MEASURE, evidence / "judge.sh"],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds, peak_kb = judged.stdout.splitlines()[-1].split()
    verdict = json.loads((evidence / "verdict.json").read_text())
    by_name = {check["name"]: check for check in verdict["checks"]}
    rows = by_name["rows match"]["problems"]
    places = [(x, PLACE.search(x)) for x in rows if ": token_ids[" in x]
    flips = [place[1] for _, place in places if place]
    # at the same weights
    first = [place[1] for x, place in places if place and x.startswith("step 1,")]
    return {
        "phases": {what: int(seconds) for what, seconds in phases},
        "tokens_per_s": round(int(decoded[0]) / float(decoded[1])),
        "cuts": len(cuts),
        "prefixes": [prefixes[0], statistics.median(prefixes), prefixes[-1]],
        "logprobs": by_name["generation log-probs agree"]["counts"],
        "failed": {
            name: check["problems"][0]
            for name, check in by_name.items()
            if check["problems"]
        },
        "rows_that_differ": len(rows),
        "flips": {"all steps": Counter(flips), "step 1": Counter(first)},
        "differences": _differences(evidence),
        "dump_mb": round(sum(path.stat().st_size for path in dumps) / 1e6, 1),
        "verdict_s": round(float(seconds), 2),
        "verdict_mb": int(peak_kb) // 1024,
    }


def _differences(evidence: Path) -> list[float]:
    """Quantiles (50, 90, 99, 99.9, 100 %) of the log-probs' differences that are not 0.

    Over the generated tokens of step 1, in rows whose tokens are equal.
    """
    runs = []
    for name in ("reference", "phase2"):
        path = evidence / f"{name}-logs/exp_001/train_data_step1.jsonl"
        runs.append({row.identity: row.columns for row in parity._load_dump(path, 1)})
    reference, recovery = runs
    gaps = []
    for identity in reference.keys() & recovery.keys():
        a, b = reference[identity], recovery[identity]
        if np.array_equal(a["token_ids"], b["token_ids"]):
            generated = a["token_loss_mask"] > 0
            x, y = (row["generation_logprobs"][generated] for row in (a, b))
            gaps.append(np.abs(np.subtract(x, y, dtype=float)))
    apart = np.concatenate(gaps) if gaps else np.zeros(0)
    apart = apart[apart > 0]
    if not len(apart):
        return []
    return [float(f"{x:.2g}") for x in np.quantile(apart, [0.5, 0.9, 0.99, 0.999, 1])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--keep", type=Path, help="where to leave the evidence")
    options = parser.parse_args()
    base = options.keep or Path(tempfile.mkdtemp(prefix="parity-gpu."))
    names = [name for name in options.only for _ in range(options.repeat)]
    unsound = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        folders = [base / f"{index:03d}-{name}" for index, name in enumerate(names)]
        for figures in pool.map(run_once, names, folders):
            print(json.dumps(figures), flush=True)
            must_pass = RUNS[figures["run"]][2]
            unsound += figures["status"] > 1 or (must_pass and figures["status"] > 0)
    if not options.keep:
        shutil.rmtree(base)
    return int(unsound > 0)
