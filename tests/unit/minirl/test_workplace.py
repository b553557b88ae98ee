# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from minirl.workplace import CounterSession, WorkplaceSession

TOOL = "calendar_create_event"
EVENT = {
    "event_name": "checkpoint recovery sentinel",
    "participant_email": "checkpoint-recovery@example.com",
    "event_start": "2025-01-15 10:00:00",
    "duration": "30",
}


@pytest.fixture
def calendar():
    truth = [{"name": TOOL, "arguments": json.dumps(EVENT)}]
    return WorkplaceSession({"ground_truth": truth})


@pytest.fixture
def counter():
    return CounterSession({"initial_count": 3, "expected_count": 4})


def names(session):
    columns = session.state()["calendar"]["_calendar_events"]["columns"]
    return {column["name"]: column["values"] for column in columns}["event_name"]


def test_new_calendar_lacks_the_event(calendar):
    assert EVENT["event_name"] not in names(calendar)
    assert calendar.reward() == 0.0


def test_call_adds_one_event(calendar):
    before = names(calendar)
    calendar.call(TOOL, EVENT)
    assert names(calendar) == [*before, EVENT["event_name"]]


def test_call_returns_the_events_id(calendar):
    assert json.loads(calendar.call(TOOL, EVENT)) == {"event_id": "00000003"}
    assert json.loads(calendar.call(TOOL, EVENT)) == {"event_id": "00000004"}


def test_calls_of_the_ground_truth_are_rewarded(calendar):
    calendar.call(TOOL, EVENT)
    assert calendar.reward() == 1.0


def test_verifier_ignores_case(calendar):
    calendar.call(TOOL, {**EVENT, "event_name": EVENT["event_name"].upper()})
    assert calendar.reward() == 1.0


@pytest.mark.parametrize("key", EVENT)
def test_event_that_differs_is_not_rewarded(calendar, key):
    calendar.call(TOOL, {**EVENT, key: "60"})
    assert calendar.reward() == 0.0


def test_event_added_twice_is_not_rewarded(calendar):
    calendar.call(TOOL, EVENT)
    calendar.call(TOOL, EVENT)
    assert calendar.reward() == 0.0


def test_number_and_its_text_are_the_same_argument(calendar):
    calendar.call(TOOL, {**EVENT, "duration": 30})
    assert calendar.reward() == 1.0


@pytest.mark.parametrize(
    "name, arguments",
    [("email_send", EVENT), (TOOL, {}), (TOOL, {**EVENT, "room": "1"})],
    ids=["other tool", "missing arguments", "other argument"],
)
def test_wrong_call_is_an_error_and_changes_nothing(calendar, name, arguments):
    before = calendar.state()
    assert "error" in json.loads(calendar.call(name, arguments))
    assert calendar.state() == before


def test_restored_calendar_has_the_state_and_goes_on_alike(calendar):
    restored = WorkplaceSession({"ground_truth": []})
    calendar.call(TOOL, EVENT)
    restored.restore(json.loads(json.dumps(calendar.state())))
    assert restored.state() == calendar.state()
    assert restored.call(TOOL, EVENT) == calendar.call(TOOL, EVENT)
    assert restored.state() == calendar.state()


def test_restored_calendar_keeps_its_own_verifier(calendar):
    calendar.restore(calendar.state())
    calendar.call(TOOL, EVENT)
    assert calendar.reward() == 1.0


def test_later_calls_do_not_change_a_state_taken_before(calendar):
    state = calendar.state()
    text = json.dumps(state)
    calendar.call(TOOL, EVENT)
    assert json.dumps(state) == text


def test_sessions_do_not_share_their_calendar(calendar):
    calendar.call(TOOL, EVENT)
    assert EVENT["event_name"] not in names(WorkplaceSession({"ground_truth": []}))


def test_counter_is_rewarded_at_its_expected_count(counter):
    assert counter.reward() == 0.0
    counter.call("increment_counter", {"count": 1, "checkpoint_proof": [0]})
    assert counter.reward() == 1.0


def test_counter_incremented_twice_is_not_rewarded(counter):
    counter.call("increment_counter", {"count": 1})
    counter.call("increment_counter", {"count": 1})
    assert counter.reward() == 0.0


@pytest.mark.parametrize(
    "name, arguments",
    [("decrement", {"count": 1}), ("increment_counter", {"count": "1"})],
    ids=["other tool", "count is a text"],
)
def test_wrong_counter_call_is_an_error_and_changes_nothing(counter, name, arguments):
    assert "error" in json.loads(counter.call(name, arguments))
    assert counter.state() == {"counter": 3}


def test_restored_counter_goes_on_from_its_count(counter):
    restored = CounterSession({"initial_count": 0, "expected_count": 4})
    restored.restore(json.loads(json.dumps(counter.state())))
    restored.call("increment_counter", {"count": 1})
    assert restored.reward() == 1.0
