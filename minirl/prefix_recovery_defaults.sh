# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
#
# The prefix-recovery test's settings on minirl: a small policy that really samples, and
# decodes batch-invariantly, on a laptop.
# shellcheck shell=bash disable=SC2034
PATH=$ROOT/.venv/bin:$PATH
MODEL=minirl/workplace-policy
LISTS=40,60,80,100
GENERATIONS=4
TOP_P=1.0
MAX_TOKENS=768
MIN_PREFIX=24
EXACT=1
TIMEOUT_S=300
