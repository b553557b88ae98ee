# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Kill runs at random moments, restore each from what it left, and judge every one.

    python -m tools.prove soak [--kills N] [--seed S] [--only N ...] [--jobs N]

A kill's moment follows from the seed and its number alone, so that `--only` repeats it.
Exits 0 if every restored run trained what the uninterrupted one did, else 1.
"""

import argparse
import json
import os
import random
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _gym_prefix_recovery_snapshot import NotUsable, find_cuts

from minirl.checkpoint import latest_checkpoint
from minirl.snapshot import read_records
from minirl.snapshot_folder import published
from tools.prove.faults import RUN_S, rows_of
from tools.prove.processes import RunError, job_pids
from tools.prove.runs import Job, Workspace, print_table
from tools.prove.workload import Evidence, Workload, judge

PREFIXES = "prefixes trained once"
PREFIX = "generation prefix "  # in a line of the log for each that is continued
SELECTED = re.compile(r"Selected rollout recovery snapshot: (\S+)")


@dataclass(frozen=True)
class Moment:
    """When to kill: once the kind's condition holds in a train step, and then a delay.

    `count` is how many tokens a cut, or how many snapshots a step must have by then.
    """

    kind: str
    step: int  # from 1
    count: int
    delay_s: float

    def __str__(self) -> str:
        return f"{self.kind}, step {self.step}, {self.count}, +{self.delay_s:.2f} s"


class Killed:
    """What can be seen, from its files alone, of a run that is to be killed."""

    def __init__(self, job: Job, checkpoint_dir: Path):
        self.job = job
        self.checkpoint_dir = checkpoint_dir

    def snapshots(self, step: int) -> Path:
        base = f"step_{step - 1}" if step > 1 else "bootstrap"
        return self.checkpoint_dir / base / "rollout_snapshots"

    def newest(self, step: int, kind: str) -> list[dict[str, Any]]:
        """The records of a kind of server in the step's newest snapshot."""
        snapshots = published(self.snapshots(step))
        try:
            return list(read_records(snapshots[-1], kind).values()) if snapshots else []
        except FileNotFoundError:  # pruned while it was read
            return []

    def rolling_out(self, moment: Moment) -> bool:
        return self.snapshots(moment.step).exists()

    def starting(self, moment: Moment) -> bool:
        """The run has its folder: there is no snapshot yet, whatever the step."""
        return self.job.dump.exists()

    def between_turns(self, moment: Moment) -> bool:
        episodes = self.newest(moment.step, "agent")
        return any(len(episode["segments"]) > 2 for episode in episodes)

    def in_list(self, moment: Moment) -> bool:
        return any(
            cut["continuation"]["prefix_token_count"] >= moment.count
            for record in self.newest(moment.step, "model")
            for cut in record["generation_cuts"]
            if cut["continuation"]
        )

    def publishing(self, moment: Moment) -> bool:
        folder = self.snapshots(moment.step)
        there = int(names[-1].name[-6:]) if (names := published(folder)) else 0
        return there >= moment.count and any(folder.glob("tmp_snapshot_*"))

    def training(self, moment: Moment) -> bool:
        parts = f"train_data_step{moment.step}.jsonl.part-*"
        return any(self.job.dump.glob(parts))

    def saving(self, moment: Moment) -> bool:
        return (self.checkpoint_dir / f".step_{moment.step}.partial").exists()

    def trained(self, moment: Moment) -> bool:
        return self.job.logged(f"train step {moment.step}/")


# what the condition is, and the range of the delay after it
KINDS: dict[str, tuple[Callable[[Killed, Moment], bool], float, float]] = {
    "starting": (Killed.starting, 0.0, 1.0),
    "in prefill": (Killed.rolling_out, 0.0, 0.6),
    "in the first turn": (Killed.rolling_out, 0.6, 1.8),
    "between turns": (Killed.between_turns, 0.0, 0.1),
    "in the list": (Killed.in_list, 0.0, 0.3),
    "publishing a snapshot": (Killed.publishing, 0.0, 0.0),
    "in a train step": (Killed.training, 0.0, 0.3),
    "in a checkpoint": (Killed.saving, 0.0, 0.0),
    "after a step": (Killed.trained, 0.0, 2.5),
}


def moment(seed: int, number: int, steps: int) -> Moment:
    """The moment of a kill; the kinds take turns, all else is drawn."""
    draw = random.Random(f"{seed}/{number}")
    kind = list(KINDS)[number % len(KINDS)]
    last = steps - 1 if kind == "after a step" else steps
    _, least, most = KINDS[kind]
    step, count = draw.randint(1, last), draw.randint(0, 30)
    return Moment(kind, step, count, draw.uniform(least, most))


