# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Write the prompts: per train step a Workplace group per list length, and a counter.

Rows have NeMo-Gym's form and start from the Gym's example rows where there are any.
"""

import argparse
import json
import os
import sys
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
COUNTER_ITEMS = 64
COUNTER_PROMPT = (
    "Call increment_counter once with count 1 and checkpoint_proof set to the integers"
    f" from 0 to {COUNTER_ITEMS - 1}."
)
PROOF = {"type": "array", "items": {"type": "integer", "minimum": 0}}
PROOF |= {"minItems": COUNTER_ITEMS, "maxItems": COUNTER_ITEMS}
PROPERTIES = {
    "calendar_create_event": {name: {"type": "string"} for name in EVENT},
    "increment_counter": {
        "count": {"type": "integer", "enum": [1]},
        "checkpoint_proof": PROOF,
    },
}


def _row(args: Any, environment: str, agent: str, tool: str, prompt: str) -> Any:
    """The environment's example row with our prompt, and one tool, which is forced."""
    row: dict[str, Any] = {"responses_create_params": {"input": []}}
    example = args.gym_root / "resources_servers" / environment / "data/example.jsonl"
    if example.exists():
        row = json.loads(example.read_text().splitlines()[0])
    params = row["responses_create_params"]
    schema = {"type": "object", "properties": PROPERTIES[tool]}
    schema |= {"required": [*PROPERTIES[tool]], "additionalProperties": False}
    own = {"type": "function", "name": tool, "parameters": schema, "strict": True}
    kept = [kept for kept in params.get("tools", []) if kept["name"] == tool]
    params["tools"] = [kept[0] if kept and "count" not in PROPERTIES[tool] else own]
    params["input"] = [turn for turn in params["input"] if turn["role"] == "system"]
    params["input"].append({"role": "user", "content": prompt})
    params["tool_choice"] = {"type": "function", "name": tool}
    params |= {
        "parallel_tool_calls": False,
        "max_output_tokens": args.max_output_tokens,
    }
    return row | {"task_source": agent, "environment_name": environment}


def build_rows(args: Any) -> list[dict[str, Any]]:
    """The rows of one step; the second one's verifier expects another duration."""
    rows = []
    for index, items in enumerate(args.list_items):
        prompt = WORKPLACE_PROMPT.format(items=items, **EVENT)
        agent, tool = (
            "workplace_assistant_checkpoint_test_agent",
            "calendar_create_event",
        )
        row = _row(args, "workplace_assistant", agent, tool, prompt)
        expected = EVENT | ({"duration": "60"} if index == 1 else {})
        truth = [{"name": tool, "arguments": json.dumps(expected)}]
        rows.append(row | {"ground_truth": truth, "category": "workplace_assistant"})
    name = "example_session_state_mgmt"
    row = _row(args, name, f"{name}_simple_agent", "increment_counter", COUNTER_PROMPT)
    rows.append(row | {"category": name, "initial_count": 3, "expected_count": 4})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--list-items", type=int, nargs="+", required=True)
    parser.add_argument("--max-output-tokens", type=int, required=True)
    parser.add_argument("--gym-root", type=Path, required=True)
    args = parser.parse_args()
    try:
        lines = [json.dumps(row) + "\n" for row in build_rows(args)]
    except (LookupError, TypeError, ValueError) as error:
        print(f"error: an example row in {args.gym_root}: {error!r}", file=sys.stderr)
        return 2
    partial = args.output.with_suffix(".partial")
    partial.write_text("".join(lines * args.steps))
    os.replace(partial, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
