# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The training: batches of episodes, and the updates of a new model with them.

Counting is learnt soon; stopping is hard. For it the training has an auxiliary head
that reads the digits of the last and of the current integer, heavy stop tokens, and
lists with gaps, in which stops and the integers that look like them are frequent.
"""

import random
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minirl.model import ModelConfig, PolicyModel
from minirl.pretraining.episodes import (
    TRAINED_LENGTH,
    Episode,
    collate,
    random_episode,
    vocabulary,
    workplace_episode,
)
from minirl.pretraining.muon import Muon
from minirl.pretraining.workload import EVENT
from minirl.tokenizer import Tokenizer

DIGIT_LOSS_WEIGHT = 0.3
DIGIT_LAYER = 2
POOL = 256  # episodes drawn together and then batched by length
FIRST_ITEMS = 20  # integers in the longest lists at first
GROWTH = 0.2  # of the steps, until lists have their full length
DECAY = 0.5  # of the steps, in which the learning rates fall
MARGIN = 128  # tokens of a chat beyond the longest list that is trained


def new_model(tokenizer: Tokenizer, max_items: int, layers: int) -> PolicyModel:
    """An untrained model with room for lists to TRAINED_LENGTH times `max_items`."""
    longest = workplace_episode(tokenizer, EVENT, int(max_items * TRAINED_LENGTH), 0)
    model = PolicyModel(
        ModelConfig(
            vocab_size=tokenizer.vocab_size,
            max_position_embeddings=len(longest.tokens) + MARGIN,
            num_hidden_layers=layers,
        )
    )
    embedding = model.embed_tokens.weight
    nn.init.normal_(embedding, std=model.config.hidden_size**-0.5)
    # A word in the prompt and in the call may differ by its leading space: related.
    words = len(vocabulary())
    with torch.no_grad():
        plain, spaced = embedding[-2 * words : -words], embedding[-words:]
        spaced.add_(plain).div_(2**0.5)
    for layer in model.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def training_batches(
    tokenizer: Tokenizer,
    rng: random.Random,
    max_items: int,
    steps: int,
    batch_tokens: int,
) -> Iterator[list[Episode]]:
    """`steps` batches of about `batch_tokens` tokens, padding included.

    The longest lists grow to TRAINED_LENGTH times `max_items`.
    """
    longest = int(max_items * TRAINED_LENGTH)
    batches: list[list[Episode]] = []
    for step in range(steps):
        if not batches:
            grown = min(1.0, step / (GROWTH * steps))
            items = min(longest, int(FIRST_ITEMS + grown * (longest - FIRST_ITEMS)))
            pool = [random_episode(tokenizer, rng, items) for _ in range(POOL)]
            pool.sort(key=lambda episode: len(episode.tokens))
            while pool:
                rows = max(1, batch_tokens // len(pool[-1].tokens))
                batches.append(pool[-rows:])
                del pool[-rows:]
            rng.shuffle(batches)
        yield batches.pop()


class Trainer:
    """The optimizers and the auxiliary digit head, which exist in training only.

    Muon updates the layers' matrices, AdamW the embedding, the norms and the head.
    """

    def __init__(self, model: PolicyModel, muon_rate: float, adam_rate: float):
        self.model = model
        device = model.embed_tokens.weight.device
        self.place_values = torch.tensor([100, 10, 1], device=device)
        self.digit_head = nn.Linear(model.config.hidden_size, 2 * 3 * 10, device=device)
        # The norm that follows layer DIGIT_LAYER shows the head that layer's output.
        model.layers[DIGIT_LAYER].input_layernorm.register_forward_hook(self._keep)
        matrices: list[nn.Parameter] = []
        others = list(self.digit_head.parameters())
        for name, parameter in model.named_parameters():
            layered = name.startswith("layers.") and parameter.ndim == 2
            (matrices if layered else others).append(parameter)
        self.parameters = matrices + others
        self.optimizers = (
            Muon(matrices, muon_rate),
            torch.optim.AdamW(
                others, lr=adam_rate, betas=(0.9, 0.95), weight_decay=0.0
            ),
        )
        self.full_rates = (muon_rate, adam_rate)

    def _keep(self, module: nn.Module, inputs: tuple, output: Tensor) -> None:
        self.hidden = output

    def step(self, batch: list[Episode], rate: float) -> float:
        """One update at `rate` (0..1) of the full learning rates; returns the loss."""
        columns = collate(batch, self.place_values.device)
        tokens, weights, integers, positions = columns
        weights, integers = weights[:, 1:], integers[:, 1:]
        logits = self.model(tokens[:, :-1], positions[:, :-1])
        generated = weights > 0
        token_loss = F.cross_entropy(
            logits[generated], tokens[:, 1:][generated], reduction="none"
        )
        weights = weights[generated]
        loss = (token_loss * weights).sum() / weights.sum()
        loss = loss + DIGIT_LOSS_WEIGHT * self._digit_loss(integers)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer, full_rate in zip(self.optimizers, self.full_rates, strict=True):
            optimizer.param_groups[0]["lr"] = full_rate * rate
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    def _digit_loss(self, integers: Tensor) -> Tensor:
        """Cross-entropy of the digits of a list's last and of its current integer."""
        last = integers.amax(dim=1, keepdim=True).expand_as(integers)
        listed = integers >= 0
        numbers = torch.stack([last[listed], integers[listed]], dim=-1)
        digits = numbers[..., None] // self.place_values % 10
        logits = self.digit_head(self.hidden[listed]).unflatten(-1, (2, 3, 10))
        loss = F.cross_entropy(logits.flatten(0, 2), digits.flatten(), reduction="sum")
        return loss / max(1, digits.numel())  # a batch may have no list


def train(
    model: PolicyModel, batches: Iterator[list[Episode]], trainer: Trainer, steps: int
) -> None:
    """Update the model with `steps` batches; the rates fall to 0 in the end."""
    began = time.monotonic()
    for step, batch in enumerate(batches):
        loss = trainer.step(batch, rate=min(1.0, (1 - step / steps) / DECAY))
        if step % 100 == 0:
            seconds = time.monotonic() - began
            print(f"step {step} loss {loss:.4f} {seconds:.0f} s", flush=True)
