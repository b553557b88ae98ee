# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Write the prompts of the prefix-recovery test, as data rows in NeMo-Gym's form.

A train step has one Workplace prompt for each list length, whose list is cut in
mid-decode, and one counter prompt, whose constrained call can only be restarted.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

Row = dict[str, Any]

EVENT = {
    "event_name": "checkpoint recovery sentinel",
    "participant_email": "checkpoint-recovery@example.com",
    "event_start": "2025-01-15 10:00:00",
    "duration": "30",
}
OTHER_DURATION = "60"
PROOF_ITEMS = 64

# At length: a model of 1.7 B parameters counts to the end only if it is told all this.
WORKPLACE_PROMPT = """\
First call the tool calendar_create_event exactly once, with exactly these arguments:
event_name: {event_name}
participant_email: {participant_email}
event_start: {event_start}
duration: {duration}
Do not call any other tool. After the result of the tool, write the integers from \
{first} to {last} in increasing order. Write exactly one integer on each line, in \
digits. Do not skip any integer. Do not write commas, an ellipsis, headings or any \
other text. Stop after {last}."""
COUNTER_PROMPT = """\
Call the tool increment_counter exactly once, with exactly these arguments:
count: {count}
checkpoint_proof: the list of the integers from {first} to {last} in increasing order
Do not skip any integer. Do not call any other tool."""


def _function_tool(name: str, properties: Row) -> Row:
    """A tool whose arguments have to fit the schema, all of them."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "parameters": schema, "strict": True}


CREATE_EVENT = _function_tool(
    "calendar_create_event", {name: {"type": "string"} for name in EVENT}
)
INCREMENT_COUNTER = _function_tool(
    "increment_counter",
    {
        "count": {"type": "integer", "enum": [1]},
        "checkpoint_proof": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "minItems": PROOF_ITEMS,
            "maxItems": PROOF_ITEMS,
        },
    },
)


def _example_row(gym_root: Path | None, environment: str) -> Row:
    """The row that NeMo-Gym ships for an environment; an empty one without a Gym."""
    if gym_root is None:
        return {}
    path = gym_root / "resources_servers" / environment / "data/example.jsonl"
    try:
        with path.open(encoding="utf-8") as lines:
            row = json.loads(lines.readline())
    except ValueError as error:
        raise ValueError(f"{path}:1: expected a data row, as JSON: {error}") from error
    match row:
        case {"responses_create_params": {}}:
            return row
    raise ValueError(f"{path}:1: expected a data row with responses_create_params")


def _data_row(example: Row, tool: Row, prompt: str, max_output_tokens: int) -> Row:
    """The example with our prompt in place of its turns, and a call that is forced."""
    params = example.get("responses_create_params", {})
    row = example | {
        "responses_create_params": params
        | {
            "input": [{"role": "user", "content": prompt}],
            "tools": [tool],
            "tool_choice": {"type": "function", "name": tool["name"]},
            "parallel_tool_calls": False,
            "max_output_tokens": max_output_tokens,
        }
    }
    row.pop("agent_ref", None)  # it would compete with task_source
    return row


def _workplace_row(example: Row, items: int, expected_duration: str) -> Row:
    shipped = example.get("responses_create_params", {}).get("tools", [])
    tools = {tool["name"]: tool for tool in [CREATE_EVENT, *shipped]}
    tool = tools[CREATE_EVENT["name"]]
    prompt = WORKPLACE_PROMPT.format(**EVENT, first=1, last=items)
    # An integer and its line end are at most 5 tokens; the rest is room for doubt.
    row = _data_row(example, tool, prompt, max_output_tokens=6 * items + 256)
    expected = json.dumps(EVENT | {"duration": expected_duration})
    return row | {
        "task_source": "workplace_assistant_checkpoint_test_agent",
        "environment_name": "workplace_assistant",
        "category": "workplace_assistant",
        "ground_truth": [{"name": CREATE_EVENT["name"], "arguments": expected}],
    }


def _counter_row(example: Row) -> Row:
    prompt = COUNTER_PROMPT.format(count=1, first=0, last=PROOF_ITEMS - 1)
    row = _data_row(example, INCREMENT_COUNTER, prompt, max_output_tokens=512)
    return row | {
        "task_source": "example_session_state_mgmt_simple_agent",
        "environment_name": "example_session_state_mgmt",
        "category": "example_session_state_mgmt",
        "initial_count": 3,
        "expected_count": 4,
    }


def build_rows(list_items: list[int], gym_root: Path | None) -> list[Row]:
    """The rows of one train step.

    The second list's verifier expects another duration than its prompt asks for, so
    that rewards are never all the same.

    Raises OSError or ValueError if NeMo-Gym's example row can't be used.
    """
    example = _example_row(gym_root, "workplace_assistant")
    rows = []
    for position, items in enumerate(list_items):
        expected = OTHER_DURATION if position == 1 else EVENT["duration"]
        rows.append(_workplace_row(example, items, expected))
    counter_example = _example_row(gym_root, "example_session_state_mgmt")
    return [*rows, _counter_row(counter_example)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--list-items", type=int, nargs="+", required=True)
    parser.add_argument("--gym-root", type=Path, help="NeMo-Gym's checkout, if any")
    args = parser.parse_args()
    try:
        rows = build_rows(args.list_items, args.gym_root)
        partial = args.output.with_suffix(".partial")
        lines = [json.dumps(row) + "\n" for row in rows]
        partial.write_text("".join(lines * args.steps), encoding="utf-8")
        os.replace(partial, args.output)
    except (OSError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
