# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""What a run's driver builds for the controller's actor, and checks before it starts.

The parts travel pickled, and get hold of devices and of the data plane in the actor.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from minirl.bootstrap import bootstrap_fingerprint, check_anchor, write_anchor
from minirl.checkpoint import latest_checkpoint
from minirl.config import MasterConfig
from minirl.data_plane import DataPlaneClient
from minirl.dataset import Prompt, load_prompts
from minirl.faults import fault_named
from minirl.model import load_policy
from minirl.policy import Policy
from minirl.rollout import RolloutManager
from minirl.snapshot_folder import select_snapshot
from minirl.tokenizer import Tokenizer
from minirl.vllm_backend import check_vllm


@dataclass
class SaveState:
    """How far training is: optimizer steps done, and the weights' version."""

    current_step: int = 0
    trainer_version: int = 0


@dataclass
class ActorArgs:
    """What the driver builds and the actor runs."""

    master_config: MasterConfig
    prompts: list[Prompt]
    trainer_handle: Policy
    dp_client: DataPlaneClient
    rollout_manager: RolloutManager
    save_state: SaveState
    checkpoint: Path | None  # the trainer checkpoint to go on from
    snapshot: Path | None  # the rollout snapshot to go on from
    tokenizer: Tokenizer
    device: str  # cpu or cuda


def snapshots_of_step(checkpoint_dir: Path, step: int) -> Path:
    """Where snapshots are that are based on `step` trained steps."""
    base = f"step_{step}" if step else "bootstrap"
    return checkpoint_dir / base / "rollout_snapshots"


def _find_restart(
    config: MasterConfig,
) -> tuple[SaveState, Path | None, Path | None]:
    """Where a run goes on: its state, trainer checkpoint and rollout snapshot.

    A folder that holds `bootstrap/` must be of this configuration; one that holds
    neither that nor a checkpoint gets an anchor.
    """
    state, checkpoint, snapshot = SaveState(), None, None
    checkpoint_dir = Path(config.checkpointing.checkpoint_dir)
    if not config.checkpointing.enabled:
        return state, checkpoint, snapshot
    anchored = (checkpoint_dir / "bootstrap").exists()
    if anchored:
        check_anchor(checkpoint_dir, config)
    if config.rollout_checkpointing.restore_mode == "latest":
        checkpoint = latest_checkpoint(checkpoint_dir)
        if checkpoint:
            info = json.loads((checkpoint / "training_info.json").read_text())
            state = SaveState(info["current_step"], info["trainer_version"])
        snapshot = select_snapshot(
            snapshots_of_step(checkpoint_dir, state.current_step),
            bootstrap_fingerprint(config),
            state.current_step,
            state.trainer_version,
        )
    if not anchored and not checkpoint:
        write_anchor(checkpoint_dir, config)
    return state, checkpoint, snapshot


def setup_single_controller(
    master_config: MasterConfig, tokenizer: Tokenizer
) -> tuple[ActorArgs, dict[str, float]]:
    """Build everything that the actor needs, and check what can be checked without it.

    Raises:
        ValueError: a data row is not usable, a sequence limit does not fit the policy
            or a prompt, there is no such GPU or fault or no vLLM, or the checkpoint
            folder is another configuration's.
        FileNotFoundError: the policy's weights or the bootstrap anchor are missing.
    """
    started = time.monotonic()
    device = master_config.policy.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("policy.device=cuda: torch finds no GPU")
    if master_config.policy.generation.backend == "vllm":
        check_vllm(device)
    longest = load_policy(
        master_config.policy.model_name
    ).config.max_position_embeddings
    length = master_config.policy.max_total_sequence_length
    if length > longest:
        raise ValueError(
            f"policy.max_total_sequence_length: expected at most {longest}, which the"
            f" policy was made for, found {length}"
        )
    if master_config.faults.plant:
        fault_named(master_config.faults.plant)
    prompts = load_prompts(Path(master_config.data.train.data_path), tokenizer)
    for prompt in prompts:
        if len(prompt.prompt_ids) >= length:
            raise ValueError(
                f"prompt {prompt.prompt_idx}: its {len(prompt.prompt_ids)} tokens leave"
                f" no room in policy.max_total_sequence_length={length}"
            )
    dp_client = DataPlaneClient()
    save_state, checkpoint, snapshot = _find_restart(master_config)
    actor_args = ActorArgs(
        master_config,
        prompts,
        Policy(master_config, dp_client),
        dp_client,
        RolloutManager(master_config, tokenizer, dp_client),
        save_state,
        checkpoint,
        snapshot,
        tokenizer,
        device,
    )
    return actor_args, {"setup_s": time.monotonic() - started}
