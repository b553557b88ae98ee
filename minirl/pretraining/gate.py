# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The gate: what a policy must write exactly before it is shipped."""

import random

import torch
from torch import Tensor

from minirl.model import PolicyModel
from minirl.pretraining.episodes import (
    Episode,
    collate,
    counter_episode,
    random_event,
    workplace_episode,
)
from minirl.pretraining.workload import EVENT, PROOF_ITEMS
from minirl.tokenizer import Tokenizer
from minirl.workplace import SEED_EVENTS

BATCH_TOKENS = 8192
UNSEEN = 200
UNSEEN_EXACT = 0.99


@torch.inference_mode()
def generated_log_probs(
    model: PolicyModel, episodes: list[Episode]
) -> list[tuple[Tensor, Tensor]]:
    """How surely the policy writes each episode.

    An episode is what greedy decoding writes exactly when each generated token is the
    most likely one after those before it: when its margin is above 0.

    Returns:
        For each episode, float32 over its generated tokens: their log-probabilities,
        and their margins over the most likely other token.
    """
    results = {}
    device = model.embed_tokens.weight.device
    order = sorted(range(len(episodes)), key=lambda i: len(episodes[i].tokens))
    while order:
        rows = max(1, BATCH_TOKENS // len(episodes[order[-1]].tokens))
        batch, order = order[-rows:], order[:-rows]
        tokens, weights, *_ = collate([episodes[index] for index in batch], device)
        log_probs = model(tokens[:, :-1]).log_softmax(-1)
        targets = tokens[:, 1:, None]
        chosen = log_probs.gather(-1, targets)
        other = log_probs.scatter(-1, targets, -torch.inf).amax(-1, keepdim=True)
        table = torch.cat([chosen, chosen - other], dim=-1)
        for row, index in enumerate(batch):
            chosen, margins = table[row][weights[row, 1:] > 0].cpu().unbind(-1)
            results[index] = (chosen, margins)
    return [results[index] for index in range(len(episodes))]


def workload_episodes(tokenizer: Tokenizer, max_items: int) -> dict[str, Episode]:
    """Every episode that the workload can ask for, by a name."""
    event_id = len(SEED_EVENTS)
    return {
        f"workplace N={n}": workplace_episode(tokenizer, EVENT, n, event_id)
        for n in range(1, max_items + 1)
    } | {
        f"counter K={k}": counter_episode(tokenizer, 1, k - 1)
        for k in range(1, PROOF_ITEMS + 1)
    }


def gate(
    model: PolicyModel, tokenizer: Tokenizer, max_items: int, rng: random.Random
) -> list[str]:
    """What is wrong with a trained policy, a line each; prints the figures."""
    problems = []
    workload = workload_episodes(tokenizer, max_items)
    decoded = generated_log_probs(model, list(workload.values()))
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
        unseen.append(workplace_episode(tokenizer, event, last, rng.randrange(10**8)))
    exact = sum(
        (margins > 0).all().item() for _, margins in generated_log_probs(model, unseen)
    )
    print(f"unseen prompts: {exact} of {UNSEEN} exact")
    if exact < UNSEEN_EXACT * UNSEEN:
        problems.append(f"only {exact} of {UNSEEN} unseen prompts are exact")
    return problems
