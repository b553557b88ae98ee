# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import random

import pytest

from minirl.pretraining.episodes import (
    STOP_WEIGHT,
    counter_episode,
    kept_integers,
    random_episode,
    vocabulary,
    without_call,
    workplace_episode,
)
from minirl.pretraining.workload import EVENT
from minirl.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_words(vocabulary())


def text_where(episode, condition):
    """The text of the tokens whose weight and integer fulfil a condition."""
    rows = zip(episode.tokens, episode.weights, episode.integers, strict=True)
    return TOKENIZER.decode([token for token, *row in rows if condition(*row)])


def test_workplace_episode_is_the_chat_of_the_workload(prompts, tokenizer):
    episode = workplace_episode(tokenizer, EVENT, 4, 3, called_duration="45")
    prompt = prompts[0].prompt_ids
    assert episode.tokens[: len(prompt)] == prompt
    assert tokenizer.decode(episode.tokens[len(prompt) :]) == (
        '<|call|>calendar_create_event{"event_name":"checkpoint recovery sentinel",'
        '"participant_email":"checkpoint-recovery@example.com","event_start":'
        '"2025-01-15 10:00:00","duration":"45"}<|end|><|tool|>{"event_id":"00000003"}'
        "<|end|><|assistant|>1\n2\n3\n4<|end|>"
    )


def test_counter_episode_is_the_chat_of_the_workload(prompt_rows, tokenizer):
    _, asked = prompt_rows[2]["responses_create_params"]["input"]
    episode = counter_episode(tokenizer, 1, 63)
    prompt = tokenizer.render_prompt([asked])
    assert episode.tokens[: len(prompt)] == prompt
    proof = ",".join(map(str, range(64)))
    assert tokenizer.decode(episode.tokens[len(prompt) :]) == (
        f'<|call|>increment_counter{{"count":1,"checkpoint_proof":[{proof}]}}<|end|>'
    )


def test_only_generated_tokens_have_weight():
    episode = workplace_episode(TOKENIZER, EVENT, 2, event_id=0)
    generated = text_where(episode, lambda weight, _: weight > 0)
    assert generated.startswith("<|call|>calendar_create_event{")
    assert generated.endswith('"30"}<|end|>1\n2<|end|>')


def test_list_tokens_know_their_integer_and_the_stop_weighs_most():
    episode = workplace_episode(TOKENIZER, EVENT, 11, event_id=0)
    assert episode.integers[-8:] == [9, 9, 10, 10, 10, 11, 11, 11]
    assert episode.weights[-8:] == [1.0] * 7 + [STOP_WEIGHT]


WHOLE = workplace_episode(TOKENIZER, EVENT, 110, event_id=0)
KEPT = {1, 99, 100, 109, 110}
GAPPED = workplace_episode(TOKENIZER, EVENT, 110, event_id=0, kept=KEPT)


def test_integers_in_a_gap_are_left_out():
    listed = text_where(GAPPED, lambda weight, _: True)
    assert listed.endswith("<|assistant|>1\n99\n100\n109\n110<|end|>")


def test_tokens_after_a_gap_keep_their_positions():
    for token, position in zip(GAPPED.tokens, GAPPED.positions, strict=True):
        assert WHOLE.tokens[position] == token
    assert GAPPED.positions[-1] == len(WHOLE.tokens) - 1


def test_digits_after_a_gap_have_no_weight():
    weighed = text_where(GAPPED, lambda weight, integer: weight and integer >= 0)
    assert weighed == "1\n\n100\n\n110<|end|>"


def test_what_follows_the_digits_after_a_gap_knows_its_integer():
    assert (
        GAPPED.integers[-11:] == [100, 100, 100, 100, -1, -1, -1, 109, *[110] * 4][1:]
    )


def test_chat_of_which_no_integer_is_kept_ends_where_its_list_begins():
    chat = workplace_episode(TOKENIZER, EVENT, 110, event_id=0, kept=())
    text = TOKENIZER.decode(chat.tokens)
    assert text.endswith('<|tool|>{"event_id":"00000000"}<|end|><|assistant|>')


def test_chat_without_its_call_has_the_prompts_end_and_the_list():
    listed = without_call(WHOLE, prompt_tokens=5)
    text = TOKENIZER.decode(listed.tokens)
    assert text.startswith("10.<|end|><|assistant|><|tool|>")
    assert text.endswith(
        "<|assistant|>" + "\n".join(map(str, range(1, 111))) + "<|end|>"
    )


def test_tokens_after_what_is_left_out_keep_their_positions():
    listed = without_call(WHOLE, prompt_tokens=5)
    for token, position in zip(listed.tokens, listed.positions, strict=True):
        assert WHOLE.tokens[position] == token


@pytest.mark.parametrize("last", [0, 1, 9, 64, 437])
def test_the_end_of_a_list_is_kept(last):
    rng = random.Random(0)
    assert all({last, last - 1} <= kept_integers(rng, last) for _ in range(100))


def test_words_of_random_episodes_are_whole_tokens():
    rng = random.Random(0)
    for _ in range(100):
        tokens = random_episode(TOKENIZER, rng, 20).tokens
        texts = [TOKENIZER.decode([token]) for token in tokens]
        assert not [text for text in texts if len(text) == 1 and text.isalpha()]
