# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""More of selecting a snapshot and of writing prompts, beside the tests that travel."""

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_gym_prefix_recovery_snapshot import (
    CONTINUATION,
    CUT,
    snapshots,
    write_snapshot,
)
from test_gym_prefix_recovery_workload import EXAMPLES, SCRIPT, TOOLS, workload

CONSTRAINED = {"continuation": None}
SIBLING = CUT | {"generation_index": 1, "model_call_id": "sibling"}
SECOND_LIST = CUT | {"group_id": "list 2", "model_call_id": "call 2"}
COUNTER = CUT | {"group_id": "counter", "model_call_id": "closing turn", "events": []}
COUNTER |= {"agent": "example_session_state_mgmt_simple_agent"}
COUNTER |= {"resources": "example_session_state_mgmt"}


def continuation(**changes):
    return {"continuation": CONTINUATION | changes}


def calls(cuts):
    return [cut["model_call_id"] for cut in cuts]


# -- which cuts are usable -------------------------------------------------------------


def test_the_selection_has_the_newest_names(tmp_path):
    (cut,) = snapshots.find_cuts(write_snapshot(tmp_path, CUT), 1, 1)
    assert cut == {
        "group_id": "list",
        "generation_index": 0,
        "target_step": 0,
        "gym_rollout_id": f"list_g0_a{bytes(16).hex()}",
        "gym_attempt": 0,
        "gym_instance_id": "gym",
        "model_call_id": "call",
        "prefix_token_count": 5,
        "prefix_digest": "d",
        "staging_keys": ["k"],
    }


def test_an_older_heads_names_are_read(tmp_path):
    newest = snapshots.find_cuts(write_snapshot(tmp_path / "newest", CUT), 1, 1)
    older = {**CONTINUATION, "generation_token_count": 5, "digest": "d"}
    del older["prefix_token_count"], older["prefix_digest"]
    snapshot = write_snapshot(tmp_path / "older", CUT | {"continuation": older})
    assert snapshots.find_cuts(snapshot, 1, 1) == newest


@pytest.mark.parametrize(
    "change",
    [
        continuation(prefix_token_count=0),
        continuation(effective_output_limit=5),
        continuation(staging_keys=[]),
        continuation(staging_keys=["k", "z"]),  # only one of them is retained
        continuation(terminal_finish_reason="stop"),
        continuation(terminal_stop_reason="eos"),
        CONSTRAINED,
        {"is_listed": False},
        {"agent": None},
        {"events": ["lunch"]},
        {"events": [snapshots.SENTINEL] * 2},
        {"status": "failed"},
    ],
)
def test_one_rule_refuses_the_snapshot(tmp_path, change):
    snapshot = write_snapshot(tmp_path, CUT | change)
    with pytest.raises(snapshots.NotUsable):
        snapshots.find_cuts(snapshot, min_tokens=0, min_groups=1)


@pytest.mark.parametrize("kind", ["model", "resources"])
def test_a_server_without_the_rollout_refuses_the_snapshot(tmp_path, kind):
    snapshot = write_snapshot(tmp_path, CUT | {kind: None})
    with pytest.raises(KeyError, match=kind):
        snapshots.find_cuts(snapshot, min_tokens=0, min_groups=1)


def test_the_keys_must_be_retained_by_the_cuts_own_instance(tmp_path):
    other = SECOND_LIST | {"gym_instance_id": "other"}
    snapshot = write_snapshot(tmp_path, other, CUT | {"retained": []})
    with pytest.raises(snapshots.NotUsable):
        snapshots.find_cuts(snapshot, 1, 1)


def test_every_workplace_rollout_in_flight_must_be_cut(tmp_path):
    snapshot = write_snapshot(tmp_path, CUT, SIBLING | CONSTRAINED)
    with pytest.raises(snapshots.NotUsable, match="list_g1"):
        snapshots.find_cuts(snapshot, 1, 1)


def test_every_usable_cut_is_listed(tmp_path):
    finished = SIBLING | {"group_id": "list 3", "status": "completed"}
    constrained = COUNTER | CONSTRAINED | {"generation_index": 1}
    all_rollouts = [CUT, SIBLING, SECOND_LIST, finished, COUNTER, constrained]
    cuts = snapshots.find_cuts(write_snapshot(tmp_path, *all_rollouts), 1, 2)
    assert calls(cuts) == ["call", "sibling", "call 2", "closing turn"]


