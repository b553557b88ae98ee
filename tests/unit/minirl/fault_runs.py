# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The fault catalogue without Ray: a run is a forked child, its data plane in memory.

What a child plants, patches and logs ends with it.
"""

import asyncio
import functools
import json
import os
import shutil
import signal
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _gym_prefix_recovery_parity as parity
import _gym_prefix_recovery_workload as workload_rows
import _single_controller_turn_recovery_hook as hook
from memory_data_plane import MemoryDataPlane

from minirl import setup
from minirl.config import load_config
from minirl.controller import SingleController
from minirl.faults import Fault
from minirl.log import set_up_logging
from minirl.snapshot import SnapshotWriter
from minirl.tokenizer import Tokenizer
from tools.prove.faults import CONTROL, fits, result_of, rows_of
from tools.prove.runs import CONFIG, ROOT
from tools.prove.workload import Evidence, Workload

CUT_EVERY = 40  # decoded tokens


def _shorten(counter_row: dict[str, Any]) -> None:
    """Let the counter's call end early: its length is not what is tested."""
    (tool,) = counter_row["responses_create_params"]["tools"]
    proof = tool["parameters"]["properties"]["checkpoint_proof"]
    proof["minItems"] = proof["maxItems"] = 3


def fork(log: Path, work: Callable[[], Any]) -> int:
    """Begin the work in a child, whose output goes to the log; its process id."""
    log.parent.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        # pytest has put files of its own in place of these
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        work()
        status = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def join(child: int, log: Path) -> None:
    """Wait for the end of a child, which must not have failed."""
    _, status = os.waitpid(child, 0)
    assert status == 0, log.read_text(errors="replace")[-3000:]


class FaultRuns:
    """A reference, a snapshot, and a restored run per fault, judged in its child."""

    def __init__(self, folder: Path, workload: Workload, faults: list[Fault | None]):
        self.folder = folder
        self.workload = workload
        self.faults = faults  # in the order in which their results are wanted
        self.children: dict[str, int] = {}  # the restored runs, by their names
        self.data = folder / "rows.jsonl"
        rows = workload_rows.build_rows(
            Namespace(list_items=list(workload.lists), gym_root=Path("no-gym"))
        )
        _shorten(rows[-1])
        lines = [json.dumps(row) + "\n" for row in rows]
        self.data.write_text("".join(lines * workload.steps))
        self.reference, phase1 = folder / "reference", folder / "phase1"
        logs = [self.reference / "log", phase1 / "log"]
        works = [
            lambda: self._train(self.reference),
            lambda: self._stop_at_a_snapshot(phase1),
        ]
        children = [fork(*pair) for pair in zip(logs, works, strict=True)]
        for child, log in zip(children, logs, strict=True):
            join(child, log)
        self.selection = json.loads((phase1 / "selection.json").read_text())
        self.rows = rows_of(self.reference / "logs" / "exp_001")

    # -- in a child ----------------------------------------------------------------

    def _controller(self, folder: Path, planted: str | None = None) -> SingleController:
        """A job's controller, with the probe of the harness."""
        set_up_logging()
        setup.DataPlaneClient = MemoryDataPlane
        os.environ["SC_STAGING_KEYS_FILE"] = str(folder / "staging-keys.jsonl")
        policy = ROOT / "minirl" / "workplace-policy"
        overrides = [
            f"policy.model_name={policy}",
            "policy.device=cpu",
            f"checkpointing.checkpoint_dir={folder / 'checkpoints'}",
            f"logger.log_dir={folder / 'logs'}",
            f"faults.plant={planted or 'null'}",
        ]
        config = load_config(CONFIG, [*self.workload.overrides(self.data), *overrides])
        tokenizer = Tokenizer.load(policy)
        actor_args, _ = setup.setup_single_controller(config, tokenizer)
        partition = config.token_capture.staging_partition
        probe = hook._StagingKeyProbe(actor_args, partition)
        actor_args.trainer_handle.begin_train_step = probe
        return SingleController(actor_args)

    def _train(self, folder: Path, planted: str | None = None) -> None:
        asyncio.run(self._controller(folder, planted).run())

    def _stop_at_a_snapshot(self, folder: Path) -> None:
        """Run until a snapshot fits the catalogue; leaves it, and the selection."""
        controller = self._controller(folder)

        async def decode() -> None:
            job = asyncio.create_task(controller.run())
            await asyncio.sleep(0)  # it has started
            writer = SnapshotWriter(
                controller._snapshot_dir, controller.rollouts, keep_latest_k=2
            )
            due = CUT_EVERY
            while not job.done():
                await asyncio.sleep(0)
                if controller.rollouts.engine.decoded_tokens < due:
                    continue
                due += CUT_EVERY
                snapshot = writer.publish(writer.cut(0, 0))
                if cuts := fits(snapshot):
                    selection = {"snapshot": str(snapshot), "cuts": cuts}
                    (folder / "selection.json").write_text(json.dumps(selection))
                    os._exit(0)  # as dead as a killed run
            raise AssertionError(f"no snapshot fits the catalogue: {job}")

        asyncio.run(decode())

    def _restore(self, folder: Path, fault: Fault | None) -> None:
        """Restore the snapshot with the fault, judge the run, leave what it was."""
        name, reference = fault.name if fault else None, self.reference
        snapshot = Path(self.selection["snapshot"])
        bootstrap = folder / "checkpoints" / "bootstrap"
        shutil.copytree(snapshot, bootstrap / "rollout_snapshots" / snapshot.name)
        shutil.copy(snapshot.parents[1] / "manifest.json", bootstrap)
        (folder / "selection.json").write_text(json.dumps(self.selection))
        if fault and fault.in_reference:
            reference = folder / "reference"
            log = reference / "log"
            join(fork(log, lambda: self._train(reference, name)), log)
        self._train(folder, name)
        assert not name or f"Planted fault: {name}" in (folder / "log").read_text()
        evidence = Evidence(
            reference / "logs",
            folder / "logs",
            folder / "selection.json",
            folder / "log",
            folder / "staging-keys.jsonl",
            folder / "checkpoints" / "step_1",
        )
        arguments = evidence.judge_arguments() + self.workload.judge_arguments()
        sys.argv = ["the judge", *arguments]
        assert parity.main() in (0, 1)
        same_rows = rows_of(folder / "logs" / "exp_001") == self.rows
        failed = list(evidence.problems())
        expected = self.workload.check_of(fault) if fault else ""
        word = result_of(expected, failed, same_rows)
        (folder / "result").write_text(word)

    # -- in the test ---------------------------------------------------------------

    def result(self, fault: Fault | None) -> str:
        """What became of a restored run: see `tools.prove.faults.result_of`.

        The next one runs beside it.
        """
        at = self.faults.index(fault)
        for begun in self.faults[at : at + 2]:
            self._start(begun)
        folder = self.folder / (fault.name if fault else CONTROL)
        join(self.children.pop(folder.name), folder / "log")
        result = (folder / "result").read_text()
        shutil.rmtree(folder)
        return result

    def _start(self, fault: Fault | None) -> None:
        name = fault.name if fault else CONTROL
        if name not in self.children:
            folder = self.folder / name
            work = functools.partial(self._restore, folder, fault)
            self.children[name] = fork(folder / "log", work)

    def close(self) -> None:
        """End the runs whose results nobody wanted."""
        for child in self.children.values():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
