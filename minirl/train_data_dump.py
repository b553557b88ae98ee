# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The training dump: every row that an optimizer step trained, as NeMo-RL writes it.

While a step runs its rows go to `train_data_step<N>.jsonl.part-<shard>`; when it has
finished they are joined and published by rename as `train_data_step<N>.jsonl`.
"""

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

PER_TOKEN = ["token_ids", "token_loss_mask", "advantages"]
PER_TOKEN += ["generation_logprobs", "prev_logprobs"]


def new_run_dir(log_dir: Path) -> Path:
    """Create `<log_dir>/exp_<n>` with the next free number, from 001."""
    log_dir.mkdir(parents=True, exist_ok=True)
    taken = [int(path.name[4:]) for path in log_dir.glob("exp_[0-9]*")]
    run_dir = log_dir / f"exp_{max(taken, default=0) + 1:03d}"
    run_dir.mkdir()
    return run_dir


class TrainDataDump:
    """Writes the dump of one run."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir

    def write_part(
        self,
        step: int,
        shard: int,
        first_idx: int,
        sample_ids: list[str],
        fields: dict[str, list[Tensor]],
        tags: list[dict[str, Any]],
    ) -> None:
        """Write one shard of a running step.

        Args:
            step: from 1.
            shard: from 0.
            first_idx: `idx` of the shard's first row within the step.
            sample_ids: `<group_id>_g<generation>`, one a row.
            fields: the per-token columns, [L] a row.
            tags: the rows' data-plane tags.
        """
        part = self._path(step, f".part-{shard}")
        with part.open("w") as file:
            for row, sample_id in enumerate(sample_ids):
                columns = {name: [fields[name][row].tolist()] for name in PER_TOKEN}
                token_ids, tag = columns["token_ids"][0], tags[row]
                record = {
                    "idx": first_idx + row,
                    "step": step,
                    "sample_id": [sample_id],
                    "input_lengths": [len(token_ids)],
                    "metadata": [tag],
                    **columns,
                    "sample_loss_mask": [tag["sample_loss_mask"]],
                    "pre_seq_error_sample_loss_mask": [tag["sample_loss_mask"]],
                    "rewards": [tag["reward"]],
                    "prompt_ids": [token_ids[: tag["prompt_length"]]],
                }
                file.write(json.dumps(record) + "\n")

    def publish(self, step: int) -> None:
        """Join the step's parts and publish them; replaces what a retry left."""
        parts = sorted(
            self.run_dir.glob(f"train_data_step{step}.jsonl.part-*"),
            key=lambda path: int(path.name.rpartition("-")[2]),
        )
        partial = self._path(step, ".partial")
        with partial.open("wb") as file:
            for part in parts:
                file.write(part.read_bytes())
        os.replace(partial, self._path(step, ""))
        for part in parts:
            part.unlink()

    def _path(self, step: int, suffix: str) -> Path:
        return self.run_dir / f"train_data_step{step}.jsonl{suffix}"
