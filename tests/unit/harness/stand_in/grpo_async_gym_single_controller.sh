#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
#
# A base test like NeMo-RL's: its arguments are split and expanded once more, its folder
# is wiped, its log is kept there, too.
set -eou pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
out=$root/tests/functional/grpo_async_gym_single_controller
[[ ${STAND_IN:-} != *no-entry-point* ]] || unset SC_TEST_ENTRYPOINT # an older head

rm -rf "$out"
mkdir -p "$out"
cd "$root"
export PYTHONPATH=$root:${PYTHONPATH:-}
# shellcheck disable=SC2068
python3 "${SC_TEST_ENTRYPOINT:-examples/run_grpo_single_controller.py}" \
  --config "${SC_TEST_CONFIG:-examples/nemo_rl.yaml}" grpo.max_num_steps=99 $@ \
  2>&1 | tee "$out/run.log"
