# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""What minirl uses of vLLM's package, on a CPU, with minirl's own model inside.

It is as strict as vLLM where minirl could be wrong, draws by seed and absolute position
as vLLM does, and reports cumulative outputs, the first of them a step late.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from minirl.decoding import sample
from minirl.model import load_policy


@dataclass(kw_only=True)
class SamplingParams:
    seed: int
    temperature: float
    top_p: float
    max_tokens: int
    stop_token_ids: list[int]
    logprobs: int
    detokenize: bool

    def __post_init__(self):
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed {self.seed}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")


def TokensPrompt(*, prompt_token_ids: list[int]) -> dict[str, list[int]]:
    return {"prompt_token_ids": list(prompt_token_ids)}


@dataclass
class Request:
    prompt_ids: list[int]
    params: SamplingParams
    prefilled: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Any]] = field(default_factory=list)
    finish_reason: str | None = None


class Model:
    """Takes weights under Hugging Face's names, as vLLM's models do."""

    def __init__(self, folder: str):
        self.policy = load_policy(folder).requires_grad_(False)

    def load_weights(self, weights: Any) -> set[str]:
        named = dict(weights)
        own = {name.removeprefix("model."): x for name, x in named.items()}
        self.policy.load_state_dict(own)
        return set(named)


class LLMEngine:
    def __init__(self, model: Model, max_model_len: int, max_num_seqs: int):
        self.model = model
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.requests: dict[str, Request] = {}
        self.submitted: list[Request] = []  # all there ever were
        self.steps = 0

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def add_request(
        self, request_id: str, prompt: dict[str, list[int]], params: SamplingParams
    ) -> str:
        if request_id in self.requests:
            raise ValueError(f"{request_id} runs already")
        if len(prompt["prompt_token_ids"]) >= self.max_model_len:
            raise ValueError("the prompt is too long")
        request = Request(prompt["prompt_token_ids"], params)
        self.requests[request_id] = request
        self.submitted.append(request)
        return request_id

    def step(self) -> list[Any]:
        self.steps += 1
        outputs = []
        for request_id, request in list(self.requests.items())[: self.max_num_seqs]:
            if not request.prefilled:
                request.prefilled = True
                continue
            self._sample(request)
            completion = SimpleNamespace(
                token_ids=request.token_ids,
                logprobs=request.logprobs,
                finish_reason=request.finish_reason,
            )
            outputs.append(SimpleNamespace(request_id=request_id, outputs=[completion]))
            if request.finish_reason:
                del self.requests[request_id]
        return outputs

    def _sample(self, request: Request) -> None:
        params, ids = request.params, [*request.prompt_ids, *request.token_ids]
        logits = self.model.policy(torch.tensor([ids]))[:, -1]
        noise = np.random.Generator(np.random.Philox(key=[params.seed, len(ids)]))
        token_id, _ = sample(
            logits,
            torch.tensor([noise.random()], dtype=torch.float64),
            torch.ones_like(logits, dtype=torch.bool),
            params.temperature,
            params.top_p,
        )
        token = int(token_id)
        logprob = float(logits.log_softmax(-1)[0, token])
        request.token_ids.append(token)
        request.logprobs.append({token: SimpleNamespace(logprob=logprob)})
        if token in params.stop_token_ids:
            request.finish_reason = "stop"
        elif (
            len(request.token_ids) == params.max_tokens
            or len(ids) + 1 == self.max_model_len
        ):
            request.finish_reason = "length"


class LLM:
    def __init__(
        self,
        *,
        model: str,
        skip_tokenizer_init: bool,
        generation_config: str,
        dtype: str,
        seed: int,
        max_model_len: int,
        max_num_seqs: int,
        enable_prefix_caching: bool,
        logprobs_mode: str,
        enforce_eager: bool,
        gpu_memory_utilization: float,
        kv_cache_memory_bytes: int,
        max_num_batched_tokens: int,
        attention_backend: str | None,
        compilation_config: dict[str, Any],
    ):
        self.compiled = not enforce_eager and compilation_config["backend"]
        self.model = Model(model)
        self.llm_engine = LLMEngine(self.model, max_model_len, max_num_seqs)

    def apply_model(self, func: Any) -> list[Any]:
        return [func(self.model)]
