# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Trains the policy on synthetic Workplace episodes, from nothing, in minutes.

    python -m minirl.pretrain [--out minirl/workplace-policy] [--max-items 120]

By default that takes 8 minutes on one core. The weights in the repository are for lists
to 450: --max-items 450 --steps 5000 --batch-tokens 16384, 4 minutes on a GPU. (Muon
needs torch 2.9 or newer.)

The policy learns to call the tool that the user asks for with the user's arguments
and to write a list of integers that ends where it was told to. In a quarter of the
episodes the call has another duration than asked for, so that sampled calls of one
prompt earn different rewards while greedy ones stay right.

Counting is learnt soon; stopping is hard. For it the training has an auxiliary head
that reads the digits of the last and of the current integer, heavy stop tokens, and
mostly short lists "from A to N", in which stops are frequent.

At the end comes the gate: greedy decoding must be exact for every prompt of the
workload and for nearly all unseen ones, or nothing is written and the exit status
is 1.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minirl.episodes import (
    COUNTER_ITEMS,
    TRAINED_LENGTH,
    Episode,
    Event,
    collate,
    counter_episode,
    random_episode,
    random_event,
    vocabulary,
    workplace_episode,
)
from minirl.model import ModelConfig, PolicyModel, save_policy
from minirl.tokenizer import Tokenizer

SHIPPED_POLICY = Path(__file__).parent / "workplace-policy"
DIGIT_LOSS_WEIGHT = 0.3
DIGIT_LAYER = 2
POOL = 256  # episodes drawn together and then batched by length
GATE_SLOTS = 32
UNSEEN = 200
UNSEEN_EXACT = 0.99


def training_batches(
    tokenizer: Tokenizer,
    rng: random.Random,
    max_items: int,
    steps: int,
    batch_tokens: int,
) -> Iterator[list[Episode]]:
    """`steps` batches of about `batch_tokens` tokens, padding included.

    Lists grow from 20 integers to `max_items` over the first 40 % of the steps.
    """
    batches: list[list[Episode]] = []
    for step in range(steps):
        if not batches:
            grown = min(1.0, step / (0.4 * steps))
            items = min(max_items, int(20 + grown * (max_items - 20)))
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
        device = model.embedding.weight.device
        self.place_values = torch.tensor([100, 10, 1], device=device)
        self.digit_head = nn.Linear(model.config.width, 2 * 3 * 10, device=device)
        # The norm that follows layer DIGIT_LAYER shows the head that layer's output.
        model.blocks[DIGIT_LAYER].attention_norm.register_forward_hook(self._keep)
        matrices: list[nn.Parameter] = []
        others = list(self.digit_head.parameters())
        for name, parameter in model.named_parameters():
            layered = name.startswith("blocks.") and parameter.ndim == 2
            (matrices if layered else others).append(parameter)
        self.parameters = matrices + others
        self.optimizers = (
            torch.optim.Muon(matrices, lr=muon_rate, weight_decay=0.0),
            torch.optim.AdamW(
                others, lr=adam_rate, betas=(0.9, 0.95), weight_decay=0.0
            ),
        )
        self.full_rates = (muon_rate, adam_rate)

    def _keep(self, module: nn.Module, inputs: tuple, output: Tensor) -> None:
        self.hidden = output

    def step(self, batch: list[Episode], rate: float) -> float:
        """One update at `rate` (0..1) of the full learning rates; returns the loss."""
        tokens, weights, integers = collate(batch, self.place_values.device)
        weights, integers = weights[:, 1:], integers[:, 1:]
        logits = self.model(tokens[:, :-1])
        token_loss = F.cross_entropy(
            logits.transpose(1, 2), tokens[:, 1:], reduction="none"
        )
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
        return F.cross_entropy(logits.flatten(0, 2), digits.flatten())


