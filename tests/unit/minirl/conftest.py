# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by minirl's tests: configurations, prompts, a data plane without Ray."""

import asyncio
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

# Not set_num_threads: TransferQueue restores what torch had when it was imported.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from memory_data_plane import MemoryDataPlane

from minirl.config import load_config
from minirl.controller import ENGINES
from minirl.dataset import load_prompts
from minirl.model import ModelConfig, PolicyModel, load_policy
from minirl.rollout import RolloutManager
from minirl.tokenizer import Tokenizer

ROOT = Path(__file__).parents[3]
POLICY = ROOT / "minirl" / "workplace-policy"
HARNESS = ROOT / "tests" / "functional"


@pytest.fixture(scope="session")
def memory_data_plane():
    """The class, to make as many as a test needs."""
    return MemoryDataPlane


@pytest.fixture(scope="session")
def ray_session():
    import ray

    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=2,
        object_store_memory=100 << 20,
        namespace="minirl-tests",
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def write_workload():
    """Writes the harness's prompts for some steps to a file."""

    def write(path, list_items, steps=1):
        script = HARNESS / "_gym_prefix_recovery_workload.py"
        command = [sys.executable, script, "--output", path, f"--steps={steps}"]
        command += ["--list-items", *map(str, list_items)]
        subprocess.run(command, check=True)
        return path

    return write


@pytest.fixture(scope="session")
def make_config():
    """Makes a configuration for some prompts and generations, with overrides."""

    @functools.cache
    def make(*overrides, prompts=3, generations=2):
        return load_config(
            ROOT / "examples/configs/grpo_minirl_single_controller.yaml",
            [
                f"policy.model_name={POLICY}",
                "policy.device=cpu",
                f"grpo.num_prompts_per_step={prompts}",
                f"grpo.num_generations_per_prompt={generations}",
                f"policy.train_global_batch_size={prompts * generations}",
                "data.train.data_path=unused.jsonl",
                *overrides,
            ],
        )

    return make


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer.load(POLICY)


@pytest.fixture(scope="session")
def shipped_policy():
    return load_policy(POLICY).requires_grad_(False)


@pytest.fixture(scope="session")
def random_policy(tokenizer):
    """A tiny untrained policy, whose samples are far from certain."""
    torch.manual_seed(0)
    model = PolicyModel(ModelConfig(tokenizer.vocab_size, 128, num_hidden_layers=2))
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.requires_grad_(False)


@pytest.fixture(scope="session")
def prompt_rows(tmp_path_factory, write_workload):
    """Three data rows: lists of 4 and 24 integers, and a counter.

    The counter's long system message takes so many steps to feed that its call still
    runs when the lists are written.
    """
    path = write_workload(tmp_path_factory.mktemp("rows") / "rows.jsonl", [4, 24])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    system = {"role": "system", "content": "count " * 40}
    rows[2]["responses_create_params"]["input"].insert(0, system)
    return rows


@pytest.fixture(scope="session")
def prompts(tmp_path_factory, prompt_rows, tokenizer):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in prompt_rows))
    return load_prompts(path, tokenizer)


class Run:
    """Rollouts of one step without a controller: its manager, decoded step by step."""

    def __init__(self, config, tokenizer, policy, prompts):
        self.data_plane = MemoryDataPlane()
        self.manager = RolloutManager(config, tokenizer, self.data_plane)
        engine_class = ENGINES[config.policy.generation.backend]
        self.engine = engine_class(config, self.data_plane, tokenizer.end_id)
        self.engine.load(policy)
        self.manager.load(self.engine, prompts)

    def decode(self, until=lambda: False):
        """Run the manager's groups, or only until a condition holds."""

        async def decode():
            rollouts = asyncio.create_task(self.manager.run())
            while not rollouts.done() and not until():
                await asyncio.sleep(0)
                if self.engine.has_work():
                    self.engine.step()
            if rollouts.done():
                rollouts.result()
            rollouts.cancel()

        asyncio.run(decode())

    def rows(self):
        """The finished rows by (prompt_idx, generation): fields, and tags."""
        samples = self.data_plane.partitions["rollout_data"].values()
        return {
            (sample["tags"]["prompt_idx"], sample["tags"]["generation"]): sample
            for sample in samples
        }


@pytest.fixture(scope="session")
def make_run(make_config, tokenizer, shipped_policy, prompts):
    """Makes a run of the shipped policy, with overrides of its configuration."""

    def make(*overrides, prompts=prompts):
        return Run(make_config(*overrides), tokenizer, shipped_policy, prompts)

    return make


@pytest.fixture(scope="session")
def whole_run(make_run):
    """A run that nothing interrupted."""
    run = make_run()
    run.manager.begin_step(0)
    run.decode()
    return run
