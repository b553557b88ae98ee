# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Muon, in float32: torch's own computes in bfloat16, which a CPU may have to emulate.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):
    """Momentum whose updates are made nearly orthogonal, for matrices alone."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                by_shape[parameter.shape].append(parameter)
            for (rows, columns), parameters in by_shape.items():
                updates = orthogonal(torch.stack([*map(self._momentum, parameters)]))
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.sub_(update, alpha=rate)

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        """The gradient, averaged over the steps and looked ahead (Nesterov)."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["average"] = torch.zeros_like(parameter)
        state["average"].lerp_(parameter.grad, 1 - MOMENTUM)
        return parameter.grad.lerp(state["average"], MOMENTUM)


def orthogonal(matrices: Tensor) -> Tensor:
    """The matrices [..., rows, columns] with singular values near 1.

    By Newton-Schulz iteration with coefficients that converge fast, not exactly.
    """
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else matrices.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT
