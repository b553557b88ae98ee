#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
#
# Copy the harness and its unit tests into a NeMo-RL checkout.
#
#   [FORCE=1] tools/install_into.sh DEST
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
dest=${1:-}
test=tests/functional/grpo_async_gym_single_controller_prefix_recovery.sh
hook=tests/functional/_single_controller_turn_recovery_hook.py

die() {
  echo "error: $1" >&2
  exit 2
}
[[ -n $dest ]] || die "no DEST: expected make install-into DEST=<NeMo-RL checkout>"
for part in nemo_rl examples/run_grpo_single_controller.py \
  tests/functional/grpo_async_gym_single_controller.sh; do
  [[ -e $dest/$part ]] || die "$dest is no NeMo-RL checkout: it has no $part"
done

declare -A copies
for file in "$test" tests/functional/_gym_prefix_recovery_*.py "$hook" \
  tests/unit/functional/*.py tests/unit/data/nemo-rl-dump/exp_001/*.jsonl; do
  copies[$file]=$file
done
if [[ -f $dest/$hook ]] && ! cmp -s "$hook" "$dest/$hook"; then
  # NeMo-RL's turn-recovery test has a hook of that name, which stays as it is
  copies[$hook]=tests/functional/_single_controller_staging_key_probe.py
fi
for file in "${!copies[@]}"; do
  to=$dest/${copies[$file]}
  [[ ! -e $to || ${FORCE:-0} == 1 ]] || cmp -s "$file" "$to" ||
    die "$to differs; FORCE=1 overwrites it"
done
for file in "${!copies[@]}"; do
  to=$dest/${copies[$file]}
  mkdir -p "$(dirname "$to")"
  cp "$file" "$to.partial"
  mv "$to.partial" "$to"
done
echo "cd $dest && uv run --no-sync bash ./$test"
