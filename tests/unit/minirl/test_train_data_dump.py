# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import json
import math
import os
from pathlib import Path

import pytest
import torch

from minirl.train_data_dump import TrainDataDump, new_run_dir

NEMO_RL = Path(__file__).parents[1] / "data" / "nemo-rl-dump" / "exp_001"
TAGS = {
    "group_id": "some-group",
    "prompt_idx": 7,
    "generation": 0,
    "prompt_length": 2,
    "reward": 1.0,
    "sample_loss_mask": 1.0,
    "weight_version": 3,
}
FIELDS = {
    "token_ids": torch.tensor([5, 6, 7]),
    "token_loss_mask": torch.tensor([0.0, 0.0, 1.0]),
    "advantages": torch.tensor([0.0, 0.0, 0.5]),
    "generation_logprobs": torch.tensor([0.0, 0.0, -0.1]),
    "prev_logprobs": torch.tensor([-1.0, -2.0, -0.2]),
}


@pytest.fixture
def dump(tmp_path):
    return TrainDataDump(tmp_path)


def write(dump, step=1, shard=0, first_idx=0, rows=1, **tags):
    """Write a part of equal rows."""
    fields = {name: [values] * rows for name, values in FIELDS.items()}
    names = [f"some-group_g{first_idx + row}" for row in range(rows)]
    dump.write_part(step, shard, first_idx, names, fields, [{**TAGS, **tags}] * rows)


def read(dump, step=1):
    text = (dump.run_dir / f"train_data_step{step}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def files(dump):
    return sorted(path.name for path in dump.run_dir.iterdir())


def nemo_rl_rows():
    lines = (NEMO_RL / "train_data_step1.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def shape(value):
    """The nesting of a value, and its types; numbers of a list count as one."""
    if isinstance(value, list):
        return [shape(value[0])]
    return type(value)


def test_row_has_the_keys_of_nemo_rls_in_its_order(dump):
    write(dump)
    dump.publish(1)
    assert list(read(dump)[0]) == list(nemo_rl_rows()[0])


@pytest.mark.parametrize("key", list(nemo_rl_rows()[0]))
def test_value_is_nested_as_nemo_rls(dump, key):
    write(dump)
    dump.publish(1)
    assert shape(read(dump)[0][key]) == shape(nemo_rl_rows()[0][key])


def test_tags_have_those_of_nemo_rl(dump):
    write(dump)
    dump.publish(1)
    assert set(nemo_rl_rows()[0]["metadata"][0]) <= set(read(dump)[0]["metadata"][0])


def test_row_holds_what_was_trained(dump):
    write(dump, first_idx=2, sample_loss_mask=0.0)
    dump.publish(1)
    (row,) = read(dump)
    assert (row["idx"], row["step"], row["sample_id"]) == (2, 1, ["some-group_g2"])
    assert row["input_lengths"] == [3] and row["rewards"] == [1.0]
    assert row["sample_loss_mask"] == row["pre_seq_error_sample_loss_mask"] == [0.0]
    assert row["prompt_ids"] == [[5, 6]]
    for name, values in FIELDS.items():
        assert row[name] == [values.tolist()]


def test_floats_keep_their_bits(dump):
    write(dump)
    dump.publish(1)
    found = torch.tensor(read(dump)[0]["generation_logprobs"][0])
    assert torch.equal(found, FIELDS["generation_logprobs"])


def test_non_finite_logprob_can_be_read_back(dump, monkeypatch):
    values = torch.tensor([0.0, -math.inf, math.nan])
    monkeypatch.setitem(FIELDS, "generation_logprobs", values)
    write(dump)
    dump.publish(1)
    found = read(dump)[0]["generation_logprobs"][0]
    assert found[1] in (None, -math.inf) and (found[2] is None or math.isnan(found[2]))


def test_nothing_is_published_while_the_step_runs(dump):
    write(dump, shard=0)
    write(dump, shard=1)
    assert files(dump) == [f"train_data_step1.jsonl.part-{n}" for n in range(2)]


def test_published_step_leaves_no_part(dump):
    write(dump, shard=0)
    write(dump, shard=1)
    dump.publish(1)
    assert files(dump) == ["train_data_step1.jsonl"]


def test_parts_are_joined_in_the_order_of_their_shards(dump):
    for shard in (10, 2, 0):
        write(dump, shard=shard, first_idx=2 * shard, rows=2)
    dump.publish(1)
    assert [row["idx"] for row in read(dump)] == [0, 1, 4, 5, 20, 21]


def test_steps_have_a_file_each(dump):
    write(dump, step=1)
    write(dump, step=11)
    dump.publish(1)
    assert files(dump) == ["train_data_step1.jsonl", "train_data_step11.jsonl.part-0"]
    assert [row["step"] for row in read(dump)] == [1]


def test_retried_step_replaces_its_file(dump):
    write(dump, rows=3)
    dump.publish(1)
    write(dump, rows=2, reward=0.0)
    dump.publish(1)
    assert [row["rewards"] for row in read(dump)] == [[0.0], [0.0]]


def test_part_written_again_replaces_the_first_try(dump):
    write(dump, rows=3)
    write(dump, rows=2)
    dump.publish(1)
    assert len(read(dump)) == 2


def test_published_file_is_whole_when_it_appears(dump, monkeypatch):
    write(dump, rows=3)
    whole = (dump.run_dir / "train_data_step1.jsonl.part-0").read_text()
    replace, published = os.replace, []

    def record(source, target):
        assert not target.exists()
        published.append(source.read_text())
        replace(source, target)

    monkeypatch.setattr(os, "replace", record)
    dump.publish(1)
    assert published == [whole]


def test_runs_are_numbered_from_one(tmp_path):
    names = [new_run_dir(tmp_path / "logs").name for _ in range(3)]
    assert names == ["exp_001", "exp_002", "exp_003"]


def test_run_gets_a_number_over_every_other(tmp_path):
    (tmp_path / "exp_009").mkdir()
    (tmp_path / "exp_1000").mkdir()
    (tmp_path / "exports").mkdir()
    assert new_run_dir(tmp_path).name == "exp_1001"
