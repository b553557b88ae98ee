#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
#
# A run that is killed while its model calls are cut in mid-decode, and recovered from the
# snapshot, must train exactly the rows that an uninterrupted run trains.
#
#   grpo_async_gym_single_controller_prefix_recovery.sh [OVERRIDE ...]
#
# Three jobs of the base test (the reference, phase 1 and its kill, phase 2), then the judge.
# Exit status: 0 if all checks hold, 1 if one fails, 2 if there is nothing to judge.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(dirname "$(dirname "$HERE")")
OUT=$HERE/grpo_async_gym_single_controller_prefix_recovery
SNAPSHOTS=$OUT/recovery-checkpoints/bootstrap/rollout_snapshots
RAY_DIR='' # of all jobs of this run; every process of a job has it in its environment
JOB=''     # the process that leads its session
LOG=''     # of the job that runs
JUDGED=no

# -- settings: the environment variables SC_PREFIX_RECOVERY_* --------------------------

if [[ -f $ROOT/minirl/prefix_recovery_defaults.sh ]]; then
  source "$ROOT/minirl/prefix_recovery_defaults.sh"
fi
MODEL=${SC_PREFIX_RECOVERY_MODEL:-Qwen/Qwen3-1.7B} # and tokenizer
LISTS=${SC_PREFIX_RECOVERY_LISTS:-150,250,350,450} # a step's prompts: each counts so far
GENERATIONS=${SC_PREFIX_RECOVERY_GENERATIONS:-2}   # of each prompt
STEPS=${SC_PREFIX_RECOVERY_STEPS:-3}
TOP_P=${SC_PREFIX_RECOVERY_TOP_P:-0.000001}        # near 0 it is greedy
MAX_TOKENS=${SC_PREFIX_RECOVERY_MAX_TOKENS:-12288} # of a sequence
CRASHES=${SC_PREFIX_RECOVERY_CRASHES:-1}           # kills before the run may finish
MIN_PREFIX=${SC_PREFIX_RECOVERY_MIN_PREFIX:-32}    # tokens that a cut has gained by each
EXACT=${SC_PREFIX_RECOVERY_EXACT:-0}               # 1: all log-probs are bit-identical
TIMEOUT_S=${SC_PREFIX_RECOVERY_TIMEOUT_S:-3600}    # of a job, and of the wait for cuts
CONFIG=${SC_PREFIX_RECOVERY_CONFIG:-}              # YAML in place of the base test's
HOOK=${SC_PREFIX_RECOVERY_HOOK:-$HERE/_single_controller_turn_recovery_hook.py}

# -- helpers ---------------------------------------------------------------------------

clear_progress() { # so that the next line takes its place
  [[ ! -t 1 ]] || printf '\r\e[K'
}

die() { # MESSAGE [STATUS]: the last line says why, after the end of the job's log
  clear_progress
  if [[ -s $LOG ]]; then
    tail -n 200 "$LOG" >&2
    echo "error: $1; the whole log is $LOG" >&2
  else
    echo "error: $1" >&2
  fi
  exit "${2:-2}"
}

attempt() { # COMMAND ...: prints what the command says, or dies with the last line of it
  local said
  said=$("$@" 2>&1) || die "$1: ${said##*$'\n'}"
  [[ -z $said ]] || echo "$said"
}

