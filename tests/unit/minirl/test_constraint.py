# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import string
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minirl.constraint import Constraint
from minirl.pretraining.episodes import vocabulary
from minirl.tokenizer import SPECIAL_TOKENS, Tokenizer

TOKENIZER = Tokenizer.from_words(vocabulary())
EVENT = ["event_name", "participant_email", "event_start", "duration"]
FREE_TEXT = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters='"\\')
)


def tool(name, **properties):
    return {"name": name, "parameters": {"properties": properties}}


def counter(items):
    proof = {"type": "array", "items": {"type": "integer"}, "maxItems": items}
    count = {"type": "integer", "enum": [1]}
    return tool("increment_counter", count=count, checkpoint_proof=proof)


CALENDAR = tool("calendar_create_event", **{name: {"type": "string"} for name in EVENT})
NUMBER = tool("count", number={"type": "integer"})


def after(schema, text):
    """What may follow a call that has begun with a text, as texts."""
    constraint = Constraint(TOKENIZER, schema)
    constraint.advance(TOKENIZER.call_id)
    for token in TOKENIZER.encode(text):
        assert constraint.allowed()[token]
        constraint.advance(token)
    return {TOKENIZER.decode([token]) for token in np.flatnonzero(constraint.allowed())}


def follows(schema, tokens):
    """Whether the constraint lets through all of the tokens."""
    constraint = Constraint(TOKENIZER, schema)
    for token in tokens[:-1]:
        if not constraint.allowed()[token]:
            return False
        constraint.advance(token)
    return bool(constraint.allowed()[tokens[-1]])


@settings(deadline=None)
@given(st.tuples(FREE_TEXT, FREE_TEXT, FREE_TEXT, FREE_TEXT))
def test_every_call_with_free_strings_is_let_through(values):
    arguments = dict(zip(EVENT, values, strict=True))
    call = TOKENIZER.render_tool_call("calendar_create_event", arguments)
    assert follows(CALENDAR, call)


@settings(deadline=None)
@given(st.lists(st.integers(min_value=0), min_size=1, max_size=9))
def test_every_call_with_integers_is_let_through(proof):
    arguments = {"count": 1, "checkpoint_proof": proof}
    call = TOKENIZER.render_tool_call("increment_counter", arguments)
    assert follows(counter(len(proof)), call)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("schema", [CALENDAR, counter(3)], ids=lambda x: x["name"])
def test_whatever_is_let_through_is_a_call_with_the_properties(schema, seed):
    constraint, call, random = Constraint(TOKENIZER, schema), [], Random(seed)
    while call[-1:] != [TOKENIZER.end_id]:
        choices = np.flatnonzero(constraint.allowed())
        literal_next = [x for x in choices if TOKENIZER.decode([x]) in '",]']
        call.append(int(random.choice([*choices, *literal_next * 20])))
        constraint.advance(call[-1])
    name, arguments = TOKENIZER.parse_tool_call(call)
    assert name == schema["name"]
    assert list(arguments) == list(schema["parameters"]["properties"])


def test_call_begins_with_the_call_token_only():
    allowed = Constraint(TOKENIZER, CALENDAR).allowed()
    assert np.flatnonzero(allowed).tolist() == [TOKENIZER.call_id]


def test_literal_allows_one_token():
    assert after(CALENDAR, "calendar_create_event") == {"{"}


def test_call_ends_with_the_end_token_only():
    assert after(NUMBER, 'count{"number":7}') == {"<|end|>"}


def test_integer_begins_with_a_digit():
    assert after(NUMBER, 'count{"number":') == set(string.digits)


def test_integer_goes_on_or_ends():
    assert after(NUMBER, 'count{"number":1') == {*string.digits, "}"}


def test_integer_has_no_leading_zero():
    assert after(NUMBER, 'count{"number":0') == {"}"}


def test_zero_may_follow_another_digit():
    assert after(NUMBER, 'count{"number":10') == {*string.digits, "}"}


def test_array_has_exactly_its_number_of_items():
    prefix = 'increment_counter{"count":1,"checkpoint_proof":[0'
    assert after(counter(2), prefix) == {","}
    assert after(counter(2), prefix + ",5") == {*string.digits, "]"}


def test_enum_of_one_is_a_literal():
    assert after(counter(2), 'increment_counter{"count":') == {"1"}


def test_string_may_end_at_once():
    assert '"' in after(CALENDAR, 'calendar_create_event{"event_name":"')


@pytest.mark.parametrize("text", ["\n", "\t", "\\", "\x7f", "\ufffd", *SPECIAL_TOKENS])
def test_string_holds_nothing_that_json_would_escape(text):
    assert text not in after(CALENDAR, 'calendar_create_event{"event_name":"')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "object"}, "maxItems": 2},
        {},
    ],
    ids=["number", "array of any length", "array of objects", "no type"],
)
def test_other_schema_is_refused_by_property(schema):
    with pytest.raises(ValueError, match="property odd: no constraint"):
        Constraint(TOKENIZER, tool("count", odd=schema))
