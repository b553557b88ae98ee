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


def test_number_is_not_the_text_that_is_asked_for(calendar):
    calendar.call(TOOL, {**EVENT, "duration": 30})
    assert names(calendar)[-1] == EVENT["event_name"] and calendar.reward() == 0.0


def test_numbers_are_a_gap_each_to_the_verifier():
    truth = [{"name": TOOL, "arguments": json.dumps({**EVENT, "duration": 60})}]
    calendar = WorkplaceSession({"ground_truth": truth})
    calendar.call(TOOL, {**EVENT, "duration": 30})
    assert calendar.reward() == 1.0


@pytest.mark.parametrize("value", ["", None, 0])
@pytest.mark.parametrize("key", EVENT)
def test_empty_argument_is_refused_and_changes_nothing(calendar, key, value):
    before = calendar.state()
    result = json.loads(calendar.call(TOOL, {**EVENT, key: value}))
    assert result == {"error": f"{TOOL}: {key} is missing or empty"}
    assert calendar.state() == before


def test_refused_call_beside_a_good_one_costs_no_reward(calendar):
    calendar.call(TOOL, {**EVENT, "duration": ""})
    calendar.call(TOOL, EVENT)
    assert calendar.reward() == 1.0


def test_call_that_is_refused_as_the_ground_truths_is_rewarded():
    truth = [{"name": TOOL, "arguments": json.dumps({**EVENT, "duration": ""})}]
    calendar = WorkplaceSession({"ground_truth": truth})
    calendar.call(TOOL, {**EVENT, "event_name": None})
    assert calendar.reward() == 1.0


@pytest.mark.parametrize(
    "key, value",
    [
        ("event_start", "later"),
        ("event_start", "2025-13-15 10:00:00"),
        ("event_start", 7),
        ("duration", "half an hour"),
        ("duration", "30.5"),
        ("duration", "-30"),
        ("duration", "0"),
        ("duration", [30]),
        ("participant_email", 7),
    ],
)
def test_argument_that_cannot_be_meant_is_refused(calendar, key, value):
    before = calendar.state()
    assert key in json.loads(calendar.call(TOOL, {**EVENT, key: value}))["error"]
    assert calendar.state() == before


@pytest.mark.parametrize(
    "key, value",
    [
        ("event_start", "2025-01-15"),
        ("event_start", "2025-01-15T10:00"),
        ("duration", " 45"),
        ("event_name", " "),
    ],
)
def test_unusual_argument_is_stored_as_it_is(calendar, key, value):
    calendar.call(TOOL, {**EVENT, key: value})
    columns = calendar.state()["calendar"]["_calendar_events"]["columns"]
    assert {x["name"]: x["values"][-1] for x in columns}[key] == value


def test_email_is_stored_in_lower_case(calendar):
    email = EVENT["participant_email"]
    calendar.call(TOOL, {**EVENT, "participant_email": email.upper()})
    columns = calendar.state()["calendar"]["_calendar_events"]["columns"]
    stored = {column["name"]: column["values"][-1] for column in columns}
    assert stored["participant_email"] == email


def test_ground_truth_of_a_tool_that_minirl_lacks_is_refused():
    truth = [{"name": "email_delete_email", "arguments": "{}"}]
    with pytest.raises(ValueError, match=f"expected {TOOL}, found email_delete_email"):
        WorkplaceSession({"ground_truth": truth}).reward()


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
