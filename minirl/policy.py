# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer: log-probs, the GRPO loss and one optimizer step per train step.

The controller calls `begin_train_step` once, `train_microbatches_from_meta` once or
more and `finish_train_step` once. Rows come from the data plane, in the order of the
meta's sample ids, so equal rows give equal weights, bit for bit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from minirl.config import MasterConfig
from minirl.data_plane import DataPlaneClient
from minirl.model import load_policy, save_policy

LossFn = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class BatchMeta:
    """Names rows in the data plane; travels in place of them."""

    partition_id: str
    sample_ids: list[str]


def clipped_policy_gradient(ratio_clip: float) -> LossFn:
    """The PPO surrogate, summed over generated tokens (Schulman et al. 2017, eq. 7)."""

    def loss_fn(
        logprobs: Tensor, prev_logprobs: Tensor, advantages: Tensor, mask: Tensor
    ) -> Tensor:
        ratio = (logprobs - prev_logprobs).exp()
        clipped = ratio.clamp(1 - ratio_clip, 1 + ratio_clip)
        surrogate = torch.minimum(ratio * advantages, clipped * advantages)
        return -(surrogate * mask).sum()

    return loss_fn


class Policy:
    """The policy under training. Light until `load`, so that it travels to an actor."""

    def __init__(self, config: MasterConfig, dp_client: DataPlaneClient):
        self.config = config.policy
        self.dp_client = dp_client

    def load(self, device: torch.device, checkpoint: Path | None) -> None:
        """Load the start weights, or those and the optimizer of a checkpoint."""
        folder = Path(checkpoint or self.config.model_name)
        self.model = load_policy(folder, device)
        settings = self.config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
        )
        if checkpoint:
            state = torch.load(checkpoint / "optimizer.pt", weights_only=True)
            self.optimizer.load_state_dict(state)

    def weights(self) -> dict[str, Tensor]:
        """The current weights, float32, on the trainer's device."""
        return self.model.state_dict()

    def _microbatches(
        self, meta: BatchMeta, names: list[str]
    ) -> Iterator[dict[str, Tensor]]:
        """The meta's rows in micro-batches, padded with zeros to [rows, longest]."""
        device = next(self.model.parameters()).device
        fields = self.dp_client.get_samples(meta.sample_ids, meta.partition_id, names)
        size = self.config.train_micro_batch_size
        for start in range(0, len(meta.sample_ids), size):
            yield {
                name: torch.nn.utils.rnn.pad_sequence(
                    columns[start : start + size], batch_first=True
                ).to(device)
                for name, columns in fields.items()
            }

    def _logprobs(self, token_ids: Tensor) -> Tensor:
        """Log-prob of each token given those before it; 0 for the first. [rows, L]"""
        logits = self.model(token_ids[:, :-1]) / self.config.generation.temperature
        logprobs = logits.log_softmax(dim=-1)
        chosen = logprobs.gather(-1, token_ids[:, 1:, None]).squeeze(-1)
        return torch.nn.functional.pad(chosen, (1, 0))

    @torch.no_grad()
    def get_logprobs_from_meta(self, meta: BatchMeta) -> list[Tensor]:
        """Log-probs under the weights before the step, [L] for each of the rows."""
        results: list[Tensor] = []
        for batch in self._microbatches(meta, ["token_ids", "token_loss_mask"]):
            results += self._logprobs(batch["token_ids"]).cpu()
        rows = self.dp_client.get_samples(
            meta.sample_ids, meta.partition_id, ["token_ids"]
        )["token_ids"]
        return [row[: len(ids)] for row, ids in zip(results, rows, strict=True)]

    def begin_train_step(self, loss_fn: LossFn, global_valid_tokens: float) -> None:
        """Open an optimizer step whose loss is a mean over `global_valid_tokens`."""
        self.loss_fn = loss_fn
        self.global_valid_tokens = global_valid_tokens
        self.loss = 0.0
        self.optimizer.zero_grad(set_to_none=True)

    def train_microbatches_from_meta(self, meta: BatchMeta) -> None:
        """Accumulate the gradients of the meta's rows."""
        names = ["token_ids", "token_loss_mask", "prev_logprobs", "advantages"]
        torch.use_deterministic_algorithms(True)  # some backward kernels need telling
        for batch in self._microbatches(meta, names):
            logprobs = self._logprobs(batch["token_ids"])
            loss = self.loss_fn(
                logprobs,
                batch["prev_logprobs"],
                batch["advantages"],
                batch["token_loss_mask"],
            )
            loss = loss / self.global_valid_tokens
            loss.backward()
            self.loss += loss.item()
        torch.use_deterministic_algorithms(False)  # no cumsum of a GPU knows how to

    def finish_train_step(self) -> dict[str, float]:
        """Apply the accumulated gradients; returns the step's metrics."""
        parameters = self.model.parameters()
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm=1.0)
        self.optimizer.step()
        return {"loss": self.loss, "grad_norm": norm.item()}

    def save_checkpoint(self, folder: Path) -> None:
        """Weights and optimizer state into an existing folder."""
        save_policy(self.model, folder)
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")
