#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
#
# A run that is killed while model calls are cut in mid-decode, and recovered from the
# snapshot, must train exactly the rows that an uninterrupted run trains.
#
#   grpo_async_gym_single_controller_prefix_recovery.sh [OVERRIDE ...]
#
# Exits 0 when all checks hold, 1 when one fails, 2 when nothing could be judged.
# Settings (SC_PREFIX_RECOVERY_*); the defaults are NeMo-RL's, or minirl's beside it:
#   MODEL                model and tokenizer
#   LISTS                integers to list, per Workplace prompt of a step
#   COUNTER_ITEMS        integers in the counter's constrained call
#   GENERATIONS, STEPS   generations a prompt, train steps
#   TOP_P                near 0: a regenerated token is the likeliest one
#   SEQUENCE_LENGTH, NEW_TOKENS   limits of a sequence and of a model call
#   CRASHES              how often the run is killed before it may finish
#   INTERVAL_S, SLOW_INTERVAL_S   snapshot attempts before a kill, and in other runs
#   TIMEOUT_S, SELECT_TIMEOUT_S, GONE_TIMEOUT_S   bounds: a run, a snapshot, a kill
#   MIN_IDENTICAL, MAX_DIFFERENCE   thresholds for the generation log-probs
#   CONFIG               YAML in place of the base test's
#   HOOK                 entry point with the staging-key probe
#   MIN_FREE_MB          disk space to start with
#   KEEP                 1: keep the weights in the checkpoints of a run that passes
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
OUT=$HERE/grpo_async_gym_single_controller_prefix_recovery
HELPER=$HERE/_gym_prefix_recovery

setting() { # NAME DEFAULT PATTERN WHAT
  local variable=SC_PREFIX_RECOVERY_$1
  printf -v "$1" %s "${!variable:-$2}"
  [[ ${!1} =~ ^($3)$ ]] || die "$variable: expected $4, found '${!1}'"
}
die() {
  echo "error: $1" >&2
  exit 2
}
NATURAL='[1-9][0-9]*'
NUMBER='[0-9]*\.?[0-9]+([eE]-?[0-9]+)?'
if [[ -d $ROOT/minirl ]]; then
  defaults=(minirl/workplace-policy "40 60 80 100" 16 4 1.0 640 384 1 0 300 500)
else
  defaults=(Qwen/Qwen3-1.7B "150 250 350 450" 64 2 0.000001 12288 4096 0.99 0.5 3600 50000)
