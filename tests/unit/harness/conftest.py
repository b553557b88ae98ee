# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of the harness that stay here: they build on those that travel with it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "functional"))
