#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
#
# Copy the harness and its unit tests into a NeMo-RL checkout.
#
#   [FORCE=1] tools/install_into.sh DEST
#
# With FORCE=1 it replaces files of theirs, and removes unit tests of what is replaced.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
test=tests/functional/grpo_async_gym_single_controller_prefix_recovery.sh

die() {
  echo "error: $1" >&2
  exit 2
}
[[ -n ${1:-} ]] || die "no DEST: expected make install-into DEST=<NeMo-RL checkout>"
for part in nemo_rl examples/run_grpo_single_controller.py \
  tests/functional/grpo_async_gym_single_controller.sh; do
  [[ -e $1/$part ]] || die "$1 is no NeMo-RL checkout: it has no $part"
done
dest=$(cd "$1" && pwd)

files=(
  "$test"
  tests/functional/_gym_prefix_recovery_*.py
  tests/functional/_single_controller_turn_recovery_hook.py
  tests/unit/functional/*.py
  tests/unit/data/nemo-rl-dump/exp_001/*.jsonl
)
replaced=()
removed=()
for file in "${files[@]}"; do
  if [[ ! -e $dest/$file ]] || cmp -s "$file" "$dest/$file"; then
    continue
  fi
  replaced+=("$file")
  module=$(basename "$file" .py)
  while read -r user; do
    # one that is replaced itself is in neither need
    [[ " ${files[*]} ${removed[*]} " == *" $user "* ]] || removed+=("$user")
  done < <(cd "$dest" && grep -rlw --include='*.py' -e "$module" tests/unit)
done
if [[ ${#replaced[@]} -gt 0 && ${FORCE:-0} != 1 ]]; then
  what="replace ${replaced[*]}"
  [[ ${#removed[@]} == 0 ]] || what+=" and remove ${removed[*]}, which tests what is replaced"
  die "$dest has files of its own; FORCE=1 would $what"
fi

# All that can fail comes before the first file of theirs is touched.
staged=$(mktemp -d "$dest/.install-into.XXXXXX")
trap 'rm -rf "$staged"' EXIT
cp --parents "${files[@]}" "$staged"
for file in "${files[@]}"; do
  mkdir -p "$dest/$(dirname "$file")"
  [[ ! -d $dest/$file ]] || die "$dest/$file is a folder, expected a file"
done
for file in "${files[@]}"; do
  mv "$staged/$file" "$dest/$file"
done
for file in "${removed[@]}"; do
  rm "$dest/$file"
done
for file in "${replaced[@]}"; do
  echo "replaced $file"
done
for file in "${removed[@]}"; do
  echo "removed $file, which tested what was replaced"
done
echo "cd $dest && uv run --no-sync bash ./$test"
