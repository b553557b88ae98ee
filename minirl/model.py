# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The policy: a small decoder-only transformer with two ways through it.

`PolicyModel.forward` takes whole sequences, for training and for log-probabilities.
`PolicyModel.decode_step` takes one token per slot of a fixed batch, for generation.
The step is batch-invariant: its shapes never change and a slot attends over the whole
length of the cache under a mask, so a slot's logits are the same bits whatever the
other slots hold, whichever slot it is, and however its prefix got into the cache.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
ROTARY_BASE = 1024.0


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model; a token's position is below `max_position`."""

    vocab_size: int
    max_position: int
    layers: int = 4
    width: int = 96
    heads: int = 3

    @property
    def head_width(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True)
class KVCache:
    """Keys and values of every slot, each [layers, slots, heads, length, head_width].

    `slots` [slots] and `columns` [length] are the indices 0, 1, ...; kept here so that
    a step creates no tensor from host data, which a CUDA graph could not capture.
    """

    keys: Tensor
    values: Tensor
    slots: Tensor
    columns: Tensor


class Block(nn.Module):
    """One pre-norm layer, without the attention between its two halves."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width = config.width
        self.heads = (config.heads, config.head_width)
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.query_norm = nn.LayerNorm(config.head_width, bias=False)
        self.key_norm = nn.LayerNorm(config.head_width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.LayerNorm(width, bias=False)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.contract = nn.Linear(4 * width, width, bias=False)
        nn.init.zeros_(self.attention_out.weight)
        nn.init.zeros_(self.contract.weight)

    def attention_inputs(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values [..., heads, head_width] of x [..., width]."""
        x = self.attention_norm(x)
        query = self.query_norm(self.query(x).unflatten(-1, self.heads))
        key = self.key_norm(self.key(x).unflatten(-1, self.heads))
        value = self.value(x).unflatten(-1, self.heads)
        return _rotate(query, rotation), _rotate(key, rotation), value

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output [..., width] from its input and the attention's output.

        Args:
            x: [..., width].
            attended: [..., heads, head_width].
        """
        x = x + self.attention_out(attended.flatten(-2))
        hidden = F.gelu(self.expand(self.feed_forward_norm(x)))
        return x + self.contract(hidden)


class PolicyModel(nn.Module):
    """The policy; float32 logits whatever the dtype of its parameters."""

    rotations: Tensor

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.blocks = cast(list[Block], blocks)  # a ModuleList can't name its items
        self.norm = nn.LayerNorm(config.width, bias=False)
        self.register_buffer("rotations", _rotations(config), persistent=False)
        nn.init.normal_(self.embedding.weight, std=config.width**-0.5)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Logits of the next token at every position of whole sequences.

        Attention is causal, so padding on the right changes nothing before it.

        Args:
            token_ids: int64 [batch, time], time <= max_position.

        Returns:
            float32 [batch, time, vocab_size].
        """
        x = self.embedding(token_ids)
        rotation = self.rotations[: token_ids.shape[1]]
        for block in self.blocks:
            query, key, value = (
                tensor.transpose(1, 2) for tensor in block.attention_inputs(x, rotation)
            )
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = block.finish(x, attended.transpose(1, 2))
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
        x = self.embedding(token_ids)
        rotation = self.rotations[positions]
        hidden_columns = (cache.columns > positions[:, None])[:, None, None, :]
        scale = self.config.head_width**-0.5
        for block, keys, values in zip(
            self.blocks, cache.keys, cache.values, strict=True
        ):
            query, key, value = block.attention_inputs(x, rotation)
            keys[cache.slots, :, positions] = key
            # A hidden value is multiplied by zero, which NaN or infinity would survive.
            values[cache.slots, :, positions] = value.nan_to_num()
            scores = (query * scale)[:, :, None] @ keys.transpose(-1, -2)
            weights = scores.masked_fill(hidden_columns, -torch.inf).softmax(-1)
            x = block.finish(x, (weights @ values).squeeze(2))
        return self._logits(x)

    def prefill(self, token_ids: Tensor, slot: int, cache: KVCache) -> None:
        """Feed a slot its first tokens at once; faster, but not batch-invariant.

        Args:
            token_ids: int64 [time], for positions 0, 1, ...
            slot: whose keys and values to write.
            cache: from `new_cache`.
        """
        x = self.embedding(token_ids)
        time = len(token_ids)
        rotation = self.rotations[:time]
        for block, keys, values in zip(
            self.blocks, cache.keys, cache.values, strict=True
        ):
            query, key, value = (
                tensor.transpose(0, 1) for tensor in block.attention_inputs(x, rotation)
            )
            keys[slot, :, :time] = key
            values[slot, :, :time] = value
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = block.finish(x, attended.transpose(0, 1))

    def new_cache(self, num_slots: int, max_length: int) -> KVCache:
        """An empty cache on the model's device, in its dtype.

        Raises:
            ValueError: `max_length` is over the model's `max_position`.
        """
        config = self.config
        if max_length > config.max_position:
            raise ValueError(
                f"max_length {max_length} is over max_position {config.max_position}"
            )
        shape = (config.layers, num_slots, config.heads, max_length, config.head_width)
        like = self.embedding.weight
        return KVCache(
            keys=like.new_zeros(shape),
            values=like.new_zeros(shape),
            slots=torch.arange(num_slots, device=like.device),
            columns=torch.arange(max_length, device=like.device),
        )

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight).float()


def _rotations(config: ModelConfig) -> Tensor:
    """Cosine and sine of every position's angles, [max_position, 2, 1, bands].

    The lower half of the bands does not turn, so that a head can also look for a
    token wherever it is.
    """
    bands = config.head_width // 2
    turning = bands // 2
    frequencies = torch.zeros(bands)
    frequencies[:turning] = ROTARY_BASE ** -torch.linspace(0, 1, turning)
    angles = torch.outer(torch.arange(config.max_position), frequencies)
    return torch.stack([angles.cos(), angles.sin()], dim=1).unsqueeze(2)


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn x [..., heads, head_width] by rotation [..., 2, 1, head_width / 2]."""
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
        name: tensor.detach().to("cpu", torch.float32).contiguous()
        for name, tensor in model.state_dict().items()
    }
    config = folder / (CONFIG_FILE + ".tmp")
    config.write_text(json.dumps(asdict(model.config), indent=1) + "\n")
    weights = folder / (WEIGHTS_FILE + ".tmp")
    save_file(tensors, weights)
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
                f"and {WEIGHTS_FILE}, which minirl.pretrain writes"
            )
    config = ModelConfig(**json.loads((folder / CONFIG_FILE).read_text()))
    model = PolicyModel(config)
    model.load_state_dict(load_file(folder / WEIGHTS_FILE))
    return model.to(device, dtype)
