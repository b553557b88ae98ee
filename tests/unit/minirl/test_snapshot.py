# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import copy
import json
import re
import shutil
from itertools import count

import pytest
import torch
from _gym_prefix_recovery_snapshot import NotUsable, find_cuts

from minirl.bootstrap import bootstrap_fingerprint
from minirl.snapshot import (
    SnapshotWriter,
    gym_checkpoint,
    read_records,
    restore_snapshot,
)
from minirl.snapshot_folder import published

SHORT, LONG, COUNTER = 0, 1, 2  # prompts: lists of 4 and 24 integers, a counter
SENTINEL = "checkpoint recovery sentinel"
STAGING, ROWS = "rollout_staging", "rollout_data"


def list_tokens(run, prompt_idx):
    """How much every running rollout of a prompt has of its list; 0 before it."""
    calls = [
        episode.call
        for episode in run.manager.episodes.values()
        if episode.group.prompt_idx == prompt_idx
    ]
    return [len(c.token_ids) if c and c.key[2] == 1 else 0 for c in calls]


def in_lists(run):
    """All four Workplace rollouts are in the middle of their lists."""
    short = list_tokens(run, SHORT)
    return len(short) == 2 and min(short + list_tokens(run, LONG)) > 1


def short_lists_done(run):
    long = list_tokens(run, LONG)
    return not list_tokens(run, SHORT) and len(long) == 2 and min(long) > 12


def write(writer, train_step=0, weight_version=0):
    return writer.publish(writer.cut(train_step, weight_version))


def interrupt(make_run, folder, until):
    """A run that is stopped when a condition holds; its snapshot."""
    run = make_run()
    run.manager.begin_step(0)
    run.decode(lambda: until(run))
    assert run.manager.episodes
    return run, write(SnapshotWriter(folder, run.manager, 3))


@pytest.fixture(scope="module")
def in_lists_run(make_run, tmp_path_factory):
    return interrupt(make_run, tmp_path_factory.mktemp("snapshots"), in_lists)


@pytest.fixture(scope="module")
def snapshot(in_lists_run):
    """Taken while every list was being written."""
    return in_lists_run[1]


@pytest.fixture(scope="module")
def late_snapshot(make_run, tmp_path_factory):
    """Taken when the short lists were done."""
    return interrupt(make_run, tmp_path_factory.mktemp("late"), short_lists_done)[1]


@pytest.fixture
def restore(make_run):
    """Restores a snapshot into a new run, that has not gone on yet."""

    def restore(snapshot):
        run = make_run()
        restore_snapshot(snapshot, run.manager)
        return run

    return restore


@pytest.fixture
def copied(snapshot, tmp_path):
    """A copy of the snapshot, to be damaged."""
    return shutil.copytree(snapshot, tmp_path / "snapshot_000001")


def episodes(run, prompt_idx):
    found = [
        episode
        for episode in run.manager.episodes.values()
        if episode.group.prompt_idx == prompt_idx
    ]
    return sorted(found, key=lambda episode: episode.sibling.generation_index)


def event_names(state):
    columns = state["calendar"]["_calendar_events"]["columns"]
    return {column["name"]: column["values"] for column in columns}["event_name"]


def same_rows(run, other):
    """Whether two runs have the same rows, bit for bit, but for their group ids."""
    left, right = run.rows(), other.rows()
    assert sorted(left) == sorted(right)
    for key in left:
        tags = [{**row[key]["tags"], "group_id": ""} for row in (left, right)]
        fields = [row[key]["fields"] for row in (left, right)]
        if tags[0] != tags[1] or list(fields[0]) != list(fields[1]):
            return False
        if not all(torch.equal(fields[0][name], fields[1][name]) for name in fields[0]):
            return False
    return True


# -- writing -------------------------------------------------------------------------


def test_snapshot_has_the_documented_files(snapshot):
    found = {str(path.relative_to(snapshot)) for path in snapshot.rglob("*.*")}
    gym = "gym-instances/nemo_gym_0/replica-0/gym"
    for server in (
        "agent/workplace_assistant_checkpoint_test_agent",
        "agent/example_session_state_mgmt_simple_agent",
        "model/policy_model",
        "resources/workplace_assistant",
        "resources/example_session_state_mgmt",
    ):
        assert f"{gym}/{server}/manifest.json" in found
    assert {"manifest.json", "gym_checkpoint.json", "rollout_recovery.pt"} <= found
    assert "replay_buffer_metadata.pt" in found and (snapshot / "data_plane").is_dir()


