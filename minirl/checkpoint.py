# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Trainer checkpoints, `step_<n>`: found, published by rename, and pruned."""

import json
import shutil
from pathlib import Path
from typing import Any

from minirl.data_plane import DataPlaneClient
from minirl.policy import Policy


def _step_folders(checkpoint_dir: Path) -> list[Path]:
    """Every `step_<n>`, oldest first, also those that hold snapshots alone."""
    folders = [x for x in checkpoint_dir.glob("step_*") if x.name[5:].isdigit()]
    return sorted(folders, key=lambda path: int(path.name[5:]))


def _trainer_checkpoints(checkpoint_dir: Path) -> list[Path]:
    """The complete ones, oldest first."""
    folders = _step_folders(checkpoint_dir)
    return [x for x in folders if (x / "training_info.json").exists()]


def latest_checkpoint(checkpoint_dir: Path) -> Path | None:
    """The newest complete trainer checkpoint, if there is one."""
    return next(reversed(_trainer_checkpoints(checkpoint_dir)), None)


def save_trainer_checkpoint(
    folder: Path,
    training_info: dict[str, int],
    gym_checkpoint: dict[str, Any],
    policy: Policy,
    dp_client: DataPlaneClient | None,
) -> None:
    """Publish `step_<n>`, with the data plane if it is given."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    (partial / "training_info.json").write_text(json.dumps(training_info))
    (partial / "gym_checkpoint.json").write_text(json.dumps(gym_checkpoint))
    policy.save_checkpoint(partial)
    if dp_client:
        dp_client.save_checkpoint(partial / "data_plane")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def prune_checkpoints(checkpoint_dir: Path, keep_top_k: int | None) -> None:
    """Delete every step older than the newest `keep_top_k` checkpoints; None keeps all.

    NeMo-RL keeps the newest ones where `checkpointing.metric_name` is null.
    """
    if keep_top_k is None:
        return
    kept = _trainer_checkpoints(checkpoint_dir)[-keep_top_k:]
    for folder in _step_folders(checkpoint_dir):
        if kept and int(folder.name[5:]) < int(kept[0].name[5:]):
            shutil.rmtree(folder)
