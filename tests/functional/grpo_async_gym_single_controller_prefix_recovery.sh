#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
#
# A run that is killed while model calls are cut in mid-decode, and recovered from the
# snapshot, must train exactly the rows that an uninterrupted run trains. Arguments are
# Hydra overrides; a setting is the environment variable SC_PREFIX_RECOVERY_<NAME>.
# Exits 0 if all checks hold, 1 if one fails, 2 if there is nothing to judge.
set -Eeuo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=${HERE%/*/*} OUT=$HERE/grpo_async_gym_single_controller_prefix_recovery LOG='' SESSIONS='' TIMES=()
#        NAME            in NeMo-RL       in minirl               must match    is
SETTINGS="
         MODEL           Qwen/Qwen3-1.7B  minirl/workplace-policy .+            model and tokenizer
         LISTS           150,250,350,450  40,60,80,100            N(,N)+        list length of each Workplace prompt
         GENERATIONS     2                4                       N             generations a prompt
         STEPS           3                3                       N             train steps
         TOP_P           0.000001         1.0                     R             nucleus; near 0 is greedy
         MAX_TOKENS      12288            640                     N             in a sequence; 3/4 of it in a call
         CRASHES         1                1                       N             kills before the run may finish
         MIN_PREFIX      32               24                      N             tokens a cut must gain by each crash
         INTERVAL_S      0.05             0.05                    R             snapshot interval of a run to kill
         SLOW_INTERVAL_S 600              600                     R             snapshot interval of the others
         TIMEOUT_S       3600             300                     N             limit of a run, or of a wait for cuts
         MIN_IDENTICAL   0.99             1                       R             share of bit-identical log-probs
         MAX_DIFFERENCE  0.5              0                       R             between log-probs
         MIN_FREE_MB     50000            500                     N             disk space to begin with
         CONFIG          -                -                       -|.+          YAML in place of the base test's
         HOOK            -                -                       -|.+          entry point with another probe
         KEEP            0                0                       [01]          1 keeps the checkpoints' weights"
die() { # MESSAGE [STATUS]
  echo "error: $1" >&2
  [[ -z $LOG ]] || tail -v -n 20 "$LOG" >&2 || true
  exit "${2:-2}"
}
while read -r name nemo_rl minirl pattern meaning; do
  variable=SC_PREFIX_RECOVERY_$name
  [[ -d $ROOT/minirl ]] || minirl=$nemo_rl
  printf -v "$name" %s "${!variable:-$minirl}"
  pattern=${pattern//N/[1-9][0-9]*} pattern=${pattern//R/[0-9]*\\.?[0-9]+(e-?[0-9]+)?}
  [[ ${!name} =~ ^$pattern$ ]] || die "$variable ($meaning): '${!name}' is not $pattern"
  [[ $pattern != -?* || ${!name} == - || -f ${!name} ]] || die "$variable: no file ${!name}"
done <<<"${SETTINGS:1}"
[[ $HOOK != - ]] || HOOK=$HERE/_single_controller_staging_key_probe.py # if NeMo-RL has
[[ -f $HOOK ]] || HOOK=$HERE/_single_controller_turn_recovery_hook.py  # one of this name
PYTHON=(uv run --directory "$ROOT" --no-sync python)
[[ -f $ROOT/uv.lock ]] && command -v uv >/dev/null || PYTHON=(python3)
mkdir -p "$OUT" && exec 9>"$OUT/lock" && flock -n 9 || die "$OUT is in use by another run"
free_mb=$(df -Pm "$HERE" | awk 'END {print $4}')
((free_mb >= MIN_FREE_MB)) || die "$HERE: $free_mb MB free, expected $MIN_FREE_MB MB"
wait_until() { # WHAT LIMIT_S CONDITION ...: says what it waits for, and for how long
  local what=$1 limit=$2 began=$SECONDS due=$SECONDS
  until "${@:3}"; do
    ((SECONDS - began < limit)) || die "$what: not within $limit s"
    [[ ! -t 1 ]] || printf '\r%s ... %d s ' "$what" $((SECONDS - began))
    [[ -t 1 ]] || ((SECONDS < due)) || { echo "$what ... $((SECONDS - began)) s" && due=$((SECONDS + 30)); }
    sleep 0.1
  done
  TIMES+=("$what: $((SECONDS - began)) s")
}
ended() { ! kill -0 "$1" 2>/dev/null; }
gone() { # SIGKILL every process of the sessions; true when none was left but zombies
  local pids
  pids=$(cat /proc/[0-9]*/stat 2>/dev/null | awk -v sessions=" $SESSIONS " \
    '{pid = $1; sub(/.*\) /, "")} !/^[ZX]/ && index(sessions, " " $4 " ") {print pid}')
  [[ -z $pids ]] || ! kill -KILL $pids 2>/dev/null
}
start() { # NAME CHECKPOINTS INTERVAL_S: a job with a session and Ray of its own
  LOG=$OUT/$1.log
  SC_STAGING_KEYS_FILE=$OUT/$1-staging-keys.jsonl setsid env -u RAY_ADDRESS \
    bash "$HERE/grpo_async_gym_single_controller.sh" \
    logger.log_dir="$OUT/$1-logs" checkpointing.checkpoint_dir="$OUT/$2" \
    ++rollout_checkpointing.snapshot_attempt_interval_s="$3" "${OVERRIDES[@]}" \
    >"$LOG" 2>&1 9>&- </dev/null &
  JOB=$! SESSIONS=$!
}
run() { # NAME CHECKPOINTS: a training job that must end by itself, and well
  start "$@" "$SLOW_INTERVAL_S"
  wait_until "$1: train $STEPS steps" "$TIMEOUT_S" ended "$JOB"
  wait "$JOB" || die "$1: exit status $?"
  wait_until "$1: leave no process" 30 gone
}
selected() {
  ended "$SELECTOR" || { ended "$JOB" && die "phase1 ended before it could be killed"; }
}

