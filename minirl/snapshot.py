# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Rollout snapshots: cut between two decode steps, and what a restart reads.

A snapshot is written under a temporary name, published by rename, and pruned to the
newest few. It holds the ledger, each server's records of the episodes in flight, and
the data plane's native checkpoint, in which every staging key it refers to is present.
"""

import json
import logging
from pathlib import Path
from typing import Any

import torch

from minirl.bootstrap import SCHEMA_VERSION, bootstrap_fingerprint
from minirl.data_plane import ROLLOUT_PARTITION
from minirl.generation import Prefix, prefix_digest
from minirl.rollout import (
    GYM_INSTANCE,
    Episode,
    RolloutManager,
    Segment,
    ledger_document,
    load_ledger,
)
from minirl.snapshot_folder import prune_snapshots, published, remove_leftovers

logger = logging.getLogger(__name__)


def _episode_id(episode: Episode) -> dict[str, Any]:
    attempt = episode.sibling.current.gym_attempt
    return {"rollout_id": episode.rollout_id, "attempt": attempt}


def _retained_keys(episode: Episode) -> list[str]:
    """What a restart of the episode reads: finished turns, and the cut if any."""
    keys = [key for segment in episode.segments for key in segment.staging_keys]
    if episode.call and episode.call.can_be_cut:
        keys += episode.call.staging_keys
    return keys


def _cut(episode: Episode) -> dict[str, Any]:
    """The model server's record: the running call, and how it could go on."""
    call, cuts = episode.call, []
    if call:
        continuation = {
            "prefix_token_count": len(call.token_ids),
            "effective_output_limit": call.max_tokens,
            "staging_keys": list(call.staging_keys),
            "prefix_digest": call.digest(),
            "first_weight_version": call.first_weight_version,
            "terminal_finish_reason": None,
            "terminal_stop_reason": None,
        }
        cut: dict[str, Any] = {"model_call_id": call.model_call_id}
        cut["request_digest"] = call.request_digest
        cut["continuation"] = continuation if call.can_be_cut else None
        cuts.append(cut)
    return {"episode_id": _episode_id(episode), "generation_cuts": cuts}


def _agent(episode: Episode) -> dict[str, Any]:
    segments = [
        {"token_ids": segment.token_ids, "staging_keys": segment.staging_keys}
        for segment in episode.segments
    ]
    return {"episode_id": _episode_id(episode), "segments": segments}


def _resources(episode: Episode) -> dict[str, Any]:
    return {"episode_id": _episode_id(episode), "state": episode.session.state()}


def gym_checkpoint(manager: RolloutManager) -> dict[str, Any]:
    """Which episodes are in flight, and all staging keys that they still refer to."""
    episodes = manager.episodes.values()
    keys = [key for episode in episodes for key in _retained_keys(episode)]
    return {
        "instances": {GYM_INSTANCE: [_episode_id(episode) for episode in episodes]},
        "staging_keys": {GYM_INSTANCE: keys},
    }


def _gym_records(manager: RolloutManager) -> dict[str, Any]:
    """The files of every server of the one Gym instance, by their paths."""
    records: dict[str, list[dict[str, Any]]] = {}
    for episode in manager.episodes.values():
        servers = {
            f"agent/{episode.prompt.agent}": _agent(episode),
            "model/policy_model": _cut(episode),
            f"resources/{episode.prompt.environment}": _resources(episode),
        }
        for server, record in servers.items():
            records.setdefault(server, []).append(record)
    files: dict[str, Any] = {}
    for server, lines in records.items():
        folder = f"gym-instances/{GYM_INSTANCE}/replica-0/gym/{server}"
        manifest = {"kind": server.partition("/")[0], "record_count": len(lines)}
        manifest["records_file"] = "records.jsonl"
        files[f"{folder}/manifest.json"] = manifest
        files[f"{folder}/records.jsonl"] = lines
    return files


