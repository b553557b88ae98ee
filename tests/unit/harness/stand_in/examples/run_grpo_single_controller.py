# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""NeMo-RL as the script meets it, without a model: files, log lines and processes.

STAND_IN lists what phases do otherwise, as PHASE=WHAT: fails, hangs, ends, no-dump,
old-names, forgets or writes.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
from nemo_rl.controller import STAGING, Controller, DataPlane, Trainer
from nemo_rl.rollouts import log

# The YAML's keys that can be set without a +, and deleted.
YAML = """
    policy.model_name policy.tokenizer.name policy.max_total_sequence_length
    policy.train_global_batch_size policy.generation.max_new_tokens
    policy.generation.temperature policy.generation.top_p checkpointing.enabled
    checkpointing.checkpoint_dir checkpointing.metric_name checkpointing.save_period
    checkpointing.keep_top_k async_rl.sampler.name env.nemo_gym.config_paths
    async_rl.sampler.max_lookahead_versions async_rl.min_groups_for_streaming_train
    async_rl.max_inflight_prompts async_rl.max_buffered_rollouts grpo.seed
    grpo.num_prompts_per_step grpo.num_generations_per_prompt grpo.max_num_steps
    data.shuffle data.train.data_path data.validation.data_path env.nemo_gym.code_gen
    logger.log_dir
"""
# Overwrites where the kernel reads the title and the environment, as setproctitle does.
WORKER = """
import ctypes, signal
fields = open("/proc/self/stat").read().rpartition(") ")[2].split()
start, end = int(fields[45]), int(fields[48])
ctypes.memset(start, 0, end - start)
ctypes.memmove(start, b"ray::Worker", 11)
print("ready", flush=True)
signal.pause()
"""
WRITER = "while :; do echo late >>{}/late.txt; sleep 0.01; done"
ACTOR = """
import sys, cloudpickle
args = cloudpickle.load(sys.stdin.buffer)
args.rollout_manager.run(args)
"""


def load_config(overrides):
    """The YAML, whose values are null but for one, and Hydra's overrides."""
    config = dict.fromkeys(YAML.split(), "null")
    config["checkpointing.keep_top_k"] = "3"
    for override in overrides:
        match = re.fullmatch(r"(\+\+|~|)([\w.]+)(?:=(\S+))?", override)
        if not match:
            raise ValueError(f"mismatched input {override!r}")
        mark, name, value = match.groups()
        if mark != "++" and name not in config:
            raise ValueError(f"Key '{name}' is not in struct")
        config[name] = value
        if mark == "~":
            del config[name]
    return config


def setup_single_controller(master_config, tokenizer):
    controller = Controller(master_config.values)
    steps = [int(x.name[5:]) for x in controller.checkpoints.glob("step_*")]
    actor_args = SimpleNamespace(
        trainer_handle=Trainer(),
        dp_client=DataPlane(),
        rollout_manager=controller,
        save_state=SimpleNamespace(current_step=max(steps, default=0)),
    )
    return actor_args, {}


def start_children(controller):
    """A worker in a process group of its own, with another title; nobody ends it."""
    command = [sys.executable, "-c", WORKER]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    worker = subprocess.Popen(command, process_group=0, **streams)
    assert worker.stdout.readline() == b"ready\n"
    if controller.does("writes"):
        command = ["sh", "-c", WRITER.format(controller.checkpoints)]
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen(command, start_new_session=True, **streams)


def main():
    if os.environ.get("RAY_ADDRESS") != "local":
        raise ConnectionError("joined a Ray that somebody else has started")
    if os.environ.get("NRL_LOG_LEVEL", "INFO") != "INFO":
        raise ValueError("nothing of the recovery would be logged")
    values = load_config(sys.argv[3:])
    controller = Controller(values)
    found = sorted(str(x) for x in controller.checkpoints.rglob("*"))
    log(f"found {json.dumps(found)}")
    log(f"started with {json.dumps(sys.argv[1:])}")
    log("generation prefix already terminal: rollout_id=x prefix_tokens=1 reason=stop")
    log_dir = Path(values["logger.log_dir"])
    log_dir.mkdir(parents=True, exist_ok=True)
    (log_dir / f"exp_{len(list(log_dir.iterdir())) + 1:03}").mkdir()
    controller.write_or_check_anchor()
    start_children(controller)
    log(f"session {os.getsid(0)}")
    if controller.does("hangs"):
        signal.pause()
    if controller.does("fails"):
        for number in range(300):
            print(f'  File "ray.py", line {number}, in train')
        sys.exit("RayTaskError: out of memory")
    token_capture = SimpleNamespace(staging_partition=STAGING)
    master_config = SimpleNamespace(values=values, token_capture=token_capture)
    actor_args, _ = setup_single_controller(master_config, tokenizer=None)
    done = subprocess.run(
        [sys.executable, "-c", ACTOR],
        input=cloudpickle.dumps(actor_args),
        start_new_session=True,
    )
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
