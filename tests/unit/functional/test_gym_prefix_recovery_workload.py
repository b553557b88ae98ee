# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The workload: the contract's rows, from the Gym's examples or from scratch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "functional/_gym_prefix_recovery_workload.py"
COMMAND = ["--steps=2", "--max-output-tokens=99", "--list-items", "40", "60", "80"]


def _rows(folder: Path) -> list[dict[str, Any]]:
    output = folder / "rows.jsonl"
    command = [
        sys.executable,
        SCRIPT,
        *COMMAND,
        "--output",
        output,
        "--gym-root",
        folder,
    ]
    subprocess.run(command, check=True)
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_a_step_has_a_group_per_list_and_a_counter(tmp_path: Path) -> None:
    rows = _rows(tmp_path)
    assert rows[:4] == rows[4:]
    prompts = [
        row["responses_create_params"]["input"][-1]["content"] for row in rows[:3]
    ]
    assert [
        f"from 1 to {n}," in x for n, x in zip((40, 60, 80), prompts, strict=True)
    ] == [True] * 3
    assert (rows[3]["initial_count"], rows[3]["expected_count"]) == (3, 4)


def test_only_the_second_prompt_expects_another_duration(tmp_path: Path) -> None:
    truths = [
        json.loads(x["ground_truth"][0]["arguments"]) for x in _rows(tmp_path)[:3]
    ]
    assert [truth["duration"] for truth in truths] == ["30", "60", "30"]


def test_an_example_row_keeps_its_system_turn_and_one_tool(tmp_path: Path) -> None:
    example = tmp_path / "resources_servers/workplace_assistant/data/example.jsonl"
    example.parent.mkdir(parents=True)
    turns = [{"role": role, "content": role} for role in ("system", "user")]
    tools = [
        {"name": x, "parameters": {"x": 1}} for x in ("a", "calendar_create_event")
    ]
    params = {"input": turns, "tools": tools}
    example.write_text(json.dumps({"responses_create_params": params, "id": 7}) + "\n")
    row = _rows(tmp_path)[0]
    params = row["responses_create_params"]
    assert params["input"][0] == turns[0] and params["input"][1] != turns[1]
    assert (row["id"], params["tools"]) == (7, tools[1:])
