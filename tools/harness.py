# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The harness's judge, as a module."""

import _gym_prefix_recovery_parity as judge

from tools import FUNCTIONAL

__all__ = ["FUNCTIONAL", "judge"]