def cuts_of(snapshot: Path) -> list[dict[str, Any]]:
    """Every call of a snapshot that is to be continued, as the judge needs it."""
    cuts = []
    for rollout_id, record in read_records(snapshot, "model").items():
        sample_id = rollout_id.rpartition("_a")[0]
        group_id, _, generation = sample_id.rpartition("_g")
        for cut in record["generation_cuts"]:
            if continuation := cut["continuation"]:
                owner = {"group_id": group_id, "generation_index": int(generation)}
                call = {"model_call_id": cut["model_call_id"]}
                call["gym_rollout_id"] = rollout_id
                call["gym_attempt"] = record["episode_id"]["attempt"]
                cuts.append(owner | call | continuation)
    try:
        found = {x["model_call_id"] for x in find_cuts(snapshot, 1, min_groups=1)}
    except NotUsable:
        return cuts
    if found != {cut["model_call_id"] for cut in cuts}:
        raise RunError(f"{snapshot}: the harness finds other cuts than there are")
    return cuts


def join_dumps(killed: Path, restored: Path, joined: Path, steps: int) -> list[str]:
    """Put the steps of both runs into one folder; what a step trained again changed."""
    joined.mkdir(parents=True)
    problems, rows = [], (rows_of(killed), rows_of(restored))
    for step in range(1, steps + 1):
        name = f"train_data_step{step}.jsonl"
        if name in rows[0] and name in rows[1] and rows[0][name] != rows[1][name]:
            problems.append(f"step {step} was trained again, with other rows")
        for dump in (restored, killed):
            if (dump / name).exists():
                os.link(dump / name, joined / name)
                break
    return problems


def join_probes(killed: Path, restored: Path, base: int, joined: Path) -> None:
    """The staging keys at each step: of the killed run up to the step restored from."""
    lines = killed.read_text().splitlines() if killed.exists() else []
    lines = [line for line in lines if json.loads(line)["train_step"] <= base]
    lines += restored.read_text().splitlines() if restored.exists() else []
    joined.write_text("".join(line + "\n" for line in lines))


def hit_by_kill(
    dump: Path, checkpoint_dir: Path, origin: Path, newest: Path | None
) -> str:
    """What the run was doing when it died, as far as its files tell.

    `origin` is the folder of the trainer checkpoint that it will be restored from,
    `newest` the snapshot, if there is one.
    """
    if [*checkpoint_dir.glob(".step_*.partial")]:
        return "checkpoint"
    if [*dump.glob("train_data_step*.jsonl.part-*")]:
        return "train step"
    if any((origin / "rollout_snapshots").glob("tmp_snapshot_*")):
        return "publication"
    if not newest:
        return "no snapshot yet"
    if cuts_of(newest):
        return "list"
    episodes = read_records(newest, "agent").values()
    between = any(len(episode["segments"]) > 2 for episode in episodes)
    return "between turns" if between else "first turn" if episodes else "rollouts done"


@dataclass(frozen=True)
class Outcome:
    """What became of one kill."""

    number: int
    moment: Moment
    hit: str
    restored_from: str
    cuts: int
    problems: list[str]
    seconds: float


