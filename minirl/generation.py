# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Generation: all running calls decode as one batch, and can be cut between two steps.

A call holds a slot of the batch and feeds its tokens through `decode_step` one by one:
its prompt, the prefix it continues from, then each token it samples. So a restored
prefix takes the very path that decoding took, and a continued call computes the same
bits as an uninterrupted one. Sampling is keyed by identity (seed, prompt, generation,
turn, position), never by the state of a random number generator.

What a call has generated is staged to the data plane piece by piece, under one key a
piece; a snapshot stages the newest piece of every running call and refers to the keys.
"""

import asyncio
import hashlib
import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minirl.config import MasterConfig
from minirl.constraint import Constraint
from minirl.data_plane import DataPlaneClient
from minirl.decoding import Decoder
from minirl.model import PolicyModel

logger = logging.getLogger(__name__)

MAX_PIECES = 4  # of a call; then they are staged anew as one


@dataclass
class Prefix:
    """What a cut call had generated, and where it is staged."""

    model_call_id: str
    token_ids: list[int]
    logprobs: list[float]
    staging_keys: list[str]
    first_weight_version: int
    request_digest: str
    digest: str


@dataclass
class Call:
    """One model call: a prompt, and the tokens generated after it so far."""

    rollout_id: str
    key: tuple[int, int, int]  # prompt_idx, generation, turn: what sampling depends on
    prompt_ids: list[int]
    max_tokens: int
    constraint: Constraint | None
    attempt: int = 0  # of the rollout
    model_call_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    prefix: Prefix | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    first_weight_version: int = 0
    fed: int = 0  # tokens of prompt + generated that went through the model
    slot: int = 0
    uniforms: np.ndarray = field(default_factory=lambda: np.empty(0))
    staged: int = 0  # generated tokens that are in the data plane
    staging_keys: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    finished: asyncio.Future[None] = field(init=False)

    @property
    def position(self) -> int:
        """Where in the sequence the next token is fed."""
        return self.fed

    @property
    def request_digest(self) -> str:
        """Names the request: its prompt and its limit."""
        return _sha256([*self.prompt_ids, self.max_tokens])

    @property
    def can_be_cut(self) -> bool:
        """Whether the decode could be continued from what there is of it now."""
        return not (self.constraint or self.finish_reason) and bool(self.token_ids)

    def digest(self) -> str:
        return prefix_digest(self.request_digest, self.token_ids, self.logprobs)


def _sha256(values: list[Any]) -> str:
    """Of the values joined with commas; for token ids, the log's prefix_ids_sha256."""
    return hashlib.sha256(",".join(map(str, values)).encode()).hexdigest()


def prefix_digest(request: str, token_ids: list[int], logprobs: list[float]) -> str:
    """Names a request and everything generated for it so far, bit by bit."""
    return _sha256([request, *token_ids, *map(float.hex, logprobs)])


def _names(call: Call, prefix: Prefix) -> str:
    """The call and the one that it continues, as the log names them."""
    return (
        f"rollout_id={call.rollout_id}-a{call.attempt}"
        f" model_call_id={call.model_call_id}"
        f" source_model_call_id={prefix.model_call_id}"
    )


