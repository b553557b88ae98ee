# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import pickle
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minirl.tokenizer import SPECIAL_TOKENS, Tokenizer

WORDS = ["increment_counter", "count", "checkpoint", "recovery", "example"]
TOKENIZER = Tokenizer.from_words(WORDS)
SPACED = [" " + word for word in WORDS]
PIECES = st.sampled_from([*WORDS, *SPACED, *SPECIAL_TOKENS, *string.printable])
TEXTS = st.lists(PIECES).map("".join) | st.text()
CALL = [
    TOKENIZER.call_id,
    *TOKENIZER.encode('increment_counter{"count":1,"list":[0,1]}'),
    TOKENIZER.end_id,
]


@settings(deadline=None)
@given(TEXTS)
def test_decoding_undoes_encoding(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@settings(deadline=None)
@given(TEXTS)
def test_digits_are_tokens_of_their_own(text):
    tokens = [TOKENIZER.texts[token] for token in TOKENIZER.encode(text)]
    digits = [token for token in tokens if set(token) & set(string.digits)]
    assert digits == [character for character in text if character in string.digits]


@settings(deadline=None)
@given(TEXTS)
def test_no_text_has_a_special_token(text):
    assert min(TOKENIZER.encode(text), default=7) >= len(SPECIAL_TOKENS)


def test_words_are_one_token_with_and_without_a_leading_space():
    tokens = TOKENIZER.encode("checkpoint recovery")
    assert [TOKENIZER.decode([token]) for token in tokens] == [
        "checkpoint",
        " recovery",
    ]


def test_words_inside_longer_words_are_not_tokens():
    assert len(TOKENIZER.encode("counts")) == len("counts")


def test_special_tokens_decode_to_their_names():
    assert TOKENIZER.decode([TOKENIZER.pad_id, TOKENIZER.end_id]) == "<|pad|><|end|>"


@pytest.mark.parametrize("words", [["a"], ["two words"], ["id7"], ["count", "count"]])
def test_unusable_words_are_refused(words):
    with pytest.raises(ValueError, match="word"):
        Tokenizer.from_words(words)


def test_saved_tokenizer_encodes_alike(tmp_path):
    TOKENIZER.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    text = "checkpoint recovery 42"
    assert loaded.encode(text) == TOKENIZER.encode(text)
    assert loaded.vocab_size == TOKENIZER.vocab_size


def test_file_that_is_no_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"words": []}')
    with pytest.raises(ValueError, match="json: expected a tokenizer"):
        Tokenizer.load(tmp_path)


def test_pickled_tokenizer_encodes_alike():
    text = "checkpoint<|end|>"
    assert pickle.loads(pickle.dumps(TOKENIZER)).encode(text) == TOKENIZER.encode(text)


def test_prompt_ends_where_the_assistant_begins():
    ids = TOKENIZER.render_prompt(
        [{"role": "system", "content": "ab"}, {"role": "user", "content": "count 1"}]
    )
    text = "<|system|>ab<|end|><|user|>count 1<|end|><|assistant|>"
    assert TOKENIZER.decode(ids) == text


def test_prompt_with_an_unknown_role_is_refused():
    with pytest.raises(ValueError, match="role 'critic'"):
        TOKENIZER.render_prompt([{"role": "critic", "content": ""}])


def test_tool_result_is_followed_by_the_assistant():
    text = TOKENIZER.decode(TOKENIZER.render_tool_result("ok"))
    assert text == "<|tool|>ok<|end|><|assistant|>"


def test_call_is_rendered_as_compact_json():
    ids = TOKENIZER.render_tool_call("increment_counter", {"count": 1, "list": [0, 1]})
    assert ids == CALL


def test_rendered_call_parses_to_name_and_arguments():
    arguments = {"count": 1, "list": [0, 1], "name": 'a "quoted" {word}'}
    ids = TOKENIZER.render_tool_call("increment_counter", arguments)
    assert TOKENIZER.parse_tool_call(ids) == ("increment_counter", arguments)


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [TOKENIZER.call_id],
        [TOKENIZER.user_id, *CALL[1:]],
        [*CALL[:-1], TOKENIZER.pad_id],
        [*CALL[:-2], TOKENIZER.end_id],
        [TOKENIZER.call_id, *CALL[2:]],
        [*CALL[:4], TOKENIZER.pad_id, *CALL[4:]],
        [*CALL[:-1], *TOKENIZER.encode("1"), TOKENIZER.end_id],
    ],
    ids=[
        "empty",
        "call token only",
        "another token first",
        "another token last",
        "open brace",
        "no name",
        "special token inside",
        "text after the arguments",
    ],
)
def test_other_turns_are_no_tool_calls(ids):
    with pytest.raises(ValueError, match=r"call|JSON"):
        TOKENIZER.parse_tool_call(ids)


def test_call_of_the_cases_above_is_one():
    assert TOKENIZER.parse_tool_call(CALL)[1] == {"count": 1, "list": [0, 1]}
