# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Sound evidence with a few changes, written and judged."""

from pathlib import Path
from typing import Any

import prefix_recovery_evidence as small

SOUND = small.sound()
RESTORED, COMPLETED, RESTORED_TOO = SOUND["log"][1:4]
WITHOUT_HASH, WITHOUT_HASH_TOO = (
    line.partition(" weight_version_span")[0] for line in (RESTORED, RESTORED_TOO)
)
NAN, INFINITY = float("nan"), float("inf")
Changes = list[tuple[str, Any]]  # for `prefix_recovery_evidence.change`


def judged(root: Path, changes: Changes, *options: str) -> int:
    evidence = small.sound()
    for path, value in changes:
        small.change(evidence, path, value)
    return small.judge([*small.write(root, evidence), *options])


def in_each(path: str, reference: Any, recovery: Any) -> Changes:
    """Another value in each run."""
    return [(f"ref.{path}", reference), (f"rec.{path}", recovery)]
