# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Wait for the snapshot to crash at, and copy it whole before it can be pruned.

Every Workplace rollout that is in flight in it carries a usable cut: one whose decode
can be continued, with the sentinel event already in its calendar.
"""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch

SENTINEL = "checkpoint recovery sentinel"
Episode = tuple[str, int]  # rollout_id, attempt


def _records(snapshot: Path, servers: str) -> dict[Episode, Any]:
    """The records of all servers that match the pattern."""
    records = {}
    for path in snapshot.glob(f"gym-instances/*/replica-*/gym/{servers}/manifest.json"):
        manifest = json.loads(path.read_text())
        lines = (path.parent / manifest["records_file"]).read_text().splitlines()
        if len(lines) != manifest["record_count"]:
            raise ValueError(
                f"{path}: {len(lines)} of {manifest['record_count']} records"
            )
        for record in map(json.loads, lines):
            name = record["episode_id"]
            records[name["rollout_id"], name["attempt"]] = record
    return records


def _in_flight(snapshot: Path) -> dict[Episode, Any]:
    """Group, sibling and attempt of each rollout that can be restored mid-call."""
    ledger = torch.load(snapshot / "rollout_recovery.pt", weights_only=True)
    owners = {}
    for group in ledger["groups"]:
        for sibling in group["siblings"]:
            owner = {**group, **sibling, **sibling["attempts"][-1]}
            if (owner["restore_level"], owner["status"]) == ("prefix", "dispatched"):
                name = f"{owner['group_id']}_g{owner['generation_index']}"
                rollout_id = f"{name}_a{owner['attempt_uuid'].hex()}"
                owners[rollout_id, owner["gym_attempt"]] = owner
    return owners


def _continuation(cut: Any, retained: set[str], min_tokens: int) -> Any:
    """Token count, digest and staging keys of a cut that can be continued."""
    found = cut.get("continuation") or {"staging_keys": []}
    count = found.get("generation_token_count") or found.get("prefix_token_count") or 0
    usable = (
        found["staging_keys"]
        and retained.issuperset(found["staging_keys"])
        and min_tokens <= count < found["effective_output_limit"]
        and found["terminal_finish_reason"] is found["terminal_stop_reason"] is None
    )
    kept = {name: found.get(name) for name in ("digest", "staging_keys")}
    return kept | {"generation_token_count": count} if usable else None


def find_cuts(snapshot: Path, min_tokens: int = 1) -> list[dict[str, Any]]:
    """The cut of each Workplace rollout in flight; [] unless all have a usable one.

    Raises OSError if the snapshot is pruned meanwhile, or LookupError, TypeError or
    ValueError if it does not have the documented form.
    """
    checkpoint = json.loads((snapshot / "gym_checkpoint.json").read_text())
    owners, cuts = _in_flight(snapshot), []
    models, resources = _records(snapshot, "model/*"), _records(snapshot, "resources/*")
    for episode in _records(snapshot, "agent/workplace_assistant*"):
        if not (owner := owners.get(episode)):
            continue
        rollout_id, attempt = episode
        instance = owner["gym_instance_id"]
        entry = {"rollout_id": rollout_id, "attempt": attempt}
        retained = set(checkpoint["staging_keys"].get(instance, []))
        ids = ("group_id", "generation_index", "target_step", "gym_instance_id")
        ids = {name: owner[name] for name in ids} | {"gym_rollout_id": rollout_id}
        usable = [
            ids | found | {"gym_attempt": attempt, "model_call_id": x["model_call_id"]}
            for x in models.get(episode, {"generation_cuts": []})["generation_cuts"]
            if (found := _continuation(x, retained, min_tokens))
        ]
        tables = resources[episode]["state"]["calendar"] if episode in resources else {}
        columns = tables.get("_calendar_events", {"columns": []})["columns"]
        once = [
            x["values"].count(SENTINEL) for x in columns if x["name"] == "event_name"
        ]
        if (
            len(usable) != 1
            or once != [1]
            or entry not in checkpoint["instances"][instance]
        ):
            return []
        cuts += usable
    return cuts


def _copy(snapshot: Path, copy: Path) -> bool:
    """Copy a snapshot; False, leaving nothing, if it is pruned meanwhile."""
    partial = copy.with_name(".partial")
    try:
        shutil.copytree(snapshot, partial)
        (snapshot / "manifest.json").stat()
        partial.rename(copy)
    except (FileNotFoundError, shutil.Error):
        shutil.rmtree(partial, ignore_errors=True)
    return copy.exists()


def select(snapshots: Path, copy_to: Path, timeout_s: float, min_tokens: int) -> Any:
    """Copy the first snapshot published from now on whose cuts are all usable."""
    seen = {path.name for path in snapshots.glob("snapshot_*")}
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        published = {path.name: path for path in snapshots.glob("snapshot_*")}
        for name in sorted(published.keys() - seen)[-1:]:
            seen |= published.keys()
            try:
                cuts = find_cuts(published[name], min_tokens)
            except FileNotFoundError:  # pruned while it was read
                continue
            if cuts and _copy(published[name], copy_to / name):
                return {"snapshot": str(published[name]), "cuts": cuts}
        time.sleep(0.02)
    raise TimeoutError(f"{snapshots}: none of {len(seen)} snapshots is usable")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["select"])
    for name in ("snapshots", "copy-to", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--timeout-s", type=float, required=True)
    parser.add_argument("--min-tokens", type=int, default=1)
    args = parser.parse_args()
    try:
        selection = select(
            args.snapshots, args.copy_to, args.timeout_s, args.min_tokens
        )
    except (OSError, LookupError, TypeError, ValueError) as error:
        print(f"error: no snapshot selected: {error!r}", file=sys.stderr)
        return 2
    partial = args.output.with_suffix(".partial")
    partial.write_text(json.dumps(selection, indent=1))
    os.replace(partial, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