fi
setting MODEL "${defaults[0]}" '.+' "a model"
setting LISTS "${defaults[1]}" "$NATURAL( +$NATURAL)+" "two or more list lengths"
setting COUNTER_ITEMS "${defaults[2]}" "$NATURAL" "a positive integer"
setting GENERATIONS "${defaults[3]}" "$NATURAL" "a positive integer"
setting STEPS 3 "$NATURAL" "a positive integer"
setting TOP_P "${defaults[4]}" "$NUMBER" "a number"
setting SEQUENCE_LENGTH "${defaults[5]}" "$NATURAL" "a positive integer"
setting NEW_TOKENS "${defaults[6]}" "$NATURAL" "a positive integer"
setting CRASHES 1 "$NATURAL" "a positive integer"
setting INTERVAL_S 0.05 "$NUMBER" "seconds"
setting SLOW_INTERVAL_S 600 "$NUMBER" "seconds"
setting TIMEOUT_S "${defaults[9]}" "$NATURAL" "whole seconds"
setting SELECT_TIMEOUT_S "$TIMEOUT_S" "$NATURAL" "whole seconds"
setting GONE_TIMEOUT_S 30 "$NATURAL" "whole seconds"
setting MIN_IDENTICAL "${defaults[7]}" "$NUMBER" "a share"
setting MAX_DIFFERENCE "${defaults[8]}" "$NUMBER" "a number"
setting CONFIG "" '.*' "a YAML file"
setting HOOK "$HERE/_single_controller_turn_recovery_hook.py" '.+' "a Python file"
setting MIN_FREE_MB "${defaults[10]}" "$NATURAL" "megabytes"
setting KEEP 0 '[01]' "0 or 1"
read -ra LENGTHS <<<"$LISTS"
PROMPTS=$((${#LENGTHS[@]} + 1))

PYTHON=(python3)
if [[ -f $ROOT/uv.lock ]] && command -v uv >/dev/null; then
  PYTHON=(uv run --directory "$ROOT" --no-sync python)
fi
[[ -f $HOOK ]] || die "SC_PREFIX_RECOVERY_HOOK: no file $HOOK"
[[ -z $CONFIG || -f $CONFIG ]] || die "SC_PREFIX_RECOVERY_CONFIG: no file $CONFIG"
exec 9>"$OUT.lock"
flock -n 9 || die "$OUT is in use by another run of this test"
FREE_MB=$(($(df -Pk "$HERE" | awk 'END {print $4}') / 1024))
((FREE_MB >= MIN_FREE_MB)) || die "$HERE: $FREE_MB MB free, expected $MIN_FREE_MB MB"

LEADER=    # the session of the job that runs
SELECTOR=  # the process that waits for a snapshot
LOG=       # its tail explains a failure
TIMES=()

fail() {
  echo "error: $1" >&2
  [[ ! -s $LOG ]] || { echo "--- the end of $LOG" && tail -n 20 "$LOG"; } >&2
  echo "the evidence is in $OUT" >&2
  exit 2
}
ended() { ! kill -0 "$1" 2>/dev/null; }
session_gone() { # kill what is left of a session; true when there was nothing
  local stat fields pids=()
  for stat in /proc/[0-9]*/stat; do
    { read -r stat <"$stat"; } 2>/dev/null || continue
    read -ra fields <<<"${stat##*) }" # state, parent, group, session
    [[ ${fields[3]} != "$1" || ${fields[0]} == [ZX] ]] || pids+=("${stat%% *}")
  done
  ((${#pids[@]})) || return 0
  kill -KILL "${pids[@]}" 2>/dev/null || true
  return 1
}
wait_until() { # WHAT TIMEOUT_S COMMAND ...
  local what=$1 timeout_s=$2 started=$SECONDS elapsed last=-30
  shift 2
  until "$@"; do
    elapsed=$((SECONDS - started))
    ((elapsed < timeout_s)) || fail "$what: did not happen within $timeout_s s"
    if [[ -t 1 ]]; then
      printf '\r%s ... %d s ' "$what" "$elapsed"
    elif ((elapsed >= last + 30)); then
      last=$elapsed
      echo "$what ... $elapsed s"
    fi
    sleep 0.1
  done
  TIMES+=("$((SECONDS - started)) s: $what")
  [[ ! -t 1 ]] || printf '\r%s: %d s    \n' "$what" "$((SECONDS - started))"
}
cleanup() {
  trap - EXIT
  [[ -z $SELECTOR ]] || kill "$SELECTOR" 2>/dev/null || true
  [[ -z $LEADER ]] || wait_until "end what still runs" "$GONE_TIMEOUT_S" session_gone "$LEADER"
  rm -rf "$RAY_TMPDIR"
}
start() { # RUN CHECKPOINTS INTERVAL_S [OVERRIDE ...]
  local run=$1 checkpoints=$2 interval_s=$3
  shift 3
  LOG=$OUT/$run.log
  SC_STAGING_KEYS_FILE=$OUT/$run-staging-keys.jsonl setsid bash \
    "$HERE/grpo_async_gym_single_controller.sh" "${OVERRIDES[@]}" \
    logger.log_dir="$OUT/$run-logs" checkpointing.checkpoint_dir="$OUT/$checkpoints" \
    ++rollout_checkpointing.snapshot_attempt_interval_s="$interval_s" "$@" \
    >"$LOG" 2>&1 9>&- </dev/null &
  LEADER=$!
}
finish() { # RUN: wait until the started job has ended by itself, and well
  local status=0
  wait_until "$1 run: train $STEPS steps" "$TIMEOUT_S" ended "$LEADER"
  wait "$LEADER" || status=$?
  ((status == 0)) || fail "the $1 run ended with exit status $status"
  wait_until "$1 run: gone" "$GONE_TIMEOUT_S" session_gone "$LEADER"
  LEADER=
}
selected() {
  ended "$SELECTOR" && return
  ! ended "$LEADER" || fail "phase 1 ended before a snapshot was selected"
  return 1
}

export RAY_TMPDIR
RAY_TMPDIR=$(mktemp -d /tmp/prefix-recovery.XXXXXX)
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
unset RAY_ADDRESS # each job starts a Ray of its own
export SC_TEST_ENTRYPOINT=$HOOK RUN_CONVERGENCE_CHECKS=0 RAY_DEDUP_LOGS=0
export NEMO_GYM_TEST_WORKPLACE_PREFIX_AFTER_MUTATION=1 NEMO_GYM_TEST_PREFIX_MIN_TOKENS=0
[[ -z $CONFIG ]] || export SC_TEST_CONFIG=$CONFIG
rm -rf "$OUT"
mkdir -p "$OUT"
DATA=$OUT/test-data.jsonl
GYM_CONFIGS=(
  responses_api_models/vllm_model/configs/vllm_model_for_training.yaml
  resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml
  responses_api_agents/checkpoint_test_agent/configs/workplace_assistant.yaml
)
OVERRIDES=(
  policy.model_name="$MODEL"
  policy.tokenizer.name="$MODEL"
  policy.max_total_sequence_length="$SEQUENCE_LENGTH"
  policy.generation.max_new_tokens="$NEW_TOKENS"
  policy.generation.temperature=1.0
  policy.generation.top_p="$TOP_P"
  policy.train_global_batch_size=$((PROMPTS * GENERATIONS))
  checkpointing.enabled=true
  checkpointing.metric_name=null
  checkpointing.save_period=1
  ++checkpointing.save_data_plane=true
  ++token_capture.enabled=true
  ++rollout_recovery.target_level=prefix
  ++rollout_checkpointing.keep_latest_k=16
  ++rollout_checkpointing.restore_mode=latest
  async_rl.sampler.name=in_order
  async_rl.sampler.max_lookahead_versions=0
  async_rl.min_groups_for_streaming_train="$PROMPTS"
  async_rl.max_inflight_prompts="$PROMPTS"
  async_rl.max_buffered_rollouts="$PROMPTS"
  ++async_rl.log_full_train_data=true
  ++async_rl.rollout_failure.nemo_gym.rollout_timeout_s=300
  ++async_rl.stall_watchdog.interval_s=10
  ++async_rl.stall_watchdog.stall_timeout_s=600
  ++async_rl.stall_watchdog.stall_action=abort
  grpo.seed=1234
  grpo.num_prompts_per_step="$PROMPTS"
  grpo.num_generations_per_prompt="$GENERATIONS"
  grpo.max_num_steps="$STEPS"
  data.shuffle=false
  data.train.data_path="$DATA"
  data.validation.data_path="$DATA"
  '~env.nemo_gym.code_gen'
  "env.nemo_gym.config_paths=[$(IFS=, && echo "${GYM_CONFIGS[*]}")]"
  "$@"
)

"${PYTHON[@]}" "${HELPER}_workload.py" --output "$DATA" --steps "$STEPS" \
  --list-items "${LENGTHS[@]}" --counter-items "$COUNTER_ITEMS" \
  --max-output-tokens "$NEW_TOKENS" --gym-root "$ROOT/3rdparty/Gym-workspace/Gym"

start reference reference-checkpoints "$SLOW_INTERVAL_S"
finish reference

SNAPSHOTS=$OUT/recovery-checkpoints/bootstrap/rollout_snapshots
for ((crash = 1; crash <= CRASHES; crash++)); do
  rm -rf "$OUT"/selected-snapshot*
  start phase1 recovery-checkpoints "$INTERVAL_S"
  "${PYTHON[@]}" "${HELPER}_snapshot.py" select --snapshots "$SNAPSHOTS" \
    --copy-to "$OUT/selected-snapshot" --output "$OUT/selected-snapshot.json" \
    --timeout-s "$SELECT_TIMEOUT_S" 2>"$OUT/select.log" 9>&- &
  SELECTOR=$!
  wait_until "phase 1, crash $crash: cut every Workplace rollout" \
    "$((SELECT_TIMEOUT_S + 30))" selected
  wait "$SELECTOR" || fail "$(<"$OUT/select.log")"
  SELECTOR=
  wait_until "phase 1, crash $crash: kill it" "$GONE_TIMEOUT_S" session_gone "$LEADER"
  LEADER=
  name=$("${PYTHON[@]}" -c 'import json, os, sys
print(os.path.basename(json.load(open(sys.argv[1]))["snapshot"]))' "$OUT/selected-snapshot.json")
  rm -rf "$OUT"/recovery-checkpoints
  mkdir -p "$SNAPSHOTS"
  cp -a "$OUT/selected-snapshot" "$SNAPSHOTS/$name"
done

start phase2 recovery-checkpoints "$SLOW_INTERVAL_S"
finish phase2

JUDGE=(
  "${PYTHON[@]}" "${HELPER}_parity.py"
  --reference-log-dir "$OUT/reference-logs" --recovery-log-dir "$OUT/phase2-logs"
  --selection "$OUT/selected-snapshot.json" --recovery-log "$OUT/phase2.log"
  --staging-keys "$OUT/phase2-staging-keys.jsonl"
  --successor-checkpoint "$OUT/recovery-checkpoints/step_1"
  --steps "$STEPS" --prompts-per-step "$PROMPTS" --generations-per-prompt "$GENERATIONS"
  --min-identical-logprobs "$MIN_IDENTICAL" --max-logprob-difference "$MAX_DIFFERENCE"
  --verdict "$OUT/verdict.json"
)
printf '%q ' "${JUDGE[@]}" >"$OUT/judge.sh"
printf '%s\n' "${TIMES[@]}" "the evidence is in $OUT" "judge it again: bash $OUT/judge.sh"
status=0
"${JUDGE[@]}" || status=$?
if ((status == 0 && KEEP == 0)); then
  find "$OUT"/*-checkpoints -type f ! -name gym_checkpoint.json -delete
fi
exit "$status"