@torch.inference_mode()
def decoded_log_probs(
    model: PolicyModel, episodes: list[Episode]
) -> list[tuple[Tensor, Tensor]]:
    """How surely greedy decoding writes each episode, by `decode_step`.

    Every token is fed, so an episode is what greedy decoding writes exactly when each
    generated token is the most likely one: when its margin is above 0.

    Returns:
        For each episode, float32 over its generated tokens: their log-probabilities,
        and their margins over the most likely other token.
    """
    results = {}
    device = model.embedding.weight.device
    order = sorted(range(len(episodes)), key=lambda i: len(episodes[i].tokens))
    for start in range(0, len(order), GATE_SLOTS):
        rows = order[start : start + GATE_SLOTS]
        tokens, weights, _ = collate([episodes[i] for i in rows], device)
        cache = model.new_cache(len(rows), tokens.shape[1])
        steps = []
        for position in range(tokens.shape[1] - 1):
            positions = torch.full_like(tokens[:, 0], position)
            logits = model.decode_step(tokens[:, position], positions, cache)
            log_probs = logits.log_softmax(-1)
            target = tokens[:, position + 1, None]
            chosen = log_probs.gather(1, target)
            other = log_probs.scatter(1, target, -torch.inf).amax(1, keepdim=True)
            steps.append(torch.cat([chosen, chosen - other], dim=1))
        table = torch.stack(steps, dim=1).cpu()
        generated = weights[:, 1:].cpu() > 0
        for row, index in enumerate(rows):
            chosen, margins = table[row][generated[row]].unbind(-1)
            results[index] = (chosen, margins)
    return [results[index] for index in range(len(episodes))]


def gate(
    model: PolicyModel, tokenizer: Tokenizer, max_items: int, rng: random.Random
) -> list[str]:
    """What is wrong with a trained policy, a line each; prints the figures."""
    problems = []
    workload = {
        f"workplace N={n}": workplace_episode(tokenizer, Event(), 1, n, event_id=3)
        for n in range(1, max_items + 1)
    } | {
        f"counter K={k}": counter_episode(tokenizer, 1, 0, k - 1)
        for k in range(1, COUNTER_ITEMS + 1)
    }
    decoded = decoded_log_probs(model, list(workload.values()))
    smallest_margin, rightly_sampled = {}, {}
    for (name, episode), (log_probs, margins) in zip(
        workload.items(), decoded, strict=True
    ):
        smallest_margin[name] = margins.min().item()
        if smallest_margin[name] <= 0:
            wrong = (margins <= 0).nonzero()[0].item()
            problems.append(f"{name} is not exact at generated token {wrong}")
        generated = zip(episode.weights, episode.integers, strict=True)
        listed = torch.tensor([integer >= 0 for weight, integer in generated if weight])
        rightly_sampled[name] = log_probs[listed].sum().exp().item()
    for figure, values in (
        ("top-1/top-2 margin", smallest_margin),
        ("probability of sampling a list right", rightly_sampled),
    ):
        name = min(values, key=values.__getitem__)
        print(f"smallest {figure} in the workload: {values[name]:.4f} ({name})")

    unseen = []
    for _ in range(UNSEEN):
        event, last = random_event(rng), rng.randint(1, max_items)
        unseen.append(
            workplace_episode(tokenizer, event, 1, last, rng.randrange(10**8))
        )
    exact = sum(
        (margins > 0).all().item() for _, margins in decoded_log_probs(model, unseen)
    )
    print(f"unseen prompts: {exact} of {UNSEEN} exact")
    if exact < UNSEEN_EXACT * UNSEEN:
        problems.append(f"only {exact} of {UNSEEN} unseen prompts are exact")
    return problems


def train(
    tokenizer: Tokenizer, options: argparse.Namespace, device: torch.device
) -> PolicyModel:
    """A model trained for lists up to TRAINED_LENGTH times `options.max_items`."""
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    items = int(options.max_items * TRAINED_LENGTH)
    longest = workplace_episode(tokenizer, Event(), 1, items, event_id=0)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        max_position=len(longest.tokens) + 64,  # room for longer names and e-mails
        layers=options.layers,
        width=options.width,
        heads=options.heads,
    )
    model = PolicyModel(config).to(device)
    trainer = Trainer(model, options.muon_rate, options.adam_rate)
    batches = training_batches(
        tokenizer, rng, items, options.steps, options.batch_tokens
    )
    began = time.monotonic()
    for step, batch in enumerate(batches):
        rate = min(1.0, 2 * (1 - step / options.steps))
        loss = trainer.step(batch, rate)
        if step % 100 == 0:
            seconds = time.monotonic() - began
            print(f"step {step} loss {loss:.4f} {seconds:.0f} s", flush=True)
    return model


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=SHIPPED_POLICY)
    parser.add_argument("--max-items", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-tokens", type=int, default=3072)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse_options(arguments)
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = Tokenizer(vocabulary())
    model = train(tokenizer, options, device)
    problems = gate(
        model, tokenizer, options.max_items, random.Random(f"unseen {options.seed}")
    )
    for problem in problems:
        print(f"gate: {problem}", file=sys.stderr)
    if problems:
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(options.out)
    save_policy(model, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