RAY_TMPDIR=$(mktemp -d /tmp/prefix-recovery.XXXXXX)
trap 'trap "" HUP INT TERM; disown -a; wait_until "leave no process" 30 gone; rm -rf "$RAY_TMPDIR"' EXIT
trap 'die "line $LINENO: exit status $? of $BASH_COMMAND"' ERR
trap 'die interrupted 129' HUP; trap 'die interrupted 130' INT; trap 'die interrupted 143' TERM
find "$OUT" -mindepth 1 ! -path "$OUT/lock" -delete
echo "all evidence goes to $OUT; its judge.sh judges it again"
export RAY_TMPDIR RAY_DEDUP_LOGS=0 RUN_CONVERGENCE_CHECKS=0 SC_TEST_ENTRYPOINT=$HOOK
export NEMO_GYM_TEST_WORKPLACE_PREFIX_AFTER_MUTATION=1 NEMO_GYM_TEST_PREFIX_MIN_TOKENS=0
[[ $CONFIG == - ]] || export SC_TEST_CONFIG=$CONFIG
PROMPTS=$(($(wc -w <<<"${LISTS//,/ }") + 1))
GYM_CONFIGS=responses_api_models/vllm_model/configs/vllm_model_for_training.yaml
GYM_CONFIGS+=,resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml
GYM_CONFIGS+=,responses_api_agents/checkpoint_test_agent/configs/workplace_assistant.yaml
OVERRIDES=(
  policy.{model_name,tokenizer.name}"=$MODEL"
  policy.{max_total_sequence_length="$MAX_TOKENS",train_global_batch_size=$((PROMPTS * GENERATIONS))}
  policy.generation.{max_new_tokens=$((MAX_TOKENS * 3 / 4)),temperature=1.0,top_p="$TOP_P"}
  checkpointing.{enabled=true,metric_name=null,save_period=1}
  ++{checkpointing.save_data_plane,token_capture.enabled,async_rl.log_full_train_data}"=true"
  ++rollout_{checkpointing.{keep_latest_k=16,restore_mode=latest},recovery.target_level=prefix}
  async_rl.{min_groups_for_streaming_train,max_inflight_prompts,max_buffered_rollouts}"=$PROMPTS"
  ++async_rl.rollout_failure.nemo_gym.rollout_timeout_s=300 async_rl.sampler.{name=in_order,max_lookahead_versions=0}
  ++async_rl.stall_watchdog.{interval_s=10,stall_timeout_s=600,stall_action=abort}
  grpo.{seed=1234,num_prompts_per_step="$PROMPTS",num_generations_per_prompt="$GENERATIONS"}
  grpo.max_num_steps="$STEPS" data.{shuffle=false,{train,validation}.data_path="$OUT/test-data.jsonl"}
  '~env.nemo_gym.code_gen' env.nemo_gym.config_paths="[$GYM_CONFIGS]" "$@"
)
"${PYTHON[@]}" "$HERE/_gym_prefix_recovery_workload.py" --output "$OUT/test-data.jsonl" \
  --steps "$STEPS" --list-items ${LISTS//,/ } --max-output-tokens $((MAX_TOKENS * 3 / 4)) \
  --gym-root "$ROOT/3rdparty/Gym-workspace/Gym"

run reference reference-checkpoints
SNAPSHOTS=$OUT/recovery-checkpoints/bootstrap/rollout_snapshots
for ((crash = 1; crash <= CRASHES; crash++)); do
  start phase1 recovery-checkpoints "$INTERVAL_S"
  rm -rf "$OUT/selected-snapshot"
  setsid "${PYTHON[@]}" "$HERE/_gym_prefix_recovery_snapshot.py" select \
    --snapshots "$SNAPSHOTS" --copy-to "$OUT/selected-snapshot" --timeout-s "$TIMEOUT_S" \
    --output "$OUT/selected-snapshot.json" --min-tokens $((crash * MIN_PREFIX)) \
    2>"$OUT/select.log" 9>&- &
  SELECTOR=$! SESSIONS+=" $!"
  wait_until "phase1: cut every Workplace rollout" $((TIMEOUT_S + 30)) selected
  wait "$SELECTOR" || die "phase1: $(<"$OUT/select.log")"
  disown -a # or bash reports the kill
  wait_until "phase1: die with its Ray" 30 gone
  rm -rf "$OUT/recovery-checkpoints" && mkdir -p "$SNAPSHOTS"
  cp -a "$OUT"/selected-snapshot/snapshot_* "$SNAPSHOTS"
done
run phase2 recovery-checkpoints
JUDGE=("${PYTHON[@]}" "$HERE/_gym_prefix_recovery_parity.py" --verdict "$OUT/verdict.json"
  --reference-log-dir "$OUT/reference-logs" --recovery-log-dir "$OUT/phase2-logs"
  --selection "$OUT/selected-snapshot.json" --recovery-log "$OUT/phase2.log"
  --staging-keys "$OUT/phase2-staging-keys.jsonl" --successor-checkpoint "$OUT/recovery-checkpoints/step_1"
  --steps "$STEPS" --prompts-per-step "$PROMPTS" --generations-per-prompt "$GENERATIONS"
  --min-identical-logprobs "$MIN_IDENTICAL" --max-logprob-difference "$MAX_DIFFERENCE")
echo "${JUDGE[@]@Q}" >"$OUT/judge.sh"
printf '%s\n' "" "${TIMES[@]}" ""
"${JUDGE[@]}" || exit
[[ $KEEP == 1 ]] || find "$OUT"/*-checkpoints -type f ! -name gym_checkpoint.json -delete
