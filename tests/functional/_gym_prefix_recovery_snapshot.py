# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Wait for the snapshot to crash at, and copy it whole before it can be pruned.

It is the first one in which every Workplace rollout in flight is cut in its list. All
cuts that can be continued are listed, with the newest heads' names of their fields.
"""

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

SENTINEL = "checkpoint recovery sentinel"
OWNER = [
    "group_id",
    "generation_index",
    "target_step",
    "gym_attempt",
    "gym_instance_id",
]
POLL_S = 0.02


class NotUsable(Exception):
    """The run can't be killed at this snapshot; the message says why."""


def _records(snapshot: Path, servers: str) -> dict[tuple[str, int], Any]:
    """The records of the servers that match the pattern, by rollout_id and attempt."""
    records = {}
    for path in snapshot.glob(f"gym-instances/*/replica-*/gym/{servers}/manifest.json"):
        records_file = path.parent / json.loads(path.read_bytes())["records_file"]
        # Not splitlines: NeMo-Gym leaves other line separators raw within its JSON.
        for line in records_file.read_text(encoding="utf-8").strip("\n").split("\n"):
            record = json.loads(line)
            episode = record["episode_id"]
            records[episode["rollout_id"], episode["attempt"]] = record
    return records


def _continuable(cuts: list[Any], retained_keys: list[str]) -> Iterator[dict[str, Any]]:
    """The cut calls whose decode a restart can continue."""
    for cut in cuts:
        found = cut.get("continuation")
        if not found:
            continue
        # Older heads call the first two generation_token_count and digest.
        names = {"prefix_token_count", "prefix_digest"} & found.keys()
        count = found["prefix_token_count" if names else "generation_token_count"]
        keys = found["staging_keys"]
        ended = found["terminal_finish_reason"] or found["terminal_stop_reason"]
        is_running = 0 < count < found["effective_output_limit"] and not ended
        if is_running and keys and set(keys) <= set(retained_keys):
            yield {
                "model_call_id": cut["model_call_id"],
                "prefix_token_count": count,
                "prefix_digest": found["prefix_digest" if names else "digest"],
                "staging_keys": keys,
            }


def find_cuts(snapshot: Path, min_tokens: int, min_groups: int) -> list[dict[str, Any]]:
    """All usable cuts of a snapshot.

    Raises NotUsable if a Workplace rollout in flight has none of `min_tokens` tokens,
    or if fewer than `min_groups` prompt groups are cut; anything if it is not whole.
    """
    checkpoint = json.loads((snapshot / "gym_checkpoint.json").read_bytes())
    ledger = torch.load(snapshot / "rollout_recovery.pt", weights_only=True)
    agents, models = _records(snapshot, "agent/*"), _records(snapshot, "model/*")
    workplace = _records(snapshot, "agent/workplace_assistant*")
    sessions = _records(snapshot, "resources/workplace_assistant*")
    cuts, groups = [], set()
    for group, sibling in [(x, y) for x in ledger["groups"] for y in x["siblings"]]:
        rollout = {**group, **sibling, **sibling["attempts"][-1]}
        sample_id = f"{rollout['group_id']}_g{rollout['generation_index']}"
        rollout_id = f"{sample_id}_a{rollout['attempt_uuid'].hex()}"
        attempt, instance = rollout["gym_attempt"], rollout["gym_instance_id"]
        episode = rollout_id, attempt
        if rollout["status"] != "dispatched" or episode not in agents:
            continue  # finished, or not begun
        listed = checkpoint["instances"][instance]
        is_listed = {"rollout_id": rollout_id, "attempt": attempt} in listed
        found = []
        if is_listed and rollout["restore_level"] == "prefix" and episode in models:
            retained = checkpoint["staging_keys"][instance]
            found = [*_continuable(models[episode]["generation_cuts"], retained)]
        if episode in workplace:
            if not any(cut["prefix_token_count"] >= min_tokens for cut in found):
                raise NotUsable(f"{sample_id} has no usable cut of {min_tokens} tokens")
            calendar = json.dumps(sessions[episode]["state"]["calendar"])
            if calendar.count(f'"{SENTINEL}"') != 1:
                raise NotUsable(f"{sample_id}: {SENTINEL} is not once in its calendar")
            groups.add(rollout["group_id"])
        owner = {name: rollout[name] for name in OWNER} | {"gym_rollout_id": rollout_id}
        cuts += [owner | cut for cut in found]
    if len(groups) < min_groups:
        raise NotUsable(f"{len(groups)} prompt groups are cut, expected {min_groups}")
    return cuts


def select(
    snapshots: Path, copy_to: Path, timeout_s: float, min_tokens: int, min_groups: int
) -> dict[str, Any]:
    """Copy the first usable snapshot that is published from now on.

    Raises TimeoutError, with what was wrong with the last one.
    """
    seen, partial = {*snapshots.glob("snapshot_*")}, copy_to / "partial"
    reason = "nothing was published"
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        new = {*snapshots.glob("snapshot_*")} - seen
        if not new:
            time.sleep(POLL_S)
            continue
        seen |= new
        newest = max(new)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            shutil.copytree(newest, partial)
            cuts = find_cuts(partial, min_tokens, min_groups)
            (newest / "manifest.json").stat()  # it was not pruned meanwhile
        except Exception as error:  # whatever a torn one may raise
            reason = f"{newest.name}: {type(error).__name__}: {error}"
            continue
        partial.rename(copy_to / newest.name)
        return {"snapshot": str(newest), "cuts": cuts}
    raise TimeoutError(f"{snapshots}: no usable snapshot in {timeout_s:g} s; {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["select"])
    for name in ("snapshots", "copy-to", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name, kind in (("timeout-s", float), ("min-tokens", int), ("min-groups", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    args = parser.parse_args()
    limits = args.timeout_s, args.min_tokens, args.min_groups
    try:
        selection = select(args.snapshots, args.copy_to, *limits)
        partial = args.output.with_suffix(".partial")
        partial.write_text(json.dumps(selection, indent=1))
        partial.replace(args.output)
    except OSError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
