# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The stand-in for NeMo-RL; the writers of evidence and snapshots travel with the
harness, so they are in the same checkout."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/unit/functional"))
