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
shopt -s extglob

HERE=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
ROOT=${HERE%/tests/functional}
OUT=$HERE/grpo_async_gym_single_controller_prefix_recovery
RAY_DIR='' # every process of this run's jobs has it in its environment
JOB=''     # the process that leads the session of the job that runs
LOG=''     # of that job
JUDGED=no

# -- settings: an environment variable SC_PREFIX_RECOVERY_<NAME> replaces each ---------

MODEL=Qwen/Qwen3-1.7B # and tokenizer
LISTS=150,250,350,450 # how far the Workplace prompts of a step ask to count
GENERATIONS=2         # of each prompt
STEPS=3
TOP_P=0.000001   # near 0 it is greedy
MAX_TOKENS=12288 # of a sequence
CRASHES=1        # kills before the run may finish
MIN_PREFIX=32    # tokens that a cut must gain by each
EXACT=0          # 1: not one log-prob may differ
TIMEOUT_S=3600   # of a job, and of the wait for cuts
CONFIG=''        # YAML in place of the base test's
HOOK=$HERE/_single_controller_turn_recovery_hook.py
PYTHON=(python3)
[[ ! -f $ROOT/uv.lock ]] || PYTHON=(uv run --no-sync python)
[[ ! -f $ROOT/minirl/prefix_recovery_defaults.sh ]] ||
  source "$ROOT/minirl/prefix_recovery_defaults.sh"

# -- helpers ---------------------------------------------------------------------------

clear_line() { # of progress, so that the next line takes its place
  [[ ! -t 1 ]] || printf '\r\e[K'
}

die() { # MESSAGE [STATUS]
  clear_line
  [[ ! -s $LOG ]] || tail -v -n 200 "$PWD/$LOG" >&2
  echo "error: $1${LOG:+; see $PWD/$LOG}" >&2
  exit "${2:-2}"
}

attempt() { # COMMAND ...: prints what it says, or dies with the last line of that
  local said
  said=$("$@" 2>&1) || die "$1: ${said##*$'\n'}"
  [[ -z $said ]] || echo "$said"
}