class GenerationEngine:
    """Decodes every running call, one token a step, in a fixed batch of slots."""

    def __init__(self, config: MasterConfig, dp_client: DataPlaneClient, end_id: int):
        grpo = config.grpo
        self.config = config.policy.generation
        self.max_length = config.policy.max_total_sequence_length
        self.slots = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
        self.seed = grpo.seed
        self.partition = config.token_capture.staging_partition
        self.dp_client = dp_client
        self.end_id = end_id
        self.weight_version = 0
        self.decoded_tokens = 0
        self.decode_s = 0.0
        self.running: dict[int, Call] = {}  # by slot
        self._free = list(range(self.slots))
        self._cached: list[list[int]] = [[] for _ in self._free]  # token ids, by slot
        self._waiting: list[Call] = []
        self._wake = asyncio.Event()

    def load(self, model: PolicyModel) -> None:
        """Take a model to decode with, the engine's own."""
        self.model = model
        self.decoder = Decoder(model, self.slots, self.max_length, self.config)

    def update_weights(self, weights: dict[str, Tensor], version: int) -> None:
        """Load the trained weights in place; no call may be running."""
        if calls := self.calls():
            raise RuntimeError(f"{len(calls)} calls run on the old weights")
        self.model.load_state_dict(weights)
        self._cached = [[] for _ in self._cached]
        self.weight_version = version

    # -- calls ---------------------------------------------------------------------

    def calls(self) -> list[Call]:
        """All calls that generate now."""
        return list(self.running.values())

    async def generate(self, call: Call) -> Call:
        """Run a call to its end; what it generated is staged when this returns."""
        if not call.token_ids:
            call.first_weight_version = self.weight_version
        await self.decode(call)
        self.stage([call])
        if call.prefix:
            prefix, total = len(call.prefix.token_ids), len(call.token_ids)
            logger.info(
                f"generation prefix completed: {_names(call, call.prefix)}"
                f" prefix_tokens={prefix} tail_tokens={total - prefix}"
                f" total_generation_tokens={total}"
            )
        return call

    def continue_from(self, call: Call, prefix: Prefix) -> None:
        """Let a call that has not run yet begin with a cut call's tokens.

        They are staged again as the new call's own; the cut call's keys are retired.

        Raises:
            RuntimeError: the call's request is not the one that was cut.
        """
        if call.request_digest != prefix.request_digest:
            source = f"call {prefix.model_call_id}"
            raise RuntimeError(
                f"{call.rollout_id}: its request is not that of {source}"
            )
        call.token_ids = list(prefix.token_ids)
        call.logprobs = list(prefix.logprobs)
        call.first_weight_version = prefix.first_weight_version
        call.prefix = prefix
        logger.info(
            f"generation prefix restored: {_names(call, prefix)}"
            f" prefix_tokens={len(prefix.token_ids)} prefix_digest={prefix.digest}"
            f" weight_version_span=[{call.first_weight_version},{self.weight_version}]"
            f" prefix_ids_sha256={_sha256(call.token_ids)}"
        )
        self.stage([call])
        self.retire(prefix)

    def retire(self, prefix: Prefix) -> None:
        """Remove a cut call's keys, which nothing refers to any more."""
        self.dp_client.clear_samples(prefix.staging_keys, self.partition)

    def stage(self, calls: list[Call]) -> None:
        """Put what the calls generated since the last staging to the data plane."""
        calls = [call for call in calls if len(call.token_ids) > call.staged]
        if not calls:
            return
        keys, token_ids, logprobs = [], [], []
        merged: list[str] = []
        for call in calls:
            if len(call.staging_keys) == MAX_PIECES:
                merged += call.staging_keys
                call.staged, call.staging_keys = 0, []
            piece = slice(call.staged, len(call.token_ids))
            keys.append(f"{call.model_call_id}/{piece.start}-{piece.stop}")
            token_ids.append(torch.tensor(call.token_ids[piece]))
            logprobs.append(torch.tensor(call.logprobs[piece], dtype=torch.float32))
        masks = [torch.ones_like(piece) for piece in logprobs]
        fields = {"token_ids": token_ids, "logprobs": logprobs, "loss_mask": masks}
        self.dp_client.put_samples(keys, self.partition, fields)
        for call, key in zip(calls, keys, strict=True):
            call.staged = len(call.token_ids)
            call.staging_keys.append(key)
        self.dp_client.clear_samples(merged, self.partition)

    def read_staged(self, keys: list[str]) -> tuple[list[int], list[float]]:
        """Token ids and log-probs that were staged under the keys, in their order."""
        names = ["token_ids", "logprobs"]
        fields = self.dp_client.get_samples(keys, self.partition, names)
        joined = [torch.cat(fields[name]).tolist() for name in names]
        return joined[0], joined[1]

    # -- decoding ------------------------------------------------------------------

    async def decode(self, call: Call) -> None:
        """Let a call into the batch, and wait for its last token."""
        call.finished = asyncio.get_running_loop().create_future()
        self._submit(call)
        self._wake.set()
        await call.finished

    def _submit(self, call: Call) -> None:
        self._waiting.append(call)

    def has_work(self) -> bool:
        """Whether there is anything to do in a step."""
        return bool(self.running or self._waiting)

    async def run(self) -> None:
        """Decode for as long as there are calls; ends only by being cancelled."""
        while True:
            if not self.has_work():
                self._wake.clear()
                await self._wake.wait()
            began = time.monotonic()
            self.step()
            self.decode_s += time.monotonic() - began
            await asyncio.sleep(0)

    def _admit(self, call: Call) -> None:
        """Give a call the slot that has most of its tokens, of an earlier turn."""
        known = [*call.prompt_ids, *call.token_ids]

        def shared(slot: int) -> int:
            pairs = enumerate(zip(self._cached[slot], known, strict=False))
            differs = (at for at, (cached, token) in pairs if cached != token)
            return next(differs, min(len(self._cached[slot]), len(known) - 1))

        call.slot = max(self._free, key=shared)
        call.fed = shared(call.slot)
        call.uniforms = self.uniforms(call)
        if not self.config.batch_invariant:
            self.decoder.prefill(known[:-1], call.slot)
            call.fed = len(known) - 1
        self._free.remove(call.slot)
        self.running[call.slot] = call

    def step(self) -> None:
        """Feed one token of every running call; sample where the last one was fed."""
        while self._free and self._waiting:
            self._admit(self._waiting.pop(0))
        token_ids = np.zeros(self.slots, dtype=np.int64)
        positions = np.zeros(self.slots, dtype=np.int64)
        uniforms = np.zeros(self.slots)
        allowed = None
        sampling = []
        for slot, call in self.running.items():
            prompt = len(call.prompt_ids)
            known = call.prompt_ids if call.fed < prompt else call.token_ids
            token_ids[slot] = known[call.fed - (prompt if call.fed >= prompt else 0)]
            positions[slot] = call.position
            call.fed += 1
            if call.fed < prompt + len(call.token_ids):
                continue
            sampling.append(call)
            uniforms[slot] = call.uniforms[len(call.token_ids)]
            if call.constraint:
                if allowed is None:
                    vocab_size = self.model.config.vocab_size
                    allowed = np.ones((self.slots, vocab_size), dtype=bool)
                allowed[slot] = call.constraint.allowed()
        width = max(self.running) + 1
        chosen, logprobs = self.decoder.step(
            token_ids, positions, uniforms, allowed, width
        )
        for call in sampling:
            self._append(call, chosen[call.slot], logprobs[call.slot])
            if call.finish_reason:
                self._release(call)

    def _release(self, call: Call) -> None:
        """Give a finished call's slot back."""
        del self.running[call.slot]
        self._cached[call.slot] = [*call.prompt_ids, *call.token_ids][: call.fed]
        self._free = sorted([*self._free, call.slot])

    def sampling_key(self, call: Call) -> int:
        """128 bits for a call's sampling, the same whenever and wherever it runs."""
        name = ",".join(map(str, (self.seed, *call.key)))
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:16])

    def uniforms(self, call: Call) -> np.ndarray:
        """What cuts the distribution at each position of a call, [max_tokens]."""
        noise = np.random.Philox(key=self.sampling_key(call))
        return np.random.Generator(noise).random(call.max_tokens)

    def _append(self, call: Call, token_id: int, logprob: float) -> None:
        """Add a token to a call, which it may finish."""
        call.token_ids.append(token_id)
        call.logprobs.append(logprob)
        self.decoded_tokens += 1
        if call.constraint:
            call.constraint.advance(token_id)
        total = len(call.prompt_ids) + len(call.token_ids)
        if token_id == self.end_id:
            call.finish_reason = "stop"
        elif len(call.token_ids) == call.max_tokens or total == self.max_length:
            call.finish_reason = "length"
        if call.finish_reason:
            call.finished.set_result(None)
