# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace

import pytest
import torch

from minirl.model import ModelConfig, PolicyModel, load_policy, save_policy

torch.set_num_threads(1)

VOCABULARY, LENGTH = 50, 24
CONFIG = ModelConfig(VOCABULARY, LENGTH, num_hidden_layers=2)


@pytest.fixture(scope="module")
def model():
    return random_model()


def random_model():
    torch.manual_seed(0)
    model = PolicyModel(CONFIG)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.requires_grad_(False)


def tokens(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, shape, generator=generator)


def decode(model, sequence, slots, slot=0, seed=0, cache=None):
    """Logits [time, vocab] of a sequence in one slot, among other slots' noise."""
    cache = cache or model.new_cache(slots, LENGTH)
    generator = torch.Generator().manual_seed(seed)
    logits = []
    for position, token in enumerate(sequence):
        ids = torch.randint(VOCABULARY, (slots,), generator=generator)
        positions = torch.randint(LENGTH, (slots,), generator=generator)
        ids[slot], positions[slot] = token, position
        logits.append(model.decode_step(ids, positions, cache)[slot])
    return torch.stack(logits)


def test_decode_step_agrees_with_forward(model):
    sequence = tokens(1, LENGTH)
    whole = model(sequence[None])[0]
    torch.testing.assert_close(decode(model, sequence, slots=3), whole)


def test_later_tokens_do_not_change_earlier_logits(model):
    sequence = tokens(2, 1, LENGTH)
    changed = sequence.clone()
    changed[:, 10:] = 0
    torch.testing.assert_close(model(sequence)[:, :10], model(changed)[:, :10])
    assert not torch.allclose(model(sequence)[:, 10:], model(changed)[:, 10:])


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 8, 16, 24, 31, 32])
def test_slot_and_neighbours_do_not_change_a_bit(model, slots):
    sequence = tokens(3, 8)
    expected = decode(model, sequence, slots)
    for slot in range(slots):
        found = decode(model, sequence, slots, slot, seed=slot + 1)
        assert torch.equal(found, expected), f"slot {slot} of {slots}"


@pytest.mark.parametrize("stale", [1e4, -3e38, torch.finfo(torch.float32).max])
def test_what_an_earlier_call_left_in_the_cache_has_no_effect(model, stale):
    sequence = tokens(4, 8)
    expected = decode(model, sequence, slots=2)
    cache = model.new_cache(2, LENGTH)
    cache.keys.fill_(stale)
    cache.values.fill_(stale)
    assert torch.equal(decode(model, sequence, slots=2, cache=cache), expected)


def test_failed_call_leaves_no_poison_in_the_cache(model):
    broken = random_model()
    broken.embed_tokens.weight[7] = torch.nan
    cache = broken.new_cache(1, LENGTH)
    assert decode(broken, torch.full((12,), 7), 1, cache=cache).isnan().all()
    sequence = tokens(5, 8)
    expected = decode(model, sequence, slots=1)
    assert torch.equal(decode(model, sequence, slots=1, cache=cache), expected)


def test_step_in_bfloat16_is_close_and_returns_float32(model):
    sequence = tokens(6, 8)
    half = random_model().bfloat16()
    found = decode(half, sequence, slots=3)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, decode(model, sequence, 3), atol=0.2, rtol=0.1)


def test_cache_longer_than_the_model_is_refused(model):
    with pytest.raises(
        ValueError, match="max_length 25 is over max_position_embeddings 24"
    ):
        model.new_cache(1, LENGTH + 1)


def test_saved_policy_computes_the_same_bits(model, tmp_path):
    save_policy(model, tmp_path)
    loaded = load_policy(tmp_path)
    sequence = tokens(7, 2, LENGTH)
    assert loaded.config == model.config
    assert torch.equal(loaded(sequence), model(sequence))


def test_save_leaves_no_temporary_files(model, tmp_path):
    save_policy(model, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["config.json", "model.safetensors"]


def test_load_converts_to_the_asked_dtype(model, tmp_path):
    save_policy(model, tmp_path)
    loaded = load_policy(tmp_path, dtype=torch.bfloat16)
    assert loaded.new_cache(1, 4).keys.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file_is_named(model, tmp_path, name):
    save_policy(model, tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing: a policy is"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    "key, value",
    [("model_type", "qwen2"), ("num_key_value_heads", 1), ("rope_theta", None)],
)
def test_configuration_of_another_kind_of_model_is_refused(model, tmp_path, key, value):
    save_policy(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changed = {name: x for name, x in {**config, key: value}.items() if x is not None}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=f"config.json: {key}: expected"):
        load_policy(tmp_path)


def test_weights_of_another_size_are_refused(model, tmp_path):
    save_policy(PolicyModel(replace(CONFIG, hidden_size=64)), tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    save_policy(model, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(weights)
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_policy(tmp_path)