def test_manifest_says_what_the_snapshot_is_based_on(in_lists_run):
    run, snapshot = in_lists_run
    assert json.loads((snapshot / "manifest.json").read_text()) == {
        "schema_version": 6,
        "base_train_step": 0,
        "trainer_version": 0,
        "current_epoch": 0,
        "sampler_dispatch_index": 3,
        "mutation_version": 3,
        "rolled_back_train_group_count": 0,
        "bootstrap_fingerprint": bootstrap_fingerprint(run.manager.config),
    }


def test_manifest_of_a_later_step(make_run, tmp_path):
    run = make_run()  # of three prompts, all of which each step takes
    run.manager.begin_step(4)
    path = write(SnapshotWriter(tmp_path, run.manager, 1), 4, 5)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["base_train_step"], manifest["trainer_version"]) == (4, 5)
    assert manifest["current_epoch"] == 4 and manifest["sampler_dispatch_index"] == 15


def test_ledger_versions_go_up_over_finished_rollouts_and_restarts(
    restore, snapshot, late_snapshot, tmp_path
):
    def version(path):
        return json.loads((path / "manifest.json").read_text())["mutation_version"]

    again = write(SnapshotWriter(tmp_path, restore(late_snapshot).manager, 1))
    assert version(snapshot) < version(late_snapshot) < version(again)


def test_gym_checkpoint_lists_every_rollout_in_flight(in_lists_run):
    run, snapshot = in_lists_run
    checkpoint = json.loads((snapshot / "gym_checkpoint.json").read_text())
    (listed,) = checkpoint["instances"].values()
    assert list(checkpoint["instances"]) == ["nemo_gym_0"]
    assert listed == [{"rollout_id": r, "attempt": 0} for r in run.manager.episodes]


def test_gym_checkpoint_refers_to_every_key_that_is_staged(in_lists_run):
    run, snapshot = in_lists_run
    checkpoint = json.loads((snapshot / "gym_checkpoint.json").read_text())
    keys = sorted(checkpoint["staging_keys"]["nemo_gym_0"])
    assert keys == run.data_plane.list_sample_ids(STAGING) and len(keys) == 8


def test_servers_say_their_kind_and_number_of_records(snapshot):
    for path in snapshot.glob("gym-instances/*/*/gym/*/*/manifest.json"):
        manifest = json.loads(path.read_text())
        records = (path.parent / manifest["records_file"]).read_text().splitlines()
        assert manifest["kind"] == path.parts[-3]
        assert manifest["record_count"] == len(records)


@pytest.mark.parametrize("kind", ["agent", "model", "resources"])
def test_every_rollout_has_one_record_of_each_kind(in_lists_run, kind):
    run, snapshot = in_lists_run
    assert sorted(read_records(snapshot, kind)) == sorted(run.manager.episodes)


def test_harness_finds_every_workplace_cut(in_lists_run):
    run, snapshot = in_lists_run
    cuts = {cut["gym_rollout_id"]: cut for cut in find_cuts(snapshot, 1, 1)}
    assert len(cuts) == 4
    for rollout_id, cut in cuts.items():
        call = run.manager.episodes[rollout_id].call
        assert cut["model_call_id"] == call.model_call_id
        assert cut["prefix_token_count"] == len(call.token_ids)
        assert cut["prefix_digest"] == call.digest()
        assert cut["staging_keys"] == call.staging_keys
        assert (cut["target_step"], cut["gym_attempt"]) == (0, 0)


def test_continuation_has_the_fields_of_the_newest_head(snapshot):
    for record in read_records(snapshot, "model").values():
        for cut in record["generation_cuts"]:
            if cut["continuation"]:
                assert sorted(cut["continuation"]) == [
                    "effective_output_limit",
                    "first_weight_version",  # minirl's own
                    "prefix_digest",
                    "prefix_token_count",
                    "staging_keys",
                    "terminal_finish_reason",
                    "terminal_stop_reason",
                ]


def test_harness_finds_only_running_rollouts(late_snapshot):
    assert len(find_cuts(late_snapshot, 1, 1)) == 2


def test_harness_finds_no_cut_before_the_lists(make_run, tmp_path):
    _, early = interrupt(make_run, tmp_path, lambda run: run.engine.decoded_tokens > 20)
    with pytest.raises(NotUsable):
        find_cuts(early, 1, 1)


