# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""A folder of rollout snapshots: how they are named, pruned and selected.

A snapshot is `tmp_snapshot_<n>` while it is written, `snapshot_<n>` once it is
published, and `trash_snapshot_<n>` while it is deleted.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from minirl.bootstrap import SCHEMA_VERSION

logger = logging.getLogger(__name__)


def published(folder: Path) -> list[Path]:
    """The complete snapshots of a folder, oldest first."""
    return sorted(folder.glob("snapshot_*"))


def prune_snapshots(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep`."""
    snapshots = published(folder)
    for old in snapshots[: max(len(snapshots) - keep, 0)]:
        trash = old.with_name(f"trash_{old.name}")
        old.rename(trash)
        shutil.rmtree(trash)


def remove_leftovers(folder: Path) -> None:
    """Delete what a crash left half written or half deleted."""
    for pattern in ("tmp_snapshot_*", "trash_snapshot_*"):
        for leftover in folder.glob(pattern):
            shutil.rmtree(leftover)


def select_snapshot(
    folder: Path, fingerprint: str, train_step: int, weight_version: int
) -> Path | None:
    """The newest snapshot that a run can go on from; None if the folder has none.

    One of another fingerprint, step or version is skipped.

    Raises:
        ValueError: there are snapshots and none fits; says why, for each.
    """
    expected = {
        "schema_version": SCHEMA_VERSION,
        "base_train_step": train_step,
        "trainer_version": weight_version,
        "bootstrap_fingerprint": fingerprint,
    }
    reasons = []
    for snapshot in reversed(published(folder)):
        reason = _misfit(snapshot / "manifest.json", expected)
        if not reason:
            return snapshot
        logger.warning("Skipped rollout recovery snapshot: %s: %s", snapshot, reason)
        reasons.append(f"{snapshot.name}: {reason}")
    if reasons:
        raise ValueError(f"{folder}: no snapshot fits: {'; '.join(reasons)}")
    return None


def _misfit(path: Path, expected: dict[str, Any]) -> str:
    """What a manifest has that is not as expected; empty if nothing."""
    try:
        manifest = json.loads(path.read_text())
        return ", ".join(
            f"{key} is {manifest.get(key)}, expected {value}"
            for key, value in expected.items()
            if manifest.get(key) != value
        )
    except (OSError, ValueError, AttributeError) as error:
        return f"its manifest can't be read: {error}"