none_left() { # true if no process of a job was left; SIGKILLs those that were
  local pids
  # By its session, which finds what has written its title over its environment, or else
  # by its environment, which finds what has left the session.
  mapfile -t pids < <(
    ps -eo pid=,sid=,stat= | awk -v job="$JOB" '$2 == job && $3 !~ /^Z/ {print $1}'
    # last, for it fails where nothing is found
    grep -lzxF "RAY_TMPDIR=$RAY_DIR" /proc/[0-9]*/environ 2>/dev/null | tr -dc '0-9\n'
  )
  [[ ${#pids[@]} -gt 0 ]] || return 0
  kill -KILL "${pids[@]}" 2>/dev/null || true # some may just have ended
  return 1
}

seconds() { # since the machine started: setting the clock does not change them
  cut -d. -f1 /proc/uptime
}

wait_until() { # WHAT LIMIT_S CONDITION ...: shows progress, sets WAITED_S
  local began shown=0 step
  began=$(seconds)
  WAITED_S=0
  until "${@:3}"; do
    ((WAITED_S < $2)) || die "$1: not within $2 s"
    sleep 0.1
    WAITED_S=$(($(seconds) - began))
    step=$(grep -aso 'train step [0-9]*/[0-9]*' "$LOG" | tail -n 1) || true
    if [[ -t 1 ]]; then
      clear_progress
      printf '%s ... %d s  %s' "$1" "$WAITED_S" "$step"
    elif ((WAITED_S >= shown + 30)); then
      shown=$WAITED_S
      echo "$1 ... $WAITED_S s  $step"
    fi
  done
  clear_progress
}

ended() { # PID
  ! kill -0 "$1" 2>/dev/null
}

start() { # NAME CHECKPOINTS SNAPSHOT_INTERVAL_S: sets JOB
  LOG=$OUT/$1.log
  RAY_TMPDIR=$RAY_DIR SC_STAGING_KEYS_FILE=$OUT/$1-staging-keys.jsonl setsid \
    bash "$HERE/grpo_async_gym_single_controller.sh" "${OVERRIDES[@]}" \
    logger.log_dir="$OUT/$1-logs" \
    checkpointing.checkpoint_dir="$OUT/$2" \
    ++rollout_checkpointing.snapshot_attempt_interval_s="$3" \
    >"$LOG" 2>&1 9>&- </dev/null &
  JOB=$!
}

run() { # NAME CHECKPOINTS: a job that is left alone
  start "$1" "$2" 600
  wait_until "$1" "$TIMEOUT_S" ended "$JOB"
  wait "$JOB" || die "$1: exit status $?"
  echo "$1: $STEPS steps in $WAITED_S s"
  wait_until "$1: end all processes" 60 none_left
  LOG=''
}

selected() {
  ended "$SELECTOR" || { ended "$JOB" && die "phase1: ended before it could be killed"; }
}

crash() { # MIN_TOKENS: kills a job, of which only one snapshot remains
  rm -rf "$OUT/selected-snapshot"
  start phase1 recovery-checkpoints 0.05
  RAY_TMPDIR=$RAY_DIR "${PYTHON[@]}" "$HERE/_gym_prefix_recovery_snapshot.py" select \
    --snapshots "$SNAPSHOTS" --copy-to "$OUT/selected-snapshot" \
    --output "$OUT/selected-snapshot.json" --timeout-s "$TIMEOUT_S" \
    --min-tokens "$1" --min-groups ${#LENGTHS[@]} 2>"$OUT/select.log" 9>&- &
  SELECTOR=$!
  wait_until phase1 $((TIMEOUT_S + 60)) selected
  wait "$SELECTOR" || die "phase1: $(<"$OUT/select.log")"
  echo "phase1: killed after $WAITED_S s"
  disown -a # so that bash does not report the kills
  wait_until "phase1: end all processes" 60 none_left
  LOG=''
  # The anchor, bootstrap/manifest.json, has to stay: without it no run starts there.
  find "${SNAPSHOTS%/*/*}" -mindepth 1 ! -path "*/bootstrap" ! -path "*/bootstrap/manifest.json" \
    -delete
  mkdir "$SNAPSHOTS"
  cp -a "$OUT"/selected-snapshot/snapshot_* "$SNAPSHOTS"
}

clean_up() {
  local status=$?
  trap '' HUP INT TERM
  disown -a
  LOG=''
  if [[ -n $RAY_DIR ]]; then
    wait_until "end all processes" 60 none_left
    rm -rf "$RAY_DIR"
  fi
  # 1 is the judge's alone, and above 128 is a signal.
  [[ $JUDGED == yes || $status -gt 128 ]] || status=2
  exit "$status"
}

# -- set-up ----------------------------------------------------------------------------

trap clean_up EXIT
trap 'die interrupted 129' HUP
trap 'die interrupted 130' INT
trap 'die interrupted 143' TERM
for name in GENERATIONS STEPS MAX_TOKENS CRASHES MIN_PREFIX TIMEOUT_S; do
  [[ ${!name} =~ ^[1-9][0-9]*$ ]] ||
    die "SC_PREFIX_RECOVERY_$name: expected a positive integer, found '${!name}'"
done
[[ $EXACT =~ ^[01]$ ]] || die "SC_PREFIX_RECOVERY_EXACT: expected 0 or 1, found '$EXACT'"
[[ $LISTS =~ ^[1-9][0-9]*(,[1-9][0-9]*)+$ ]] ||
  die "SC_PREFIX_RECOVERY_LISTS: expected two lengths or more, found '$LISTS'"
HOOK=$(attempt realpath -e "$HOOK")
if [[ -n $CONFIG ]]; then
  CONFIG=$(attempt realpath -e "$CONFIG")
  export SC_TEST_CONFIG=$CONFIG
fi
for word in "$OUT" "$HOOK" "$CONFIG" "$@"; do
  [[ $word != *[[:space:]]* ]] || die "a blank, at which the base test would split: $word"
done
cd "$ROOT"
PYTHON=(python3)
[[ ! -f uv.lock ]] || PYTHON=(uv run --no-sync python)
attempt "${PYTHON[@]}" -c "from importlib.metadata import version
version('numpy'), version('torch')"
attempt mkdir -p "$OUT"
exec 9<"$OUT"
flock --nonblock --conflict-exit-code 75 9 || case $? in
  75) die "$OUT is in use by another run" ;;
  *) die "flock failed" ;;
esac
attempt find "$OUT" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
RAY_DIR=$(attempt mktemp -d /tmp/prefix-recovery.XXXXXX)
echo "all evidence goes to $OUT; its judge.sh judges it again"

IFS=, read -ra LENGTHS <<<"$LISTS"
PROMPTS=$((${#LENGTHS[@]} + 1)) # a list's each, and the counter's
WORKLOAD=(--output "$OUT/test-data.jsonl" --steps "$STEPS" --list-items "${LENGTHS[@]}")
[[ ! -d 3rdparty/Gym-workspace ]] || WORKLOAD+=(--gym-root 3rdparty/Gym-workspace/Gym)
"${PYTHON[@]}" "$HERE/_gym_prefix_recovery_workload.py" "${WORKLOAD[@]}"

export RAY_ADDRESS=local RAY_DEDUP_LOGS=0 NRL_LOG_LEVEL=INFO RUN_CONVERGENCE_CHECKS=0
export NEMO_GYM_TEST_WORKPLACE_PREFIX_AFTER_MUTATION=1 NEMO_GYM_TEST_PREFIX_MIN_TOKENS=0
export SC_TEST_ENTRYPOINT=$HOOK
GYM_CONFIGS=responses_api_models/vllm_model/configs/vllm_model_for_training.yaml
GYM_CONFIGS+=,resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml
GYM_CONFIGS+=,responses_api_agents/checkpoint_test_agent/configs/workplace_assistant.yaml
OVERRIDES=(
  policy.model_name="$MODEL"
  policy.tokenizer.name="$MODEL"
  policy.max_total_sequence_length="$MAX_TOKENS"
  policy.train_global_batch_size=$((PROMPTS * GENERATIONS))
  policy.generation.max_new_tokens="$MAX_TOKENS"
  policy.generation.temperature=1.0
  policy.generation.top_p="$TOP_P"
  ++policy.generation.vllm_cfg.logprobs_mode=raw_logprobs
  checkpointing.enabled=true
  checkpointing.metric_name=null
  checkpointing.save_period=1
  checkpointing.keep_top_k=null
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
  # Greedy siblings earn equal rewards: only over the whole batch is there an advantage.
  ++grpo.adv_estimator.name=reinforce_plus_plus
  ++grpo.adv_estimator.minus_baseline=false
  data.shuffle=false
  data.train.data_path="$OUT/test-data.jsonl"
  data.validation.data_path="$OUT/test-data.jsonl"
  ~env.nemo_gym.code_gen
  env.nemo_gym.config_paths="[$GYM_CONFIGS]"
)
THRESHOLDS=(--min-identical-logprobs 0.97 --max-logprob-difference 0.5)
if [[ $EXACT == 1 ]]; then
  THRESHOLDS=(--min-identical-logprobs 1 --max-logprob-difference 0)
  export VLLM_BATCH_INVARIANT=1 # which is exact where the model is compiled
  OVERRIDES+=(
    ++policy.generation.vllm_cfg.enforce_eager=false
    ++policy.generation.vllm_kwargs.compilation_config.backend=inductor
  )
fi
OVERRIDES+=("$@")

# -- the three runs and the verdict ----------------------------------------------------

run reference reference-checkpoints
[[ -n $(find "$OUT/reference-logs" -name 'train_data_step*.jsonl') ]] ||
  die "reference: no training dump; this head has no async_rl.log_full_train_data"
[[ -s $OUT/reference-staging-keys.jsonl ]] ||
  die "reference: no staging keys recorded; this head has no SC_TEST_ENTRYPOINT"
for ((number = 1; number <= CRASHES; number++)); do
  crash $((number * MIN_PREFIX))
done
run phase2 recovery-checkpoints
JUDGE=(
  "${PYTHON[@]}" "$HERE/_gym_prefix_recovery_parity.py"
  --reference-log-dir "$OUT/reference-logs"
  --recovery-log-dir "$OUT/phase2-logs"
  --selection "$OUT/selected-snapshot.json"
  --recovery-log "$OUT/phase2.log"
  --staging-keys "$OUT/phase2-staging-keys.jsonl"
  --successor-checkpoint "$OUT/recovery-checkpoints/step_1"
  --steps "$STEPS"
  --prompts-per-step "$PROMPTS"
  --generations-per-prompt "$GENERATIONS"
  --verdict "$OUT/verdict.json"
  "${THRESHOLDS[@]}"
)
echo "cd ${ROOT@Q} && ${JUDGE[*]@Q}" >"$OUT/judge.sh"
status=0
"${JUDGE[@]}" || status=$?
JUDGED=yes
# Weights are of use only where a check failed.
[[ $status != 0 ]] || find "$OUT"/*-checkpoints -type f ! -name '*.json' -delete
exit "$status"