class SnapshotWriter:
    """Publishes numbered snapshots of one train step into a folder.

    `cut` has to run between two decode steps; `publish` may run beside them.
    """

    def __init__(self, folder: Path, manager: RolloutManager, keep_latest_k: int):
        self.folder = folder
        self.manager = manager
        self.keep_latest_k = keep_latest_k
        folder.mkdir(parents=True, exist_ok=True)
        numbers = [int(path.name.split("_")[1]) for path in published(folder)]
        self._next = max(numbers, default=0) + 1

    @property
    def _partial(self) -> Path:
        return self.folder / f"tmp_snapshot_{self._next:06d}"

    def cut(self, train_step: int, weight_version: int) -> dict[str, Any]:
        """Cut every running call that can be continued, at this moment.

        Stages what the calls have generated, saves the data plane, and returns the
        snapshot's other files: their contents by their paths.
        """
        manager, engine = self.manager, self.manager.engine
        engine.stage([call for call in engine.calls() if call.can_be_cut])
        remove_leftovers(self.folder)
        self._partial.mkdir()
        manager.dp_client.save_checkpoint(self._partial / "data_plane")
        begun = train_step * manager.config.grpo.num_prompts_per_step
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "base_train_step": train_step,
            "trainer_version": weight_version,
            "current_epoch": begun // len(manager.prompts),
            "sampler_dispatch_index": begun + len(manager.groups),
            "mutation_version": manager.mutation_version,
            "rolled_back_train_group_count": 0,  # none is trained while rollouts run
            "bootstrap_fingerprint": bootstrap_fingerprint(manager.config),
        }
        return {
            "manifest.json": manifest,
            "gym_checkpoint.json": gym_checkpoint(manager),
            "rollout_recovery.pt": ledger_document(manager.groups),
            "replay_buffer_metadata.pt": {"sample_ids": manager.completed_samples()},
            **_gym_records(manager),
        }

    def publish(self, files: dict[str, Any]) -> Path:
        """Write the files, publish the snapshot by rename, and prune the oldest."""
        for name, content in files.items():
            path = self._partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".pt":
                torch.save(content, path)
            elif path.suffix == ".jsonl":
                path.write_text("".join(json.dumps(line) + "\n" for line in content))
            else:
                path.write_text(json.dumps(content))
        snapshot = self.folder / f"snapshot_{self._next:06d}"
        self._partial.rename(snapshot)
        self._next += 1
        prune_snapshots(self.folder, self.keep_latest_k)
        return snapshot


def read_records(snapshot: Path, kind: str) -> dict[str, dict[str, Any]]:
    """All records of one kind of server, by rollout id."""
    records = {}
    for path in snapshot.glob(f"gym-instances/*/replica-*/gym/{kind}/*/manifest.json"):
        records_file = path.parent / json.loads(path.read_text())["records_file"]
        for line in records_file.read_text().splitlines():
            record = json.loads(line)
            records[record["episode_id"]["rollout_id"]] = record
    return records


def restore_snapshot(snapshot: Path, manager: RolloutManager) -> None:
    """Take up the snapshot's groups: finished rows stay, unfinished episodes go on.

    Each unfinished episode keeps its instance and session and becomes attempt + 1. Its
    finished turns are kept, a cut call will be continued, any other call restarts.

    Raises:
        RuntimeError: the data plane lacks a row or a staging key that the snapshot
            refers to, or a cut does not have the digest that was recorded.
    """
    logger.info("Selected rollout recovery snapshot: %s", snapshot)
    engine, dp_client = manager.engine, manager.dp_client
    dp_client.load_checkpoint(snapshot / "data_plane")
    ledger = torch.load(snapshot / "rollout_recovery.pt", weights_only=True)
    manager.groups = load_ledger(ledger)
    manifest = json.loads((snapshot / "manifest.json").read_text())
    manager.mutation_version = manifest["mutation_version"] + 1
    live = {
        partition: set(dp_client.list_sample_ids(partition))
        for partition in (engine.partition, ROLLOUT_PARTITION)
    }
    checkpoint = json.loads((snapshot / "gym_checkpoint.json").read_text())
    retained = {key for keys in checkpoint["staging_keys"].values() for key in keys}
    missing = retained - live[engine.partition]
    missing |= set(manager.completed_samples()) - live[ROLLOUT_PARTITION]
    if missing:
        raise RuntimeError(f"{snapshot}: the data plane lacks {sorted(missing)[0]}")
    dp_client.clear_samples(sorted(live[engine.partition] - retained), engine.partition)
    logger.info("Native TQ checkpoint restored and validated")
    agents = read_records(snapshot, "agent")
    models = read_records(snapshot, "model")
    resources = read_records(snapshot, "resources")
    unfinished = set()
    for group in manager.groups:
        for sibling in group.siblings:
            rollout_id = group.rollout_id(sibling)
            if sibling.current.status == "completed":
                continue
            unfinished.add(group.group_id)
            if rollout_id not in agents:
                continue  # dispatched, but not begun when the snapshot was taken
            episode = manager.new_episode(group, sibling)
            restore_session(episode, resources[rollout_id])
            segments = agents[rollout_id]["segments"]
            episode.segments = [Segment(**segment) for segment in segments]
            episode.prefix = read_prefix(models[rollout_id], manager)
            sibling.current.gym_attempt += 1
    logger.info("Loaded %d unfinished rollout group(s)", len(unfinished))


def restore_session(episode: Episode, record: dict[str, Any]) -> None:
    """Put the episode's session into the recorded state."""
    episode.session.restore(record["state"])


def read_prefix(record: dict[str, Any], manager: RolloutManager) -> Prefix | None:
    """What the record's call had generated when it was cut; None if it must restart."""
    for cut in record["generation_cuts"]:
        if continuation := cut["continuation"]:
            keys, call = continuation["staging_keys"], cut["model_call_id"]
            token_ids, logprobs = manager.engine.read_staged(keys)
            request, digest = cut["request_digest"], continuation["prefix_digest"]
            if prefix_digest(request, token_ids, logprobs) != digest:
                raise RuntimeError(f"call {call}: its staged prefix is not {digest}")
            version = continuation["first_weight_version"]
            return Prefix(call, token_ids, logprobs, keys, version, request, digest)
    return None
