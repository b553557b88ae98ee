# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Small evidence of two runs, on disk and judged: two steps of two prompts of two.

Both generations of prompt 0 were cut; a row is prompt 4, turn 5, tool result 3, and a
call of 20 tokens, of which 8 are the prefix.
"""

import hashlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

from tools import evidence

PER_TOKEN = ["token_ids", "token_loss_mask", "advantages"]
PER_TOKEN += ["generation_logprobs", "prev_logprobs"]
START, PREFIX, CUT_AT, LENGTH = 12, 8, 20, 32
MASK = [0.0] * 4 + [1.0] * 5 + [0.0] * 3 + [1.0] * 20
Rows = list[dict]
Edit = Callable[[int, Rows], Rows]


def rows_of(run: str, step: int) -> Rows:
    rows = []
    for prompt in (2 * step - 2, 2 * step - 1):
        for generation in (0, 1):
            rng = random.Random(f"{prompt}, {generation}")
            logprobs = [-x * rng.random() for x in MASK]
            columns = {
                "token_ids": [rng.randrange(100, 200) for _ in MASK],
                "token_loss_mask": list(MASK),
                "advantages": [x * (1 - 2 * generation) for x in MASK],
                "generation_logprobs": logprobs,
                "prev_logprobs": list(logprobs),
            }
            rows.append(
                {
                    "idx": len(rows),
                    "step": step,
                    "sample_id": [f"{run}{prompt}_g{generation}"],
                    "metadata": [{"prompt_idx": prompt}],
                    "input_lengths": [LENGTH],
                    "sample_loss_mask": [1.0],
                    "rewards": [1.0 - generation],
                    **{name: [values] for name, values in columns.items()},
                }
            )
    return rows


def write_run(log_dir: Path, run: str, edit: Edit, steps=(1, 2)) -> None:
    (log_dir / "exp_001").mkdir(parents=True)
    for step in steps:
        lines = map(json.dumps, edit(step, rows_of(run, step)))
        path = log_dir / "exp_001" / f"train_data_step{step}.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines))


def unchanged(step: int, rows: Rows) -> Rows:
    return rows


def cut_rows(change: Callable[[dict], None]) -> Edit:
    """An edit of both rows that were cut: `change` gets lists by column."""

    def edit(step: int, rows: Rows) -> Rows:
        for row in rows[:2] if step == 1 else []:
            change({name: row[name][0] for name in PER_TOKEN})
            row["input_lengths"] = [len(row["token_ids"][0])]
        return rows

    return edit


def alter_token(row: dict) -> None:
    row["token_ids"][CUT_AT + 2] = 99


def judged(
    folder: Path, edit: Edit = unchanged, restored: bool = True, live=()
) -> Path:
    """Write the evidence, with `edit` done to the recovery, and judge it."""
    write_run(folder / "reference-logs", "ref", unchanged)
    write_run(folder / "phase2-logs", "rec", edit)
    cuts, log = [], []
    for generation in (0, 1):
        ids = rows_of("rec", 1)[generation]["token_ids"][0][START:CUT_AT]
        sha256 = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
        cuts.append(
            {
                "group_id": "rec0",
                "generation_index": generation,
                "model_call_id": f"old{generation}",
                "generation_token_count": PREFIX,
                "digest": "d" * 64,
                "staging_keys": [f"old{generation}/0-8"],
                "gym_instance_id": f"gym_{generation}",
            }
        )
        call = (
            f"rollout_id=rec0_g{generation}_aa model_call_id=new{generation}"
            f" source_model_call_id=old{generation} prefix_tokens={PREFIX}"
        )
        log += [
            f"generation prefix restored: {call} prefix_digest={'d' * 64}"
            f" weight_version_span=[0,0] prefix_ids_sha256={sha256}",
            f"generation prefix completed: {call} tail_tokens=12"
            " total_generation_tokens=20",
        ]
    (folder / "selected-snapshot.json").write_text(json.dumps({"cuts": cuts}))
    (folder / "phase2.log").write_text("\n".join(log) if restored else "")
    records = [{"train_step": x, "staging_keys": list(live)} for x in (1, 2)]
    keys = "\n".join(map(json.dumps, records))
    (folder / "phase2-staging-keys.jsonl").write_text(keys)
    (folder / "gym_checkpoint.json").write_text('{"staging_keys": {}}')
    return judge(folder)


def judge(folder: Path) -> Path:
    options = {
        "reference-log-dir": folder / "reference-logs",
        "recovery-log-dir": folder / "phase2-logs",
        "selection": folder / "selected-snapshot.json",
        "recovery-log": folder / "phase2.log",
        "staging-keys": folder / "phase2-staging-keys.jsonl",
        "successor-checkpoint": folder,
        "steps": 2,
        "prompts-per-step": 2,
        "generations-per-prompt": 2,
        "min-identical-logprobs": 1,
        "max-logprob-difference": 0,
        "verdict": folder / "verdict.json",
    }
    argv = [f"--{name}={value}" for name, value in options.items()]
    sys.argv, kept = ["judge", *argv], sys.argv
    try:
        assert evidence.judge.main() in (0, 1)
    finally:
        sys.argv = kept
    return folder / "verdict.json"
