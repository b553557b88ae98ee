# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The workload: a Workplace group per list length, and a counter group, each step."""

import json
import subprocess
import sys
from pathlib import Path

from prefix_recovery_evidence import FUNCTIONAL

SCRIPT = FUNCTIONAL / "_gym_prefix_recovery_workload.py"
COMMAND = ["--steps=2", "--max-output-tokens=99", "--list-items", "40", "60", "80"]


def test_a_step_has_a_group_per_list_and_a_counter(tmp_path: Path) -> None:
    paths = [f"--output={tmp_path}/rows.jsonl", f"--gym-root={tmp_path}"]
    subprocess.run([sys.executable, SCRIPT, *paths, *COMMAND], check=True)
    rows = [json.loads(x) for x in (tmp_path / "rows.jsonl").open()]
    assert rows[:4] == rows[4:]
    for items, duration, row in zip(
        (40, 60, 80), ("30", "60", "30"), rows, strict=False
    ):
        prompt = row["responses_create_params"]["input"][-1]["content"]
        assert f"from 1 to {items}," in prompt
        truth = json.loads(row["ground_truth"][0]["arguments"])
        assert truth["duration"] == duration
    assert (rows[3]["initial_count"], rows[3]["expected_count"]) == (3, 4)
