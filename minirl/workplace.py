# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The Workplace and counter environments: tools, session state and verifiers.

A session is what one rollout's tool calls act on. It can be checkpointed at any time,
and the verifier compares the state it ends in with the one that the data row asks for.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

CREATE_EVENT = "calendar_create_event"
EVENT_COLUMNS = ["event_id", "event_name", "participant_email", "event_start"]
EVENT_COLUMNS += ["duration"]
SEED_EVENTS = [
    ["00000000", "sprint planning", "anna@example.com", "2025-01-13 09:00:00", "60"],
    ["00000001", "design review", "omar@example.com", "2025-01-14 11:30:00", "45"],
    ["00000002", "team lunch", "yuki@example.com", "2025-01-17 12:00:00", "90"],
]


class Session(Protocol):
    """What every environment's session can do."""

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Run a tool; returns its result as JSON text, an error included."""

    def state(self) -> dict[str, Any]:
        """The state as JSON values, from which `restore` makes an equal session."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state` returned."""

    def reward(self) -> float:
        """1.0 if the session is in the state that its data row asks for, else 0.0."""


def _refusal(event: dict[str, Any]) -> str | None:
    """Why an event cannot be created, by the rules of NeMo-Gym's tool, or None.

    Its start may be in any form that pandas reads; here it has to be ISO 8601.
    """
    for key in EVENT_COLUMNS[1:]:
        if not event.get(key):
            return f"{key} is missing or empty"
    if len(event) > len(EVENT_COLUMNS) - 1:
        return "unknown argument"
    try:
        datetime.fromisoformat(event["event_start"])
    except (TypeError, ValueError):
        return "event_start is no date and time"
    try:
        minutes = int(event["duration"])
    except (TypeError, ValueError):
        return "duration is no number of minutes"
    if minutes <= 0:
        return "duration is no positive number of minutes"
    if not isinstance(event["participant_email"], str):
        return "participant_email is no text"
    return None


class WorkplaceSession:
    """A calendar that starts with three events."""

    def __init__(self, row: dict[str, Any]):
        self._ground_truth = row["ground_truth"]
        self._events: list[list[Any]] = [list(event) for event in SEED_EVENTS]

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        if name != CREATE_EVENT:
            return json.dumps({"error": f"{name}: unknown tool"})
        if reason := _refusal(arguments):
            return json.dumps({"error": f"{name}: {reason}"})
        event = arguments | {"event_id": f"{len(self._events):08d}"}
        event["participant_email"] = event["participant_email"].lower()
        self._events.append([event[column] for column in EVENT_COLUMNS])
        return json.dumps({"event_id": event["event_id"]}, separators=(",", ":"))

    def state(self) -> dict[str, Any]:
        columns = [
            {"name": name, "values": list(values)}
            for name, values in zip(
                EVENT_COLUMNS, zip(*self._events, strict=True), strict=True
            )
        ]
        return {"calendar": {"_calendar_events": {"columns": columns}}}

    def restore(self, state: dict[str, Any]) -> None:
        columns = state["calendar"]["_calendar_events"]["columns"]
        values = {column["name"]: column["values"] for column in columns}
        self._events = [
            list(event)
            for event in zip(*(values[name] for name in EVENT_COLUMNS), strict=True)
        ]

    def _compared(self) -> list[list[str | None]]:
        """The calendar as the verifier sees it: texts in lower case, and no others.

        NeMo-Gym's lower-cases columns of a pandas frame, which leaves a gap for every
        value that is no text, and two gaps are equal.
        """
        return [
            [value.lower() if isinstance(value, str) else None for value in event]
            for event in self._events
        ]

    def reward(self) -> float:
        """As the protocol says.

        Raises:
            ValueError: the data row asks for a tool that minirl lacks.
        """
        wanted = WorkplaceSession({"ground_truth": []})
        for call in self._ground_truth:
            name = call["name"]
            if name != CREATE_EVENT:
                raise ValueError(f"ground_truth: expected {CREATE_EVENT}, found {name}")
            wanted.call(name, json.loads(call["arguments"]))
        return float(self._compared() == wanted._compared())


class CounterSession:
    """A counter that one call increments, with a list of integers as its proof."""

    def __init__(self, row: dict[str, Any]):
        self._count = row["initial_count"]
        self._expected = row["expected_count"]

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        if name != "increment_counter" or not isinstance(arguments.get("count"), int):
            return json.dumps({"error": f"{name}: unknown tool or arguments"})
        self._count += arguments["count"]
        return json.dumps({"success": True}, separators=(",", ":"))

    def state(self) -> dict[str, Any]:
        return {"counter": self._count}

    def restore(self, state: dict[str, Any]) -> None:
        self._count = state["counter"]

    def reward(self) -> float:
        return float(self._count == self._expected)


ENVIRONMENTS: dict[str, Callable[[dict[str, Any]], Session]] = {
    "workplace_assistant": WorkplaceSession,
    "example_session_state_mgmt": CounterSession,
}
