# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of the harness that stay here: they build on those that travel with it."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "functional"))

from prefix_recovery_evidence import parity


@pytest.fixture(autouse=True)
def threads_for_processes(monkeypatch):
    """Reading two tiny dumps is not worth two processes."""
    monkeypatch.setattr(parity, "ProcessPoolExecutor", ThreadPoolExecutor)
