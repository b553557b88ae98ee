# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Rollouts of a step; what one samples follows from its prompt and its generation."""

import hashlib
import json
import os
import re
import uuid
from dataclasses import dataclass

import prefix_recovery_evidence as small

COUNTER_ITEMS = 6  # in place of its 64: it is never listed
LOGGER = "INFO:nemo_rl.models.generation.vllm.vllm_worker_async"


def log(text):
    worker = f"\x1b[36m(VllmAsyncGenerationWorker pid={os.getpid()})\x1b[0m"
    print(f"{worker} {LOGGER}:vllm_worker_async.py:931: {text}", flush=True)


@dataclass
class Rollout:
    """An episode in its last turn, of which `tokens` of `items` are decoded."""

    group_id: str
    prompt_idx: int
    generation: int
    attempt_uuid: bytes
    items: int
    is_list: bool
    attempt: int = 0
    tokens: int = 0
    source: str = ""  # the call that is continued
    prefix: int = 0  # of it

    def __post_init__(self):
        self.call = uuid.uuid4().hex
        self.rollout_id = f"{self.group_id}_g{self.generation}"
        self.rollout_id += f"_a{self.attempt_uuid.hex()}"
        # The counter's forced call is never cut, its closing turn is.
        self.is_constrained = not self.is_list and self.generation == 0
        pieces = [] if self.is_constrained else [0, 1]
        call = f"{self.rollout_id}-a{self.attempt}/{self.call}"
        self.staging_keys = [f"{call}/{piece}" for piece in pieces]

    def row(self, step):
        run = self.group_id.removesuffix(str(self.prompt_idx))
        return small.row(run, step, self.prompt_idx, self.generation, self.items)

    def hash_of_prefix(self, count):
        (ids,) = self.row(step=1)["token_ids"]
        text = ",".join(map(str, ids[small.LIST :][:count]))
        return hashlib.sha256(text.encode()).hexdigest()

    def log_prefix(self, what, rest):
        log(
            f"generation prefix {what}: rollout_id={self.rollout_id}-a{self.attempt}"
            f" model_call_id={self.call} source_model_call_id={self.source}"
            f" prefix_tokens={self.prefix} {rest}"
        )


def new_rollouts(rows, step, prompts, generations):
    """Of all prompts of a step, by the data rows' text."""
    for prompt_idx in range((step - 1) * prompts, step * prompts):
        row = json.loads(rows[prompt_idx])
        (turn,) = row["responses_create_params"]["input"]
        is_list = row["environment_name"] == "workplace_assistant"
        items = int(re.search(r"from \d+ to (\d+)", turn["content"])[1])
        group_id = f"{uuid.uuid4().hex}-{prompt_idx}"
        for generation in range(generations):
            yield Rollout(
                group_id=group_id,
                prompt_idx=prompt_idx,
                generation=generation,
                attempt_uuid=uuid.uuid4().bytes,
                items=items if is_list else COUNTER_ITEMS,
                is_list=is_list,
            )