def test_each_workplace_cut_needs_the_least_tokens(tmp_path):
    longer = SIBLING | continuation(prefix_token_count=6)
    snapshot = write_snapshot(tmp_path, CUT, longer, COUNTER)
    assert len(snapshots.find_cuts(snapshot, 5, 1)) == 3
    with pytest.raises(snapshots.NotUsable, match=r"list_g0.* 6"):
        snapshots.find_cuts(snapshot, 6, 1)


def test_groups_are_counted_not_cuts_and_only_workplaces(tmp_path):
    snapshot = write_snapshot(tmp_path, CUT, SIBLING, COUNTER)
    assert len(snapshots.find_cuts(snapshot, 1, 1)) == 3
    with pytest.raises(snapshots.NotUsable, match="1 prompt groups"):
        snapshots.find_cuts(snapshot, 1, 2)


# -- waiting for a snapshot ------------------------------------------------------------


class Selecting:
    """`select` in a thread that publishes as the test says."""

    def __init__(self, root, monkeypatch):
        self.folder, self.copies, self.root = root / "all", root / "copy", root
        self.folder.mkdir()
        self.polled, self.found, self.now = threading.Event(), {}, 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        monkeypatch.setattr(snapshots, "time", clock)

    def _sleep(self, seconds):
        """`select` has looked, and found nothing new."""
        self.polled.set()
        time.sleep(seconds)

    def publish(self, name, *rollouts):
        """By rename, after a look at what was there before."""
        assert self.polled.wait(30)
        new = self.root / name
        new.mkdir()
        if rollouts:
            write_snapshot(new, *rollouts)
        new.rename(self.folder / name)
        return self.folder / name

    def looks_again(self):
        """Until all that is published by now has been looked at."""
        for _ in range(2):
            self.polled.clear()
            assert self.polled.wait(30)

    def start(self, min_tokens=1):
        def select():
            limits = 1.0, min_tokens, 1
            try:
                self.found = snapshots.select(self.folder, self.copies, *limits)
            except TimeoutError as error:
                self.found = {"error": str(error)}

        self.thread = threading.Thread(target=select)
        self.thread.start()

    def times_out(self):
        self.looks_again()
        self.now = 1.0
        return self.ends()["error"]

    def ends(self):
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.found


@pytest.fixture
def selecting(tmp_path, monkeypatch):
    return Selecting(tmp_path, monkeypatch)


def test_the_first_usable_one_from_now_on_is_copied_whole(selecting):
    write_snapshot(selecting.folder / "snapshot_000001", CUT)  # from before
    selecting.start()
    selecting.publish("snapshot_000002")  # torn
    selecting.looks_again()
    selecting.publish("tmp_snapshot_000003", CUT)
    selecting.looks_again()
    (selecting.folder / "snapshot_000004").write_text("a file")
    selecting.looks_again()
    unpicklable = selecting.root / "unpicklable"
    (write_snapshot(unpicklable, CUT) / "rollout_recovery.pt").write_bytes(b"not one")
    unpicklable.rename(selecting.folder / "snapshot_000005")
    selecting.looks_again()
    selecting.publish("snapshot_000006", CUT | {"model": None})
    selecting.looks_again()
    snapshot = selecting.publish("snapshot_000007", CUT)
    found = selecting.ends()
    assert found["snapshot"] == str(snapshot) and calls(found["cuts"]) == ["call"]
    (copy,) = selecting.copies.iterdir()
    assert copy.name == snapshot.name and snapshots.find_cuts(copy, 1, 1)
    files = [{path.relative_to(x) for path in x.rglob("*")} for x in (snapshot, copy)]
    assert files[0] == files[1]


@pytest.mark.parametrize("when", ["copied", "judged"])
def test_one_that_is_pruned_meanwhile_leaves_no_copy(selecting, monkeypatch, when):
    module, name = {
        "copied": (shutil, "copytree"),
        "judged": (snapshots, "find_cuts"),
    }[when]
    original = getattr(module, name)
    snapshot = selecting.folder / "snapshot_000002"

    def prune_first(*args):
        shutil.rmtree(snapshot, ignore_errors=True)
        return original(*args)

    monkeypatch.setattr(module, name, prune_first)
    selecting.start()
    selecting.publish(snapshot.name, CUT)
    assert str(snapshot) in selecting.times_out()
    assert not (selecting.copies / snapshot.name).exists()


