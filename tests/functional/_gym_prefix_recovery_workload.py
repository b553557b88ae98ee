# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Write the prompts of the prefix-recovery test, as data rows in NeMo-Gym's form.

A train step has one Workplace prompt for each list length, whose list is cut in
mid-decode, and one counter prompt, whose constrained call can only be restarted.
"""

import argparse
import json
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


# The arguments that each tool has to be called with, as JSON schemas.
TOOLS: dict[str, Row] = json.loads("""{
    "calendar_create_event": {
        "event_name": {"type": "string"},
        "participant_email": {"type": "string"},
        "event_start": {"type": "string"},
        "duration": {"type": "string"}
    },
    "increment_counter": {
        "count": {"type": "integer", "enum": [1]},
        "checkpoint_proof": {"type": "array", "minItems": 64, "maxItems": 64,
                             "items": {"type": "integer", "minimum": 0}}
    }
}""")


def _example_row(gym_root: Path, environment: str) -> Row:
    """The data row that NeMo-Gym ships for an environment."""
    path = gym_root / "resources_servers" / environment / "data/example.jsonl"
    with path.open(encoding="utf-8") as lines:
        try:
            row = json.loads(lines.readline())
            return row | {"responses_create_params": {**row["responses_create_params"]}}
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{path}:1: expected a data row: {error!r}") from error


def _row(environment: str, tool: str, prompt: str, limit: int, args: Any) -> Row:
    """A data row with one prompt, one tool, which has to be called, and no agent."""
    example = _example_row(args.gym_root, environment) if args.gym_root.exists() else {}
    example.pop("agent_ref", None)  # it would compete with task_source
    params = example.get("responses_create_params", {})
    schema = {
        "type": "object",
        "properties": TOOLS[tool],
        "required": list(TOOLS[tool]),
        "additionalProperties": False,
    }
    own = {"type": "function", "name": tool, "parameters": schema, "strict": True}
    shipped = {x["name"]: x for x in params.get("tools", [])}
    is_own = tool == "increment_counter"  # the proof is not in NeMo-Gym's
    forced = {
        "input": [{"role": "user", "content": prompt}],
        "tools": [own if is_own else shipped.get(tool, own)],
        "tool_choice": {"type": "function", "name": tool},
        "parallel_tool_calls": False,
        "max_output_tokens": limit,
    }
    names = {"environment_name": environment, "category": environment}
    return example | names | {"responses_create_params": params | forced}


def build_rows(args: Any) -> list[Row]:
    """The rows of one train step.

    The second list's verifier expects another duration than its prompt asks for, so
    that rewards are never all the same.

    Raises OSError or ValueError if NeMo-Gym's example row can't be read.
    """
    rows, tool = [], "calendar_create_event"
    for position, items in enumerate(args.list_items):
        prompt = WORKPLACE_PROMPT.format(**EVENT, first=1, last=items)
        row = _row("workplace_assistant", tool, prompt, 6 * items + 256, args)
        row["task_source"] = "workplace_assistant_checkpoint_test_agent"
        expected = EVENT | ({"duration": OTHER_DURATION} if position == 1 else {})
        row["ground_truth"] = [{"name": tool, "arguments": json.dumps(expected)}]
        rows.append(row)
    prompt = COUNTER_PROMPT.format(count=1, first=0, last=PROOF_ITEMS - 1)
    row = _row("example_session_state_mgmt", "increment_counter", prompt, 512, args)
    row["task_source"] = "example_session_state_mgmt_simple_agent"
    return [*rows, row | {"initial_count": 3, "expected_count": 4}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--list-items", type=int, nargs="+", required=True)
    parser.add_argument("--gym-root", type=Path, default=Path("no-gym"))
    args = parser.parse_args()
    if len(args.list_items) < 2:
        parser.error("--list-items: expected two lengths or more")
    try:
        lines = [json.dumps(row) + "\n" for row in build_rows(args)]
        partial = args.output.with_suffix(".partial")
        partial.write_text("".join(lines * args.steps), encoding="utf-8")
        partial.replace(args.output)
    except (OSError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
