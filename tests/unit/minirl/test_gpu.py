# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show: the captured graph is batch-invariant, training repeats."""

import numpy as np
import pytest
import torch

from minirl.config import Generation
from minirl.decoding import Decoder
from minirl.model import load_policy
from minirl.pretraining.__main__ import SHIPPED_POLICY

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SLOTS, LENGTH = 64, 1024
PRECISIONS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def _decode(dtype: torch.dtype, slots: list[int], steps: int, invariant: bool = True):
    """What the first of the slots samples in `steps` steps, beside the others."""
    model = load_policy(SHIPPED_POLICY, "cuda", dtype)
    config = Generation(max_new_tokens=LENGTH, temperature=1.0, top_p=1.0)
    config.batch_invariant = invariant
    decoder = Decoder(model, SLOTS, LENGTH, config)
    uniforms = np.random.default_rng(0).random((steps, SLOTS))
    token_ids = np.full(SLOTS, 7)
    chosen = []
    for step in range(steps):
        positions = np.zeros(SLOTS, dtype=np.int64)
        positions[slots] = step
        cuts = np.zeros(SLOTS)
        cuts[slots] = uniforms[step, : len(slots)]
        ids, logprobs = decoder.step(token_ids, positions, cuts, None, max(slots) + 1)
        token_ids = np.zeros(SLOTS, dtype=np.int64)
        token_ids[slots] = [ids[slot] for slot in slots]
        chosen.append((ids[slots[0]], logprobs[slots[0]]))
    return chosen


@PRECISIONS
def test_a_call_decodes_alone_as_beside_others(dtype: torch.dtype) -> None:
    alone = _decode(dtype, [5], 200)
    assert alone == _decode(dtype, [5, *range(6, 64)], 200)


@PRECISIONS
def test_a_call_decodes_the_same_in_another_slot(dtype: torch.dtype) -> None:
    assert _decode(dtype, [0], 200) == _decode(dtype, [63, 1, 2], 200)


def test_without_batch_invariance_the_numbers_depend_on_the_batch() -> None:
    alone = _decode(torch.bfloat16, [0], 200, invariant=False)
    assert alone != _decode(torch.bfloat16, [*range(64)], 200, invariant=False)


def test_the_same_gradients_every_time() -> None:
    token_ids = torch.randint(7, 400, (8, 500), device="cuda")
    gradients = []
    for _ in range(3):
        model = load_policy(SHIPPED_POLICY, "cuda")
        torch.use_deterministic_algorithms(True)
        model(token_ids).log_softmax(-1)[..., 0].sum().backward()
        torch.use_deterministic_algorithms(False)
        gradients.append([x.grad for x in model.parameters()])
    for other in gradients[1:]:
        assert all(map(torch.equal, gradients[0], other))
