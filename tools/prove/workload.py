# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""What the proofs train, and how the judge is asked about it."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from minirl.faults import Fault
from tools import FUNCTIONAL
from tools.prove.processes import RunError


@dataclass(frozen=True)
class Workload:
    """Small and varied: at this temperature calls differ in length and in reward."""

    lists: tuple[int, ...] = (45, 12, 30)
    generations: int = 6
    steps: int = 3
    max_tokens: int = 640  # in a sequence
    temperature: float = 2.0
    top_p: float = 1.0
    estimator: str = "reinforce_plus_plus"
    min_identical_logprobs: float = 1.0
    max_logprob_difference: float = 0.0

    @property
    def prompts(self) -> int:
        return len(self.lists) + 1  # the counter's

    @property
    def is_near_greedy(self) -> bool:
        return self.top_p < 0.01

    def check_of(self, fault: Fault) -> str:
        """The check that must fail; empty if the fault changes nothing here."""
        if not self.is_near_greedy:
            return fault.check
        return "" if fault.harmless_near_greedy else fault.check_near_greedy

    def write(self, path: Path) -> None:
        command = [sys.executable, str(FUNCTIONAL / "_gym_prefix_recovery_workload.py")]
        command += ["--output", str(path), "--steps", str(self.steps)]
        subprocess.run([*command, "--list-items", *map(str, self.lists)], check=True)

    def overrides(self, data: Path) -> list[str]:
        return [
            f"policy.max_total_sequence_length={self.max_tokens}",
            f"policy.generation.max_new_tokens={self.max_tokens // 2}",
            f"policy.generation.temperature={self.temperature}",
            f"policy.generation.top_p={self.top_p}",
            f"policy.train_global_batch_size={self.prompts * self.generations}",
            f"grpo.num_prompts_per_step={self.prompts}",
            f"grpo.num_generations_per_prompt={self.generations}",
            f"grpo.max_num_steps={self.steps}",
            f"grpo.adv_estimator.name={self.estimator}",
            "grpo.adv_estimator.minus_baseline=false",
            "async_rl.log_full_train_data=true",
            f"data.train.data_path={data}",
        ]

    def judge_arguments(self) -> list[str]:
        numbers = {
            "steps": self.steps,
            "prompts-per-step": self.prompts,
            "generations-per-prompt": self.generations,
            "min-identical-logprobs": self.min_identical_logprobs,
            "max-logprob-difference": self.max_logprob_difference,
        }
        return [f"--{name}={value}" for name, value in numbers.items()]


MODES = {
    "exact": Workload(),
    "near-greedy": Workload(  # as NeMo-RL is run
        generations=2,
        temperature=1.0,
        top_p=1e-6,
        min_identical_logprobs=0.97,
        max_logprob_difference=0.5,
    ),
}


@dataclass(frozen=True)
class Evidence:
    """What the judge is given, beside the workload's sizes."""

    reference_log_dir: Path
    recovery_log_dir: Path
    selection: Path
    recovery_log: Path
    staging_keys: Path
    successor_checkpoint: Path

    @property
    def verdict(self) -> Path:
        return self.selection.with_name("verdict.json")

    def judge_arguments(self) -> list[str]:
        paths = vars(self) | {"verdict": self.verdict}
        return [f"--{name.replace('_', '-')}={path}" for name, path in paths.items()]

    def problems(self) -> dict[str, list[str]]:
        """Of each failed check, once the evidence has been judged."""
        checks = json.loads(self.verdict.read_text())["checks"]
        return {x["name"]: x["problems"] for x in checks if x["problems"]}


def judge(evidence: Evidence, workload: Workload) -> dict[str, list[str]]:
    """The problems of each failed check; RunError if the judge can't judge."""
    command = [sys.executable, str(FUNCTIONAL / "_gym_prefix_recovery_parity.py")]
    command += evidence.judge_arguments() + workload.judge_arguments()
    judged = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if judged.returncode not in (0, 1):
        raise RunError(f"the judge: {(judged.stderr or judged.stdout).strip()}")
    return evidence.problems()
