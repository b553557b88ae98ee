# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minirl.decoding import Decoder, sample

GRID = 10_000
LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.0, 0.0, -3.0])
ALL = torch.ones(len(LOGITS), dtype=torch.bool)
ROWS = st.lists(st.floats(-20, 20, width=32), min_size=6, max_size=6)
UNIFORMS = st.integers(0, 2**53 - 1).map(lambda number: number * 2.0**-53)


def frequencies(logits=LOGITS, allowed=ALL, temperature=1.0, top_p=1.0):
    """How often each token is chosen over a grid of uniforms, [vocab_size]."""
    uniforms = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    rows = (logits.expand(GRID, -1), uniforms, allowed.expand(GRID, -1))
    chosen, _ = sample(*rows, temperature, top_p)
    return torch.bincount(chosen, minlength=len(logits)) / GRID


def choose(logits, uniform, allowed=ALL, top_p=1.0):
    logits, uniforms = (
        torch.tensor([logits]),
        torch.tensor([uniform], dtype=torch.float64),
    )
    return sample(logits, uniforms, allowed[None], 1.0, top_p)[0].item()


def test_tokens_are_chosen_as_often_as_softmax_says():
    expected = LOGITS.softmax(-1)
    torch.testing.assert_close(frequencies(), expected, rtol=0, atol=2 / GRID)


def test_temperature_divides_the_logits():
    expected = (LOGITS / 0.5).softmax(-1)
    found = frequencies(temperature=0.5)
    torch.testing.assert_close(found, expected, rtol=0, atol=2 / GRID)


def test_disallowed_tokens_share_their_mass_out():
    allowed = torch.tensor([True, False, True, True, False, True])
    expected = LOGITS.masked_fill(~allowed, -torch.inf).softmax(-1)
    found = frequencies(allowed=allowed)
    torch.testing.assert_close(found, expected, rtol=0, atol=2 / GRID)


@pytest.mark.parametrize("top_p, kept", [(0.5, 1), (0.6, 2), (0.8, 3), (0.999, 6)])
def test_top_p_keeps_the_smallest_set_with_its_mass(top_p, kept):
    probs = LOGITS.softmax(-1)
    likely = probs.argsort(descending=True)[:kept]
    assert probs[likely].sum() >= top_p > probs[likely[:-1]].sum()
    expected = torch.zeros_like(probs).index_copy(0, likely, probs[likely])
    found = frequencies(top_p=top_p)
    torch.testing.assert_close(found, expected / expected.sum(), rtol=0, atol=2 / GRID)


def test_top_p_counts_the_mass_of_allowed_tokens_only():
    allowed = torch.tensor([True, False, True, True, False, True])
    found = frequencies(allowed=allowed, top_p=0.5)
    assert found.tolist() == [0, 0, 0, 1, 0, 0]


@settings(deadline=None)
@given(ROWS, UNIFORMS)
def test_tiny_top_p_chooses_the_most_likely_token(logits, uniform):
    chosen = choose(logits, uniform, top_p=1e-6)
    assert logits[chosen] == pytest.approx(max(logits), abs=1e-5)


@settings(deadline=None)
@given(
    ROWS,
    UNIFORMS | st.sampled_from([0.0, 1 - 2.0**-53]),
    st.sets(st.integers(0, 5), min_size=1),
    st.sampled_from([1.0, 0.9, 1e-6]),
)
def test_chosen_token_is_an_allowed_one(logits, uniform, tokens, top_p):
    allowed = torch.tensor([token in tokens for token in range(6)])
    assert choose(logits, uniform, allowed, top_p) in tokens


@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_logprob_is_the_policys_before_mask_and_top_p(top_p):
    allowed = torch.tensor([False, False, True, False, False, True])
    uniforms = torch.zeros(1, dtype=torch.float64)
    chosen, logprobs = sample(LOGITS[None], uniforms, allowed[None], 0.5, top_p)
    assert chosen.item() == 2
    torch.testing.assert_close(logprobs, (LOGITS / 0.5).log_softmax(-1)[2:3])


@settings(deadline=None)
@given(st.lists(st.tuples(ROWS, UNIFORMS), min_size=2, max_size=5))
def test_rows_do_not_touch_each_other(rows):
    logits = torch.tensor([row for row, _ in rows])
    uniforms = torch.tensor([row[1] for row in rows], dtype=torch.float64)
    together, _ = sample(logits, uniforms, ALL.expand(len(rows), -1), 1.0, 0.9)
    assert together.tolist() == [choose(*row, top_p=0.9) for row in rows]


@pytest.fixture
def decoder(random_policy, make_config):
    return Decoder(random_policy, 3, 16, make_config().policy.generation)


def step(decoder, tokens, position=0, allowed=None):
    """One step over all slots, every one cut in the middle of its distribution."""
    positions, uniforms = np.full(len(tokens), position), np.full(len(tokens), 0.5)
    return decoder.step(np.array(tokens), positions, uniforms, allowed, len(tokens))


def only(decoder, token):
    allowed = np.zeros((3, decoder.model.config.vocab_size), dtype=bool)
    allowed[:, token] = True
    return allowed


def test_decoder_chooses_as_sample_does(decoder, random_policy):
    logits = random_policy(torch.tensor([[7]]))[:, 0]
    uniforms = torch.tensor([0.5], dtype=torch.float64)
    allowed = torch.ones_like(logits, dtype=torch.bool)
    token, logprob = sample(logits, uniforms, allowed, 1.0, 1.0)
    tokens, logprobs = step(decoder, [7, 7, 7])
    assert tokens == [token.item()] * 3
    assert logprobs == pytest.approx([logprob.item()] * 3, abs=1e-5)


def test_decoder_keeps_to_the_mask(decoder):
    tokens, _ = step(decoder, [7, 8, 9], allowed=only(decoder, 5))
    assert tokens == [5, 5, 5]


def test_mask_of_one_step_does_not_bind_the_next(decoder):
    free = step(decoder, [7, 8, 9])
    step(decoder, [7, 8, 9], allowed=only(decoder, 5))
    assert step(decoder, [7, 8, 9]) == free


def test_step_sees_the_tokens_fed_before(decoder):
    step(decoder, [7, 8, 7])
    first, second, third = step(decoder, [9, 9, 9], position=1)[1]
    assert first == third != second
