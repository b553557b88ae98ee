# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Wait for the snapshot to crash at, and copy it whole before it can be pruned."""

import argparse
import json
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

SENTINEL = "checkpoint recovery sentinel"
OWNER = ["group_id", "generation_index", "gym_rollout_id", "gym_attempt"]
OWNER += ["gym_instance_id", "target_step", "model_call_id"]


def _records(snapshot: Path, servers: str) -> dict[tuple[str, int], Any]:
    """The records of all servers that match the pattern, by rollout_id and attempt."""
    records = {}
    for path in snapshot.glob(f"gym-instances/*/replica-*/gym/{servers}/manifest.json"):
        manifest = json.loads(path.read_text())
        lines = (path.parent / manifest["records_file"]).read_text().splitlines()
        for record in map(json.loads, lines):
            episode = record["episode_id"]
            records[episode["rollout_id"], episode["attempt"]] = record
    return records


def _can_continue(cut: Any, retained: set[str], min_tokens: int) -> bool:
    found = cut.get("continuation") or {"effective_output_limit": 0}
    count = found.get("generation_token_count") or found.get("prefix_token_count") or 0
    return (
        min_tokens <= count < found["effective_output_limit"]
        and retained >= {*found["staging_keys"]} > set()
        and found["terminal_finish_reason"] is found["terminal_stop_reason"] is None
    )


def find_cuts(snapshot: Path, min_tokens: int = 1) -> list[dict[str, Any]]:
    """The cut of each Workplace rollout in flight; [] unless all have a usable one: its
    decode can be continued, and the sentinel event is in its calendar, once.

    Raises OSError, LookupError, TypeError or ValueError if it is not whole."""
    checkpoint = json.loads((snapshot / "gym_checkpoint.json").read_text())
    ledger = torch.load(snapshot / "rollout_recovery.pt", weights_only=True)
    agents = _records(snapshot, "agent/workplace_assistant*")
    models, resources = _records(snapshot, "model/*"), _records(snapshot, "resources/*")
    cuts = []
    for group, sibling in ((x, y) for x in ledger["groups"] for y in x["siblings"]):
        owner = {**group, **sibling, **sibling["attempts"][-1]}
        sample_id = f"{owner['group_id']}_g{owner['generation_index']}"
        rollout_id = f"{sample_id}_a{owner['attempt_uuid'].hex()}"
        episode, instance = (rollout_id, owner["gym_attempt"]), owner["gym_instance_id"]
        state = owner["restore_level"], owner["status"]
        if episode not in agents or state != ("prefix", "dispatched"):
            continue
        retained = {*checkpoint["staging_keys"].get(instance, [])}
        calls = models.get(episode, {"generation_cuts": []})["generation_cuts"]
        usable = [call for call in calls if _can_continue(call, retained, min_tokens)]
        tables = resources.get(episode, {"state": {"calendar": None}})["state"]
        sentinels = json.dumps(tables["calendar"]).count(f'"{SENTINEL}"')
        entry = {"rollout_id": rollout_id, "attempt": owner["gym_attempt"]}
        listed = entry in checkpoint["instances"][instance]
        if len(usable) != 1 or sentinels != 1 or not listed:
            return []
        owner |= {"gym_rollout_id": rollout_id} | usable[0]
        cuts.append(usable[0]["continuation"] | {x: owner[x] for x in OWNER})
    return cuts


def select(snapshots: Path, copy_to: Path, timeout_s: float, min_tokens: int) -> Any:
    """Copy the first snapshot published from now on whose cuts are all usable."""
    seen, partial = {*snapshots.glob("snapshot_*")}, copy_to / ".partial"
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        published = {*snapshots.glob("snapshot_*")}
        for newest in sorted(published - seen)[-1:]:
            seen |= published
            with suppress(FileNotFoundError, shutil.Error):  # pruned meanwhile
                shutil.copytree(newest, partial)
                if cuts := find_cuts(partial, min_tokens):
                    (newest / "manifest.json").stat()
                    partial.rename(copy_to / newest.name)
                    return {"snapshot": str(newest), "cuts": cuts}
            shutil.rmtree(partial, ignore_errors=True)
        time.sleep(0.02)
    raise TimeoutError(f"{snapshots}: none of {len(seen)} snapshots is usable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["select"])
    kinds = dict.fromkeys(["snapshots", "copy-to", "output"], Path)
    for name, kind in {**kinds, "timeout-s": float, "min-tokens": int}.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    args = parser.parse_args()
    try:
        found = select(args.snapshots, args.copy_to, args.timeout_s, args.min_tokens)
        partial = args.output.with_suffix(".partial")
        partial.write_text(json.dumps(found, indent=1))
        partial.replace(args.output)
    except (OSError, LookupError, TypeError, ValueError) as error:
        parser.exit(2, f"error: no snapshot selected: {error!r}\n")


if __name__ == "__main__":
    main()
