# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""One thread for torch, set before any test imports it.

TransferQueue sets torch back to the threads it had at first, and sums by two threads
are not those by one, bit for bit.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"
