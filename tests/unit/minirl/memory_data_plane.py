# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""A data plane without Ray."""

import torch

from minirl.data_plane import DataPlaneClient


class MemoryDataPlane(DataPlaneClient):
    """The data plane as a dict; its checkpoint is one file."""

    def __init__(self):
        self.partitions = {}

    def start(self):
        pass

    def close(self):
        pass

    def put_samples(self, sample_ids, partition_id, fields, tags=None):
        partition = self.partitions.setdefault(partition_id, {})
        for row, key in enumerate(sample_ids):
            sample = partition.setdefault(key, {"fields": {}, "tags": {}})
            if tags:
                sample["tags"] = dict(tags[row])
            for name, values in fields.items():
                sample["fields"][name] = values[row].clone()

    def get_samples(self, sample_ids, partition_id, fields):
        partition = self.partitions.get(partition_id, {})
        if absent := set(sample_ids) - set(partition):
            raise ValueError(f"{partition_id} lacks {absent}")
        rows = [partition[key]["fields"] for key in sample_ids]
        return {name: [row[name].clone() for row in rows] for name in fields}

    def get_tags(self, partition_id):
        partition = self.partitions.get(partition_id, {})
        return {key: sample["tags"] for key, sample in partition.items()}

    def clear_samples(self, sample_ids, partition_id):
        for key in sample_ids:
            self.partitions.get(partition_id, {}).pop(key, None)

    def save_checkpoint(self, folder):
        folder.mkdir(parents=True)
        torch.save(self.partitions, folder / "partitions.pt")

    def load_checkpoint(self, folder):
        self.partitions = torch.load(folder / "partitions.pt", weights_only=True)
