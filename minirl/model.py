# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The policy: a small Qwen3 model, with two ways through it.

`PolicyModel.forward` takes whole sequences, for training and for log-probabilities.
`PolicyModel.decode_step` takes one token per slot of a fixed batch, for generation.
The step is batch-invariant: its shapes never change and a slot attends over the whole
length of the cache under a mask, so a slot's logits are the same bits whatever the
other slots hold, whichever slot it is, and however its prefix got into the cache.

The modules and their parameters have the names of Hugging Face's `Qwen3ForCausalLM`,
and a policy's folder is one that its libraries load.
"""

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
NAMES_PREFIX = "model."  # of the weights in the file, before their names here

# What of a Qwen3 configuration is the same for every policy.
FIXED_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


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


@dataclass(frozen=True)
class KVCache:
    """Keys and values of every slot, each [layers, slots, heads, length, head_dim].

    `slots` [slots] and `columns` [length] are the indices 0, 1, ...; kept here so that
    a step creates no tensor from host data, which a CUDA graph could not capture.
    """

    keys: Tensor
    values: Tensor
    slots: Tensor
    columns: Tensor


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


class PolicyModel(nn.Module):
    """The policy; float32 logits whatever the dtype of its parameters."""

    rotations: Tensor

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.layers = cast(list[Layer], layers)  # a ModuleList can't name its items
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.register_buffer("rotations", _rotations(config), persistent=False)

    def forward(self, token_ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits of the next token at every position of whole sequences.

        Attention is causal, so padding on the right changes nothing before it.

        Args:
            token_ids: int64 [batch, time].
            positions: int64 [batch, time], each below `max_position_embeddings`;
                0, 1, ... if None.

        Returns:
            float32 [batch, time, vocab_size].
        """
        x = self.embed_tokens(token_ids)
        rotation = self.rotations[: token_ids.shape[1]]
        if positions is not None:
            rotation = self.rotations[positions]
        for layer in self.layers:
            query, key, value = (
                tensor.transpose(1, 2) for tensor in layer.attention_inputs(x, rotation)
            )
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = layer.finish(x, attended.transpose(1, 2))
        return self._logits(x)

    def decode_step(
        self, token_ids: Tensor, positions: Tensor, cache: KVCache
    ) -> Tensor:
        """Logits of the next token of every slot, after one more token each.

        Writes keys and values at `positions` in place; a slot attends to its own
        positions up to that one. To reuse a slot, start again at position 0: what is
        left in the cache beyond a slot's position has no effect.

        Args:
            token_ids: int64 [slots].
            positions: int64 [slots], each below the cache's length.
            cache: from `new_cache`.

        Returns:
            float32 [slots, vocab_size].
        """
        x = self.embed_tokens(token_ids)
        rotation = self.rotations[positions]
        hidden_columns = (cache.columns > positions[:, None])[:, None, None, :]
        scale = self.config.head_dim**-0.5
        for layer, keys, values in zip(
            self.layers, cache.keys, cache.values, strict=True
        ):
            query, key, value = layer.attention_inputs(x, rotation)
            keys[cache.slots, :, positions] = key
            # A hidden value is multiplied by zero, which NaN or infinity would survive.
            values[cache.slots, :, positions] = value.nan_to_num()
            scores = (query * scale)[:, :, None] @ keys.transpose(-1, -2)
            weights = scores.masked_fill(hidden_columns, -torch.inf).softmax(-1)
            x = layer.finish(x, (weights @ values).squeeze(2))
        return self._logits(x)

    def prefill(self, token_ids: Tensor, slot: int, cache: KVCache) -> None:
        """Feed a slot its first tokens at once; faster, but not batch-invariant.

        Args:
            token_ids: int64 [time], for positions 0, 1, ...
            slot: whose keys and values to write.
            cache: from `new_cache`.
        """
        x = self.embed_tokens(token_ids)
        time = len(token_ids)
        rotation = self.rotations[:time]
        for layer, keys, values in zip(
            self.layers, cache.keys, cache.values, strict=True
        ):
            query, key, value = (
                tensor.transpose(0, 1) for tensor in layer.attention_inputs(x, rotation)
            )
            keys[slot, :, :time] = key
            values[slot, :, :time] = value
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = layer.finish(x, attended.transpose(0, 1))

    def new_cache(self, num_slots: int, max_length: int) -> KVCache:
        """An empty cache on the model's device, in its dtype.

        Raises:
            ValueError: `max_length` is over the model's `max_position_embeddings`.
        """
        config = self.config
        if max_length > config.max_position_embeddings:
            raise ValueError(
                f"max_length {max_length} is over max_position_embeddings"
                f" {config.max_position_embeddings}"
            )
        heads = (config.num_attention_heads, max_length, config.head_dim)
        shape = (config.num_hidden_layers, num_slots, *heads)
        like = self.embed_tokens.weight
        return KVCache(
            keys=like.new_zeros(shape),
            values=like.new_zeros(shape),
            slots=torch.arange(num_slots, device=like.device),
            columns=torch.arange(max_length, device=like.device),
        )

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embed_tokens.weight).float()


def _rotations(config: ModelConfig) -> Tensor:
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


def save_policy(model: PolicyModel, folder: str | Path) -> None:
    """Write `config.json` and `model.safetensors` (float32) into the existing folder.

    Both are written under a temporary name and then renamed.
    """
    folder = Path(folder)
    tensors = {
        NAMES_PREFIX + name: tensor.detach().to("cpu", torch.float32).contiguous()
        for name, tensor in model.state_dict().items()
    }
    sizes = asdict(model.config)
    sizes["num_key_value_heads"] = model.config.num_attention_heads
    config = folder / (CONFIG_FILE + ".tmp")
    config.write_text(json.dumps(FIXED_CONFIG | sizes, indent=2) + "\n")
    weights = folder / (WEIGHTS_FILE + ".tmp")
    save_file(tensors, weights, metadata={"format": "pt"})
    os.replace(config, folder / CONFIG_FILE)
    os.replace(weights, folder / WEIGHTS_FILE)


def load_policy(
    folder: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PolicyModel:
    """The policy that `save_policy` wrote.

    Raises:
        FileNotFoundError: the folder lacks one of the two files.
    """
    folder = Path(folder)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder / name} is missing: a policy is a folder with {CONFIG_FILE} "
                f"and {WEIGHTS_FILE}, which minirl.pretraining writes"
            )
    document = json.loads((folder / CONFIG_FILE).read_text())
    config = ModelConfig(
        **{size.name: document[size.name] for size in fields(ModelConfig)}
    )
    weights = load_file(folder / WEIGHTS_FILE)
    model = PolicyModel(config)
    model.load_state_dict(
        {name.removeprefix(NAMES_PREFIX): tensor for name, tensor in weights.items()}
    )
    return model.to(device, dtype)
