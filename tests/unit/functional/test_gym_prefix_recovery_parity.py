# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The judge: sound evidence passes, and any change that matters does not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import prefix_recovery_evidence as small
import pytest
from prefix_recovery_evidence import COMPLETED, RESTORED, judged, parity

DUMP = Path(__file__).parents[1] / "data/nemo-rl-dump/exp_001"


def test_sound_evidence_passes_on_the_command_line(tmp_path: Path) -> None:
    small.write(tmp_path, small.sound())
    paths = {name: tmp_path / path for name, path in small.OPTIONS.items()}
    command = [f"--{name}={path}" for name, path in paths.items()] + small.SHAPE
    command += [f"--successor-checkpoint={tmp_path}"]
    done = subprocess.run([sys.executable, parity.__file__, *command], text=True)
    assert done.returncode == 0
    assert json.loads((tmp_path / "verdict.json").read_text())["passed"]


def test_reads_what_nemo_rls_own_writer_wrote() -> None:
    rows = parity._load_dump(DUMP, 1)
    assert [len(twins) for twins in rows.values()] == [1, 1, 1, 1]
    row = rows[1, 1, 1][0]
    assert (row.group_id, row.start, row.end) == ("00000001-prompt", 6, 11)
    assert parity._differences(row, row, None, False) == []


@pytest.mark.parametrize(
    ("path", "value", "failed"),
    [
        ("rec.2.3", None, "rows match"),  # lost
        ("rec.2.3", small.row("rec", 2, 0, 0), "rows match"),  # repeated
        ("rec.2.3.metadata.0.prompt_idx", 9, "rows match"),
        ("rec.2.3.sample_id.0", "other_g1", "rows match"),  # split group
        ("rec.2.3.token_loss_mask.0", [0.0] * 7, "rows match"),
        ("rec.2.3.prev_logprobs", None, "rows match"),
        ("rec.3", [small.row("rec", 3, 0, 0)], "rows match"),  # a step too many
        ("cuts.0", None, "prefixes trained once"),
        ("cuts.0.generation_token_count", 3, "prefixes trained once"),
        ("cuts.0.digest", "e" * 64, "prefixes trained once"),
        ("log.1", None, "prefixes trained once"),
        ("log.2", None, "prefixes trained once"),
        ("log.0", RESTORED.format("d" * 64, "0" * 64), "prefixes trained once"),
        ("log.2", COMPLETED.replace("=new", "=newer"), "prefixes trained once"),
        ("log.0", COMPLETED.replace("=old", "=other"), "prefixes trained once"),
        ("cuts.0.staging_keys", [], "old keys retired"),
        ("probe.1", None, "old keys retired"),
        ("probe.1.staging_keys", ["l"], "old keys retired"),
        ("kept.gym", ["k"], "old keys retired"),
    ],
)
def test_one_change_fails_its_check(
    tmp_path: Path, path: str, value: Any, failed: str
) -> None:
    status, names = judged(tmp_path, small.changed(path, value))
    assert status == 1 and failed in names


@pytest.mark.parametrize(
    ("position", "status", "place"),
    [(0, 1, "the prompt"), (4, 0, "the restored prefix"), (6, 1, "the continued tail")],
)
def test_only_a_proven_difference_before_the_cut_is_allowed(
    tmp_path: Path, position: int, status: int, place: str
) -> None:
    evidence = small.sound()
    evidence["ref"][1][0]["token_ids"][0][position] += 1
    assert judged(tmp_path, evidence) == (1, ["rows match"])
    checks = json.loads((tmp_path / "verdict.json").read_text())["checks"]
    problem = checks[0]["problems"][0]
    assert (problem["place"], problem["columns"]) == (place, {"token_ids": position})
    assert judged(tmp_path, evidence, "--allow-pre-cut")[0] == status


def test_torn_evidence_is_one_line_and_status_2(tmp_path: Path) -> None:
    small.write(tmp_path, small.sound())
    dump = tmp_path / "rec/exp_001/train_data_step2.jsonl"
    dump.write_text(dump.read_text()[:-9])
    status, error = small.judge(tmp_path)
    assert (status, error.count("\n")) == (2, 1) and f"{dump}:4: " in error
