# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""More of selecting a snapshot and of writing prompts, beside the tests that travel."""

import copy
import json
import shutil
import subprocess
import sys
import threading
import time

import pytest
import torch
from test_gym_prefix_recovery_snapshot import snapshots, write_snapshot
from test_gym_prefix_recovery_workload import COMMAND, SCRIPT


@pytest.mark.parametrize(
    "change",
    [
        {"generation_token_count": 0},
        {"terminal_stop_reason": "eos"},
        {"restore_level": "turn"},
        {"listed": []},
    ],
)
def test_an_unusable_cut_is_refused(tmp_path, change):
    assert snapshots.find_cuts(write_snapshot(tmp_path, **change)) == []


def test_a_checkpoint_may_refer_to_no_other_keys(tmp_path):
    assert len(snapshots.find_cuts(write_snapshot(tmp_path, retained=["k"]))) == 1


def test_only_workplace_rollouts_must_be_cut(tmp_path):
    write_snapshot(tmp_path)
    ledger = torch.load(tmp_path / "rollout_recovery.pt", weights_only=True)
    counter = copy.deepcopy(ledger["groups"][0]) | {"group_id": "counter"}
    torch.save(
        {"groups": [*ledger["groups"], counter]}, tmp_path / "rollout_recovery.pt"
    )
    assert [cut["group_id"] for cut in snapshots.find_cuts(tmp_path)] == ["group"]


def test_newer_heads_name_the_count_otherwise(tmp_path):
    write_snapshot(tmp_path, generation_token_count=None, prefix_token_count=7)
    (cut,) = snapshots.find_cuts(tmp_path, min_tokens=7)
    assert cut["generation_token_count"] or cut["prefix_token_count"] == 7


def test_cuts_must_have_the_least_tokens(tmp_path):
    assert snapshots.find_cuts(write_snapshot(tmp_path), min_tokens=6) == []


def test_a_snapshot_from_before_is_not_selected(tmp_path):
    write_snapshot(tmp_path / "snapshot_000001")
    with pytest.raises(TimeoutError, match="none of 1"):
        snapshots.select(tmp_path, tmp_path / "copy", 0.1, 1)


def select_published(folder, tmp_path):
    """What is selected when a snapshot is published while `select` looks."""

    def publish():
        time.sleep(0.1)
        (tmp_path / "new").rename(folder / "snapshot_000002")

    write_snapshot(tmp_path / "new")
    folder.mkdir()
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        return snapshots.select(folder, tmp_path / "copy", 1, 1)
    finally:
        publisher.join()


def test_a_snapshot_is_copied_whole(tmp_path):
    found = select_published(tmp_path / "all", tmp_path)
    snapshot = tmp_path / "all/snapshot_000002"
    assert found["snapshot"] == str(snapshot)
    (whole,) = (tmp_path / "copy").iterdir()
    assert whole.name == snapshot.name
    assert found["cuts"] == snapshots.find_cuts(whole) == snapshots.find_cuts(snapshot)


def test_a_pruned_snapshot_leaves_no_copy(tmp_path, monkeypatch):
    copy2 = shutil.copy2

    def prune_meanwhile(source, copy):
        copy2(source, copy)
        shutil.rmtree(tmp_path / "all/snapshot_000002", ignore_errors=True)

    defaults = (False, None, prune_meanwhile, False, False)
    monkeypatch.setattr(shutil.copytree, "__defaults__", defaults)
    with pytest.raises(TimeoutError):
        select_published(tmp_path / "all", tmp_path)
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_snapshot_that_was_pruned_while_it_was_copied_is_not_whole(
    tmp_path, monkeypatch
):
    find_cuts = snapshots.find_cuts

    def find_cuts_and_prune(*args):
        shutil.rmtree(tmp_path / "all/snapshot_000002")
        return find_cuts(*args)

    monkeypatch.setattr(snapshots, "find_cuts", find_cuts_and_prune)
    with pytest.raises(TimeoutError, match="none of 1 "):
        select_published(tmp_path / "all", tmp_path)
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_malformed_snapshot_is_one_line_and_status_2(tmp_path):
    script = [sys.executable, snapshots.__file__, "select", "--timeout-s=20"]
    script += [f"--snapshots={tmp_path}", f"--copy-to={tmp_path}/copy"]
    script += ["--min-tokens=1"]
    select = subprocess.Popen(
        [*script, f"--output={tmp_path}/out"], stderr=subprocess.PIPE, text=True
    )
    number = 0
    while select.poll() is None:
        number += 1
        (tmp_path / "new").mkdir()
        for name in ("gym_checkpoint.json", "manifest.json"):
            (tmp_path / "new" / name).write_text("{")
        (tmp_path / "new").rename(tmp_path / f"snapshot_{number:06}")
        time.sleep(0.2)
    assert (select.returncode, select.stderr.read().count("\n")) == (2, 1)


