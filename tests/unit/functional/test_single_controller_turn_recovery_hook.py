# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The probe: records the live staging keys as each step begins, and only then."""

import json
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cloudpickle
import pytest
from prefix_recovery_evidence import FUNCTIONAL

HOOK = FUNCTIONAL / "_single_controller_turn_recovery_hook.py"


class Trainer:
    def begin_train_step(self, loss_fn: str) -> str:
        return f"began with {loss_fn}"


def test_the_probe_records_each_step_in_the_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = {"staging": [["a", "b"], ["c"]]}
    client = SimpleNamespace(list_sample_ids=lambda name: lists[name].pop(0))
    state = SimpleNamespace(current_step=4)
    args = SimpleNamespace(trainer_handle=Trainer(), dp_client=client, save_state=state)
    entry_point = ModuleType("examples.run_grpo_single_controller")
    entry_point.setup_single_controller = lambda config, tokenizer: (args, {})
    entry_point.main = lambda: None
    examples = ModuleType("examples")
    examples.run_grpo_single_controller = entry_point
    monkeypatch.setitem(sys.modules, "examples", examples)
    monkeypatch.setenv("SC_STAGING_KEYS_FILE", str(tmp_path / "keys.jsonl"))
    runpy.run_path(str(HOOK), run_name="__main__")
    token_capture = SimpleNamespace(staging_partition="staging")
    config = SimpleNamespace(token_capture=token_capture)
    args, _ = entry_point.setup_single_controller(config, "tokenizer")
    trainer = cloudpickle.loads(cloudpickle.dumps(args)).trainer_handle
    assert trainer.begin_train_step("loss") == "began with loss"
    assert trainer.begin_train_step(loss_fn="loss") == "began with loss"
    records = [json.loads(x) for x in (tmp_path / "keys.jsonl").open()]
    keys = [(record["train_step"], record["staging_keys"]) for record in records]
    assert keys == [(5, ["a", "b"]), (6, ["c"])]
