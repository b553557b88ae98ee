# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch

from minirl.policy import BatchMeta, Policy, clipped_policy_gradient

CPU = torch.device("cpu")


# -- loss ----------------------------------------------------------------------------


def loss(ratio, advantage, mask=1.0):
    """The loss of one token whose probability changed by a ratio."""
    logprobs, prev = torch.tensor([ratio]).log(), torch.zeros(1)
    loss_fn = clipped_policy_gradient(0.2)
    return loss_fn(logprobs, prev, torch.tensor([advantage]), torch.tensor([mask]))


@pytest.mark.parametrize(
    "ratio, advantage, expected",
    [
        (1.0, 2.0, -2.0),
        (1.1, 2.0, -2.2),
        (1.5, 2.0, -2.4),  # clipped at 1.2
        (0.5, 2.0, -1.0),  # a worse policy is not clipped
        (0.5, -2.0, 1.6),  # clipped at 0.8
        (1.5, -2.0, 3.0),
    ],
)
def test_loss_is_the_clipped_surrogate(ratio, advantage, expected):
    assert loss(ratio, advantage).item() == pytest.approx(expected)


def test_loss_of_tokens_that_were_not_generated_is_zero():
    assert loss(1.5, 2.0, mask=0.0).item() == 0


def test_loss_is_summed_over_tokens():
    loss_fn = clipped_policy_gradient(0.2)
    ratios, advantages = (
        torch.tensor([[1.1, 1.5, 9.0]]),
        torch.tensor([[2.0, 2.0, 2.0]]),
    )
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    found = loss_fn(ratios.log(), torch.zeros(1, 3), advantages, mask)
    assert found.item() == pytest.approx(-4.6)


# -- the trainer ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def data_plane(whole_run):
    """The rows of a whole run, with advantages that alternate in sign."""
    data_plane = copy.deepcopy(whole_run.data_plane)
    meta = all_rows(data_plane)
    names = ["token_loss_mask", "generation_logprobs"]
    masks, logprobs = data_plane.get_samples(*meta_args(meta), names).values()
    columns = {
        "advantages": [mask * (-1.0) ** row for row, mask in enumerate(masks)],
        "prev_logprobs": logprobs,
    }
    data_plane.put_samples(meta.sample_ids, meta.partition_id, columns)
    return data_plane


def all_rows(data_plane):
    tags = data_plane.get_tags("rollout_data")
    order = sorted(tags, key=lambda k: (tags[k]["prompt_idx"], tags[k]["generation"]))
    return BatchMeta("rollout_data", order)


def meta_args(meta):
    return meta.sample_ids, meta.partition_id


@pytest.fixture
def make_policy(make_config, data_plane):
    """Makes a loaded policy, with overrides of its configuration."""

    def make(*overrides, checkpoint=None):
        policy = Policy(make_config(*overrides), data_plane)
        policy.load(CPU, checkpoint)
        return policy

    return make


def train(policy, *metas):
    """One optimizer step over rows; its metrics."""
    metas = metas or [all_rows(policy.dp_client)]
    policy.begin_train_step(clipped_policy_gradient(0.2), 1000.0)
    for meta in metas:
        policy.train_microbatches_from_meta(meta)
    return policy.finish_train_step()


def bits(policy):
    return {name: tensor.clone() for name, tensor in policy.weights().items()}


def equal(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)


def gradients(policy):
    """The gradients of one step, before they are clipped or applied."""
    policy.begin_train_step(clipped_policy_gradient(0.2), 1000.0)
    policy.train_microbatches_from_meta(all_rows(policy.dp_client))
    return [parameter.grad.clone() for parameter in policy.model.parameters()]


def test_logprobs_agree_with_generation(make_policy, data_plane):
    meta = all_rows(data_plane)
    names = ["generation_logprobs", "token_loss_mask"]
    fields = data_plane.get_samples(*meta_args(meta), names)
    found = make_policy().get_logprobs_from_meta(meta)
    for row, expected, mask in zip(found, *fields.values(), strict=True):
        torch.testing.assert_close(row * mask, expected, rtol=0, atol=1e-4)


