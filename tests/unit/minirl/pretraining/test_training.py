# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minirl.model import load_policy
from minirl.pretraining import __main__ as pretraining
from minirl.pretraining import gate
from minirl.pretraining.episodes import (
    collate,
    random_episode,
    vocabulary,
    workplace_episode,
)
from minirl.pretraining.muon import orthogonal
from minirl.pretraining.training import Trainer, new_model, training_batches
from minirl.pretraining.workload import EVENT
from minirl.tokenizer import Tokenizer

torch.set_num_threads(1)

TOKENIZER = Tokenizer.from_words(vocabulary())
TINY = ["--layers=3", "--steps=1", "--max-items=2"]


def test_batches_keep_to_their_size_and_number():
    batches = list(training_batches(TOKENIZER, random.Random(0), 60, 30, 1024))
    assert len(batches) == 30
    device = torch.device("cpu")
    assert all(collate(batch, device)[0].numel() <= 1024 for batch in batches)


def test_lists_grow_during_training():
    batches = list(training_batches(TOKENIZER, random.Random(0), 120, 200, 3072))
    longest = [max(max(e.integers) for e in batch) for batch in batches]
    assert max(longest[:10]) <= 20
    assert 140 < max(longest[-80:]) <= 150


def test_batches_repeat_from_a_seed_in_another_process():
    code = (
        "import random\n"
        "from minirl.pretraining.episodes import vocabulary\n"
        "from minirl.pretraining.training import training_batches\n"
        "from minirl.tokenizer import Tokenizer\n"
        "tokenizer = Tokenizer.from_words(vocabulary())\n"
        "batches = training_batches(tokenizer, random.Random(0), 60, 20, 1024)\n"
        "print([episode.tokens for batch in batches for episode in batch])"
    )
    command = [sys.executable, "-c", code]
    root = Path(pretraining.__file__).parents[2]
    found = [
        subprocess.run(
            command,
            cwd=root,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]


def new_trainer():
    torch.manual_seed(0)
    return Trainer(new_model(TOKENIZER, 9, layers=3), muon_rate=0.02, adam_rate=3e-3)


def test_training_step_lowers_the_loss():
    rng = random.Random(0)
    batch = [random_episode(TOKENIZER, rng, 9) for _ in range(4)]
    trainer = new_trainer()
    losses = [trainer.step(batch, rate=1.0) for _ in range(10)]
    assert losses[-1] < 0.7 * losses[0]


def test_training_step_at_rate_zero_changes_nothing():
    batch = [workplace_episode(TOKENIZER, EVENT, 3, event_id=0)]
    trainer = new_trainer()
    assert trainer.step(batch, rate=0.0) == trainer.step(batch, rate=0.0)


def test_batch_without_a_list_has_a_loss():
    batch = [workplace_episode(TOKENIZER, EVENT, 3, event_id=0, kept=())]
    assert new_trainer().step(batch, rate=1.0) > 0


@pytest.mark.parametrize("shape", [(16, 16), (16, 48), (48, 16)])
def test_muon_makes_singular_values_nearly_equal(shape):
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(matrices))
    assert values.min() > 0.3 and values.max() < 1.3


def test_muon_keeps_the_direction():
    matrix = torch.randn(16, 48, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    found = left.mT @ orthogonal(matrix) @ right.mT
    assert (found.diagonal() > 0.3).all()


def test_untrained_policy_fails_the_gate_and_is_not_written(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(gate, "PROOF_ITEMS", 2)
    monkeypatch.setattr(gate, "UNSEEN", 4)
    assert pretraining.main([*TINY, f"--out={tmp_path / 'policy'}"]) == 1
    errors = capsys.readouterr().err
    assert "gate: workplace N=2 is not exact at generated token" in errors
    assert "gate: counter K=1 is not exact at generated token" in errors
    assert "gate: only 0 of 4 unseen prompts are exact" in errors
    assert not (tmp_path / "policy").exists()


def test_policy_that_passes_the_gate_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(pretraining, "gate", lambda *_: [])
    assert pretraining.main([*TINY, f"--out={tmp_path / 'policy'}"]) == 0
    assert load_policy(tmp_path / "policy").config.num_hidden_layers == 3
    assert Tokenizer.load(tmp_path / "policy").texts == TOKENIZER.texts


def test_gate_alone_judges_a_policy_and_writes_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(gate, "UNSEEN", 4)
    folder = tmp_path / "policy"
    shutil.copytree(pretraining.SHIPPED_POLICY, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert pretraining.main(["--gate-only", "--max-items=2", f"--out={folder}"]) == 0
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