class Soak:
    """The reference, and the kills that are compared with it."""

    def __init__(self, workspace: Workspace, seed: int):
        self.workspace = workspace
        self.seed = seed
        self.steps = workspace.workload.steps

    def prepare(self) -> None:
        folder = self.workspace.folder
        name = "reference"
        self.reference = self.workspace.start(folder, name, folder / f"{name}-ckpts")
        self.reference.finish(RUN_S)

    def kill(self, number: int) -> Outcome:
        """Kill a run at the number's moment, restore it, and judge what was trained."""
        when, started = moment(self.seed, number, self.steps), time.monotonic()
        folder = self.workspace.folder / str(number)
        checkpoints = folder / "checkpoints"
        hit, restored_from, cuts = "?", "?", list[dict[str, Any]]()
        try:
            job = self.workspace.start(folder, "killed", checkpoints, 0.05)
            seen, condition = Killed(job, checkpoints), KINDS[when.kind][0]
            job.wait_until("the run begins", job.dump.exists, RUN_S)
            pids = job_pids(job.ray_dir)  # so that the kill is quick
            job.wait_until(
                str(when), lambda: condition(seen, when) or seen.trained(when), RUN_S
            )
            time.sleep(when.delay_s)
            job.kill(pids)
            problems = self._left(job)
            checkpoint = latest_checkpoint(checkpoints)
            base = int(checkpoint.name[5:]) if checkpoint else 0
            origin = checkpoint or checkpoints / "bootstrap"
            snapshots = published(origin / "rollout_snapshots")
            snapshot = snapshots[-1] if snapshots else None
            cuts = cuts_of(snapshot) if snapshot else []
            hit = hit_by_kill(job.dump, checkpoints, origin, snapshot)
            restored_from = self._name(base, snapshot)
            restored = self.workspace.start(folder, "restored", checkpoints)
            restored.finish(RUN_S)
            problems += self._left(restored)
            found = SELECTED.search(restored.log.read_text())
            if (Path(found[1]) if found else None) != snapshot:
                restored_snapshot = found[1] if found else "nothing"
                problems.append(f"restored {restored_snapshot}, expected {snapshot}")
            problems += self._judge(folder, job, restored, base, cuts)
        except RunError as error:
            problems = [str(error)]
        if not problems:
            shutil.rmtree(folder)
        seconds = time.monotonic() - started
        return Outcome(number, when, hit, restored_from, len(cuts), problems, seconds)

    def _name(self, base: int, snapshot: Path | None) -> str:
        if base == self.steps:
            return f"checkpoint {base}, the last"
        parts = [f"checkpoint {base}"] if base else []
        return " + ".join(parts + ["a snapshot"] * bool(snapshot)) or "nothing"

    def _left(self, job: Job) -> list[str]:
        pids = job_pids(job.ray_dir)
        return [f"{job.name} left process {pid}" for pid in pids]

    def _judge(
        self,
        folder: Path,
        killed: Job,
        restored: Job,
        base: int,
        cuts: list[dict[str, Any]],
    ) -> list[str]:
        """What the judge says of both runs' steps together, against the reference."""
        joined = folder / "joined-logs" / "exp_001"
        problems = join_dumps(killed.dump, restored.dump, joined, self.steps)
        probe, selection = folder / "joined-keys.jsonl", folder / "selection.json"
        join_probes(killed.staging_keys, restored.staging_keys, base, probe)
        selection.write_text(json.dumps({"cuts": cuts}))
        successor = folder / "checkpoints" / f"step_{min(base + 1, self.steps)}"
        evidence = Evidence(
            self.reference.log_dir,
            joined.parent,
            selection,
            restored.log,
            probe,
            successor,
        )
        for check, found in judge(evidence, self.workspace.workload).items():
            if check == PREFIXES and not cuts and not restored.logged(PREFIX):
                found = found[1:]  # the one problem is then that nothing was cut
            problems += [f"{check}: {message}" for message in found[:3]]
        return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", help="these numbers, no others")
    parser.add_argument("--jobs", type=int, default=3, help="kills side by side")
    parser.add_argument(
        "--keep", type=Path, help="copy the failed kills' evidence here"
    )
    parser.add_argument("--override", nargs="+", default=[], help="of every job")
    args = parser.parse_args()
    started, outcomes = time.monotonic(), list[Outcome]()
    try:
        with Workspace(Workload(), args.jobs, args.keep, args.override) as workspace:
            soak = Soak(workspace, args.seed)
            soak.prepare()
            for x in workspace.side_by_side(soak.kill, args.only or range(args.kills)):
                outcomes.append(x)
                what = f"hit {x.hit}, restored {x.restored_from}, {x.cuts} cuts"
                result = "; ".join(x.problems) or "passed"
                print(f"kill {x.number} ({x.moment}): {what}: {result}", flush=True)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    hits = sorted({x.hit for x in outcomes})
    counts = Counter((x.moment.kind, x.hit) for x in outcomes)
    rows = [[kind, *(str(counts[kind, hit] or "") for hit in hits)] for kind in KINDS]
    print_table("What was to be hit, and what was", ["", *hits], rows)
    print("restored from", dict(Counter(x.restored_from for x in outcomes)))
    failed = [str(x.number) for x in outcomes if x.problems]
    continued = [x.cuts for x in outcomes if x.cuts]
    print(f"{len(outcomes)} kills with seed {args.seed}", end=", ")
    print(f"{len(continued)} of them continued {sum(continued)} calls", end=", ")
    print(f"{len(failed)} failed", *failed, end=", ")
    print(f"in {time.monotonic() - started:.0f} s")
    return 1 if failed else 0
