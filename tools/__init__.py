# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Tools around the harness, whose files are modules on sys.path for all of them."""

import sys
from pathlib import Path

FUNCTIONAL = Path(__file__).resolve().parents[1] / "tests" / "functional"
sys.path.insert(0, str(FUNCTIONAL))
