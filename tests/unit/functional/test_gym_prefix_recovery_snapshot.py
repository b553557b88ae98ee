# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Selecting a snapshot: only one whose every Workplace rollout can be continued."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from prefix_recovery_evidence import load

snapshots = load("_gym_prefix_recovery_snapshot")
EPISODE = {"rollout_id": f"group_g0_a{bytes(16).hex()}", "attempt": 0}
CONTINUATION = {"generation_token_count": 5, "effective_output_limit": 9}
CONTINUATION |= {"staging_keys": ["k"], "digest": "d", "terminal_finish_reason": None}
CONTINUATION |= {"terminal_stop_reason": None}
ATTEMPT = {"attempt_uuid": bytes(16), "gym_attempt": 0, "status": "dispatched"}
ATTEMPT |= {"gym_instance_id": "gym"}


def write_snapshot(snapshot: Path, **changes: Any) -> Path:
    """A snapshot with one usable cut, but for the changes."""
    names = changes.pop("event_names", ["lunch", snapshots.SENTINEL])
    columns = [{"name": "event_name", "values": names}]
    attempt = {name: changes.pop(name, value) for name, value in ATTEMPT.items()}
    sibling = {"generation_index": 0, "attempts": [attempt]}
    group = {"group_id": "group", "target_step": 0, "siblings": [sibling]}
    group["restore_level"] = changes.pop("restore_level", "prefix")
    checkpoint = {"instances": {"gym": changes.pop("listed", [EPISODE])}}
    checkpoint["staging_keys"] = {"gym": changes.pop("retained", ["k", "z"])}
    cut = {"model_call_id": "call", "continuation": CONTINUATION | changes}
    constrained = {"model_call_id": "constrained"}
    tables = {"calendar": {"_calendar_events": {"columns": columns}}}
    servers = {"agent/workplace_assistant_agent": {}}
    servers["model/policy"] = {"generation_cuts": [cut, constrained]}
    servers["resources/workplace_assistant"] = {"state": tables}
    for server, record in servers.items():
        folder = snapshot / "gym-instances/gym/replica-0/gym" / server
        folder.mkdir(parents=True)
        manifest = {"record_count": 1, "records_file": "records.jsonl"}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        text = json.dumps({"episode_id": EPISODE, **record}) + "\n"
        (folder / "records.jsonl").write_text(text)
    (snapshot / "gym_checkpoint.json").write_text(json.dumps(checkpoint))
    (snapshot / "manifest.json").write_text("{}")
    torch.save({"groups": [group]}, snapshot / "rollout_recovery.pt")
    return snapshot


def test_a_usable_cut_is_found(tmp_path: Path) -> None:
    (cut,) = snapshots.find_cuts(write_snapshot(tmp_path))
    assert (cut["group_id"], cut["model_call_id"]) == ("group", "call")
    assert (cut["generation_token_count"], cut["staging_keys"]) == (5, ["k"])


@pytest.mark.parametrize(
    "change",
    [
        {"generation_token_count": 9},
        {"staging_keys": []},
        {"retained": ["z"]},
        {"terminal_finish_reason": "stop"},
        {"status": "completed"},
        {"event_names": ["lunch"]},
        {"event_names": [snapshots.SENTINEL] * 2},
    ],
)
def test_an_unusable_cut_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    assert snapshots.find_cuts(write_snapshot(tmp_path, **change)) == []
