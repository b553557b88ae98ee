# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The selection: only a snapshot whose every Workplace rollout can be continued."""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "functional"))

import _gym_prefix_recovery_snapshot as snapshots

Rollout = dict[str, Any]
GROUP: Rollout = {"group_id": "list", "target_step": 0, "restore_level": "prefix"}
ATTEMPT: Rollout = {"attempt_uuid": bytes(16), "gym_attempt": 0}
ATTEMPT |= {"status": "dispatched", "gym_instance_id": "gym"}
CONTINUATION: Rollout = {"prefix_token_count": 5, "effective_output_limit": 9}
CONTINUATION |= {"staging_keys": ["k"], "prefix_digest": "d"}
CONTINUATION |= {"terminal_finish_reason": None, "terminal_stop_reason": None}
CUT: Rollout = {**GROUP, "generation_index": 0, **ATTEMPT, "continuation": CONTINUATION}
CUT |= {"model_call_id": "call", "is_listed": True, "retained": ["k"]}
CUT |= {"events": ["one\u2028line", snapshots.SENTINEL], "model": "policy"}
CUT |= {"agent": "workplace_assistant_agent", "resources": "workplace_assistant"}


def write_snapshot(snapshot: Path, *rollouts: Rollout) -> Path:
    """Rollouts like `CUT` as a snapshot in the form of the newest heads."""
    groups, records = {}, defaultdict(list)
    checkpoint = {"instances": defaultdict(list), "staging_keys": defaultdict(list)}
    for x in rollouts:
        group = groups.setdefault(x["group_id"], {name: x[name] for name in GROUP})
        attempts = [ATTEMPT | {"status": "failed"}, {name: x[name] for name in ATTEMPT}]
        sibling = {"generation_index": x["generation_index"], "attempts": attempts}
        group.setdefault("siblings", []).append(sibling)
        sample_id, uuid = f"{x['group_id']}_g{x['generation_index']}", x["attempt_uuid"]
        episode = {"rollout_id": f"{sample_id}_a{uuid.hex()}"}
        episode["attempt"], instance = x["gym_attempt"], x["gym_instance_id"]
        checkpoint["staging_keys"][instance] += x["retained"]
        checkpoint["instances"][instance] += [episode] * x["is_listed"]
        events = {"columns": [{"name": "event_name", "values": x["events"]}]}
        cut = {name: x[name] for name in ("model_call_id", "continuation")}
        content = {"model": {"generation_cuts": [cut]}, "agent": {"turns": 1}}
        content["resources"] = {"state": {"calendar": {"_calendar_events": events}}}
        for kind in [kind for kind in content if x[kind]]:
            server = f"gym-instances/{instance}/replica-0/gym/{kind}/{x[kind]}"
            records[snapshot / server].append({"episode_id": episode} | content[kind])
    for folder, lines in records.items():
        folder.mkdir(parents=True)
        manifest = {"record_count": len(lines), "records_file": "records.jsonl"}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (folder / "records.jsonl").write_text(text, encoding="utf-8")
    (snapshot / "gym_checkpoint.json").write_text(json.dumps(checkpoint))
    (snapshot / "manifest.json").write_text("{}")
    torch.save({"groups": [*groups.values()]}, snapshot / "rollout_recovery.pt")
    return snapshot


def test_a_usable_cut_is_found(tmp_path: Path) -> None:
    (cut,) = snapshots.find_cuts(write_snapshot(tmp_path, CUT), 5, 1)
    names = ("group_id", "model_call_id", "prefix_token_count", "prefix_digest")
    assert [cut[name] for name in names] == ["list", "call", 5, "d"]


UNUSABLE = [{"status": "completed"}, {"restore_level": "turn"}, {"retained": ["z"]}]
UNUSABLE += [{"continuation": CONTINUATION | {"prefix_token_count": 9}}]


@pytest.mark.parametrize("change", UNUSABLE)
def test_an_unusable_cut_is_refused(tmp_path: Path, change: Rollout) -> None:
    with pytest.raises(snapshots.NotUsable):
        snapshots.find_cuts(write_snapshot(tmp_path, CUT | change), 5, 1)
