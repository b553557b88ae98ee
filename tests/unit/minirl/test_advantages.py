# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import math
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.advantages import group_advantages, grpo, reinforce_plus_plus

REWARDS = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=8)
ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.integers(1, 400).map(float),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("reward", [0.0, 1.0])
@pytest.mark.parametrize("number", [1, 2, 3, 8])
def test_equal_rewards_have_no_advantage(reward, number):
    assert group_advantages([reward] * number) == [0.0] * number


@given(REWARDS)
def test_advantages_of_a_group_cancel_out(rewards):
    assert sum(group_advantages(rewards)) == pytest.approx(0, abs=1e-9)


@given(REWARDS)
def test_advantage_has_the_sign_of_the_reward_over_the_mean(rewards):
    for advantage, reward in zip(group_advantages(rewards), rewards, strict=True):
        assert (advantage > 1e-9) == (reward > fmean(rewards) + 1e-9)


@given(REWARDS.filter(lambda rewards: len(set(rewards)) > 1))
def test_advantages_have_unit_deviation(rewards):
    assert pstdev(group_advantages(rewards)) == pytest.approx(1, abs=1e-4)


def test_grpo_compares_each_row_with_its_siblings():
    rows = [("a", 0.0, 5.0), ("b", 1.0, 5.0), ("a", 1.0, 5.0), ("b", 1.0, 5.0)]
    low, equal, high, same = grpo(rows)
    assert -low == high == pytest.approx(1, abs=1e-4) and equal == same == 0.0


def test_reinforce_plus_plus_tells_prompts_with_equal_siblings_apart():
    rows = [("a", 1.0, 10.0), ("a", 1.0, 10.0), ("b", 0.0, 10.0), ("b", 0.0, 10.0)]
    assert reinforce_plus_plus(rows, False) == pytest.approx([1, 1, -1, -1])
    assert reinforce_plus_plus(rows, True) == [0.0] * 4


def test_reinforce_plus_plus_with_baseline_compares_siblings_over_the_batch():
    rows = [("a", 1.0, 10.0), ("a", 0.0, 10.0), ("b", 3.0, 10.0), ("b", 2.0, 10.0)]
    assert reinforce_plus_plus(rows, True) == pytest.approx([1, -1, 1, -1])


def test_reinforce_plus_plus_weighs_rows_by_their_tokens():
    """3 tokens of reward 1 and 1 of reward 0: mean 3/4, deviation sqrt(3)/4."""
    long, short = reinforce_plus_plus([("a", 1.0, 3.0), ("b", 0.0, 1.0)], False)
    assert (long, short) == pytest.approx((3**-0.5, -(3**0.5)))


@given(ROWS.filter(lambda rows: len({reward for _, reward, _ in rows}) > 1))
def test_reinforce_plus_plus_has_mean_0_and_deviation_1_over_tokens(rows):
    values = reinforce_plus_plus(rows, False)
    tokens = [count for _, _, count in rows]
    mean = sum(n * x for n, x in zip(tokens, values, strict=True)) / sum(tokens)
    square = sum(n * x * x for n, x in zip(tokens, values, strict=True)) / sum(tokens)
    assert mean == pytest.approx(0, abs=1e-9) and square == pytest.approx(1)


@given(ROWS, st.sampled_from([0.0, 0.5, 1.0]), st.booleans())
def test_masked_row_of_another_prompt_changes_no_other_row(rows, reward, baseline):
    expected = reinforce_plus_plus(rows, baseline)
    found = reinforce_plus_plus([*rows, ("masked", reward, 0.0)], baseline)
    assert found[:-1] == pytest.approx(expected)


@pytest.mark.parametrize("baseline", [True, False])
def test_reinforce_plus_plus_without_a_difference_has_no_advantage(baseline):
    rows = [("a", 1.0, 7.0), ("b", 1.0, 14.0)]
    assert reinforce_plus_plus(rows, baseline) == [0.0, 0.0]


@pytest.mark.parametrize("baseline", [True, False])
def test_advantages_are_finite_where_every_row_is_masked(baseline):
    rows = [("a", 1.0, 0.0), ("b", 0.0, 0.0)]
    assert all(map(math.isfinite, reinforce_plus_plus(rows, baseline)))
