# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Generation with vLLM: `policy.generation.backend=vllm`.

A real vLLM engine in the controller's process generates every free turn; a constrained
call stays with minirl's decoder. Token ids go in and come out. A call is seeded by its
identity, and a continued one is submitted as its prompt and its prefix: vLLM draws by
seed and absolute position, so that it samples what the uninterrupted call would have.

vLLM reads VLLM_BATCH_INVARIANT and its other variables from the environment.
"""

import os
import site
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from torch import Tensor

from minirl.config import MasterConfig
from minirl.data_plane import DataPlaneClient
from minirl.generation import Call, GenerationEngine
from minirl.model import NAMES_PREFIX, PolicyModel

# A folder that holds vLLM and what it needs, where those must not get in the way of
# Ray's other processes.
PATH_VARIABLE = "MINIRL_VLLM_PATH"


def check_vllm(device: str) -> None:
    """Raise ValueError if there is no GPU, or no vLLM, to generate with."""
    backend = "policy.generation.backend=vllm"
    if device != "cuda":
        raise ValueError(f"{backend}: expected a GPU, found policy.device={device}")
    folder = os.environ.get(PATH_VARIABLE)
    if not PathFinder.find_spec("vllm", [folder] if folder else None):
        where = f"in {PATH_VARIABLE}={folder}" if folder else "in Python's path"
        raise ValueError(
            f"{backend}: expected vLLM to be installed, found none {where}"
        )


def _import_vllm() -> Any:
    """The package, which takes seconds to import."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process
    if folder := os.environ.get(PATH_VARIABLE):
        site.addsitedir(folder)
        path = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)  # of what vLLM starts
    import vllm

    return vllm


class VllmEngine(GenerationEngine):
    """minirl's engine, with the calls without a constraint handed to vLLM."""

    def __init__(self, config: MasterConfig, dp_client: DataPlaneClient, end_id: int):
        super().__init__(config, dp_client, end_id)
        self.policy = config.policy
        # by model call id: a call, and how many tokens it had when it was submitted
        self._submitted: dict[str, tuple[Call, int]] = {}

    def load(self, model: PolicyModel) -> None:
        self.vllm = _import_vllm()
        settings, kwargs = self.config.vllm_cfg, self.config.vllm_kwargs
        self.llm = self.vllm.LLM(
            model=str(Path(self.policy.model_name).resolve()),
            skip_tokenizer_init=True,
            generation_config="vllm",  # none of the model's own
            dtype=self.policy.precision,
            seed=self.seed,
            max_model_len=self.max_length,
            max_num_seqs=self.slots,
            enable_prefix_caching=False,  # no keys of older weights
            logprobs_mode=settings.logprobs_mode,
            enforce_eager=settings.enforce_eager,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            kv_cache_memory_bytes=kwargs.kv_cache_memory_bytes,
            max_num_batched_tokens=kwargs.max_num_batched_tokens,
            attention_backend=kwargs.attention_backend,
            compilation_config={"backend": kwargs.compilation_config.backend},
        )
        self._hand_over(model.state_dict())
        # Only now, for vLLM's batch invariance replaces kernels of the whole process.
        super().load(model)

    def update_weights(self, weights: dict[str, Tensor], version: int) -> None:
        super().update_weights(weights, version)
        self._hand_over(weights)

    def _hand_over(self, weights: dict[str, Tensor]) -> None:
        """Load the weights into vLLM's model in place, under Hugging Face's names."""
        named = [(NAMES_PREFIX + name, tensor) for name, tensor in weights.items()]
        self.llm.apply_model(lambda model: model.load_weights(named))

    def calls(self) -> list[Call]:
        return super().calls() + [call for call, _ in self._submitted.values()]

    def has_work(self) -> bool:
        return super().has_work() or bool(self._submitted)

    def _submit(self, call: Call) -> None:
        if call.constraint:
            return super()._submit(call)
        token_ids = [*call.prompt_ids, *call.token_ids]
        params = self.vllm.SamplingParams(
            seed=self.sampling_key(call) >> 65,  # of 63 bits: vLLM's is a signed 64
            temperature=self.config.temperature,
            top_p=self.config.top_p,
            max_tokens=call.max_tokens - len(call.token_ids),
            stop_token_ids=[self.end_id],
            logprobs=0,  # of the sampled token alone
            detokenize=False,
        )
        self.llm.llm_engine.add_request(
            call.model_call_id,
            self.vllm.TokensPrompt(prompt_token_ids=token_ids),
            params,
        )
        self._submitted[call.model_call_id] = call, len(call.token_ids)

    def step(self) -> None:
        """A step of minirl's decoder and one of vLLM, of each that has a call."""
        if super().has_work():
            super().step()
        if self._submitted:
            for output in self.llm.llm_engine.step():
                self._take(output)

    def _take(self, output: Any) -> None:
        """Append what vLLM has generated for a call since the last step.

        Raises:
            RuntimeError: vLLM ends the call elsewhere than minirl would.
        """
        call, submitted_with = self._submitted[output.request_id]
        completion = output.outputs[0]
        known = len(call.token_ids) - submitted_with
        new = zip(
            completion.token_ids[known:], completion.logprobs[known:], strict=True
        )
        for token_id, logprobs in new:
            if call.finish_reason is None:
                self._append(call, token_id, logprobs[token_id].logprob)
        if completion.finish_reason != call.finish_reason:
            raise RuntimeError(
                f"{call.rollout_id}: after {len(call.token_ids)} tokens vLLM's finish"
                f" reason is {completion.finish_reason}, expected {call.finish_reason}"
            )
        if call.finish_reason:
            del self._submitted[output.request_id]
