# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""One decode step of a batch of slots: the model, then the choice of each token.

Batch-invariant by constant shapes: every step runs all slots, so the kernels are the
same whatever runs beside a call, and each reduces a slot's row in the same order. On a
GPU the step, sampling included, is one captured CUDA graph.
"""

import numpy as np
import torch
from torch import Tensor

from minirl.config import Generation
from minirl.model import KVCache, PolicyModel


def sample(
    logits: Tensor, uniforms: Tensor, allowed: Tensor, temperature: float, top_p: float
) -> tuple[Tensor, Tensor]:
    """Choose a token per row by inverting the cumulative distribution at `uniforms`.

    Args:
        logits: float32 [rows, vocab_size].
        uniforms: float64 [rows], each in [0, 1).
        allowed: bool [rows, vocab_size]; only these tokens can be chosen.
        temperature: divides the logits.
        top_p: keeps the smallest set of most likely tokens with this mass.

    Returns:
        Token ids int64 [rows], and their log-probs float32 [rows] under the policy,
        before the constraint and top-p, as vLLM reports them.
    """
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    probs = logprobs.double().masked_fill(~allowed, -torch.inf).softmax(dim=-1)
    order = None
    if top_p < 1:
        probs, order = probs.sort(dim=-1, descending=True, stable=True)
        mass_before = probs.cumsum(dim=-1) - probs
        probs = probs.masked_fill(mass_before >= top_p, 0)
    cumulative = probs.cumsum(dim=-1)
    thresholds = uniforms[:, None] * cumulative[:, -1:]
    chosen = (cumulative <= thresholds).sum(dim=-1, keepdim=True)
    token_ids = chosen if order is None else order.gather(-1, chosen)
    return token_ids.squeeze(-1), logprobs.gather(-1, token_ids).squeeze(-1)


class Decoder:
    """A model, the cache of its slots, and the step over them."""

    def __init__(
        self, model: PolicyModel, slots: int, max_length: int, config: Generation
    ):
        self.model = model
        self.slots = slots
        self.config = config
        self.cache = model.new_cache(slots, max_length)
        device = self.cache.keys.device
        self._token_ids = torch.zeros(slots, dtype=torch.int64, device=device)
        self._positions = torch.zeros_like(self._token_ids)
        self._uniforms = torch.zeros(slots, dtype=torch.float64, device=device)
        shape = (slots, model.config.vocab_size)
        self._allowed = torch.ones(shape, dtype=torch.bool, device=device)
        self._constrained = False
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda" and config.batch_invariant:
            self._capture()

    @torch.inference_mode()
    def step(
        self,
        token_ids: np.ndarray,
        positions: np.ndarray,
        uniforms: np.ndarray,
        allowed: np.ndarray | None,
        width: int,
    ) -> tuple[list[int], list[float]]:
        """Feed each slot one token and choose its next one.

        Args:
            token_ids, positions: int64 [slots], what to feed where; 0, 0 if idle.
            uniforms: float64 [slots], where to cut the distribution.
            allowed: bool [slots, vocab_size], or None if nothing is constrained.
            width: how many slots are in use; with batch invariance all run anyway.

        Returns:
            The chosen token ids and their log-probs, one a slot.
        """
        self._token_ids.copy_(torch.from_numpy(token_ids))
        self._positions.copy_(torch.from_numpy(positions))
        self._uniforms.copy_(torch.from_numpy(uniforms))
        if allowed is not None:
            self._allowed.copy_(torch.from_numpy(allowed))
        elif self._constrained:
            self._allowed.fill_(True)
        self._constrained = allowed is not None
        if self._graph is not None:
            self._graph.replay()
            chosen = self._chosen
        else:
            chosen = self._run(self.slots if self.config.batch_invariant else width)
        ids, logprobs = chosen.tolist()
        return [int(token_id) for token_id in ids], logprobs

    @torch.inference_mode()
    def prefill(self, token_ids: list[int], slot: int) -> None:
        """Feed a slot its first tokens at once, which is not batch-invariant."""
        known = torch.tensor(token_ids, device=self._token_ids.device)
        self.model.prefill(known, slot, self.cache)

    def _run(self, width: int) -> Tensor:
        """Token ids and log-probs of the first `width` slots, float64 [2, width]."""
        cache = KVCache(
            self.cache.keys[:, :width],
            self.cache.values[:, :width],
            self.cache.slots[:width],
            self.cache.columns,
        )
        ids, positions = self._token_ids[:width], self._positions[:width]
        token_ids, logprobs = sample(
            self.model.decode_step(ids, positions, cache),
            self._uniforms[:width],
            self._allowed[:width],
            self.config.temperature,
            self.config.top_p,
        )
        return torch.stack([token_ids.double(), logprobs.double()])

    @torch.inference_mode()
    def _capture(self) -> None:
        """Record the whole step once, after the warm-up that capturing asks for."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._run(self.slots)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._chosen = self._run(self.slots)