def test_logprobs_come_in_the_order_of_the_meta(make_policy, data_plane):
    meta = all_rows(data_plane)
    policy = make_policy("policy.train_micro_batch_size=4")
    turned = BatchMeta(meta.partition_id, meta.sample_ids[::-1])
    forward = policy.get_logprobs_from_meta(meta)
    backward = policy.get_logprobs_from_meta(turned)[::-1]
    for row, other in zip(forward, backward, strict=True):
        torch.testing.assert_close(row, other)


def test_temperature_divides_the_logits(make_policy, data_plane):
    meta = all_rows(data_plane)
    policy = make_policy("policy.generation.temperature=2.0")
    token_ids = data_plane.get_samples(*meta_args(meta), ["token_ids"])["token_ids"][0]
    logits = policy.model(token_ids[None, :-1])[0] / 2
    expected = logits.log_softmax(-1).gather(-1, token_ids[1:, None]).squeeze(-1)
    torch.testing.assert_close(policy.get_logprobs_from_meta(meta)[0][1:], expected)


def test_equal_rows_give_bit_equal_weights(make_policy):
    first, second = make_policy(), make_policy()
    train(first)
    train(second)
    assert equal(bits(first), bits(second))


def test_train_step_changes_every_weight(make_policy):
    policy = make_policy()
    before = bits(policy)
    train(policy)
    after = bits(policy)
    assert not any(torch.equal(before[name], after[name]) for name in before)


def test_row_with_a_positive_advantage_gets_more_likely(make_policy, data_plane):
    policy = make_policy("policy.optimizer.lr=0.00001")
    first = BatchMeta("rollout_data", all_rows(data_plane).sample_ids[:1])
    fields = data_plane.get_samples(*meta_args(first), ["token_loss_mask"])
    mask = fields["token_loss_mask"][0]
    before = policy.get_logprobs_from_meta(first)[0] @ mask
    train(policy, first)
    assert policy.get_logprobs_from_meta(first)[0] @ mask > before


WARM = "policy.generation.temperature=4.0"  # where the policy is not certain: gradients


@pytest.mark.parametrize("size", [1, 4])
def test_micro_batch_size_does_not_change_the_gradient(make_policy, size):
    together = gradients(make_policy(WARM, "policy.train_micro_batch_size=6"))
    apart = gradients(make_policy(WARM, f"policy.train_micro_batch_size={size}"))
    assert max(gradient.abs().max() for gradient in together) > 0.01
    for found, expected in zip(apart, together, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_gradients_of_several_metas_add_up(make_policy, data_plane):
    ids = all_rows(data_plane).sample_ids
    metas = [BatchMeta("rollout_data", ids[:2]), BatchMeta("rollout_data", ids[2:])]
    expected, found = train(make_policy(WARM)), train(make_policy(WARM), *metas)
    (first, second) = (train(make_policy(WARM), meta) for meta in metas)
    assert found == pytest.approx(expected, rel=1e-3) and expected["grad_norm"] > 0.1
    assert found["loss"] == pytest.approx(first["loss"] + second["loss"], rel=1e-3)


def test_gradients_of_the_last_step_are_forgotten(make_policy):
    policy = make_policy("policy.optimizer.lr=0.0")
    assert train(policy) == train(policy)


def test_loss_is_a_mean_over_the_valid_tokens(make_policy):
    policy = make_policy("policy.optimizer.lr=0.0")
    whole = train(policy)["loss"]
    policy.begin_train_step(clipped_policy_gradient(0.2), 2000.0)
    policy.train_microbatches_from_meta(all_rows(policy.dp_client))
    assert policy.finish_train_step()["loss"] == pytest.approx(whole / 2)


def test_step_after_a_checkpoint_is_bit_equal(make_policy, tmp_path):
    policy = make_policy()
    train(policy)
    policy.save_checkpoint(tmp_path)
    restored = make_policy(checkpoint=tmp_path)
    assert equal(bits(policy), bits(restored))
    train(policy)
    train(restored)
    assert equal(bits(policy), bits(restored))


def test_step_after_a_checkpoint_needs_the_optimizers_state(make_policy, tmp_path):
    policy = make_policy()
    train(policy)
    policy.save_checkpoint(tmp_path)
    weights_only = make_policy(f"policy.model_name={tmp_path}")
    train(policy)
    train(weights_only)
    assert not equal(bits(policy), bits(weights_only))
