# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Proof of the harness: it catches every fault, raises no false alarm, and is cheap.

python -m tools.prove {faults,soak,bench,gpu,vllm} [ARGUMENT ...]
"""
