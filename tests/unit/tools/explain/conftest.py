# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of the explanation build on the harness's own small evidence."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "functional"))
