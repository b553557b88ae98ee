# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Plant each fault of the catalogue into a restored run: the judge must see it.

    python -m tools.prove faults [--mode MODE] [--quick] [--jobs N] [FAULT ...]

Once as minirl is run, and once near-greedy, as NeMo-RL is. One reference run and one
snapshot of a killed run are shared; first of all the snapshot is restored without a
fault, which must pass. Exits 0 if every fault fails the check that is named for it,
else 1, and 2 if there is nothing to judge.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _gym_prefix_recovery_snapshot import NotUsable, find_cuts

from minirl.faults import FAULTS, Fault, fault_named
from tools.prove.processes import RunError
from tools.prove.runs import Job, Workspace, print_table
from tools.prove.workload import MODES, Evidence, judge

QUICK = [
    "prefix_of_an_older_snapshot",
    "prefix_token_replaced",
    "prefix_logprobs_zeroed",
    "keys_retired_late",
    "keys_in_successor",
    "row_in_the_next_step",
    "optimizer_state_lost",
    "reward_constant",
]
CONTROL = "no fault"
RUN_S = 300  # the longest that a run may take
MIN_TOKENS = 24  # in the shortest cut


@dataclass(frozen=True)
class Outcome:
    """What became of one restored run."""

    name: str
    expected: str  # the check that must fail; none for the control
    failed: list[str]
    seconds: float
    result: str  # "caught" is the good one, for the control "passed"


