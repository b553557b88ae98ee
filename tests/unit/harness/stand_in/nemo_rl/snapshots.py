# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The bootstrap anchor, and writing, pruning and reading snapshots."""

import dataclasses
import hashlib
import json
import shutil

from nemo_rl.rollouts import log

INSTANCE = "nemo_gym_0"
# What may differ in a run that goes on from snapshots.
OPERATIONAL = ("logger.", "checkpointing.", "rollout_checkpointing.", "cluster.")
OPERATIONAL += ("async_rl.stall_watchdog.", "data.validation.", "data.num_workers")


def write_or_check_anchor(bootstrap, values):
    """Raises FileNotFoundError without one, ValueError if the configuration is new."""
    identity = {x: y for x, y in values.items() if not x.startswith(OPERATIONAL)}
    text = json.dumps(identity, sort_keys=True)
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    if not bootstrap.exists():
        bootstrap.mkdir(parents=True)
        anchor = {"schema_version": 6, "base_train_step": 0, "trainer_version": 0}
        anchor |= {"bootstrap_fingerprint": fingerprint, "bootstrap_identity": identity}
        (bootstrap / "manifest.json").write_text(json.dumps(anchor))
    anchor = json.loads((bootstrap / "manifest.json").read_text())
    if anchor["bootstrap_fingerprint"] != fingerprint:
        changed = anchor["bootstrap_identity"].items() ^ identity.items()
        raise ValueError(f"bootstrap fingerprint: changed are {sorted(changed)}")
    return fingerprint


def as_cut(rollout, example, retained, is_old):
    """In the form that the writer of snapshots takes."""
    continuation = {
        "generation_token_count" if is_old else "prefix_token_count": rollout.tokens,
        "digest" if is_old else "prefix_digest": rollout.hash_of_prefix(rollout.tokens),
        "effective_output_limit": 6 * rollout.items + 256,
        "staging_keys": rollout.staging_keys,
        "terminal_finish_reason": None,
        "terminal_stop_reason": None,
    }
    cut = example | {
        "group_id": rollout.group_id,
        "generation_index": rollout.generation,
        "attempt_uuid": rollout.attempt_uuid,
        "gym_attempt": rollout.attempt,
        "gym_instance_id": INSTANCE,
        "model_call_id": rollout.call,
        "continuation": None if rollout.is_constrained else continuation,
        "retained": retained,
    }
    if not rollout.is_list:
        environment = "example_session_state_mgmt"
        cut |= {"agent": f"{environment}_simple_agent", "resources": environment}
        cut["events"] = []
    if rollout.tokens == 0:  # it has not begun
        cut |= {"agent": None, "model": None, "resources": None}
    return cut


def publish_snapshot(folder, rollouts, retained, fingerprint, keep, is_old):
    # Only a job that takes snapshots spends its time on these.
    import test_gym_prefix_recovery_snapshot as shape
    import torch

    numbers = [int(x.name.rpartition("_")[2]) for x in folder.glob("snapshot_*")]
    name = f"snapshot_{max(numbers, default=0) + 1:06}"
    partial = folder / f"tmp_{name}"
    cuts = [as_cut(x, shape.CUT, retained, is_old) for x in rollouts]
    shape.write_snapshot(partial, *cuts)
    manifest = {"schema_version": 6, "base_train_step": 0, "trainer_version": 0}
    manifest |= {"bootstrap_fingerprint": fingerprint, "current_epoch": 0}
    (partial / "manifest.json").write_text(json.dumps(manifest))
    torch.save({}, partial / "replay_buffer_metadata.pt")
    (partial / "data_plane").mkdir()
    (partial / "data_plane/metadata.json").write_text(json.dumps(retained))
    partial.rename(folder / name)
    prune(folder, keep)


def prune(folder, keep):
    published = sorted(folder.glob("snapshot_*"))
    for old in published[: len(published) - keep]:
        shutil.rmtree(old.rename(old.with_name(f"trash_{old.name}")))


def find_snapshot(folder, fingerprint):
    """The newest with this fingerprint, or None if there is no snapshot at all."""
    published = sorted(folder.glob("snapshot_*"), reverse=True)
    for snapshot in published:
        manifest = json.loads((snapshot / "manifest.json").read_text())
        if manifest["bootstrap_fingerprint"] == fingerprint:
            return snapshot
    if published:
        raise RuntimeError(f"{published}: all have another fingerprint")
    return None


def restore(snapshot, fresh, data_plane, partition):
    """Every rollout of the step anew, as the snapshot's next attempt."""
    import torch

    log(f"Selected rollout recovery snapshot: {snapshot}")
    staged = json.loads((snapshot / "data_plane/metadata.json").read_text())
    data_plane.put_samples(staged, partition)
    log("Native TQ checkpoint restored and validated")
    cuts = {}
    for records in snapshot.glob("gym-instances/*/*/gym/model/*/records.jsonl"):
        for line in records.read_text(encoding="utf-8").split("\n")[:-1]:
            record = json.loads(line)
            (cuts[record["episode_id"]["rollout_id"]],) = record["generation_cuts"]
    ledger = torch.load(snapshot / "rollout_recovery.pt", weights_only=True)
    log(f"Loaded {len(ledger['groups'])} unfinished rollout group(s)")
    by_place = {(x.prompt_idx, x.generation): x for x in fresh}
    rollouts = []
    for group in ledger["groups"]:
        prompt_idx = int(group["group_id"].rpartition("-")[2])
        for sibling in group["siblings"]:
            attempt = sibling["attempts"][-1]
            rollout = dataclasses.replace(
                by_place[prompt_idx, sibling["generation_index"]],
                group_id=group["group_id"],
                attempt_uuid=attempt["attempt_uuid"],
                attempt=attempt["gym_attempt"] + 1,
            )
            continue_call(rollout, cuts.get(rollout.rollout_id), data_plane, partition)
            rollouts.append(rollout)
    return rollouts


def continue_call(rollout, cut, data_plane, partition):
    if cut is None or cut["continuation"] is None:
        return  # it had not begun, or is constrained: it starts again
    found = cut["continuation"]
    is_old = "digest" in found
    count = found["generation_token_count" if is_old else "prefix_token_count"]
    digest = found["digest" if is_old else "prefix_digest"]
    rollout.source, rollout.prefix, rollout.tokens = cut["model_call_id"], count, count
    data_plane.clear_samples(found["staging_keys"], partition)
    data_plane.put_samples(rollout.staging_keys, partition)
    sha256 = rollout.hash_of_prefix(count)
    spans = f"weight_version_span=[0,0] prefix_ids_sha256={sha256}"
    rollout.log_prefix("restored", f"prefix_digest={digest} {spans}")