def test_the_time_out_says_what_the_last_one_lacked(selecting):
    selecting.start(min_tokens=99)
    snapshot = selecting.publish("snapshot_000001", CUT)
    error = selecting.times_out()
    assert str(selecting.folder) in error and snapshot.name in error
    assert "99 tokens" in error and "\n" not in error


def select(root, *options):
    command = [sys.executable, snapshots.__file__, "select", "--min-tokens=1"]
    command += [f"--snapshots={root}/all", f"--copy-to={root}/copy", "--min-groups=1"]
    command += [f"--output={root}/selection", *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_no_snapshot_is_one_line_and_status_2(tmp_path):
    done = select(tmp_path, "--timeout-s=1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert str(tmp_path / "all") in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_what_is_selected(tmp_path, monkeypatch):
    found = {"snapshot": "here", "cuts": [{"group_id": "group"}]}
    monkeypatch.setattr(snapshots, "select", lambda *_: found)
    options = [f"--{x}={tmp_path / x}" for x in ("snapshots", "copy-to", "output")]
    options += ["--timeout-s=9", "--min-tokens=1", "--min-groups=1"]
    monkeypatch.setattr(sys, "argv", ["snapshot", "select", *options])
    snapshots.main()
    assert [path.name for path in tmp_path.iterdir()] == ["output"]
    assert json.loads((tmp_path / "output").read_text()) == found


# -- the prompts -----------------------------------------------------------------------


def test_every_row_has_what_the_gym_needs(tmp_path):
    example = {"responses_create_params": {"input": [], "tools": TOOLS}}
    assert workload(tmp_path, json.dumps(example) + "\n").returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "rows").open()][:3]
    *workplace, counter = rows
    for items, row in zip((40, 60), workplace, strict=True):
        assert row["environment_name"] == row["category"] == "workplace_assistant"
        assert row["task_source"] == "workplace_assistant_checkpoint_test_agent"
        (call,) = row["ground_truth"]
        arguments = json.loads(call["arguments"])
        assert call["name"] == "calendar_create_event"
        assert arguments["event_name"] == snapshots.SENTINEL
        assert arguments["participant_email"] == "checkpoint-recovery@example.com"
        assert arguments["event_start"] == "2025-01-15 10:00:00"
        (turn,) = row["responses_create_params"]["input"]
        assert f"from 1 to {items} " in turn["content"]
        assert "duration: 30" in turn["content"]
    assert counter["environment_name"] == "example_session_state_mgmt"
    assert counter["task_source"] == "example_session_state_mgmt_simple_agent"
    assert counter["expected_count"] == counter["initial_count"] + 1
    (tool,) = counter["responses_create_params"]["tools"]  # with our schema
    proof = tool["parameters"]["properties"]["checkpoint_proof"]
    assert tool["strict"] and proof["minItems"] == proof["maxItems"] == 64
    for params in (row["responses_create_params"] for row in rows):
        assert params["tools"][0]["name"] == params["tool_choice"]["name"]
        assert params["parallel_tool_calls"] is False


def test_no_gym_is_needed(tmp_path):
    command = [sys.executable, SCRIPT, "--steps=1", "--list-items", "40", "60"]
    command += [f"--gym-root={tmp_path}/none", f"--output={tmp_path}/rows"]
    subprocess.run(command, check=True)
    rows = [json.loads(line) for line in (tmp_path / "rows").open()]
    tools = [row["responses_create_params"]["tools"] for row in rows]
    assert [[x["name"] for x in shown] for shown in tools] == [
        ["calendar_create_event"],
        ["calendar_create_event"],
        ["increment_counter"],
    ]


NO_ROW = ["", "{", "[]", "7", "\xff", '{"responses_create_params": 7}']


@pytest.mark.parametrize("text", NO_ROW)
def test_a_broken_example_row_is_one_line_and_status_2(tmp_path, text):
    done = workload(tmp_path, text)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert str(tmp_path / EXAMPLES.format("workplace_assistant")) in done.stderr
    assert not (tmp_path / "rows").exists()


def test_a_missing_example_row_is_one_line_and_status_2(tmp_path):
    command = [sys.executable, SCRIPT, "--steps=1", "--list-items", "40", "60"]
    command += [f"--gym-root={tmp_path}", f"--output={tmp_path}/rows"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    path = tmp_path / Path(EXAMPLES.format("workplace_assistant"))
    assert str(path) in done.stderr
