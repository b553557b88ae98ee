# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from minirl.bootstrap import (
    bootstrap_fingerprint,
    bootstrap_identity,
    check_anchor,
    write_anchor,
)

OPERATIONAL = [
    "logger.log_dir=elsewhere",
    "checkpointing.checkpoint_dir=elsewhere",
    "checkpointing.keep_top_k=null",
    "checkpointing.save_period=2",
    "rollout_checkpointing.snapshot_attempt_interval_s=0.05",
    "rollout_checkpointing.keep_latest_k=1",
    "rollout_checkpointing.restore_mode=none",
    "async_rl.stall_watchdog.interval_s=1",
    "async_rl.stall_watchdog.stall_timeout_s=60",
    "data.validation.data_path=other.jsonl",
    "policy.optimizer.lr=1",
    "faults.plant=row_lost",
]
SEMANTIC = {
    "policy.generation.temperature": ("1.0", "0.5"),
    "policy.generation.vllm_cfg.enforce_eager": ("false", "true"),
    "policy.max_total_sequence_length": ("640", "600"),
    "loss_fn.ratio_clip": ("0.2", "0.1"),
    "grpo.seed": ("1234", "1"),
    "grpo.adv_estimator.name": ('"grpo"', '"reinforce_plus_plus"'),
    "async_rl.rollout_failure.nemo_gym.rollout_timeout_s": ("300.0", "30.0"),
    "data.train.data_path": ('"unused.jsonl"', '"other.jsonl"'),
    "env.nemo_gym.config_paths": ("[]", '["one.yaml"]'),
}


@pytest.fixture
def anchored(tmp_path, make_config):
    """A checkpoint folder with the anchor of the default configuration."""
    write_anchor(tmp_path, make_config())
    return tmp_path


def edit(folder, **changes):
    path = folder / "bootstrap" / "manifest.json"
    manifest = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in manifest.items() if v is not None}))


def refusal(folder, config):
    with pytest.raises(ValueError) as error:
        check_anchor(folder, config)
    text = str(error.value)
    assert text.startswith(f"{folder}/bootstrap/manifest.json: ") and "\n" not in text
    return text


def test_anchor_has_the_documented_fields(anchored, make_config):
    manifest = json.loads((anchored / "bootstrap" / "manifest.json").read_text())
    assert manifest == {
        "schema_version": 6,
        "base_train_step": 0,
        "trainer_version": 0,
        "bootstrap_fingerprint": bootstrap_fingerprint(make_config()),
        "bootstrap_identity": bootstrap_identity(make_config()),
    }
    assert re.fullmatch("[0-9a-f]{64}", manifest["bootstrap_fingerprint"])
    assert [path.name for path in anchored.iterdir()] == ["bootstrap"]


def test_anchor_is_written_over_what_a_crash_left(tmp_path, make_config):
    (tmp_path / ".bootstrap.partial").mkdir()
    (tmp_path / ".bootstrap.partial" / "manifest.json").write_text("{")
    write_anchor(tmp_path, make_config())
    check_anchor(tmp_path, make_config())


def test_same_configuration_is_accepted(anchored, make_config):
    check_anchor(anchored, make_config())


def test_order_of_keys_does_not_matter(tmp_path, make_config):
    key = "++env.nemo_gym.code_gen"
    write_anchor(tmp_path, make_config(f"{key}={{a: 1, b: 2}}"))
    check_anchor(tmp_path, make_config(f"{key}={{b: 2, a: 1}}"))
    assert "code_gen.b" in refusal(tmp_path, make_config(f"{key}={{a: 1, b: 3}}"))


@pytest.mark.parametrize("override", OPERATIONAL)
def test_operational_setting_may_differ(anchored, make_config, override):
    check_anchor(anchored, make_config(override))


@pytest.mark.parametrize("key", SEMANTIC)
def test_other_setting_is_refused_with_its_values(anchored, make_config, key):
    old, new = SEMANTIC[key]
    text = refusal(anchored, make_config(f"{key}={new}"))
    assert text.endswith(f"another configuration: {key} was {old}, is {new}")


def test_every_changed_key_is_named(anchored, make_config):
    text = refusal(anchored, make_config("grpo.seed=1", "loss_fn.ratio_clip=0.1"))
    assert "grpo.seed was" in text and "; loss_fn.ratio_clip was" in text


def test_key_that_only_one_has_is_named(anchored, make_config):
    identity = bootstrap_identity(make_config())
    del identity["grpo.seed"]
    edit(anchored, bootstrap_fingerprint="0" * 64, bootstrap_identity=identity)
    assert "grpo.seed was unset, is 1234" in refusal(anchored, make_config())


def test_missing_anchor_is_refused_by_path(anchored, make_config):
    (anchored / "bootstrap" / "manifest.json").unlink()
    path = f"{anchored}/bootstrap/manifest.json"
    with pytest.raises(FileNotFoundError, match=f"^{path}: .* is missing$"):
        check_anchor(anchored, make_config())


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}"])
def test_torn_anchor_is_refused_by_path(anchored, make_config, text):
    (anchored / "bootstrap" / "manifest.json").write_text(text)
    assert "no bootstrap manifest" in refusal(anchored, make_config())


def test_older_anchor_without_identity_is_accepted_or_refused(anchored, make_config):
    edit(anchored, bootstrap_identity=None)
    check_anchor(anchored, make_config())
    old, new = (bootstrap_fingerprint(make_config(*x)) for x in ([], ["grpo.seed=1"]))
    text = refusal(anchored, make_config("grpo.seed=1"))
    assert text.endswith(f"fingerprint {old}, expected {new}")
