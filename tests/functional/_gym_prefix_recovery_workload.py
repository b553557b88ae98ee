# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Write the prompts: per train step a Workplace group per list length, and a counter.

The rows have NeMo-Gym's form. They are built from the Gym's example rows where
--gym-root has them, with only the needed tool kept, and from scratch elsewhere.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

EVENT = {
    "event_name": "checkpoint recovery sentinel",
    "participant_email": "checkpoint-recovery@example.com",
    "event_start": "2025-01-15 10:00:00",
    "duration": "30",
}
OTHER_DURATION = "60"
WORKPLACE_PROMPT = (
    'Call calendar_create_event once with event_name "{event_name}", participant_email'
    ' "{participant_email}", event_start "{event_start}" and duration "{duration}".'
    " After its result, write the integers from 1 to {items}, one per line,"
    " and nothing else."
)
COUNTER_PROMPT = (
    "Call increment_counter once with count 1 and checkpoint_proof set to the integers"
    " from 0 to {last}."
)


def _tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    schema["required"] = list(properties)
    return {"type": "function", "name": name, "parameters": schema, "strict": True}


def _row(
    gym_root: Path | None, environment: str, agent: str, tool: str, prompt: str
) -> dict[str, Any]:
    """An example row of the environment, reduced to one forced tool and our prompt."""
    row: dict[str, Any] = {"responses_create_params": {"input": [], "tools": []}}
    path = Path("resources_servers") / environment / "data/example.jsonl"
    if gym_root and (example := gym_root / path).exists():
        with example.open() as lines:
            row = json.loads(next(lines))
    params = row["responses_create_params"]
    params["input"] = [turn for turn in params["input"] if turn["role"] == "system"]
    params["input"].append({"role": "user", "content": prompt})
    params["tools"] = [kept for kept in params["tools"] if kept["name"] == tool]
    params["tool_choice"] = {"type": "function", "name": tool}
    params["parallel_tool_calls"] = False
    return row | {"task_source": agent, "environment_name": environment}


def workplace_row(
    gym_root: Path | None, items: int, duration: str, max_output_tokens: int
) -> dict[str, Any]:
    """An episode that creates the sentinel event, then lists 1..`items`.

    It earns reward 1 unless `duration`, which the verifier expects, is not the prompt's.
    """
    tool = "calendar_create_event"
    agent = "workplace_assistant_checkpoint_test_agent"
    prompt = WORKPLACE_PROMPT.format(items=items, **EVENT)
    row = _row(gym_root, "workplace_assistant", agent, tool, prompt)
    params = row["responses_create_params"]
    params["tools"] = params["tools"] or [
        _tool(tool, {name: {"type": "string"} for name in EVENT})
    ]
    params["max_output_tokens"] = max_output_tokens
    arguments = json.dumps(EVENT | {"duration": duration})
    truth = [{"name": tool, "arguments": arguments}]
    return row | {"ground_truth": truth, "category": "workplace_assistant_calendar"}


def counter_row(
    gym_root: Path | None, items: int, max_output_tokens: int
) -> dict[str, Any]:
    """An episode of one schema-constrained call, which restarts after a crash."""
    environment = "example_session_state_mgmt"
    tool = "increment_counter"
    prompt = COUNTER_PROMPT.format(last=items - 1)
    row = _row(gym_root, environment, f"{environment}_simple_agent", tool, prompt)
    proof = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    proof |= {"minItems": items, "maxItems": items}
    count = {"type": "integer", "enum": [1]}
    params = row["responses_create_params"]
    params["tools"] = [_tool(tool, {"count": count, "checkpoint_proof": proof})]
    params["max_output_tokens"] = max_output_tokens
    return row | {"initial_count": 3, "expected_count": 4, "category": environment}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--list-items", type=int, nargs="+", required=True)
    parser.add_argument("--counter-items", type=int, required=True)
    parser.add_argument("--max-output-tokens", type=int, required=True)
    parser.add_argument("--gym-root", type=Path)
    args = parser.parse_args()
    if min(args.steps, args.counter_items, *args.list_items) < 1:
        parser.error("steps, list items and counter items must be positive")
    if len(args.list_items) < 2:
        parser.error("expected two list lengths or more: the second one earns reward 0")
    rows = []
    try:
        for index, items in enumerate(args.list_items):
            duration = OTHER_DURATION if index == 1 else EVENT["duration"]
            row = workplace_row(args.gym_root, items, duration, args.max_output_tokens)
            rows.append(row)
        limit = args.max_output_tokens
        rows.append(counter_row(args.gym_root, args.counter_items, limit))
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        print(
            f"error: an example row below {args.gym_root}: {error!r}", file=sys.stderr
        )
        return 2
    partial = args.output.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows) * args.steps)
    os.replace(partial, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
