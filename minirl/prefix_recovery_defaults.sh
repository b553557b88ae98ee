# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
#
# The prefix-recovery test's settings on minirl, where the caller has not set them:
# a small policy that samples and decodes batch-invariantly, on a laptop.
# shellcheck shell=bash
PATH=$ROOT/.venv/bin:$PATH
: "${SC_PREFIX_RECOVERY_MODEL:=minirl/workplace-policy}"
: "${SC_PREFIX_RECOVERY_LISTS:=40,60,80,100}"
: "${SC_PREFIX_RECOVERY_GENERATIONS:=4}"
: "${SC_PREFIX_RECOVERY_TOP_P:=1.0}"
: "${SC_PREFIX_RECOVERY_MAX_TOKENS:=768}"
: "${SC_PREFIX_RECOVERY_MIN_PREFIX:=24}"
: "${SC_PREFIX_RECOVERY_EXACT:=1}"
: "${SC_PREFIX_RECOVERY_TIMEOUT_S:=300}"