none_left() { # true if the jobs have no process left; SIGKILLs those that there are
  # The environment tells also of those that have left the session, and the session of
  # those that have written a title over their environment.
  local pids
  mapfile -t pids < <(ps axeww -o pid=,sid=,stat=,args= | awk -v job="$JOB" -v dir="$RAY_DIR" \
    '$3 !~ /Z/ && ($2 == job || index($0, "RAY_TMPDIR=" dir)) {print $1}')
  [[ ${#pids[@]} != 0 ]] || return 0
  kill -KILL "${pids[@]}" 2>/dev/null || true # some may just have ended
  return 1
}

uptime_s() { # unlike the time of day, nobody can set it
  cut -d . -f 1 /proc/uptime
}

wait_until() { # WHAT LIMIT_S CONDITION ...: sets WAITED_S; a terminal shows progress
  local began step
  began=$(uptime_s)
  WAITED_S=0
  until "${@:3}"; do
    ((WAITED_S < $2)) || die "$1: not within $2 s"
    sleep 0.1
    WAITED_S=$(($(uptime_s) - began))
    if [[ -t 1 ]]; then
      step=$(grep -aso 'train step [0-9/]*' "$LOG" | tail -n 1) || true
      clear_line
      echo -n "$1 ... $WAITED_S s  $step"
    fi
  done
  clear_line
}

ended() { # PID
  ! kill -0 "$1" 2>/dev/null
}

start() { # NAME CHECKPOINTS SNAPSHOT_INTERVAL_S
  LOG=$1.log
  RAY_TMPDIR=$RAY_DIR SC_STAGING_KEYS_FILE=$PWD/$1-staging-keys.jsonl \
    setsid bash "$HERE/grpo_async_gym_single_controller.sh" "${OVERRIDES[@]}" \
    logger.log_dir="$PWD/$1-logs" checkpointing.checkpoint_dir="$PWD/$2" \
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

crash() { # MIN_TOKENS: kills a job; nothing but a snapshot and the anchor is left of it
  rm -rf selected-snapshot
  start phase1 recovery-checkpoints 0.05
  RAY_TMPDIR=$RAY_DIR "${PYTHON[@]}" ../_gym_prefix_recovery_snapshot.py select \
    --snapshots recovery-checkpoints/bootstrap/rollout_snapshots \
    --copy-to selected-snapshot --output selected-snapshot.json \
    --timeout-s "$TIMEOUT_S" --min-tokens "$1" --min-groups $((PROMPTS - 1)) \
    2>select.log 9>&- &
  SELECTOR=$!
  wait_until phase1 $((TIMEOUT_S + 60)) selected
  wait "$SELECTOR" || die "phase1: $(<select.log)"
  echo "phase1: killed after $WAITED_S s"
  disown -a # or bash reports the kills
  wait_until "phase1: end all processes" 60 none_left
  LOG=''
  # A run that starts in a folder bootstrap/ demands the anchor, its manifest.json.
  rm -rf recovery-checkpoints/!(bootstrap) recovery-checkpoints/bootstrap/!(manifest.json)
  mkdir recovery-checkpoints/bootstrap/rollout_snapshots
  cp -a selected-snapshot/snapshot_* recovery-checkpoints/bootstrap/rollout_snapshots
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
for variable in "${!SC_PREFIX_RECOVERY_@}"; do
  name=${variable#SC_PREFIX_RECOVERY_}
  [[ -v $name ]] || die "$variable: no such setting"
  printf -v "$name" %s "${!variable}"
done
for name in GENERATIONS STEPS MAX_TOKENS CRASHES MIN_PREFIX TIMEOUT_S; do
  [[ ${!name} =~ ^[1-9][0-9]*$ ]] || die "$name: expected a positive integer, found '${!name}'"
done
[[ $EXACT == [01] ]] || die "EXACT: expected 0 or 1, found '$EXACT'"
HOOK=$(attempt realpath -e "$HOOK")
CONFIG=${CONFIG:+$(attempt realpath -e "$CONFIG")}
for word in "$OUT" "$HOOK" "$CONFIG" "$@"; do
  [[ $word != *[[:space:]]* ]] || die "a blank, at which the base test splits: $word"
done
attempt mkdir -p "$OUT"
cd "$OUT"
exec 9<.
said=$(flock --nonblock 9 2>&1) || die "${said:-$OUT is in use by another run}"
attempt "${PYTHON[@]}" -c "import importlib.metadata as m; m.version('numpy'), m.version('torch')"
attempt find . -mindepth 1 -maxdepth 1 -exec rm -rf {} +
RAY_DIR=$(attempt mktemp -d /tmp/prefix-recovery.XXXXXX)
echo "all evidence goes to $OUT; its judge.sh judges it again"

IFS=, read -ra ITEMS <<<"$LISTS"
PROMPTS=$((${#ITEMS[@]} + 1)) # the last one is the counter's
attempt "${PYTHON[@]}" ../_gym_prefix_recovery_workload.py --output test-data.jsonl \
  --steps "$STEPS" --list-items "${ITEMS[@]}" --gym-root "$ROOT/3rdparty/Gym-workspace/Gym"

export RAY_ADDRESS=local RAY_DEDUP_LOGS=0 NRL_LOG_LEVEL=INFO RUN_CONVERGENCE_CHECKS=0
export NEMO_GYM_TEST_WORKPLACE_PREFIX_AFTER_MUTATION=1 NEMO_GYM_TEST_PREFIX_MIN_TOKENS=0
export SC_TEST_ENTRYPOINT=$HOOK ${CONFIG:+SC_TEST_CONFIG=$CONFIG}
GYM_CONFIGS=responses_api_models/vllm_model/configs/vllm_model_for_training.yaml
GYM_CONFIGS+=,resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml
GYM_CONFIGS+=,responses_api_agents/checkpoint_test_agent/configs/workplace_assistant.yaml
# Greedy siblings earn equal rewards, so that only an estimator over the whole batch gives
# advantages; without any, nothing would be trained that could be compared.
mapfile -t OVERRIDES <<END
policy.model_name=$MODEL
policy.tokenizer.name=$MODEL
policy.max_total_sequence_length=$MAX_TOKENS
policy.train_global_batch_size=$((PROMPTS * GENERATIONS))
policy.generation.max_new_tokens=$MAX_TOKENS
policy.generation.temperature=1.0
policy.generation.top_p=$TOP_P
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
async_rl.min_groups_for_streaming_train=$PROMPTS
async_rl.max_inflight_prompts=$PROMPTS
async_rl.max_buffered_rollouts=$PROMPTS
++async_rl.log_full_train_data=true
++async_rl.rollout_failure.nemo_gym.rollout_timeout_s=300
++async_rl.stall_watchdog.interval_s=10
++async_rl.stall_watchdog.stall_timeout_s=600
++async_rl.stall_watchdog.stall_action=abort
grpo.seed=1234
grpo.num_prompts_per_step=$PROMPTS
grpo.num_generations_per_prompt=$GENERATIONS
grpo.max_num_steps=$STEPS
++grpo.adv_estimator.name=reinforce_plus_plus
++grpo.adv_estimator.minus_baseline=false
data.shuffle=false
data.train.data_path=$PWD/test-data.jsonl
data.validation.data_path=$PWD/test-data.jsonl
~env.nemo_gym.code_gen
env.nemo_gym.config_paths=[$GYM_CONFIGS]
END
THRESHOLDS='' # the judge's own
if ((EXACT)); then
  THRESHOLDS="--min-identical-logprobs 1 --max-logprob-difference 0"
  export VLLM_BATCH_INVARIANT=1 # exact only if compiled, and without FlashAttention 3
  OVERRIDES+=(++policy.generation.vllm_cfg.enforce_eager=false)
  OVERRIDES+=(++policy.generation.vllm_kwargs.compilation_config.backend=inductor)
  OVERRIDES+=(++policy.generation.vllm_kwargs.attention_backend=TRITON_ATTN)
fi
OVERRIDES+=("$@")

# -- the three jobs and the verdict ----------------------------------------------------

run reference reference-checkpoints
compgen -G "reference-logs/exp_*/train_data_step*.jsonl" >/dev/null ||
  die "reference: no training dump; this head lacks async_rl.log_full_train_data"
[[ -s reference-staging-keys.jsonl ]] ||
  die "reference: no staging keys; this head lacks SC_TEST_ENTRYPOINT"
for ((number = 1; number <= CRASHES; number++)); do
  crash $((number * MIN_PREFIX))
done
run phase2 recovery-checkpoints
cat >judge.sh <<END
cd $OUT && ${PYTHON[*]} ../_gym_prefix_recovery_parity.py \\
  --reference-log-dir reference-logs \\
  --recovery-log-dir phase2-logs \\
  --selection selected-snapshot.json \\
  --recovery-log phase2.log \\
  --staging-keys phase2-staging-keys.jsonl \\
  --successor-checkpoint recovery-checkpoints/step_1 \\
  --steps $STEPS --prompts-per-step $PROMPTS --generations-per-prompt $GENERATIONS \\
  --verdict verdict.json $THRESHOLDS
END
status=0
bash judge.sh || status=$?
JUDGED=yes
# Where all checks hold, nobody needs the weights.
((status)) || find ./*-checkpoints -type f ! -name '*.json' -delete
exit "$status"
