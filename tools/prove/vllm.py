# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Run the parity test, the faults and the kills with vLLM, and print what comes of it.

    python -m tools.prove vllm [NAME ...] [--repeat N] [--jobs N] [--out DIR]

Each run of the parity test has a copy of the checkout of its own, so that several share
a GPU. The table says what each run's checks say, and how its log-probs agree. The
evidence goes into DIR/evidence.tar.xz as the runs end. The exit status is 1 if a run
did not end as its mode must.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from _gym_prefix_recovery_parity import EvidenceError

from tools.explain.evidence import read_verdict
from tools.prove.runs import ROOT, copy_checkout, print_table

NAME = "grpo_async_gym_single_controller_prefix_recovery"
LOGPROBS = "generation log-probs agree"
BACKEND = ["policy.generation.backend=vllm", "policy.precision=bfloat16"]
EAGER = "policy.generation.vllm_cfg.enforce_eager=true"
EAGER_BACKEND = "policy.generation.vllm_kwargs.compilation_config.backend=eager"
LISTS = {"LISTS": "60,120,180,240", "MAX_TOKENS": "1536", "MIN_PREFIX": "48"}
GREEDY, SAMPLED = {"TOP_P": "0.000001"}, {"TOP_P": "1.0"}
TRITON = [*BACKEND, "policy.generation.vllm_kwargs.attention_backend=TRITON_ATTN"]
INVARIANT = {"VLLM_BATCH_INVARIANT": "1"}  # the test itself exports it for EXACT=1
COLUMNS = ["run", "result", "s", "checks that failed", "log-probs agree in"]


@dataclass(frozen=True)
class Mode:
    """A way to run the parity test, or another of the proofs."""

    settings: dict[str, str]  # SC_PREFIX_RECOVERY_*, or a proof's environment
    overrides: list[str]
    must_fail: str | None = ""  # this check alone; none if empty; None: either way
    proof: list[str] = field(default_factory=list)  # in place of the parity test


MODES = {
    "exact": Mode(SAMPLED | {"EXACT": "1"}, BACKEND),
    "exact-greedy": Mode(GREEDY | {"EXACT": "1"}, BACKEND),
    "exact-float32": Mode(
        SAMPLED | {"EXACT": "1"}, [*BACKEND, "policy.precision=float32"]
    ),
    "greedy": Mode(GREEDY | {"EXACT": "0"}, BACKEND, None),
    "sampled": Mode(SAMPLED | {"EXACT": "0"}, BACKEND, None),
    # as NeMo-RL's Workplace configuration compiles
    "greedy-backend-eager": Mode(
        GREEDY | {"EXACT": "0"}, [*BACKEND, EAGER_BACKEND], None
    ),
    "invariant-eager": Mode(GREEDY | {"EXACT": "1"}, [*BACKEND, EAGER], LOGPROBS),
    "faults": Mode(
        INVARIANT, TRITON, proof=["faults", "--mode", "exact", "--quick", "--jobs=6"]
    ),
    "kills": Mode(INVARIANT, TRITON, proof=["soak", "--kills=8", "--jobs=4"]),
}


@dataclass
class Outcome:
    """What became of one run."""

    name: str
    status: int | str
    good: bool
    seconds: float
    failed: list[str] = field(default_factory=list)  # checks
    details: list[str] = field(default_factory=list)

    def row(self) -> list[str]:
        result = "as it must" if self.good else "NOT as it must"
        cells = [f"exit status {self.status}, {result}", f"{self.seconds:.0f}"]
        return [self.name, *cells, ", ".join(self.failed), "; ".join(self.details)]