def test_the_command_writes_what_is_selected(tmp_path, monkeypatch):
    found = {"snapshot": "here", "cuts": [{"group_id": "group"}]}
    monkeypatch.setattr(snapshots, "select", lambda *_: found)
    paths = [f"--{x}={tmp_path / x}" for x in ("snapshots", "copy-to", "output")]
    argv = ["snapshot", "select", *paths, "--timeout-s=9", "--min-tokens=1"]
    monkeypatch.setattr(sys, "argv", argv)
    snapshots.main()
    assert [path.name for path in tmp_path.iterdir()] == ["output"]
    assert json.loads((tmp_path / "output").read_text()) == found


def write_example(folder, environment, text):
    """The Gym's example row of an environment."""
    example = folder / f"resources_servers/{environment}/data/example.jsonl"
    example.parent.mkdir(parents=True)
    example.write_text(text)


def write_rows(folder):
    paths = [f"--output={folder}/rows.jsonl", f"--gym-root={folder}"]
    command = [sys.executable, SCRIPT, *paths, *COMMAND]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True)


def test_an_example_row_keeps_its_system_turn_and_one_tool(tmp_path):
    turns = [{"role": role, "content": role} for role in ("system", "user")]
    tools = [{"name": x, "parameters": {}} for x in ("a", "calendar_create_event")]
    params = {"input": turns, "tools": tools}
    row = {"responses_create_params": params, "id": 7}
    write_example(tmp_path, "workplace_assistant", json.dumps(row) + "\n")
    assert write_rows(tmp_path).returncode == 0
    row = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
    params = row["responses_create_params"]
    assert params["input"][0] == turns[0] and params["input"][1] != turns[1]
    assert (row["id"], params["tools"]) == (7, tools[1:])


def test_every_row_has_what_the_gym_needs(tmp_path):
    example = {"name": "increment_counter", "parameters": {"properties": {}}}
    row = {"responses_create_params": {"input": [], "tools": [example]}}
    write_example(tmp_path, "example_session_state_mgmt", json.dumps(row) + "\n")
    assert write_rows(tmp_path).returncode == 0
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()[:4]
    *workplace, counter = map(json.loads, lines)
    for row in workplace:
        assert row["environment_name"] == row["category"] == "workplace_assistant"
        assert row["task_source"] == "workplace_assistant_checkpoint_test_agent"
        assert row["ground_truth"][0]["name"] == "calendar_create_event"
        (tool,) = row["responses_create_params"]["tools"]
        truth = json.loads(row["ground_truth"][0]["arguments"])
        assert truth.keys() == {*tool["parameters"]["required"]}
        assert truth["event_name"] == snapshots.SENTINEL
    assert counter["environment_name"] == "example_session_state_mgmt"
    assert counter["task_source"] == "example_session_state_mgmt_simple_agent"
    (tool,) = counter["responses_create_params"]["tools"]  # with our schema
    proof = tool["parameters"]["properties"]["checkpoint_proof"]
    assert tool["strict"] and (proof["minItems"], proof["maxItems"]) == (64, 64)
    for params in (x["responses_create_params"] for x in (*workplace, counter)):
        assert params["tools"][0]["name"] == params["tool_choice"]["name"]
        assert params["parallel_tool_calls"] is False
        assert params["max_output_tokens"] == 99


@pytest.mark.parametrize("text", ["{}", "[]", "{", ""])
def test_a_malformed_example_row_is_one_line_and_status_2(tmp_path, text):
    write_example(tmp_path, "workplace_assistant", text)
    done = write_rows(tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
