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
OWNED = ("group_id", "generation_index", "target_step", "gym_instance_id")
CONTINUED = ("digest", "staging_keys")


def _records(snapshot: Path, instance: str, pattern: str) -> dict[Any, Any]:
    """The records of some servers of an instance, by (rollout_id, attempt)."""
    records = {}
    for path in snapshot.glob(
        f"gym-instances/{instance}/*/gym/{pattern}/manifest.json"
    ):
        manifest = json.loads(path.read_text())
        lines = (path.parent / manifest["records_file"]).read_text().splitlines()
        if len(lines) != manifest["record_count"]:
            raise ValueError(
                f"{path}: {len(lines)} of {manifest['record_count']} records"
            )
        for record in map(json.loads, lines):
            episode = record["episode_id"]
            records[episode["rollout_id"], episode["attempt"]] = record
    return records


def _dispatched(snapshot: Path) -> dict[Any, dict[str, Any]]:
    """Whose rollouts are in flight at prefix level, by (rollout_id, gym attempt)."""
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


def _usable(model: Any, resources: Any, retained: set[str]) -> dict[str, Any] | None:
    """The one call of an episode that can be continued, if there is exactly one."""
    tables = resources["state"]["calendar"]["_calendar_events"]["columns"]
    names = [name for x in tables if x["name"] == "event_name" for name in x["values"]]
    usable = []
    for cut in model["generation_cuts"]:
        going_on = cut.get("continuation") or {"staging_keys": []}
        count = going_on.get(
            "generation_token_count", going_on.get("prefix_token_count")
        )
        if (
            going_on["staging_keys"]
            and 0 < count < going_on["effective_output_limit"]
            and retained.issuperset(going_on["staging_keys"])
            and going_on["terminal_finish_reason"] is None
            and going_on["terminal_stop_reason"] is None
        ):
            kept = {name: going_on[name] for name in CONTINUED}
            kept["generation_token_count"] = count
            usable.append({"model_call_id": cut["model_call_id"], **kept})
    return usable[0] if len(usable) == 1 and names.count(SENTINEL) == 1 else None


def find_cuts(snapshot: Path, min_tokens: int) -> list[dict[str, Any]]:
    """The cut of each Workplace rollout in flight; [] unless all have a usable one.

    Raises OSError if the snapshot is pruned meanwhile, or LookupError, TypeError or
    ValueError if it does not have the documented form.
    """
    checkpoint = json.loads((snapshot / "gym_checkpoint.json").read_text())
    owners, cuts = _dispatched(snapshot), []
    for instance, listed in checkpoint["instances"].items():
        episodes = {(entry["rollout_id"], entry["attempt"]) for entry in listed}
        retained = set(checkpoint["staging_keys"].get(instance, []))
        models = _records(snapshot, instance, "model/*")
        resources = _records(snapshot, instance, "resources/*")
        for episode in _records(snapshot, instance, "agent/workplace_assistant*"):
            if not (owner := owners.get(episode)):
                continue
            cut = episode in models and episode in resources and episode in episodes
            cut = cut and _usable(models[episode], resources[episode], retained)
            if not cut or cut["generation_token_count"] < min_tokens:
                return []
            ids = {"gym_rollout_id": episode[0], "gym_attempt": episode[1]}
            cuts.append({**ids, **{name: owner[name] for name in OWNED}, **cut})
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
    """Wait for the first snapshot from now on whose cuts are usable, and copy it.

    `copy_to` then holds it alone, in place of an earlier crash's, than whose every cut
    the new ones are longer.
    """
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
    parser.add_argument("--snapshots", type=Path, required=True)
    parser.add_argument("--copy-to", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
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