def test_constrained_call_is_recorded_without_a_continuation(in_lists_run):
    run, snapshot = in_lists_run
    models = read_records(snapshot, "model")
    counters = episodes(run, COUNTER)
    cuts = [models[episode.rollout_id]["generation_cuts"] for episode in counters]
    assert all(episode.call.token_ids for episode in counters)
    assert [[cut["continuation"] for cut in found] for found in cuts] == [[None]] * 2


def test_taking_a_snapshot_does_not_change_the_run(make_run, tmp_path, whole_run):
    run = make_run()
    run.manager.begin_step(0)
    writer, steps = SnapshotWriter(tmp_path, run.manager, 2), count()

    def write_now_and_then():
        if next(steps) % 30 == 29:
            write(writer)

    run.decode(write_now_and_then)
    assert len(published(tmp_path)) == 2 and same_rows(run, whole_run)


@pytest.mark.parametrize("file", ["rollout_recovery.pt", "replay_buffer_metadata.pt"])
def test_snapshot_that_fails_is_not_published(make_run, tmp_path, monkeypatch, file):
    save = torch.save

    def fail(value, path):
        save(value, path)
        if path.name == file:
            raise OSError("disk full")

    writer = SnapshotWriter(tmp_path, make_run().manager, 3)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fail)
        with pytest.raises(OSError, match="disk full"):
            write(writer)
    assert published(tmp_path) == []
    assert write(writer) == published(tmp_path)[0]


def test_last_file_is_written_before_the_snapshot_is_published(make_run, tmp_path):
    writer = SnapshotWriter(tmp_path, make_run().manager, 3)
    files = writer.cut(0, 0)
    with pytest.raises(TypeError, match="not JSON serializable"):
        writer.publish({**files, "last.json": object()})
    assert published(tmp_path) == []


def test_published_snapshot_leaves_no_partial(make_run, tmp_path):
    path = write(SnapshotWriter(tmp_path, make_run().manager, 3))
    assert list(tmp_path.iterdir()) == [path]


def test_snapshot_is_of_the_moment_of_its_cut(make_run, restore, whole_run, tmp_path):
    run = make_run()
    run.manager.begin_step(0)
    writer, cut = SnapshotWriter(tmp_path, run.manager, 3), []

    def go_on_after_the_cut():
        if in_lists(run) and not cut:
            files = writer.cut(0, 0)
            cut.extend([files, copy.deepcopy(files)])

    run.decode(go_on_after_the_cut)
    assert cut[0] == cut[1]
    restored = restore(writer.publish(cut[0]))
    restored.decode()
    assert same_rows(restored, whole_run)


def test_oldest_snapshots_are_pruned(make_run, tmp_path):
    writer = SnapshotWriter(tmp_path, make_run().manager, keep_latest_k=2)
    written = [write(writer) for _ in range(5)]
    assert published(tmp_path) == written[-2:]


def test_numbers_go_on_after_a_restart(make_run, tmp_path):
    first = write(SnapshotWriter(tmp_path, make_run().manager, 3))
    second = write(SnapshotWriter(tmp_path, make_run().manager, 3))
    assert published(tmp_path) == [first, second]


