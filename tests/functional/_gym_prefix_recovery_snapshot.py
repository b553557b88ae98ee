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


def _records(snapshot: Path) -> dict[tuple[str, str, int], Any]:
    """The records of all servers, by the server's kind, rollout_id and attempt."""
    records = {}
    for path in snapshot.glob("gym-instances/*/replica-*/gym/*/*/manifest.json"):
        server = path.parent
        records_file = server / json.loads(path.read_bytes())["records_file"]
        # Not splitlines: NeMo-Gym leaves other line separators raw within its JSON.
        for line in records_file.read_text(encoding="utf-8").strip("\n").split("\n"):
            record = json.loads(line) | {"server": server.name}
            episode = record["episode_id"]
            key = server.parent.name, episode["rollout_id"], episode["attempt"]
            records[key] = record
    return records


def _continuable(
    calls: list[Any], retained_keys: list[str]
) -> Iterator[dict[str, Any]]:
    """The cut calls whose decode a restart can continue, in either heads' names."""
    for call in calls:
        found = call.get("continuation") or {}
        count = found.get("prefix_token_count", found.get("generation_token_count", 0))
        if not 0 < count < found["effective_output_limit"]:
            continue
        keys = set(found["staging_keys"])
        reasons = found["terminal_finish_reason"], found["terminal_stop_reason"]
        if keys and keys <= set(retained_keys) and reasons == (None, None):
            yield {
                "model_call_id": call["model_call_id"],
                "prefix_token_count": count,
                "prefix_digest": found.get("prefix_digest", found.get("digest")),
                "staging_keys": found["staging_keys"],
            }


def find_cuts(snapshot: Path, min_tokens: int, min_groups: int) -> list[dict[str, Any]]:
    """All usable cuts of a snapshot.

    Raises NotUsable if a Workplace rollout in flight has none of `min_tokens` tokens,
    or if fewer than `min_groups` prompt groups are cut; anything if it is not whole.
    """
    checkpoint = json.loads((snapshot / "gym_checkpoint.json").read_bytes())
    ledger = torch.load(snapshot / "rollout_recovery.pt", weights_only=True)
    records = _records(snapshot)
    cuts, groups = [], set()
    for group, sibling in [(x, y) for x in ledger["groups"] for y in x["siblings"]]:
        rollout = {**group, **sibling, **sibling["attempts"][-1]}
        sample_id = f"{rollout['group_id']}_g{rollout['generation_index']}"
        rollout_id = f"{sample_id}_a{rollout['attempt_uuid'].hex()}"
        attempt, instance = rollout["gym_attempt"], rollout["gym_instance_id"]
        agent = records.get(("agent", rollout_id, attempt))
        if rollout["status"] != "dispatched" or agent is None:
            continue  # finished, or not begun
        episode = {"rollout_id": rollout_id, "attempt": attempt}
        is_listed = episode in checkpoint["instances"][instance]
        found = []
        if is_listed and rollout["restore_level"] == "prefix":
            calls = records["model", rollout_id, attempt]["generation_cuts"]
            found = [*_continuable(calls, checkpoint["staging_keys"][instance])]
        if agent["server"].startswith("workplace_assistant"):
            if not any(cut["prefix_token_count"] >= min_tokens for cut in found):
                raise NotUsable(f"{sample_id} has no usable cut of {min_tokens} tokens")
            session = records["resources", rollout_id, attempt]
            if json.dumps(session["state"]["calendar"]).count(f'"{SENTINEL}"') != 1:
                raise NotUsable(f"{sample_id}: {SENTINEL} is not once in its calendar")
            groups.add(rollout["group_id"])
        owner = {name: rollout[name] for name in OWNER} | {"gym_rollout_id": rollout_id}
        cuts += [owner | cut for cut in found]
    if len(groups) < min_groups:
        raise NotUsable(f"{len(groups)} prompt groups are cut, expected {min_groups}")
    return cuts


def _published(snapshots: Path) -> set[Path]:
    paths = snapshots.glob("snapshot_*")
    return {path for path in paths if path.name.partition("_")[2].isdecimal()}


def select(
    snapshots: Path, copy_to: Path, timeout_s: float, min_tokens: int, min_groups: int
) -> dict[str, Any]:
    """Copy the first usable snapshot that is published from now on.

    Raises TimeoutError, with what was wrong with the last one.
    """
    seen, partial = _published(snapshots), copy_to / "partial"
    reason, deadline = "none was published", time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        new = _published(snapshots) - seen
        seen |= new
        newest = max(new, default=None)
        if newest is None:
            time.sleep(POLL_S)
            continue
        shutil.rmtree(partial, ignore_errors=True)
        try:
            shutil.copytree(newest, partial)
            cuts = find_cuts(partial, min_tokens, min_groups)
            (newest / "manifest.json").stat()  # it was not pruned meanwhile
        except Exception as error:  # whatever a torn one may raise
            reason = f"{newest.name}: {type(error).__name__}: {error}"
        else:
            partial.rename(copy_to / newest.name)
            return {"snapshot": str(newest), "cuts": cuts}
    raise TimeoutError(f"{snapshots}: no usable snapshot in {timeout_s:g} s; {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["select"])
    for name in ("snapshots", "copy-to", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("timeout-s", "min-tokens", "min-groups"):
        parser.add_argument(f"--{name}", type=int, required=True)
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
