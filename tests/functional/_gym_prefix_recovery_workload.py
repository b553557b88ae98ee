# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Write the prompts: per train step a Workplace group per list length and a counter."""

import argparse
import json
from pathlib import Path
from typing import Any

EVENT = {"event_name": "checkpoint recovery sentinel"}
EVENT |= {"participant_email": "checkpoint-recovery@example.com"}
EVENT |= {"event_start": "2025-01-15 10:00:00", "duration": "30"}
WORKPLACE_PROMPT = (
    'Call calendar_create_event once with event_name "{event_name}", participant_email'
    ' "{participant_email}", event_start "{event_start}" and duration "{duration}".'
    " After its result, write the integers from 1 to {items}, one per line, and nothing"
    " else."
)
COUNTER_PROMPT = (
    "Call increment_counter once with count 1 and checkpoint_proof set to the integers"
    " from 0 to 63."
)
CREATE, COUNT = "calendar_create_event", "increment_counter"
NATURAL, ONE = {"type": "integer", "minimum": 0}, {"type": "integer", "enum": [1]}
PROOF = {"type": "array", "items": NATURAL, "minItems": 64, "maxItems": 64}
ARGUMENTS: dict[str, dict[str, Any]] = {
    CREATE: {name: {"type": "string"} for name in EVENT},
    COUNT: {"count": ONE, "checkpoint_proof": PROOF},
}


def _row(args: Any, environment: str, agent: str, tool: str, prompt: str) -> Any:
    """The Gym's example row, if any, with our prompt and one tool, which is forced."""
    row: dict[str, Any] = {"responses_create_params": {"input": []}}
    example = args.gym_root / "resources_servers" / environment / "data/example.jsonl"
    if example.exists():
        row = json.loads(example.read_text().splitlines()[0])
    params = row["responses_create_params"]
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
    schema |= {"properties": ARGUMENTS[tool], "required": [*ARGUMENTS[tool]]}
    own = {"type": "function", "name": tool, "parameters": schema, "strict": True}
    shipped = [x for x in params.get("tools", []) if x["name"] == tool]
    params |= {
        "input": [turn for turn in params["input"] if turn["role"] == "system"],
        "tools": [shipped[0] if shipped and tool != COUNT else own],
        "tool_choice": {"type": "function", "name": tool},
        "parallel_tool_calls": False,
        "max_output_tokens": args.max_output_tokens,
    }
    params["input"].append({"role": "user", "content": prompt})
    names = {"environment_name": environment, "category": environment}
    return row | names | {"task_source": f"{environment}_{agent}"}


def build_rows(args: Any) -> list[dict[str, Any]]:
    """The rows of one step; the second one's verifier expects another duration."""
    rows = []
    for index, items in enumerate(args.list_items):
        prompt = WORKPLACE_PROMPT.format(items=items, **EVENT)
        row = _row(args, "workplace_assistant", "checkpoint_test_agent", CREATE, prompt)
        expected = json.dumps(EVENT | {"duration": "60" if index == 1 else "30"})
        rows.append(row | {"ground_truth": [{"name": CREATE, "arguments": expected}]})
    counter = "example_session_state_mgmt", "simple_agent", COUNT, COUNTER_PROMPT
    return [*rows, _row(args, *counter) | {"initial_count": 3, "expected_count": 4}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = {"output": Path, "gym-root": Path, "steps": int, "max-output-tokens": int}
    for name, kind in kinds.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--list-items", type=int, nargs="+", required=True)
    args = parser.parse_args()
    try:
        lines = [json.dumps(row) + "\n" for row in build_rows(args)]
    except (LookupError, TypeError, ValueError) as error:
        parser.exit(2, f"error: an example row in {args.gym_root}: {error!r}\n")
    args.output.write_text("".join(lines * args.steps))


if __name__ == "__main__":
    main()