def test_snapshot_is_named_tmp_while_it_is_written(make_run, tmp_path):
    writer = SnapshotWriter(tmp_path, make_run().manager, 3)
    files = writer.cut(0, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["tmp_snapshot_000001"]
    assert writer.publish(files).name == "snapshot_000001"


def test_what_a_crash_left_is_neither_published_nor_kept(make_run, tmp_path):
    writer = SnapshotWriter(tmp_path, make_run().manager, 3)
    writer.cut(0, 0)
    (partial,) = tmp_path.iterdir()
    (partial / "torn").touch()
    (tmp_path / "trash_snapshot_000007").mkdir()
    assert published(tmp_path) == []
    path = write(SnapshotWriter(tmp_path, make_run().manager, 3))
    assert [*tmp_path.iterdir()] == [path] and not (path / "torn").exists()


def test_gym_checkpoint_between_steps_refers_to_nothing(whole_run):
    empty = {"nemo_gym_0": []}
    expected = {"instances": empty, "staging_keys": empty}
    assert gym_checkpoint(whole_run.manager) == expected


# -- restoring -----------------------------------------------------------------------


def test_restored_run_ends_with_the_rows_of_a_whole_one(restore, snapshot, whole_run):
    run = restore(snapshot)
    run.decode()
    assert same_rows(run, whole_run)


def test_rows_finished_before_the_snapshot_are_kept(restore, late_snapshot, whole_run):
    run = restore(late_snapshot)
    assert sorted(run.rows()) == [(SHORT, 0), (SHORT, 1)]
    run.decode()
    assert same_rows(run, whole_run)


def test_finished_siblings_do_not_run_again(restore, late_snapshot):
    run = restore(late_snapshot)
    assert episodes(run, SHORT) == [] and len(run.manager.episodes) == 4
    run.decode()
    assert run.manager.finished == 4


def test_restored_twice_ends_with_the_same_rows(restore, snapshot, whole_run, tmp_path):
    run = restore(snapshot)
    run.decode(lambda: min(list_tokens(run, LONG)) > 8)
    again = restore(write(SnapshotWriter(tmp_path, run.manager, 3)))
    assert {e.sibling.current.gym_attempt for e in episodes(again, LONG)} == {2}
    again.decode()
    assert same_rows(again, whole_run)


def test_restored_while_its_prefix_is_fed_ends_with_the_same_rows(
    restore, snapshot, whole_run, tmp_path
):
    run = restore(snapshot)
    run.decode(lambda: any(call.fed for call in run.engine.running.values()))
    assert run.engine.decoded_tokens == 0
    again = restore(write(SnapshotWriter(tmp_path, run.manager, 3)))
    prefixes = [len(episode.prefix.token_ids) for episode in episodes(again, LONG)]
    assert prefixes == [len(episode.call.token_ids) for episode in episodes(run, LONG)]
    again.decode()
    assert same_rows(again, whole_run)


def test_restored_rollout_keeps_its_id_and_instance(restore, in_lists_run):
    run, snapshot = in_lists_run
    restored = restore(snapshot)
    assert sorted(restored.manager.episodes) == sorted(run.manager.episodes)
    for episode in restored.manager.episodes.values():
        assert episode.sibling.current.gym_instance_id == "nemo_gym_0"


def test_restored_rollout_is_the_next_attempt(restore, snapshot):
    run = restore(snapshot)
    attempts = [e.sibling.current.gym_attempt for e in run.manager.episodes.values()]
    assert attempts == [1] * 6


def test_restored_session_has_the_sentinel_once(restore, snapshot):
    run = restore(snapshot)
    for episode in episodes(run, SHORT) + episodes(run, LONG):
        assert event_names(episode.session.state()).count(SENTINEL) == 1


def test_tool_call_is_not_run_again(restore, snapshot, monkeypatch):
    run = restore(snapshot)
    called = []
    for episode in episodes(run, SHORT) + episodes(run, LONG):
        monkeypatch.setattr(episode.session, "call", lambda *call: called.append(call))
    run.decode()
    assert called == []


def test_session_that_was_not_changed_yet_is_restored_unchanged(
    make_run, restore, tmp_path
):
    _, early = interrupt(make_run, tmp_path, lambda run: run.engine.decoded_tokens > 20)
    run = restore(early)
    (episode, _) = episodes(run, LONG)
    assert event_names(episode.session.state()).count(SENTINEL) == 0


def test_cut_calls_go_on_from_their_prefix(restore, in_lists_run):
    run, snapshot = in_lists_run
    restored = restore(snapshot)
    for prompt in (SHORT, LONG):
        pairs = zip(episodes(run, prompt), episodes(restored, prompt), strict=True)
        for old, new in pairs:
            assert new.prefix.token_ids == old.call.token_ids
            assert new.prefix.logprobs == old.call.logprobs
            assert new.prefix.model_call_id == old.call.model_call_id


def test_only_the_tail_of_a_cut_call_is_generated(restore, in_lists_run, whole_run):
    run, snapshot = in_lists_run
    restored = restore(snapshot)
    restored.decode()
    whole = whole_run.engine.decoded_tokens
    kept = run.engine.decoded_tokens
    lost = sum(len(episode.call.token_ids) for episode in episodes(run, COUNTER))
    assert restored.engine.decoded_tokens == whole - kept + lost


def test_constrained_calls_start_again(restore, snapshot):
    run = restore(snapshot)
    counters = episodes(run, COUNTER)
    assert [(episode.prefix, episode.turn) for episode in counters] == [(None, 0)] * 2
    states = [episode.session.state() for episode in counters]
    assert states == [{"counter": 3}] * 2


def test_old_keys_are_retired_once_the_calls_go_on(restore, in_lists_run):
    run, snapshot = in_lists_run
    calls = [e.call for prompt in (SHORT, LONG) for e in episodes(run, prompt)]
    old = {key for call in calls for key in call.staging_keys}
    restored = restore(snapshot)
    assert old <= set(restored.data_plane.list_sample_ids(STAGING))
    restored.decode(lambda: bool(restored.engine.running))
    assert not old & set(restored.data_plane.list_sample_ids(STAGING))


def test_restored_run_leaves_nothing_staged(restore, snapshot):
    run = restore(snapshot)
    run.decode()
    assert run.data_plane.list_sample_ids(STAGING) == []


def test_staged_keys_that_nothing_refers_to_are_cleared(restore, copied):
    with damaged(copied) as partitions:
        stray = copy.deepcopy(next(iter(partitions[STAGING].values())))
        partitions[STAGING]["stray"] = stray
    run = restore(copied)
    assert "stray" not in run.data_plane.list_sample_ids(STAGING)


def test_restored_ledger_is_the_one_that_was_saved(restore, in_lists_run):
    run, snapshot = in_lists_run
    restored = restore(snapshot).manager.groups
    assert [g.group_id for g in restored] == [g.group_id for g in run.manager.groups]
    assert [g.target_step for g in restored] == [0, 0, 0]


def test_restore_is_logged(restore, late_snapshot, caplog):
    caplog.set_level("INFO", "minirl")
    restore(late_snapshot)
    assert caplog.messages == [
        f"Selected rollout recovery snapshot: {late_snapshot}",
        "Native TQ checkpoint restored and validated",
        "Loaded 2 unfinished rollout group(s)",
    ]


def test_every_cut_logs_that_it_is_restored_and_completed(restore, snapshot, caplog):
    caplog.set_level("INFO", "minirl")
    restore(snapshot).decode()
    log = caplog.text
    restored = re.findall(r"prefix restored: .*source_model_call_id=(\w+) prefix", log)
    completed = re.findall(r"prefix completed: .*source_model_call_id=(\w+) pre", log)
    assert len(set(restored)) == 4 and sorted(restored) == sorted(completed)


@pytest.mark.parametrize("line", ["restored", "completed"])
def test_log_names_the_rollout_and_its_attempt(restore, snapshot, caplog, line):
    caplog.set_level("INFO", "minirl")
    cuts = {f"{cut['gym_rollout_id']}-a1" for cut in find_cuts(snapshot, 1, 1)}
    restore(snapshot).decode()
    named = re.findall(rf"generation prefix {line}: rollout_id=(\S+) ", caplog.text)
    assert len(named) == 4 and {*named} == cuts


class damaged:
    """Lets a test change what is in a snapshot's data plane."""

    def __init__(self, snapshot):
        self.path = snapshot / "data_plane" / "partitions.pt"

    def __enter__(self):
        self.partitions = torch.load(self.path, weights_only=True)
        return self.partitions

    def __exit__(self, *_):
        torch.save(self.partitions, self.path)


def test_missing_staging_key_is_refused_by_name(restore, copied):
    with damaged(copied) as partitions:
        key, _ = partitions[STAGING].popitem()
    with pytest.raises(RuntimeError, match=f"the data plane lacks {key}"):
        restore(copied)


def test_missing_row_is_refused_by_name(restore, late_snapshot, tmp_path):
    copied = shutil.copytree(late_snapshot, tmp_path / "snapshot_000001")
    with damaged(copied) as partitions:
        key, _ = partitions[ROWS].popitem()
    with pytest.raises(RuntimeError, match=f"the data plane lacks {key}"):
        restore(copied)


@pytest.mark.parametrize("field", ["token_ids", "logprobs"])
def test_tampered_prefix_is_refused(restore, in_lists_run, copied, field):
    call = episodes(in_lists_run[0], LONG)[0].call
    with damaged(copied) as partitions:
        piece = partitions[STAGING][call.staging_keys[0]]["fields"][field]
        piece[0] = piece[0] + 1
    with pytest.raises(RuntimeError, match=f"call {call.model_call_id}: its staged"):
        restore(copied)
