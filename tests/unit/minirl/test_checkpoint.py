# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from minirl.checkpoint import latest_checkpoint, prune_checkpoints


def checkpoint(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    (folder / name / "training_info.json").write_text("{}")
    return folder / name


def test_latest_checkpoint_is_picked_by_number(tmp_path):
    for name in ("step_9", "step_10", "step_2"):
        checkpoint(tmp_path, name)
    assert latest_checkpoint(tmp_path) == tmp_path / "step_10"


def test_partial_and_other_folders_are_no_checkpoint(tmp_path):
    for name in (".step_3.partial", "step_4.old", "bootstrap", "step_"):
        checkpoint(tmp_path, name)
    assert latest_checkpoint(tmp_path) is None


def test_folder_with_snapshots_alone_is_no_checkpoint(tmp_path):
    expected = checkpoint(tmp_path, "step_1")
    (tmp_path / "step_2" / "rollout_snapshots").mkdir(parents=True)
    assert latest_checkpoint(tmp_path) == expected


def test_missing_folder_has_no_checkpoint(tmp_path):
    assert latest_checkpoint(tmp_path / "none") is None


@pytest.mark.parametrize("keep, left", [(1, [10]), (2, [9, 10]), (None, [2, 9, 10])])
def test_newest_checkpoints_are_kept(tmp_path, keep, left):
    for step in (2, 9, 10):
        checkpoint(tmp_path, f"step_{step}")
    prune_checkpoints(tmp_path, keep)
    assert {path.name for path in tmp_path.iterdir()} == {f"step_{x}" for x in left}


def test_folders_with_snapshots_alone_go_with_older_checkpoints(tmp_path):
    for step in (2, 4):
        checkpoint(tmp_path, f"step_{step}")
    for step in (1, 3, 5):
        (tmp_path / f"step_{step}" / "rollout_snapshots").mkdir(parents=True)
    prune_checkpoints(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_4", "step_5"]


def test_what_is_no_step_is_not_pruned(tmp_path):
    for name in ("step_1", "step_2", "bootstrap", "step_old"):
        checkpoint(tmp_path, name)
    prune_checkpoints(tmp_path, 1)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["bootstrap", "step_2", "step_old"]
