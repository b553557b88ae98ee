# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from omegaconf import OmegaConf

from minirl.config import load_config

GYM_CONFIGS = (
    "[responses_api_models/vllm_model/configs/vllm_model_for_training.yaml,"
    "resources_servers/example_session_state_mgmt/configs/"
    "example_session_state_mgmt.yaml,"
    "responses_api_agents/checkpoint_test_agent/configs/workplace_assistant.yaml]"
)
# What the prefix-recovery test sets, and how the typed configuration shows it.
HARNESS_OVERRIDES = {
    "policy.model_name=some/policy": "some/policy",
    "policy.tokenizer.name=some/tokenizer": "some/tokenizer",
    "policy.max_total_sequence_length=512": 512,
    "policy.generation.max_new_tokens=256": 256,
    "policy.generation.temperature=1.0": 1.0,
    "policy.generation.top_p=0.000001": 1e-6,
    "policy.train_global_batch_size=6": 6,
    "checkpointing.enabled=true": True,
    "checkpointing.checkpoint_dir=/some/checkpoints": "/some/checkpoints",
    "checkpointing.metric_name=null": None,
    "checkpointing.save_period=1": 1,
    "++checkpointing.save_data_plane=true": True,
    "++token_capture.enabled=true": True,
    "++rollout_recovery.target_level=prefix": "prefix",
    "++rollout_checkpointing.snapshot_attempt_interval_s=0.05": 0.05,
    "++rollout_checkpointing.keep_latest_k=16": 16,
    "++rollout_checkpointing.restore_mode=latest": "latest",
    "async_rl.sampler.name=in_order": "in_order",
    "async_rl.sampler.max_lookahead_versions=0": 0,
    "async_rl.min_groups_for_streaming_train=3": 3,
    "async_rl.max_inflight_prompts=3": 3,
    "async_rl.max_buffered_rollouts=3": 3,
    "++async_rl.log_full_train_data=true": True,
    "++async_rl.rollout_failure.nemo_gym.rollout_timeout_s=300": 300.0,
    "++async_rl.stall_watchdog.interval_s=10": 10.0,
    "++async_rl.stall_watchdog.stall_timeout_s=600": 600.0,
    "++async_rl.stall_watchdog.stall_action=abort": "abort",
    "grpo.seed=1234": 1234,
    "grpo.num_prompts_per_step=3": 3,
    "grpo.num_generations_per_prompt=2": 2,
    "grpo.max_num_steps=2": 2,
    "++grpo.adv_estimator.name=reinforce_plus_plus": "reinforce_plus_plus",
    "++grpo.adv_estimator.minus_baseline=false": False,
    "checkpointing.keep_top_k=null": None,
    "++policy.generation.vllm_cfg.logprobs_mode=raw_logprobs": "raw_logprobs",
    "policy.generation.vllm_cfg.enforce_eager=false": False,
    "++policy.generation.vllm_kwargs.compilation_config.backend=inductor": "inductor",
    "data.shuffle=false": False,
    "data.train.data_path=/some/train.jsonl": "/some/train.jsonl",
    "data.validation.data_path=/some/val.jsonl": "/some/val.jsonl",
    "logger.log_dir=/some/logs": "/some/logs",
    "~env.nemo_gym.code_gen": None,
    f"env.nemo_gym.config_paths={GYM_CONFIGS}": GYM_CONFIGS[1:-1].split(","),
}


@pytest.fixture(scope="module")
def harness_config(make_config):
    return OmegaConf.structured(make_config(*HARNESS_OVERRIDES))


@pytest.mark.parametrize("override", HARNESS_OVERRIDES)
def test_override_of_the_harness_shows_in_the_typed_config(harness_config, override):
    key = override.partition("=")[0].lstrip("+~")
    assert OmegaConf.select(harness_config, key) == HARNESS_OVERRIDES[override]


def test_later_override_wins(make_config):
    assert make_config("grpo.seed=1", "grpo.seed=2").grpo.seed == 2


def test_defaults_are_nemo_rls(make_config):
    config = make_config()
    assert config.checkpointing.keep_top_k == 3
    assert config.grpo.adv_estimator.name == "grpo"


