# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The workload: a Workplace row per list length and a counter row, each step."""

import json
import subprocess
import sys
from pathlib import Path

from prefix_recovery_evidence import FUNCTIONAL

SCRIPT = FUNCTIONAL / "_gym_prefix_recovery_workload.py"
EXAMPLES = "resources_servers/{}/data/example.jsonl"
TOOLS = [{"name": name, "shipped": 1} for name in ("other", "calendar_create_event")]
TURNS = [{"role": role, "content": "shipped"} for role in ("system", "user")]


def workload(folder: Path, text: str) -> subprocess.CompletedProcess:
    """Writes folder/rows, two steps of lists of 40 and 60; `text` is the example."""
    for environment in ("workplace_assistant", "example_session_state_mgmt"):
        path = folder / EXAMPLES.format(environment)
        path.parent.mkdir(parents=True)
        path.write_text(text)
    command = [sys.executable, SCRIPT, "--steps=2", "--list-items", "40", "60"]
    command += [f"--output={folder}/rows", f"--gym-root={folder}"]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_step_has_a_row_per_list_and_a_counter(tmp_path: Path) -> None:
    example = {"id": 7, "agent_ref": {"name": "theirs"}}
    example["responses_create_params"] = {"input": TURNS, "tools": TOOLS, "n": 1}
    assert workload(tmp_path, json.dumps(example) + "\n").returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "rows").open()]
    params = [row["responses_create_params"] for row in rows[:3]]
    assert rows[:3] == rows[3:] and all("agent_ref" not in row for row in rows)
    assert [x["max_output_tokens"] for x in params] == [6 * 40 + 256, 6 * 60 + 256, 512]
    assert [[turn["role"] for turn in x["input"]] for x in params] == [["user"]] * 3
    assert [x["tools"] for x in params[:2]] == [[TOOLS[1]]] * 2
    truths = [json.loads(row["ground_truth"][0]["arguments"]) for row in rows[:2]]
    assert [truth["duration"] for truth in truths] == ["30", "60"]
