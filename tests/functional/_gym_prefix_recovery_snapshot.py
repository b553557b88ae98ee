# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Wait for the snapshot to crash at, and copy it whole before it can be pruned.

It is the first one in which every Workplace rollout in flight is cut in its list. All
its cuts that can be continued are listed, with the newest heads' names of their fields.
"""

import argparse
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

SENTINEL = "checkpoint recovery sentinel"
POLL_S = 0.02


class NotUsable(Exception):
    """The run can't be killed at this snapshot; the message says why."""


def _records(snapshot: Path, servers: str) -> dict[tuple[str, int], Any]:
    """The records of the servers that match the pattern, by rollout_id and attempt."""
    records = {}
    for path in snapshot.glob(f"gym-instances/*/replica-*/gym/{servers}/manifest.json"):
        records_file = path.parent / json.loads(path.read_bytes())["records_file"]
        # Not splitlines: NeMo-Gym leaves other line separators raw within its JSON.
        for line in records_file.read_text(encoding="utf-8").split("\n"):
            if line:
                record = json.loads(line)
                episode = record["episode_id"]
                records[episode["rollout_id"], episode["attempt"]] = record
    return records


def _continuable(record: Any, retained_keys: list[str]) -> Iterator[dict[str, Any]]:
    """The calls of a model record whose decode a restart can continue."""
    for cut in record["generation_cuts"]:
        found = cut.get("continuation")
        if found is None:
            continue
        newest = "prefix_token_count" in found
        count = found["prefix_token_count" if newest else "generation_token_count"]
        keys = found["staging_keys"]
        reasons = found["terminal_finish_reason"], found["terminal_stop_reason"]
        is_running = 0 < count < found["effective_output_limit"]
        if (
            is_running
            and keys
            and {*keys} <= {*retained_keys}
            and reasons == (None, None)
        ):
            yield {
                "model_call_id": cut["model_call_id"],
                "prefix_token_count": count,
                "prefix_digest": found["prefix_digest" if newest else "digest"],
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
    resources = _records(snapshot, "resources/workplace_assistant*")
    cuts = []
    for group in ledger["groups"]:
        for sibling in group["siblings"]:
            attempt = sibling["attempts"][-1]
            sample_id = f"{group['group_id']}_g{sibling['generation_index']}"
            rollout_id = f"{sample_id}_a{attempt['attempt_uuid'].hex()}"
            instance, number = attempt["gym_instance_id"], attempt["gym_attempt"]
            episode = rollout_id, number
            if attempt["status"] != "dispatched" or episode not in agents:
                continue  # finished, or not begun
            listed = checkpoint["instances"].get(instance, [])
            is_listed = {"rollout_id": rollout_id, "attempt": number} in listed
            found = []
            if is_listed and group["restore_level"] == "prefix" and episode in models:
                retained = checkpoint["staging_keys"].get(instance, [])
                found = list(_continuable(models[episode], retained))
            if episode in workplace:
                if (
                    max((x["prefix_token_count"] for x in found), default=0)
                    < min_tokens
                ):
                    raise NotUsable(f"{sample_id} has no cut of {min_tokens} tokens")
                state = resources[episode]["state"] if episode in resources else {}
                sentinels = json.dumps(state.get("calendar")).count(f'"{SENTINEL}"')
                if sentinels != 1:
                    raise NotUsable(f"{sample_id}: {sentinels} sentinels, expected 1")
            owner = {
                "group_id": group["group_id"],
                "generation_index": sibling["generation_index"],
                "target_step": group["target_step"],
                "gym_rollout_id": rollout_id,
                "gym_attempt": number,
                "gym_instance_id": instance,
            }
            cuts += [owner | cut for cut in found]
    groups = {
        cut["group_id"]
        for cut in cuts
        if (cut["gym_rollout_id"], cut["gym_attempt"]) in workplace
    }
    if len(groups) < min_groups:
        raise NotUsable(f"{len(groups)} prompt groups are cut, expected {min_groups}")
    return cuts


def _published(snapshots: Path) -> dict[int, Path]:
    """The snapshots that are complete, by their numbers."""
    names = [(re.fullmatch(r"snapshot_(\d+)", x.name), x) for x in snapshots.glob("*")]
    return {int(name[1]): path for name, path in names if name and path.is_dir()}


def select(
    snapshots: Path, copy_to: Path, timeout_s: float, min_tokens: int, min_groups: int
) -> dict[str, Any]:
    """Copy the first usable snapshot that is published from now on.

    Raises TimeoutError, with what was wrong with the last one.
    """
    seen, partial = _published(snapshots), copy_to / "partial"
    reason = f"{snapshots}: no snapshot was published"
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        new = {
            number: path
            for number, path in _published(snapshots).items()
            if number not in seen
        }
        if not new:
            time.sleep(POLL_S)
            continue
        seen |= new
        newest = new[max(new)]
        shutil.rmtree(partial, ignore_errors=True)
        try:
            shutil.copytree(newest, partial)
            cuts = find_cuts(partial, min_tokens, min_groups)
            (newest / "manifest.json").stat()  # it was not pruned meanwhile
        except Exception as error:  # whatever a torn snapshot may raise
            reason = f"{newest}: {error!r}"
            continue
        partial.rename(copy_to / newest.name)
        return {"snapshot": str(newest), "cuts": cuts}
    raise TimeoutError(f"{len(seen)} snapshots, none usable; the last one, {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["select"])
    for name in ("snapshots", "copy-to", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--timeout-s", type=float, required=True)
    for name in ("min-tokens", "min-groups"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    limits = args.timeout_s, args.min_tokens, args.min_groups
    try:
        selection = select(args.snapshots, args.copy_to, *limits)
        partial = args.output.with_suffix(".partial")
        partial.write_text(json.dumps(selection, indent=1))
        os.replace(partial, args.output)
    except OSError as error:
        parser.exit(2, f"error: no snapshot selected: {error}\n")


if __name__ == "__main__":
    main()
