# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Selecting a snapshot: only one whose every Workplace rollout can be continued."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "functional/_gym_prefix_recovery_snapshot.py"
spec = importlib.util.spec_from_file_location("_gym_prefix_recovery_snapshot", SCRIPT)
snapshots = importlib.util.module_from_spec(spec)
spec.loader.exec_module(snapshots)

EPISODE = {"rollout_id": f"group_g0_a{bytes(16).hex()}", "attempt": 0}
CONTINUATION = {"generation_token_count": 5, "effective_output_limit": 9}
CONTINUATION |= {"staging_keys": ["k"], "digest": "d", "terminal_finish_reason": None}
CONTINUATION |= {"terminal_stop_reason": None}
ATTEMPT = {"attempt_uuid": bytes(16), "gym_attempt": 0, "status": "dispatched"}
ATTEMPT |= {"gym_instance_id": "gym"}


def _write(snapshot: Path, **changes: Any) -> Path:
    """A snapshot with one usable cut, but for the changes."""
    event_names = changes.pop("event_names", ["lunch", snapshots.SENTINEL])
    column = {"name": "event_name", "values": event_names}
    tables = {"calendar": {"_calendar_events": {"columns": [column]}}}
    attempt = {name: changes.pop(name, value) for name, value in ATTEMPT.items()}
    sibling = {"generation_index": 0, "attempts": [attempt]}
    group = {"group_id": "group", "target_step": 0, "siblings": [sibling]}
    group["restore_level"] = changes.pop("restore_level", "prefix")
    documents = {"instances": {"gym": changes.pop("listed", [EPISODE])}}
    documents["staging_keys"] = {"gym": changes.pop("retained", ["k", "z"])}
    cut = {"model_call_id": "call", "continuation": CONTINUATION | changes}
    servers = {
        "agent/workplace_assistant_agent": {},
        "model/policy": {"generation_cuts": [cut, {"model_call_id": "constrained"}]},
        "resources/workplace_assistant": {"state": tables},
    }
    for server, record in servers.items():
        folder = snapshot / "gym-instances/gym/replica-0/gym" / server
        folder.mkdir(parents=True)
        manifest = {"record_count": 1, "records_file": "records.jsonl"}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        line = json.dumps({"episode_id": EPISODE, **record})
        (folder / "records.jsonl").write_text(line + "\n")
    (snapshot / "gym_checkpoint.json").write_text(json.dumps(documents))
    (snapshot / "manifest.json").write_text("{}")
    torch.save({"groups": [group]}, snapshot / "rollout_recovery.pt")
    return snapshot


def test_a_usable_cut_is_found(tmp_path: Path) -> None:
    (cut,) = snapshots.find_cuts(_write(tmp_path))
    assert (cut["group_id"], cut["model_call_id"], cut["gym_attempt"]) == (
        "group",
        "call",
        0,
    )
    assert (cut["generation_token_count"], cut["staging_keys"]) == (5, ["k"])


def test_newer_heads_name_the_count_otherwise(tmp_path: Path) -> None:
    _write(tmp_path, generation_token_count=None, prefix_token_count=7)
    assert snapshots.find_cuts(tmp_path)[0]["generation_token_count"] == 7


@pytest.mark.parametrize(
    "change",
    [
        {"generation_token_count": 0},
        {"generation_token_count": 9},
        {"staging_keys": []},
        {"retained": ["z"]},
        {"terminal_finish_reason": "stop"},
        {"terminal_stop_reason": "eos"},
        {"listed": []},
        {"status": "completed"},
        {"restore_level": "turn"},
        {"event_names": ["lunch"]},
        {"event_names": [snapshots.SENTINEL] * 2},
    ],
)
def test_an_unusable_cut_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    assert snapshots.find_cuts(_write(tmp_path, **change)) == []


def test_cuts_must_have_the_least_tokens(tmp_path: Path) -> None:
    assert snapshots.find_cuts(_write(tmp_path), min_tokens=6) == []


def test_a_snapshot_from_before_is_not_selected(tmp_path: Path) -> None:
    _write(tmp_path / "snapshot_000001")
    with pytest.raises(TimeoutError, match="none of 1"):
        snapshots.select(tmp_path, tmp_path / "copy", 0.1, 1)


def test_a_pruned_snapshot_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = _write(tmp_path / "snapshot_000001")
    copy2 = shutil.copy2

    def prune_meanwhile(source: str, copy: str) -> None:
        copy2(source, copy)
        shutil.rmtree(snapshot, ignore_errors=True)

    monkeypatch.setattr(
        shutil.copytree, "__defaults__", (False, None, prune_meanwhile, False, False)
    )
    assert not snapshots._copy(snapshot, tmp_path / "copy" / snapshot.name)
    assert list((tmp_path / "copy").iterdir()) == []
