# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The proofs' workloads, as jobs and the judge get them."""

import json

import pytest

from minirl.config import load_config
from tools.prove.runs import CONFIG
from tools.prove.workload import MODES, Workload


@pytest.mark.parametrize("mode", MODES)
def test_overrides_make_a_configuration(mode, tmp_path):
    workload = MODES[mode]
    config = load_config(CONFIG, workload.overrides(tmp_path / "rows.jsonl"))
    assert config.grpo.num_generations_per_prompt == workload.generations
    assert config.policy.generation.top_p == workload.top_p
    assert config.grpo.adv_estimator.name == "reinforce_plus_plus"
    assert not config.grpo.adv_estimator.minus_baseline


def test_rows_are_those_of_every_step(tmp_path):
    workload = Workload(lists=(3, 4), steps=2)
    workload.write(tmp_path / "rows.jsonl")
    rows = [*map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())]
    assert len(rows) == workload.prompts * workload.steps
