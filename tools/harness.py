# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The harness's files, which form no package, as modules; and its judge."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

FUNCTIONAL = Path(__file__).resolve().parents[1] / "tests" / "functional"


def harness_module(name: str) -> Any:
    """A file of the harness, by its name without `.py`."""
    spec = importlib.util.spec_from_file_location(name, FUNCTIONAL / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


judge = harness_module("_gym_prefix_recovery_parity")
