# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import random

import pytest
import torch

from minirl import pretrain
from minirl.episodes import (
    Event,
    collate,
    counter_episode,
    random_episode,
    random_event,
    vocabulary,
    workplace_episode,
)
from minirl.model import ModelConfig, PolicyModel, load_policy
from minirl.pretrain import Trainer, decoded_log_probs, training_batches
from minirl.tokenizer import Tokenizer

torch.set_num_threads(1)

TOKENIZER = Tokenizer(vocabulary())
ARGUMENTS = {
    "event_name": "checkpoint recovery sentinel",
    "participant_email": "checkpoint-recovery@example.com",
    "event_start": "2025-01-15 10:00:00",
    "duration": "30",
}
TINY = ["--layers=3", "--width=24", "--heads=3", "--steps=1", "--max-items=2"]


@pytest.fixture(scope="module")
def shipped():
    return load_policy(pretrain.SHIPPED_POLICY)


def sample_calls(model, rows, pick):
    """Token ids of `rows` first turns; `pick` maps logits [rows, vocab] to ids."""
    tokens = workplace_episode(TOKENIZER, Event(), 1, 5, event_id=3).tokens
    prompt = tokens[: tokens.index(TOKENIZER.call_id)]
    cache = model.new_cache(rows, 192)
    turns: list[torch.Tensor] = []
    for position in range(192):
        forced = position < len(prompt)
        token = torch.full((rows,), prompt[position]) if forced else turns[-1]
        logits = model.decode_step(token, torch.full((rows,), position), cache)
        if position + 1 >= len(prompt):
            turns.append(pick(logits))
    sampled = torch.stack(turns, 1).tolist()
    return [turn[: turn.index(TOKENIZER.end_id) + 1] for turn in sampled]


def test_shipped_tokenizer_is_the_one_the_policy_was_trained_with(shipped):
    assert Tokenizer.load(pretrain.SHIPPED_POLICY).words == vocabulary()
    assert shipped.config.vocab_size == TOKENIZER.vocab_size


@torch.inference_mode()
def test_shipped_policy_is_exact_on_the_workload(shipped):
    episodes = [
        workplace_episode(TOKENIZER, Event(), 1, n, event_id=3)
        for n in (1, 2, 9, 10, 11, 60, 99, 100, 101, 120, 450)
    ] + [counter_episode(TOKENIZER, 1, 0, k - 1) for k in (1, 2, 10, 11, 63, 64)]
    assert all((m > 0).all() for _, m in decoded_log_probs(shipped, episodes))


def test_shipped_policy_is_exact_on_unseen_prompts(shipped):
    rng = random.Random("unseen")
    episodes = [
        workplace_episode(TOKENIZER, random_event(rng), 1, rng.randint(1, 200), 12345)
        for _ in range(32)
    ]
    exact = [(m > 0).all().item() for _, m in decoded_log_probs(shipped, episodes)]
    assert sum(exact) >= 31


@torch.inference_mode()
def test_greedy_call_is_the_one_asked_for(shipped):
    (call,) = sample_calls(shipped, 1, lambda logits: logits.argmax(-1))
    name, arguments = TOKENIZER.parse_tool_call(call)
    assert (name, arguments) == ("calendar_create_event", ARGUMENTS)


@torch.inference_mode()
def test_sampled_calls_differ_in_duration_and_only_there(shipped):
    generator = torch.Generator().manual_seed(0)

    def pick(logits):
        return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]

    calls = sample_calls(shipped, 24, pick)
    found = [TOKENIZER.parse_tool_call(call)[1] for call in calls]
    durations = [arguments["duration"] for arguments in found]
    assert 12 <= durations.count("30") < 24
    assert all({**arguments, "duration": "30"} == ARGUMENTS for arguments in found)


def test_sampled_lists_are_right(shipped):
    episode = workplace_episode(TOKENIZER, Event(), 1, 120, event_id=3)
    ((log_probs, _),) = decoded_log_probs(shipped, [episode])
    listed = sum(integer > 0 for integer in episode.integers)
    assert log_probs[-listed:].sum().exp() > 0.98


def test_batches_keep_to_their_size_and_number():
    batches = list(training_batches(TOKENIZER, random.Random(0), 60, 30, 1024))
    assert len(batches) == 30
    device = torch.device("cpu")
    assert all(collate(batch, device)[0].numel() <= 1024 for batch in batches)


def test_lists_grow_during_training():
    batches = list(training_batches(TOKENIZER, random.Random(0), 150, 200, 3072))
    longest = [max(max(e.integers) for e in batch) for batch in batches]
    assert max(longest[:10]) <= 20
    assert 140 < max(longest[-80:]) <= 150


def test_training_step_lowers_the_loss():
    torch.manual_seed(0)
    rng = random.Random(0)
    batch = [random_episode(TOKENIZER, rng, 9) for _ in range(4)]
    config = ModelConfig(TOKENIZER.vocab_size, 256, layers=3, width=24)
    trainer = Trainer(PolicyModel(config), muon_rate=0.02, adam_rate=3e-3)
    losses = [trainer.step(batch, rate=1.0) for _ in range(10)]
    assert losses[-1] < 0.7 * losses[0]


def test_training_step_at_rate_zero_changes_nothing():
    torch.manual_seed(0)
    batch = [workplace_episode(TOKENIZER, Event(), 1, 3, event_id=0)]
    config = ModelConfig(TOKENIZER.vocab_size, 256, layers=3, width=24)
    trainer = Trainer(PolicyModel(config), muon_rate=0.02, adam_rate=3e-3)
    assert trainer.step(batch, rate=0.0) == trainer.step(batch, rate=0.0)


def test_untrained_policy_fails_the_gate_and_is_not_written(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(pretrain, "COUNTER_ITEMS", 2)
    monkeypatch.setattr(pretrain, "UNSEEN", 4)
    assert pretrain.main([*TINY, f"--out={tmp_path / 'policy'}"]) == 1
    errors = capsys.readouterr().err
    assert "gate: workplace N=2 is not exact at generated token" in errors
    assert "gate: counter K=1 is not exact at generated token" in errors
    assert "gate: only 0 of 4 unseen prompts are exact" in errors
    assert not (tmp_path / "policy").exists()


def test_policy_that_passes_the_gate_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(pretrain, "gate", lambda *_: [])
    assert pretrain.main([*TINY, f"--out={tmp_path / 'policy'}"]) == 0
    assert load_policy(tmp_path / "policy").config.width == 24
    assert Tokenizer.load(tmp_path / "policy").words == vocabulary()
