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

from minirl.layers import Layer, ModelConfig, RMSNorm, rotations

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
class KVCache:
    """Keys and values of every slot, each [layers, slots, heads, length, head_dim].

    `slots` [slots] and `columns` [length] are the indices 0, 1, ...; kept here so that
    a step creates no tensor from host data, which a CUDA graph could not capture.
    """

    keys: Tensor
    values: Tensor
    slots: Tensor
    columns: Tensor


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
        self.register_buffer("rotations", rotations(config), persistent=False)

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
        ValueError: the configuration is of another kind of model.
    """
    folder = Path(folder)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder / name} is missing: a policy is a folder with {CONFIG_FILE} "
                f"and {WEIGHTS_FILE}, which minirl.pretraining writes"
            )
    config = _read_config(folder / CONFIG_FILE)
    weights = load_file(folder / WEIGHTS_FILE)
    model = PolicyModel(config)
    model.load_state_dict(
        {name.removeprefix(NAMES_PREFIX): tensor for name, tensor in weights.items()}
    )
    return model.to(device, dtype)


def _read_config(path: Path) -> ModelConfig:
    document = json.loads(path.read_text())
    sizes = [size.name for size in fields(ModelConfig)]
    if missing := [name for name in ["model_type", *sizes] if name not in document]:
        raise ValueError(f"{path}: {missing[0]}: expected a Qwen3 model's, found none")
    for key, expected in {
        "model_type": "qwen3",
        "num_key_value_heads": document["num_attention_heads"],
        "tie_word_embeddings": True,
    }.items():
        if document.get(key) != expected:
            found = document.get(key)
            raise ValueError(f"{path}: {key}: expected {expected!r}, found {found!r}")
    return ModelConfig(**{name: document[name] for name in sizes})
