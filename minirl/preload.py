# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Imports the controller and all it needs, in half the time.

The driver and the workers of three actors import this first of all, and together that
was a third of a small job's CPU time.
"""

import gc
from typing import Any
from unittest import mock

import torch.compiler

gc.disable()  # what an import makes is no garbage, and there is much to look through


def _unchanged(function: Any = None, **_: Any) -> Any:
    return function or _unchanged


# tensordict marks some functions for torch.compile; marking them imports all of its
# compiler, which nothing here uses.
names = ["allow_in_graph", "assume_constant_result", "disable"]
marks: dict[str, Any] = dict.fromkeys(names, _unchanged)
with mock.patch.multiple(torch.compiler, **marks):
    from minirl.controller import SingleControllerActor  # noqa: F401

gc.freeze()  # and none when Python ends, which would look through it once more
gc.enable()
