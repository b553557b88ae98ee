#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
#
# The base test: one training job of minirl, in place of NeMo-RL's script of this name.
#
#   grpo_async_gym_single_controller.sh [OVERRIDE ...]
#
# SC_TEST_ENTRYPOINT and SC_TEST_CONFIG replace the entry point and the configuration.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$root/tests/functional/grpo_async_gym_single_controller
config=${SC_TEST_CONFIG:-examples/configs/grpo_minirl_single_controller.yaml}
entrypoint=${SC_TEST_ENTRYPOINT:-examples/run_grpo_single_controller.py}

cd "$root"
rm -rf "$out"
mkdir -p "$out"
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1 TQ_LOGGING_LEVEL=ERROR RAY_DEDUP_LOGS=0
python3 "$entrypoint" --config "$config" "$@" 2>&1 | tee "$out/run.log"
