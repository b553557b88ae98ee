# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The advantage estimators, `grpo.adv_estimator.name`: from rewards to one value a row.

Every generated token of a row has the row's advantage.
"""

import torch

Rows = list[tuple[str, float, float]]  # group id, reward, tokens trained, of each row


def group_advantages(rewards: list[float]) -> list[float]:
    """Group-relative advantages (GRPO): (r - mean) / std, zeros if all are equal."""
    values = torch.tensor(rewards, dtype=torch.float64)
    centred = values - values.mean()
    deviation = centred.square().mean().sqrt()
    return (centred / (deviation + 1e-6)).tolist()


def grpo(rows: Rows) -> list[float]:
    """Each row's advantage over its siblings."""
    values: list[float] = [0.0] * len(rows)
    for members in _groups(rows):
        advantages = group_advantages([rows[index][1] for index in members])
        for index, advantage in zip(members, advantages, strict=True):
            values[index] = advantage
    return values


def reinforce_plus_plus(rows: Rows, minus_baseline: bool) -> list[float]:
    """REINFORCE++ (Hu et al. 2025, arXiv:2501.03262), without its KL term.

    The rewards, less their prompt's mean with `minus_baseline`, normalised over all
    tokens of the batch that are trained: with n_i tokens in row i, N = sum n_i,
    mean = sum n_i r_i / N, var = sum n_i (r_i - mean)^2 / N,
    A_i = (r_i - mean) / sqrt(max(var, 1e-8)).
    So a long row weighs more than a short one, and prompts, tool results and masked
    rows weigh nothing. Zeros if nothing is trained, or all rewards are equal.
    """
    rewards = torch.tensor([reward for _, reward, _ in rows], dtype=torch.float64)
    tokens = torch.tensor([count for _, _, count in rows], dtype=torch.float64)
    if minus_baseline:
        for members in _groups(rows):
            rewards[members] -= rewards[members].mean()
    total = tokens.sum().clamp(min=1)
    centred = rewards - (tokens * rewards).sum() / total
    variance = (tokens * centred.square()).sum() / total
    return (centred / variance.clamp(min=1e-8).sqrt()).tolist()


def _groups(rows: Rows) -> list[list[int]]:
    """The positions of each group's rows."""
    groups: dict[str, list[int]] = {}
    for index, (group_id, _, _) in enumerate(rows):
        groups.setdefault(group_id, []).append(index)
    return list(groups.values())
