# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Wait for the snapshot to crash at, and copy it whole before it can be pruned.

Every Workplace rollout that is in flight in the selected snapshot carries a usable cut:
one whose decode can be continued, and whose tool call is already in the calendar.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

SENTINEL = "checkpoint recovery sentinel"
WORKPLACE_AGENT = "workplace_assistant"
POLL_INTERVAL_S = 0.02


def _records(snapshot: Path, instance: str, kind: str) -> Iterator[dict[str, Any]]:
    """Every record of one kind of server of an instance, with its server's name."""
    pattern = f"gym-instances/{instance}/replica-*/gym/{kind}/*/manifest.json"
    for path in snapshot.glob(pattern):
        manifest = json.loads(path.read_text())
        lines = (path.parent / manifest["records_file"]).read_text().splitlines()
        if len(lines) != manifest["record_count"]:
            raise ValueError(f"{path}: expected {manifest['record_count']} records")
        for line in lines:
            yield json.loads(line) | {"server": path.parent.name}


def _episode(record: dict[str, Any]) -> tuple[str, int]:
    return record["episode_id"]["rollout_id"], record["episode_id"]["attempt"]


def _sentinels(state: dict[str, Any]) -> int:
    """How often the sentinel event stands in a Workplace session's calendar."""
    columns = state.get("calendar", {}).get("_calendar_events", {}).get("columns", [])
    names = [column["values"] for column in columns if column["name"] == "event_name"]
    return sum(values.count(SENTINEL) for values in names)


def _usable(cut: dict[str, Any], retained: set[str]) -> dict[str, Any] | None:
    """The continuation of a cut, with its token count, if it can be continued."""
    if not (going_on := cut.get("continuation")):
        return None
    count = going_on.get("generation_token_count", going_on.get("prefix_token_count"))
    usable = (
        0 < count < going_on["effective_output_limit"]
        and going_on["staging_keys"]
        and retained.issuperset(going_on["staging_keys"])
        and going_on["terminal_finish_reason"] is None
        and going_on["terminal_stop_reason"] is None
    )
    return going_on | {"generation_token_count": count} if usable else None


def find_cuts(snapshot: Path) -> list[dict[str, Any]]:
    """The usable cut of each Workplace rollout in flight; [] unless all have one.

    Raises OSError when the snapshot is pruned meanwhile, ValueError, KeyError or
    TypeError when it does not have the documented form.
    """
    checkpoint = json.loads((snapshot / "gym_checkpoint.json").read_text())
    ledger = torch.load(snapshot / "rollout_recovery.pt", weights_only=True)
    dispatched: dict[tuple[str, int, str], dict[str, Any]] = {}
    for group in ledger["groups"]:
        for sibling in group["siblings"]:
            current = sibling["attempts"][-1]
            if current["status"] != "dispatched" or group["restore_level"] != "prefix":
                continue
            owner = {
                "group_id": group["group_id"],
                "generation_index": sibling["generation_index"],
                "gym_instance_id": current["gym_instance_id"],
                "target_step": group["target_step"],
            }
            name = f"{group['group_id']}_g{sibling['generation_index']}"
            rollout_id = f"{name}_a{current['attempt_uuid'].hex()}"
            instance = current["gym_instance_id"]
            dispatched[rollout_id, current["gym_attempt"], instance] = owner
    cuts = []
    for instance, episodes in checkpoint["instances"].items():
        listed = {(entry["rollout_id"], entry["attempt"]) for entry in episodes}
        retained = set(checkpoint["staging_keys"].get(instance, []))
        models = {_episode(x): x for x in _records(snapshot, instance, "model")}
        states = {_episode(x): x for x in _records(snapshot, instance, "resources")}
        for agent in _records(snapshot, instance, "agent"):
            episode = _episode(agent)
            owner = dispatched.get((*episode, instance))
            if not agent["server"].startswith(WORKPLACE_AGENT) or owner is None:
                continue
            usable = [
                (cut["model_call_id"], going_on)
                for cut in models.get(episode, {}).get("generation_cuts", [])
                if (going_on := _usable(cut, retained))
            ]
            once = _sentinels(states.get(episode, {}).get("state", {})) == 1
            if len(usable) != 1 or episode not in listed or not once:
                return []
            ((model_call_id, going_on),) = usable
            kept = ("generation_token_count", "digest", "staging_keys")
            cuts.append(
                {"gym_rollout_id": episode[0], "gym_attempt": episode[1]}
                | {"model_call_id": model_call_id, **owner}
                | {name: going_on[name] for name in kept}
            )
    return cuts


def _copy(snapshot: Path, copy: Path) -> bool:
    """Copy the snapshot; False if it was pruned before the copy was whole."""
    partial = copy.with_name(f"{copy.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(snapshot, partial)
        if find_cuts(partial) and (snapshot / "manifest.json").exists():
            partial.rename(copy)
            return True
    except (OSError, shutil.Error):
        return False
    return False


def select(snapshots: Path, copy: Path, timeout_s: float) -> dict[str, Any]:
    """Wait for a snapshot whose Workplace rollouts all carry a cut, and copy it."""
    deadline = time.monotonic() + timeout_s
    seen = {path.name for path in snapshots.glob("snapshot_*")}  # not of this run
    while time.monotonic() < deadline:
        published = sorted(snapshots.glob("snapshot_*"), key=os.path.getmtime)
        for snapshot in published[-1:]:
            try:
                cuts = find_cuts(snapshot) if snapshot.name not in seen else []
            except FileNotFoundError:  # pruned while it was read
                continue
            seen.add(snapshot.name)
            if cuts and _copy(snapshot, copy):
                return {"snapshot": str(snapshot), "cuts": cuts}
        time.sleep(POLL_INTERVAL_S)
    raise TimeoutError(
        f"{snapshots}: none of {len(seen)} snapshots seen within {timeout_s:g} s has a"
        " usable cut for every Workplace rollout in flight"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["select"])
    parser.add_argument("--snapshots", type=Path, required=True)
    parser.add_argument("--copy-to", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--timeout-s", type=float, required=True)
    args = parser.parse_args()
    try:
        selection = select(args.snapshots, args.copy_to, args.timeout_s)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: no snapshot selected: {error}", file=sys.stderr)
        return 2
    partial = args.output.with_suffix(".partial")
    partial.write_text(json.dumps(selection, indent=1))
    os.replace(partial, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