class Runs:
    """The runs of one call, in folders below one base."""

    def __init__(self, base: Path, limit_s: float):
        self.base = base
        self.limit_s = limit_s
        self.lock = threading.Lock()  # of standard output

    def run(self, name: str, number: int) -> Outcome:
        """Run a mode once in a folder of its own."""
        mode, began = MODES[name], time.monotonic()
        folder = self.base / f"{number:02d}-{name}"
        folder.mkdir()
        environment = dict(os.environ, VLLM_CACHE_ROOT=str(folder / "cache"))
        if mode.proof:
            command = [sys.executable, "-m", "tools.prove", *mode.proof]
            command += ["--override", *mode.overrides]
            environment |= mode.settings
            where = ROOT
        else:
            where = folder / "checkout"
            copy_checkout(where)
            command = ["bash", f"tests/functional/{NAME}.sh", *mode.overrides]
            settings = LISTS | mode.settings
            environment |= {f"SC_PREFIX_RECOVERY_{k}": x for k, x in settings.items()}
        status = self._finish(command, where, environment, folder / "output")
        outcome = Outcome(folder.name, status, status == 0, time.monotonic() - began)
        if not mode.proof and status in (0, 1):
            self._judge(outcome, mode, where / "tests/functional" / NAME)
        self._show(outcome, folder)
        return outcome

    def _finish(
        self, command: list[str], where: Path, environment: dict[str, str], log: Path
    ) -> int | str:
        """The exit status; "late" of a command that has to be ended."""
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                cwd=where,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                return process.wait(self.limit_s)
            except subprocess.TimeoutExpired:
                process.terminate()  # it ends its jobs
                process.wait()
                return "late"

    def _judge(self, outcome: Outcome, mode: Mode, evidence: Path) -> None:
        """Which checks failed, and how the log-probs agree, as tools.explain says."""
        verdict = evidence / "verdict.json"
        checks = json.loads(verdict.read_text())["checks"]
        outcome.failed = [check["name"] for check in checks if check["problems"]]
        expected = [mode.must_fail] if mode.must_fail else []
        outcome.good = mode.must_fail is None or outcome.failed == expected
        try:
            found = read_verdict(verdict)
        except (EvidenceError, OSError) as error:
            outcome.details.append(f"not explained: {error}")
            return
        for name, part in found.logprobs.parts.items():
            share = f"{part.identical} of {part.tokens} ({part.share:.2%})"
            outcome.details.append(f"{name}: {share}, worst {part.largest:.2g}")
        flips = f"{found.logprobs.flipped} of {found.logprobs.rows} rows flipped"
        outcome.details.append(flips)
        outcome.details.append(f"{len(found.cuts)} cuts")

    def _show(self, outcome: Outcome, folder: Path) -> None:
        """Print a run's row, what its script printed, and the speed of its jobs."""
        lines = (folder / "output").read_text(errors="replace").splitlines()
        lines = [line[:300] for line in lines[-30 if outcome.good else -120 :]]
        for log in sorted(folder.glob(f"checkout/tests/functional/{NAME}/*.log")):
            text = log.read_text(errors="replace")
            if speed := re.findall(r"so far .*", text):
                lines.append(f"{log.stem}: {speed[-1]}")
        with self.lock:
            print(f"== {': '.join(outcome.row()[:4])}", *lines, sep="\n")
            print(*outcome.details, sep="\n", flush=True)


def keep(folder: Path, archive: tarfile.TarFile) -> None:
    """Put a run's evidence into the archive, and remove the run."""

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = Path(member.name).parts
        is_state = any("checkpoints" in x or "snapshot" in x for x in parts)
        unwanted = is_state and member.isfile() and not member.name.endswith(".json")
        return None if unwanted else member

    archive.add(folder / "output", f"{folder.name}/output")
    evidence = folder / "checkout/tests/functional" / NAME
    if evidence.exists():
        archive.add(evidence, f"{folder.name}/evidence", filter=wanted)
    shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modes", nargs="*", metavar="NAME", help=", ".join(MODES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=6, help="runs side by side")
    parser.add_argument("--limit-s", type=float, default=1800, help="of a run")
    parser.add_argument("--out", type=Path, default=Path("vllm-runs"))
    args = parser.parse_args()
    for name in args.modes:
        if name not in MODES:
            parser.error(f"no mode {name}: expected {', '.join(MODES)}")
    args.out.mkdir(parents=True, exist_ok=True)
    names = [x for x in args.modes or MODES for _ in range(args.repeat)]
    outcomes = []
    with (
        tempfile.TemporaryDirectory(prefix="vllm.") as base,
        tarfile.open(args.out / "evidence.tar.xz", "w:xz") as archive,
        ThreadPoolExecutor(args.jobs) as pool,
    ):
        runs = Runs(Path(base), args.limit_s)
        started = [pool.submit(runs.run, x, n) for n, x in enumerate(names)]
        for done in as_completed(started):
            outcomes.append(done.result())
            keep(Path(base) / outcomes[-1].name, archive)
            document = [vars(outcome) for outcome in outcomes]
            text = json.dumps(document, indent=1)
            (args.out / "outcomes.json").write_text(text + "\n")
    outcomes.sort(key=lambda outcome: outcome.name)
    print_table("The parity test with vLLM", COLUMNS, [x.row() for x in outcomes])
    return 0 if all(outcome.good for outcome in outcomes) else 1