def test_batch_limits_follow_the_number_of_prompts(make_config):
    config = make_config(prompts=2, generations=3)
    assert config.async_rl.max_inflight_prompts == 2
    assert config.async_rl.max_buffered_rollouts == 2
    assert config.async_rl.min_groups_for_streaming_train == 2


def refusal(make_config, *overrides):
    """What a ValueError says about the overrides; always one line."""
    with pytest.raises(ValueError) as error:
        make_config(*overrides)
    text = str(error.value)
    assert len(text.splitlines()) == 1
    return text


@pytest.mark.parametrize("prefix", ["", "+", "++"])
@pytest.mark.parametrize(
    "key",
    [
        "grpo.sede",
        "async_rl.sampler.kind",
        "polcy",
        "grpo.adv_estimator.nam",
        "checkpointing.keep_topk",
        "policy.generation.vllm_cfg.max_model_len",
        "policy.generation.vllm_kwargs.seed",
        "policy.generation.vllm_kwargs.compilation_config.mode",
    ],
)
def test_unknown_key_is_refused_by_name(make_config, prefix, key):
    assert key.rpartition(".")[2] in refusal(make_config, f"{prefix}{key}=1")


@pytest.mark.parametrize(
    "override",
    [
        "grpo.seed=many",
        "policy.generation.top_p=most",
        "checkpointing.enabled=perhaps",
        "env.nemo_gym.config_paths=one.yaml",
    ],
)
def test_value_of_the_wrong_type_is_refused_by_key(make_config, override):
    assert override.partition("=")[0] in refusal(make_config, override)


def test_deleted_value_is_refused_by_key(make_config):
    assert "grpo.seed" in refusal(make_config, "~grpo.seed")


def test_unset_value_is_refused_by_key(make_config):
    assert "data.train.data_path" in refusal(make_config, "data.train.data_path=???")


def test_missing_file_is_refused_by_path(tmp_path):
    path = tmp_path / "none.yaml"
    with pytest.raises(ValueError, match=f"^{path}: no such configuration file$"):
        load_config(path, [])


def test_override_that_is_none_is_refused(make_config):
    assert "--help" in refusal(make_config, "--help")


@pytest.mark.parametrize(
    "override",
    [
        "policy.device=tpu",
        "policy.precision=float64",
        "policy.generation.vllm_cfg.logprobs_mode=processed_logprobs",
        "grpo.adv_estimator.name=gae",
        "policy.train_global_batch_size=7",
        "async_rl.sampler.name=shuffled",
        "async_rl.sampler.max_lookahead_versions=1",
        "async_rl.min_groups_for_streaming_train=1",
        "async_rl.max_inflight_prompts=1",
        "async_rl.max_buffered_rollouts=1",
        "async_rl.stall_watchdog.stall_action=warn",
        "token_capture.enabled=false",
        "rollout_recovery.target_level=turn",
        "rollout_checkpointing.restore_mode=oldest",
        "checkpointing.metric_name=loss",
        "data.shuffle=true",
    ],
)
def test_what_minirl_cannot_do_is_refused(make_config, override):
    key, _, value = override.partition("=")
    found = value.capitalize() if value in ("true", "false") else value
    text = refusal(make_config, override)
    assert text.startswith(f"{key}: expected ") and text.endswith(f"found {found}")


@pytest.mark.parametrize(
    "key",
    [
        "grpo.max_num_steps",
        "policy.max_total_sequence_length",
        "policy.train_micro_batch_size",
        "policy.generation.max_new_tokens",
        "policy.generation.temperature",
        "policy.generation.top_p",
        "rollout_checkpointing.snapshot_attempt_interval_s",
        "rollout_checkpointing.keep_latest_k",
        "checkpointing.save_period",
        "checkpointing.keep_top_k",
    ],
)
def test_zero_is_refused_where_a_quantity_is_needed(make_config, key):
    assert refusal(make_config, f"{key}=0").startswith(f"{key}: expected more than 0")


def test_file_that_is_no_yaml_is_refused_with_its_line(tmp_path):
    path = tmp_path / "torn.yaml"
    path.write_text("grpo:\n  seed: [1\n")
    with pytest.raises(ValueError, match=rf"^{path}: .*line 2") as error:
        load_config(path, [])
    assert len(str(error.value).splitlines()) == 1
