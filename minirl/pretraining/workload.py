# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The workload that the policy learns: the prompts' wording, from where it stands."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "functional"))

from _gym_prefix_recovery_workload import (
    COUNTER_PROMPT,
    EVENT,
    PROOF_ITEMS,
    TOOLS,
    WORKPLACE_PROMPT,
)

__all__ = [
    "COUNTER_PROMPT",
    "EVENT",
    "PROOF_ITEMS",
    "TOOLS",
    "WORKPLACE_PROMPT",
]
