# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The shipped weights: exact on the workload, and the same to every engine."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from minirl.pretraining.episodes import random_event, vocabulary, workplace_episode
from minirl.pretraining.gate import generated_log_probs, workload_episodes
from minirl.pretraining.workload import EVENT
from minirl.tokenizer import Tokenizer

CHAT = [
    {"role": "system", "content": "count é 1"},
    {"role": "user", "content": "call\nincrement_counter"},
    {"role": "assistant", "content": "437"},
    {"role": "tool", "content": '{"event_id":"00000003"}'},
]


@pytest.fixture(scope="module")
def folder(make_config):
    return make_config().policy.model_name


@pytest.fixture(scope="module")
def reference(folder):
    """The policy as `transformers` loads it."""
    return AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)


def episode(tokenizer, last):
    return workplace_episode(tokenizer, EVENT, last, event_id=3)


def sample_calls(tokenizer, model, rows, pick):
    """Arguments of `rows` first turns; `pick` maps logits [rows, vocab] to ids."""
    tokens = episode(tokenizer, 5).tokens
    prompt = tokens[: tokens.index(tokenizer.call_id)]
    cache = model.new_cache(rows, 256)
    turns: list[torch.Tensor] = []
    for position in range(256):
        forced = position < len(prompt)
        token = torch.full((rows,), prompt[position]) if forced else turns[-1]
        logits = model.decode_step(token, torch.full((rows,), position), cache)
        if position + 1 >= len(prompt):
            turns.append(pick(logits))
    calls = []
    for turn in torch.stack(turns, 1).tolist():
        call = turn[: turn.index(tokenizer.end_id) + 1]
        name, arguments = tokenizer.parse_tool_call(call)
        assert name == "calendar_create_event"
        calls.append(arguments)
    return calls


# -- as other libraries load it ------------------------------------------------------


def test_transformers_computes_the_same_logits(reference, shipped_policy, tokenizer):
    token_ids = torch.tensor([episode(tokenizer, 100).tokens])
    expected = reference(token_ids).logits
    torch.testing.assert_close(shipped_policy(token_ids), expected)


@pytest.mark.parametrize("last", [5, 24])
def test_transformers_writes_the_same_list(reference, tokenizer, last):
    listed = episode(tokenizer, last)
    begin = listed.integers.index(1)
    written = reference.generate(
        torch.tensor([listed.tokens[:begin]]), max_new_tokens=100, do_sample=False
    )
    assert written[0].tolist() == listed.tokens


def test_transformers_renders_the_same_prompt(folder, tokenizer):
    library = AutoTokenizer.from_pretrained(folder)
    found = library.apply_chat_template(
        CHAT, add_generation_prompt=True, return_dict=False
    )
    assert found == tokenizer.render_prompt(CHAT)
    assert library.decode(found) == tokenizer.decode(found)


def test_ids_in_the_configuration_are_the_tokenizers(reference, tokenizer):
    config = reference.config
    ids = (config.pad_token_id, config.eos_token_id, config.vocab_size)
    assert ids == (tokenizer.pad_id, tokenizer.end_id, tokenizer.vocab_size)


# -- what it writes ------------------------------------------------------------------


def test_tokenizer_is_the_one_that_training_makes(tokenizer):
    assert tokenizer.texts == Tokenizer.from_words(vocabulary()).texts


def test_policy_is_exact_on_the_workload(shipped_policy, tokenizer):
    every = workload_episodes(tokenizer, 450)
    lists = (1, 2, 9, 10, 11, 60, 99, 100, 101, 120, 450)
    names = [f"workplace N={n}" for n in lists]
    names += [f"counter K={k}" for k in (1, 2, 10, 11, 63, 64)]
    found = generated_log_probs(shipped_policy, [every[name] for name in names])
    assert [n for n, (_, m) in zip(names, found, strict=True) if m.min() <= 0] == []


def test_policy_is_exact_on_unseen_prompts(shipped_policy, tokenizer):
    rng = random.Random("unseen")
    episodes = [
        workplace_episode(tokenizer, random_event(rng), rng.randint(1, 200), 12345)
        for _ in range(32)
    ]
    found = generated_log_probs(shipped_policy, episodes)
    assert sum((margins > 0).all().item() for _, margins in found) >= 31


def test_greedy_call_is_the_one_asked_for(shipped_policy, tokenizer):
    calls = sample_calls(tokenizer, shipped_policy, 1, lambda logits: logits.argmax(-1))
    assert calls == [EVENT]


def test_sampled_calls_differ_in_duration_and_only_there(shipped_policy, tokenizer):
    generator = torch.Generator().manual_seed(0)

    def pick(logits):
        return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]

    calls = sample_calls(tokenizer, shipped_policy, 24, pick)
    durations = [arguments["duration"] for arguments in calls]
    assert 12 <= durations.count("30") < 24
    assert all({**arguments, "duration": "30"} == EVENT for arguments in calls)


def test_sampled_lists_are_right(shipped_policy, tokenizer):
    listed = episode(tokenizer, 120)
    ((log_probs, _),) = generated_log_probs(shipped_policy, [listed])
    tokens = sum(integer > 0 for integer in listed.integers)
    assert log_probs[-tokens:].sum().exp() > 0.98
