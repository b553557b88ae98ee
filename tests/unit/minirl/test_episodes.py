# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import random

from minirl.episodes import (
    STOP_WEIGHT,
    Event,
    counter_episode,
    random_episode,
    vocabulary,
    workplace_episode,
)
from minirl.tokenizer import Tokenizer

TOKENIZER = Tokenizer(vocabulary())


def test_workplace_episode_is_the_chat_of_the_workload():
    episode = workplace_episode(TOKENIZER, Event(), 1, 3, 3, called_duration=45)
    generated = [t for t, w in zip(episode.tokens, episode.weights, strict=True) if w]
    assert TOKENIZER.decode(episode.tokens) == (
        "<|user|>Call calendar_create_event once with event_name "
        '"checkpoint recovery sentinel", participant_email '
        '"checkpoint-recovery@example.com", event_start "2025-01-15 10:00:00" and '
        'duration "30". After its result, write the integers from 1 to 3, one per '
        "line, and nothing else.<|end|><|assistant|><|call|>calendar_create_event"
        '{"event_name":"checkpoint recovery sentinel","participant_email":'
        '"checkpoint-recovery@example.com","event_start":"2025-01-15 10:00:00",'
        '"duration":"45"}<|end|><|tool|>{"event_id":"00000003"}<|end|><|assistant|>'
        "1\n2\n3<|end|>"
    )
    assert TOKENIZER.decode(generated).endswith('"45"}<|end|>1\n2\n3<|end|>')
    assert TOKENIZER.decode(generated).startswith("<|call|>")


def test_counter_episode_is_the_chat_of_the_workload():
    episode = counter_episode(TOKENIZER, 1, 0, 2)
    assert TOKENIZER.decode(episode.tokens) == (
        "<|user|>Call increment_counter once with count 1 and checkpoint_proof set to "
        "the integers from 0 to 2.<|end|><|assistant|><|call|>increment_counter"
        '{"count":1,"checkpoint_proof":[0,1,2]}<|end|>'
    )


def test_list_tokens_know_their_integer_and_the_stop_weighs_most():
    episode = workplace_episode(TOKENIZER, Event(), 9, 11, event_id=0)
    assert episode.integers[-8:] == [9, 9, 10, 10, 10, 11, 11, 11]
    assert episode.weights[-8:] == [1.0] * 7 + [STOP_WEIGHT]


def test_words_of_random_episodes_are_whole_tokens():
    rng = random.Random(0)
    for _ in range(100):
        tokens = random_episode(TOKENIZER, rng, 20).tokens
        texts = [TOKENIZER.decode([token]) for token in tokens]
        assert not [text for text in texts if len(text) == 1 and text.isalpha()]
