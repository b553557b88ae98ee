# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of the harness that stay here: they build on those that travel with it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "functional"))

import pytest
import script_runs


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The harness in a checkout of the stand-in, to be copied."""
    return script_runs.install(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def checkout(installed, tmp_path):
    return script_runs.copy(installed, tmp_path / "checkout")
