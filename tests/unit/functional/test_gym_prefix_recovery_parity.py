# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The judge: sound evidence passes, and one change fails the check that it concerns."""

from pathlib import Path
from typing import Any

import prefix_recovery_evidence as small
import pytest
from prefix_recovery_evidence import parity

ROWS, PREFIXES, KEYS, REWARDS, LOGPROBS = small.CHECKS
DUMPS = Path(__file__).parents[1] / "data/nemo-rl-dump"
RESTORED, COMPLETED = small.sound()["log"][1:3]
WITHOUT_HASH = RESTORED.partition(" weight_version_span")[0]
NAN = float("nan")
LOGPROBS_0 = small.row("rec", 1, 0, 0, items=12)["generation_logprobs"][0]
LOST_PREFIX = [[*LOGPROBS_0[:5], 0.0, 0.0, *LOGPROBS_0[7:]]]

SOUND = [
    ("log.0", "generation prefix already terminal: rollout_id=x reason=stop"),
    ("log.0", "resuming from a durable generation prefix"),
    ("log.1", f"\x1b[36m(Worker)\x1b[0m {RESTORED}\r"),
    ("both.*.*.prev_logprobs", None),  # the run computed none
    ("both.1.0.prev_logprobs.0.0", NAN),  # on a prompt token
    ("rec.1.0.metadata.0.weight_version", 9),
    ("rec.1.0.advantages.0.2", -0.50004),
    ("rec.1.2.generation_logprobs.0.6", -0.2),
]
FAILING = [
    ("rec.2", None, ROWS),
    ("rec.2.3", None, ROWS),
    ("rec.2.3", small.row("rec", 2, 3, 0, items=12), ROWS),
    ("rec.2.3.metadata.0.prompt_idx", 9, ROWS),
    ("rec.2.3.sample_id.0", "other_g1", ROWS),
    ("rec.2.3.sample_id.0", "ref3_g1", ROWS),  # a dump compared with itself
    ("both.2.0.sample_loss_mask.0", 0.0, ROWS),
    ("both.2.0.token_loss_mask.0.*", 0.0, ROWS),
    ("both.2.0.advantages.0.9", NAN, ROWS),
    ("rec.2.0.token_ids.0.9", 7, ROWS),
    ("rec.2.0.token_loss_mask.0.9", 0, ROWS),
    ("rec.2.0.rewards.0", 1e-9, ROWS),
    ("rec.2.0.advantages.0.9", -0.51, ROWS),
    ("rec.2.0.prev_logprobs", None, ROWS),
    ("rec.2.0.routed_experts", [[1, 2]], ROWS),
    ("cuts.1", small.cut(0, 2), PREFIXES),
    ("log.1", RESTORED.replace("restored", "rejected"), PREFIXES),
    ("log.0", RESTORED, PREFIXES),
    ("log.1", RESTORED.replace("-a1", "-a2"), PREFIXES),
    ("log.1", RESTORED.replace("ddd ", "ddc "), PREFIXES),
    ("log.1", RESTORED[:-1] + ("0" if RESTORED[-1] != "0" else "1"), PREFIXES),
    ("log.1", WITHOUT_HASH, PREFIXES),
    ("log.2", "", PREFIXES),
    ("log.2", f"{COMPLETED} {COMPLETED}", PREFIXES),
    ("log.2", COMPLETED.replace("=new0", "=new7"), PREFIXES),
    ("log.0", COMPLETED.replace("=old0", "=other"), PREFIXES),
    ("cuts.0.staging_keys", [], KEYS),
    ("probe.1", None, KEYS),
    ("probe.1.train_step", 1, KEYS),  # a step that began twice
    ("probe.1.staging_keys", small.cut(1, 1)["staging_keys"], KEYS),
    ("successor.gym", small.cut(0, 1)["staging_keys"], KEYS),
    ("both.*.*.rewards.0", 1.0, REWARDS),
    ("both.1.*.advantages.0.*", 0.0, REWARDS),
    ("both.*.*.generation_logprobs.0.*", -0.5, LOGPROBS),
    ("both.2.0.generation_logprobs.0.9", NAN, LOGPROBS),
    ("rec.2.*.generation_logprobs.0.6", -0.2, LOGPROBS),  # 4 of 112 tokens
    ("rec.2.0.generation_logprobs.0.9", -0.7, LOGPROBS),
    ("rec.1.0.generation_logprobs", LOST_PREFIX, LOGPROBS),
]
MALFORMED = [
    ("both.2.0.token_loss_mask", [[1.0] * 16]),
    ("both.2.0.input_lengths.0", 0),
    ("both.2.0.token_loss_mask.0.9", 0.5),
    ("both.2.0.token_ids.0.9", -1),
    ("both.2.0.step", 1),
    ("both.2.0.sample_id.0", "group"),
    ("rec.2.0", '{"idx": 0'),
    ("log.1", RESTORED[:-1]),
    ("log.1", f"{RESTORED} [repeated 2x across cluster]"),
    ("cuts.0.prefix_token_count", None),
]


def judged(root: Path, path: str, value: Any) -> int:
    evidence = small.change(small.sound(), path, value)
    return small.judge(small.write(root, evidence))


@pytest.mark.parametrize(("path", "value"), SOUND)
def test_what_does_not_matter_passes(tmp_path: Path, path: str, value: Any) -> None:
    assert judged(tmp_path, path, value) == 0
    assert small.problems(tmp_path) == {}


@pytest.mark.parametrize(("path", "value", "check"), FAILING)
def test_one_check_fails(tmp_path: Path, path: str, value: Any, check: str) -> None:
    assert judged(tmp_path, path, value) == 1
    assert list(small.problems(tmp_path)) == [check]


@pytest.mark.parametrize(("path", "value"), MALFORMED)
def test_refused_in_one_line(tmp_path: Path, path: str, value: Any, capfd: Any) -> None:
    assert judged(tmp_path, path, value) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1) and str(tmp_path) in err
    assert not (tmp_path / "verdict.json").exists()


def test_reads_what_nemo_rls_own_writer_wrote() -> None:
    rows = parity._load_dump(parity._find_dumps(DUMPS)[1], 1)
    identities = [(1, prompt, generation) for prompt in (0, 1) for generation in (0, 1)]
    assert [(x.step, x.prompt_idx, x.generation) for x in rows] == identities
    assert (rows[3].group_id, rows[3].turns) == ("00000001-prompt", [[3, 5], [6, 11]])
