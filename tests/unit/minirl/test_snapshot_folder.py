# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import json
import shutil

import pytest

from minirl.snapshot_folder import prune_snapshots, remove_leftovers, select_snapshot

MANIFEST = {
    "schema_version": 6,
    "base_train_step": 2,
    "trainer_version": 3,
    "bootstrap_fingerprint": "f" * 64,
}
# What a snapshot may have that a run at step 2 cannot go on from.
MISFITS = [
    ("schema_version", 4),
    ("base_train_step", 1),
    ("trainer_version", 2),
    ("bootstrap_fingerprint", "0" * 64),
]


def add(folder, number, manifest=MANIFEST):
    snapshot = folder / f"snapshot_{number:06d}"
    snapshot.mkdir()
    (snapshot / "manifest.json").write_text(json.dumps(manifest))
    return snapshot


def select(folder):
    return select_snapshot(folder, "f" * 64, train_step=2, weight_version=3)


def test_newest_snapshot_is_selected(tmp_path):
    add(tmp_path, 9)
    newest = add(tmp_path, 10)
    assert select(tmp_path) == newest


def test_other_fields_of_the_manifest_do_not_matter(tmp_path):
    other = {"mutation_version": 5, "gym_topology_fingerprint": "e" * 64}
    snapshot = add(tmp_path, 1, MANIFEST | other)
    assert select(tmp_path) == snapshot


@pytest.mark.parametrize("key, value", MISFITS)
def test_snapshot_that_does_not_fit_is_skipped(tmp_path, caplog, key, value):
    fits = add(tmp_path, 1)
    skipped = add(tmp_path, 2, MANIFEST | {key: value})
    assert select(tmp_path) == fits
    expected = f"{skipped}: {key} is {value}, expected {MANIFEST[key]}"
    assert caplog.messages == [f"Skipped rollout recovery snapshot: {expected}"]


def test_none_that_fits_is_refused_with_the_reason_for_each(tmp_path):
    for number, (key, value) in enumerate(MISFITS):
        add(tmp_path, number, MANIFEST | {key: value})
    with pytest.raises(ValueError) as error:
        select(tmp_path)
    text = str(error.value)
    assert text.startswith(f"{tmp_path}: no snapshot fits: ") and "\n" not in text
    for number, (key, value) in enumerate(MISFITS):
        assert f"snapshot_00000{number}: {key} is {value}, expected" in text


def test_manifest_of_an_older_head_is_refused_not_misread(tmp_path):
    add(tmp_path, 1, {"base_train_step": 2, "trainer_version": 3})
    with pytest.raises(ValueError, match="schema_version is None, expected 6"):
        select(tmp_path)


@pytest.mark.parametrize("text", [None, "", "{", "[]"])
def test_manifest_that_cannot_be_read_is_a_reason(tmp_path, text):
    snapshot = add(tmp_path, 1)
    (snapshot / "manifest.json").unlink()
    if text is not None:
        (snapshot / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match="snapshot_000001: its manifest can't be read"):
        select(tmp_path)
    fits = add(tmp_path, 2)
    assert select(tmp_path) == fits


def test_folder_without_snapshots_has_none_to_select(tmp_path):
    for name in ("tmp_snapshot_000001", "trash_snapshot_000001"):
        (tmp_path / name).mkdir()
    assert select(tmp_path) is None and select(tmp_path / "none") is None


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_newest_are_kept(tmp_path, keep):
    snapshots = [add(tmp_path, 1), add(tmp_path, 2)]
    prune_snapshots(tmp_path, keep)
    assert sorted(tmp_path.iterdir()) == (snapshots[-keep:] if keep else [])


def test_snapshot_is_renamed_before_it_is_deleted(tmp_path, monkeypatch):
    deleted = []
    monkeypatch.setattr(shutil, "rmtree", deleted.append)
    add(tmp_path, 3)
    prune_snapshots(tmp_path, 0)
    assert deleted == [tmp_path / "trash_snapshot_000003"] == [*tmp_path.iterdir()]


def test_leftovers_go_and_snapshots_stay(tmp_path):
    snapshot = add(tmp_path, 1)
    for name in ("tmp_snapshot_000002", "trash_snapshot_000000"):
        (tmp_path / name / "data_plane").mkdir(parents=True)
    remove_leftovers(tmp_path)
    assert [*tmp_path.iterdir()] == [snapshot]
