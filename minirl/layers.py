# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of a Qwen3 model: its sizes, its layers and their rotary positions.

The attention itself is not here: `minirl.model` has two ways of computing it.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model, by their names in a Qwen3 `config.json`.

    A token's position is below `max_position_embeddings`. With so large a
    `rope_theta`, half of the rotary bands hardly turn within a sequence, so that a
    head can also look for a token wherever it is.
    """

    vocab_size: int
    max_position_embeddings: int
    num_hidden_layers: int = 4
    hidden_size: int = 128
    intermediate_size: int = 384
    num_attention_heads: int = 2
    head_dim: int = 64
    rope_theta: float = 1e8
    rms_norm_eps: float = 1e-6


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, computed in float32 as Qwen3's is."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = F.rms_norm(x.float(), self.weight.shape, eps=self.eps)
        return self.weight * normed.to(x.dtype)


class Attention(nn.Module):
    """What surrounds the attention itself: the projections, norms and rotation."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width = config.num_attention_heads * config.head_dim
        self.heads = (config.num_attention_heads, config.head_dim)
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def inputs(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [..., heads, head_dim] of x [..., hidden_size]."""
        query = self.q_norm(self.q_proj(x).unflatten(-1, self.heads))
        key = self.k_norm(self.k_proj(x).unflatten(-1, self.heads))
        value = self.v_proj(x).unflatten(-1, self.heads)
        return _rotate(query, rotation), _rotate(key, rotation), value

    def output(self, attended: Tensor) -> Tensor:
        """[..., hidden_size] of the attended values [..., heads, head_dim]."""
        return self.o_proj(attended.flatten(-2))


class MLP(nn.Module):
    """The gated feed-forward network (SwiGLU)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, hidden = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One pre-norm layer, without the attention between its two halves."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(width, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = MLP(config)

    def attention_inputs(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of the layer's input."""
        return self.self_attn.inputs(self.input_layernorm(x), rotation)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output [..., hidden_size] from its input and attended values."""
        x = x + self.self_attn.output(attended)
        return x + self.mlp(self.post_attention_layernorm(x))


def rotations(config: ModelConfig) -> Tensor:
    """Cosine and sine of every position's angles, [positions, 2, 1, head_dim / 2]."""
    exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    positions = torch.arange(config.max_position_embeddings).float()
    angles = torch.outer(positions, frequencies)
    return torch.stack([angles.cos(), angles.sin()], dim=1).unsqueeze(2)


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn x [..., heads, head_dim] by rotation [..., 2, 1, head_dim / 2]."""
    cosine, sine = rotation.unbind(-3)
    first, second = x.chunk(2, dim=-1)
    return torch.cat(
        [first * cosine - second * sine, first * sine + second * cosine], dim=-1
    )