def rows_of(dump: Path) -> dict[str, list[str]]:
    """The rows of every step, sorted, without what differs from run to run."""
    rows = {}
    for path in dump.glob("train_data_step*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            del record["idx"], record["metadata"][0]["group_id"]
            record["sample_id"] = record["sample_id"][0].rpartition("_")[2]
        rows[path.name] = sorted(map(json.dumps, records))
    return rows


def result_of(expected: str, failed: list[str], same_rows: bool) -> str:
    """The word for an outcome; `same_rows` as the uninterrupted run trained.

    Without a fault no check is expected to fail, and then none may.
    """
    if not expected:
        return "FALSE ALARM" if failed else "passed"
    if expected in failed:
        return "caught"
    if failed:
        return "caught by another check only"
    return "NO EFFECT on the rows" if same_rows else "MISSED"


def fits(snapshot: Path) -> list[dict[str, Any]]:
    """Its cuts, if every fault can do its harm there.

    Each has several staging keys, two are siblings, and some rollout has finished.
    """
    try:
        cuts = find_cuts(snapshot, MIN_TOKENS, min_groups=1)
    except NotUsable:
        return []
    groups = {cut["group_id"] for cut in cuts}
    if len(groups) == len(cuts) or min(len(cut["staging_keys"]) for cut in cuts) < 2:
        return []
    ledger = torch.load(snapshot / "rollout_recovery.pt", weights_only=True)
    siblings = [sibling for group in ledger["groups"] for sibling in group["siblings"]]
    finished = [x for x in siblings if x["attempts"][-1]["status"] == "completed"]
    return cuts if finished else []


class Catalogue:
    """The shared runs, and a restored run per fault."""

    def __init__(self, workspace: Workspace):
        self.workspace = workspace
        self.folder = workspace.folder

    def prepare(self) -> None:
        """Run the reference beside the run that is killed at a fitting snapshot."""
        start, folder = self.workspace.start, self.folder
        self.reference = start(folder, "reference", folder / "reference-checkpoints")
        checkpoints = folder / "phase1-checkpoints"
        keep_all = "rollout_checkpointing.keep_latest_k=100000"
        phase1 = start(folder, "phase1", checkpoints, 0.05, [keep_all])
        snapshots = checkpoints / "bootstrap" / "rollout_snapshots"
        seen = set[Path]()

        def selected() -> dict[str, Any] | None:
            for snapshot in sorted({*snapshots.glob("snapshot_*")} - seen):
                seen.add(snapshot)
                if cuts := fits(snapshot):
                    return {"snapshot": str(snapshot), "cuts": cuts}
            if phase1.logged("train step 1/"):
                raise phase1.error(f"none of {len(seen)} snapshots fits the catalogue")
            return None

        self.selection = phase1.wait_until("a fitting snapshot", selected, RUN_S)
        phase1.kill()
        self.reference.finish(RUN_S)
        self.reference_rows = rows_of(self.reference.dump)

    def restore(self, fault: Fault | None) -> tuple[Job, list[str]]:
        """Restore the snapshot with the fault planted; the job, and what failed."""
        folder = self.folder / (fault.name if fault else "control")
        snapshot = Path(self.selection["snapshot"])
        checkpoints = folder / "checkpoints"
        copy = checkpoints / "bootstrap" / "rollout_snapshots" / snapshot.name
        shutil.copytree(snapshot, copy)
        anchor = snapshot.parents[1] / "manifest.json"
        shutil.copy(anchor, checkpoints / "bootstrap")
        (folder / "selection.json").write_text(json.dumps(self.selection))
        planted = [f"++faults.plant={fault.name}"] if fault else []
        start, reference = self.workspace.start, self.reference
        if fault and fault.in_reference:
            into = folder / "reference-checkpoints"
            reference = start(folder, "reference", into, overrides=planted)
            reference.finish(RUN_S)
        job = start(folder, "restored", checkpoints, overrides=planted)
        job.finish(RUN_S)
        if fault and not job.logged(f"Planted fault: {fault.name}"):
            raise job.error("the fault was not planted")
        evidence = Evidence(
            reference.log_dir,
            job.log_dir,
            folder / "selection.json",
            job.log,
            job.staging_keys,
            checkpoints / "step_1",
        )
        return job, list(judge(evidence, self.workspace.workload))

    def outcome(self, fault: Fault | None) -> Outcome:
        """Restore and judge; a run that breaks down has not been judged."""
        name = fault.name if fault else CONTROL
        check = self.workspace.workload.check_of(fault) if fault else ""
        started = time.monotonic()
        try:
            job, failed = self.restore(fault)
            same_rows = rows_of(job.dump) == self.reference_rows
            result = result_of(check, failed, same_rows)
        except RunError as error:
            failed, result = [], f"NOT JUDGED: {error}"
        return Outcome(name, check, failed, time.monotonic() - started, result)


def run_catalogue(workspace: Workspace, faults: list[Fault]) -> Iterator[Outcome]:
    """The outcome without a fault and then each fault's, as they come."""
    catalogue = Catalogue(workspace)
    catalogue.prepare()
    yield from workspace.side_by_side(catalogue.outcome, [None, *faults])


def report(mode: str, faults: list[Fault], args: argparse.Namespace) -> bool:
    """Run the faults in a mode, and print a table; whether all were caught."""
    started, outcomes = time.monotonic(), []
    planted = [x for x in faults if MODES[mode].check_of(x)]
    harmless = [x for x in faults if x not in planted]
    keep = args.keep and args.keep / mode
    with Workspace(MODES[mode], args.jobs, keep, args.override) as workspace:
        for outcome in run_catalogue(workspace, planted):
            outcomes.append(outcome)
            print(f"{outcome.name}: {outcome.result}", flush=True)
    rows = [
        [x.name, x.expected, ", ".join(x.failed), f"{x.seconds:.0f}", x.result[:40]]
        for x in outcomes
    ]
    columns = ["fault", "check expected", "checks that failed", "s", "result"]
    print_table(f"The fault catalogue, {mode}", columns, rows)
    for fault in harmless:
        print(f"not planted, {fault.name}: {fault.harmless_near_greedy}")
    good = [outcome.result in ("caught", "passed") for outcome in outcomes]
    caught = f"{sum(good[1:])} of {len(planted)} faults caught"
    seconds = time.monotonic() - started
    print(f"{mode}: {caught} by the check named for them, in {seconds:.0f} s")
    return all(good)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT", default=[])
    parser.add_argument("--mode", choices=MODES, help="this one instead of each")
    parser.add_argument("--quick", action="store_true", help="the most telling ones")
    parser.add_argument("--jobs", type=int, default=3, help="runs side by side")
    parser.add_argument("--keep", type=Path, help="copy all evidence here")
    parser.add_argument("--override", nargs="+", default=[], help="of every job")
    args = parser.parse_args()
    names = args.faults or (QUICK if args.quick else list(FAULTS))
    modes = [args.mode] if args.mode else list(MODES)
    try:
        faults = [fault_named(name) for name in names]
        good = [report(mode, faults, args) for mode in modes]
    except (RunError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if all(good) else 1
