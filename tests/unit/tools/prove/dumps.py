# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""A tiny dump for the tests of what is done with dumps."""

import json
from pathlib import Path


def write_step(dump: Path, step: int, tokens: list[int], group_id: str = "a") -> None:
    record = {
        "idx": 0,
        "step": step,
        "sample_id": [f"{group_id}_g0"],
        "metadata": [{"group_id": group_id, "prompt_idx": 0}],
        "token_ids": [tokens],
    }
    dump.mkdir(parents=True, exist_ok=True)
    path = dump / f"train_data_step{step}.jsonl"
    path.write_text(json.dumps(record) + "\n")
