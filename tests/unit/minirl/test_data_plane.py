# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Against TransferQueue, and against the double that the other tests use."""

import pickle
from itertools import count

import pytest
import torch

from minirl.data_plane import ROLLOUT_PARTITION, DataPlaneClient

PARTITIONS = (f"partition-{number}" for number in count())
ROWS = {
    "token_ids": [torch.tensor([5, 6, 7]), torch.tensor([8]), torch.tensor([9, 10])],
    "logprobs": [torch.tensor([0.1, 0.2, 0.3]), torch.zeros(1), -torch.ones(2)],
}
KEYS = ["b", "c", "a"]
TAGS = [{"reward": 1.0, "group_id": "x"}, {"reward": 0.0}, {"reward": 0.5}]


@pytest.fixture(scope="module")
def transfer_queue(request):
    request.getfixturevalue("ray_session")
    client = DataPlaneClient()
    client.start()
    yield client
    client.close()


@pytest.fixture(params=["TransferQueue", "memory"])
def data_plane(request, memory_data_plane):
    if request.param == "memory":
        return memory_data_plane()
    return request.getfixturevalue("transfer_queue")


@pytest.fixture
def partition(data_plane):
    """A partition of the test's own, with three rows."""
    partition = next(PARTITIONS)
    data_plane.put_samples(KEYS, partition, ROWS, TAGS)
    return partition


def values(data_plane, partition, keys, field="token_ids"):
    rows = data_plane.get_samples(keys, partition, [field])[field]
    return [row.tolist() for row in rows]


def test_rows_keep_their_lengths(data_plane, partition):
    assert values(data_plane, partition, KEYS) == [[5, 6, 7], [8], [9, 10]]


@pytest.mark.parametrize("keys", [["a", "b", "c"], ["c", "a"], ["a"]], ids="-".join)
def test_rows_come_in_the_order_asked_for(data_plane, partition, keys):
    expected = {"a": [9, 10], "b": [5, 6, 7], "c": [8]}
    assert values(data_plane, partition, keys) == [expected[key] for key in keys]


def test_rows_keep_their_types_and_bits(data_plane, partition):
    names = list(ROWS)
    found = data_plane.get_samples(KEYS, partition, names)
    for name in names:
        for row, expected in zip(found[name], ROWS[name], strict=True):
            assert row.dtype == expected.dtype and torch.equal(row, expected)


def test_only_the_fields_asked_for_come(data_plane, partition):
    assert list(data_plane.get_samples(KEYS, partition, ["logprobs"])) == ["logprobs"]


def test_rows_of_equal_length_come_one_by_one(data_plane):
    rows = [torch.tensor([1, 2]), torch.tensor([3, 4])]
    partition = next(PARTITIONS)
    data_plane.put_samples(["a", "b"], partition, {"token_ids": rows})
    assert values(data_plane, partition, ["b", "a"]) == [[3, 4], [1, 2]]


def test_columns_are_put_beside_those_that_are_there(data_plane, partition):
    columns = {"advantages": [row * 2.0 for row in ROWS["token_ids"]]}
    data_plane.put_samples(KEYS, partition, columns)
    assert values(data_plane, partition, ["c"], "advantages") == [[16.0]]
    assert values(data_plane, partition, ["c"]) == [[8]]
    assert data_plane.get_tags(partition)["b"] == TAGS[0]


def test_rows_put_again_are_replaced(data_plane, partition):
    data_plane.put_samples(["b"], partition, {"token_ids": [torch.tensor([1, 2])]})
    assert values(data_plane, partition, ["b", "c"]) == [[1, 2], [8]]


def test_keys_are_listed_sorted(data_plane, partition):
    assert data_plane.list_sample_ids(partition) == ["a", "b", "c"]


def test_tags_are_listed_by_key(data_plane, partition):
    assert data_plane.get_tags(partition) == dict(zip(KEYS, TAGS, strict=True))


def test_unknown_partition_lists_as_empty(data_plane):
    assert data_plane.list_sample_ids("no-such-partition") == []
    assert data_plane.get_tags("no-such-partition") == {}


def test_cleared_keys_are_gone_and_others_stay(data_plane, partition):
    data_plane.clear_samples(["a", "b"], partition)
    assert data_plane.list_sample_ids(partition) == ["c"]
    assert values(data_plane, partition, ["c"]) == [[8]]


def test_partition_cleared_whole_lists_as_empty(data_plane, partition):
    data_plane.clear_samples(KEYS, partition)
    assert data_plane.list_sample_ids(partition) == []


def test_clearing_nothing_is_allowed(data_plane):
    data_plane.clear_samples([], "no-such-partition")


def test_missing_key_is_an_error(data_plane, partition):
    with pytest.raises(ValueError):
        data_plane.get_samples(["a", "z"], partition, ["token_ids"])


def test_same_key_in_two_partitions_is_two_rows(data_plane, partition):
    row = {"token_ids": [torch.tensor([1])]}
    data_plane.put_samples(["a"], other := next(PARTITIONS), row)
    assert values(data_plane, other, ["a"]) == [[1]]
    data_plane.clear_samples(["a"], other)
    assert values(data_plane, partition, ["a"]) == [[9, 10]]


def test_staging_and_training_partitions_are_distinct(make_config):
    assert make_config().token_capture.staging_partition != ROLLOUT_PARTITION


def test_unpickled_client_sees_the_same_rows(transfer_queue):
    partition = next(PARTITIONS)
    transfer_queue.put_samples(KEYS, partition, ROWS)
    client = pickle.loads(pickle.dumps(transfer_queue))
    assert client.list_sample_ids(partition) == sorted(KEYS)


def test_checkpoint_brings_rows_keys_and_tags_into_a_fresh_data_plane(
    data_plane, partition, tmp_path
):
    data_plane.save_checkpoint(tmp_path / "data_plane")
    data_plane.clear_samples(KEYS, partition)
    data_plane.close()
    fresh = type(data_plane)()
    fresh.start()
    assert fresh.list_sample_ids(partition) == []
    fresh.load_checkpoint(tmp_path / "data_plane")
    assert fresh.list_sample_ids(partition) == ["a", "b", "c"]
    assert fresh.get_tags(partition) == dict(zip(KEYS, TAGS, strict=True))
    assert values(fresh, partition, KEYS) == [[5, 6, 7], [8], [9, 10]]
