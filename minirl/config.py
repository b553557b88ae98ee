# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration: a YAML file, Hydra overrides, and the schema both must fit.

The YAML holds every default; the schema holds every key and its type, so that a
misspelled key is an error even where an override would add it (`++a.b=c`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError


@dataclass
class Tokenizer:
    name: str = MISSING


@dataclass
class Optimizer:
    lr: float = MISSING
    weight_decay: float = MISSING


@dataclass
class VllmCfg:
    enforce_eager: bool = MISSING
    gpu_memory_utilization: float = MISSING
    logprobs_mode: str = MISSING


@dataclass
class CompilationConfig:
    backend: str = MISSING


@dataclass
class VllmKwargs:
    compilation_config: CompilationConfig = MISSING
    kv_cache_memory_bytes: int = MISSING
    max_num_batched_tokens: int = MISSING
    attention_backend: str | None = MISSING


@dataclass
class Generation:
    backend: str = MISSING
    max_new_tokens: int = MISSING
    temperature: float = MISSING
    top_p: float = MISSING
    batch_invariant: bool = MISSING
    vllm_cfg: VllmCfg = MISSING
    vllm_kwargs: VllmKwargs = MISSING


@dataclass
class Policy:
    model_name: str = MISSING
    tokenizer: Tokenizer = MISSING
    device: str = MISSING
    precision: str = MISSING
    max_total_sequence_length: int = MISSING
    train_global_batch_size: int = MISSING
    train_micro_batch_size: int = MISSING
    optimizer: Optimizer = MISSING
    generation: Generation = MISSING


@dataclass
class LossFn:
    ratio_clip: float = MISSING


@dataclass
class AdvEstimator:
    name: str = MISSING
    minus_baseline: bool = MISSING


@dataclass
class Grpo:
    seed: int = MISSING
    num_prompts_per_step: int = MISSING
    num_generations_per_prompt: int = MISSING
    max_num_steps: int = MISSING
    adv_estimator: AdvEstimator = MISSING


@dataclass
class Sampler:
    name: str = MISSING
    max_lookahead_versions: int = MISSING


@dataclass
class NemoGymFailure:
    rollout_timeout_s: float = MISSING


@dataclass
class RolloutFailure:
    nemo_gym: NemoGymFailure = MISSING


@dataclass
class StallWatchdog:
    interval_s: float = MISSING
    stall_timeout_s: float = MISSING
    stall_action: str = MISSING


@dataclass
class AsyncRl:
    sampler: Sampler = MISSING
    min_groups_for_streaming_train: int = MISSING
    max_inflight_prompts: int = MISSING
    max_buffered_rollouts: int = MISSING
    log_full_train_data: bool = MISSING
    rollout_failure: RolloutFailure = MISSING
    stall_watchdog: StallWatchdog = MISSING


@dataclass
class TokenCapture:
    enabled: bool = MISSING
    staging_partition: str = MISSING


@dataclass
class RolloutRecovery:
    target_level: str = MISSING


@dataclass
class RolloutCheckpointing:
    snapshot_attempt_interval_s: float = MISSING
    keep_latest_k: int = MISSING
    restore_mode: str = MISSING


@dataclass
class Checkpointing:
    enabled: bool = MISSING
    checkpoint_dir: str = MISSING
    metric_name: str | None = MISSING
    save_period: int = MISSING
    keep_top_k: int | None = MISSING
    save_data_plane: bool = MISSING


@dataclass
class TrainData:
    data_path: str = MISSING


@dataclass
class ValidationData:
    data_path: str | None = MISSING


@dataclass
class Data:
    shuffle: bool = MISSING
    train: TrainData = MISSING
    validation: ValidationData = MISSING


@dataclass
class NemoGym:
    config_paths: list[str] = MISSING
    code_gen: Any = None


@dataclass
class Env:
    nemo_gym: NemoGym = MISSING


@dataclass
class Logger:
    log_dir: str = MISSING


@dataclass
class Faults:
    plant: str | None = MISSING


@dataclass
class MasterConfig:
    """Everything that one run is told; the key names are NeMo-RL's."""

    policy: Policy = MISSING
    loss_fn: LossFn = MISSING
    grpo: Grpo = MISSING
    async_rl: AsyncRl = MISSING
    token_capture: TokenCapture = MISSING
    rollout_recovery: RolloutRecovery = MISSING
    rollout_checkpointing: RolloutCheckpointing = MISSING
    checkpointing: Checkpointing = MISSING
    data: Data = MISSING
    env: Env = MISSING
    logger: Logger = MISSING
    faults: Faults = MISSING


def load_config(path: Path, overrides: list[str]) -> MasterConfig:
    """The file with the overrides applied (Hydra's grammar; a later one wins).

    Raises:
        ValueError: the file is missing, a key is unknown or unset, a value has the
            wrong type, or minirl does not have what it asks for; one line says which.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such configuration file")
    try:
        with initialize_config_dir(str(path.resolve().parent), version_base="1.3"):
            composed = compose(path.stem, overrides)
        merged = OmegaConf.merge(OmegaConf.structured(MasterConfig), composed)
        config = cast(MasterConfig, OmegaConf.to_object(merged))
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ValueError(f"{path}: {_one_line(error)}") from None
    for key, found, expected in _limits(config):
        if found not in expected:
            choices = " or ".join(map(str, expected))
            raise ValueError(f"{key}: expected {choices}, found {found}")
    for key, value in _positive(config).items():
        if value <= 0:
            raise ValueError(f"{key}: expected more than 0, found {value}")
    return config


def _one_line(error: BaseException) -> str:
    causes = [error]
    while cause := causes[-1].__cause__:
        causes.append(cause)
    lines = [line.strip() for cause in causes for line in str(cause).splitlines()]
    key = [line for line in lines if line.startswith(("full_key", "in "))]
    return " ".join(dict.fromkeys([*lines[:2], *key[:1]]))


def _limits(config: MasterConfig) -> list[tuple[str, Any, tuple[Any, ...]]]:
    """What minirl can do, where NeMo-RL can do more."""
    grpo, policy, async_rl = config.grpo, config.policy, config.async_rl
    prompts = grpo.num_prompts_per_step
    batch = prompts * grpo.num_generations_per_prompt
    watchdog, sampler = async_rl.stall_watchdog, async_rl.sampler
    generation = policy.generation
    return [
        ("policy.device", policy.device, ("auto", "cpu", "cuda")),
        ("policy.precision", policy.precision, ("float32", "bfloat16")),
        ("policy.generation.backend", generation.backend, ("minirl", "vllm")),
        (
            "policy.generation.vllm_cfg.logprobs_mode",
            generation.vllm_cfg.logprobs_mode,
            ("raw_logprobs",),
        ),
        (
            "policy.generation.vllm_kwargs.compilation_config.backend",
            generation.vllm_kwargs.compilation_config.backend,
            ("inductor", "eager"),
        ),
        (
            "grpo.adv_estimator.name",
            grpo.adv_estimator.name,
            ("grpo", "reinforce_plus_plus"),
        ),
        ("policy.train_global_batch_size", policy.train_global_batch_size, (batch,)),
        ("async_rl.sampler.name", sampler.name, ("in_order",)),
        (
            "async_rl.sampler.max_lookahead_versions",
            sampler.max_lookahead_versions,
            (0,),
        ),
        (
            "async_rl.min_groups_for_streaming_train",
            async_rl.min_groups_for_streaming_train,
            (prompts,),
        ),
        ("async_rl.max_inflight_prompts", async_rl.max_inflight_prompts, (prompts,)),
        ("async_rl.max_buffered_rollouts", async_rl.max_buffered_rollouts, (prompts,)),
        ("async_rl.stall_watchdog.stall_action", watchdog.stall_action, ("abort",)),
        ("token_capture.enabled", config.token_capture.enabled, (True,)),
        (
            "rollout_recovery.target_level",
            config.rollout_recovery.target_level,
            ("prefix",),
        ),
        (
            "rollout_checkpointing.restore_mode",
            config.rollout_checkpointing.restore_mode,
            ("latest", "none"),
        ),
        ("checkpointing.metric_name", config.checkpointing.metric_name, (None,)),
        ("data.shuffle", config.data.shuffle, (False,)),
    ]


def _positive(config: MasterConfig) -> dict[str, float]:
    policy, grpo, snapshots = config.policy, config.grpo, config.rollout_checkpointing
    keep = config.checkpointing.keep_top_k
    return {
        "grpo.num_prompts_per_step": grpo.num_prompts_per_step,
        "grpo.num_generations_per_prompt": grpo.num_generations_per_prompt,
        "grpo.max_num_steps": grpo.max_num_steps,
        "policy.max_total_sequence_length": policy.max_total_sequence_length,
        "policy.train_micro_batch_size": policy.train_micro_batch_size,
        "policy.generation.max_new_tokens": policy.generation.max_new_tokens,
        "policy.generation.temperature": policy.generation.temperature,
        "policy.generation.top_p": policy.generation.top_p,
        "policy.generation.vllm_cfg.gpu_memory_utilization": (
            policy.generation.vllm_cfg.gpu_memory_utilization
        ),
        "policy.generation.vllm_kwargs.max_num_batched_tokens": (
            policy.generation.vllm_kwargs.max_num_batched_tokens
        ),
        "policy.generation.vllm_kwargs.kv_cache_memory_bytes": (
            policy.generation.vllm_kwargs.kv_cache_memory_bytes
        ),
        "rollout_checkpointing.snapshot_attempt_interval_s": (
            snapshots.snapshot_attempt_interval_s
        ),
        "rollout_checkpointing.keep_latest_k": snapshots.keep_latest_k,
        "checkpointing.save_period": config.checkpointing.save_period,
        "checkpointing.keep_top_k": 1 if keep is None else keep,
    }
