# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The data plane: rows of named tensors under string keys, in TransferQueue.

A client has no state, so it can be pickled into any actor of the same Ray job; the
controller calls `start` once, which starts TransferQueue's own actors.
"""

import logging
from pathlib import Path
from typing import Any

import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import Tensor

ROLLOUT_PARTITION = "rollout_data"  # finished rows, ready to train


class DataPlaneClient:
    """Puts, gets, lists and clears samples of a partition."""

    def start(self) -> None:
        """Start TransferQueue with one in-memory storage unit."""
        logging.getLogger("transfer_queue").setLevel(logging.ERROR)
        units = {"num_data_storage_units": 1}
        storage = {"storage_backend": "SimpleStorage", "SimpleStorage": units}
        transfer_queue.init(OmegaConf.create({"backend": storage}))

    def close(self) -> None:
        transfer_queue.close()

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: dict[str, list[Tensor]],
        tags: list[dict[str, Any]] | None = None,
    ) -> None:
        """Store one row a sample; each field is a list of [length] tensors."""
        columns = {
            name: torch.nested.as_nested_tensor(values, layout=torch.jagged)
            for name, values in fields.items()
        }
        batch = TensorDict(columns, batch_size=len(sample_ids))
        transfer_queue.kv_batch_put(sample_ids, partition_id, batch, tags)

    def get_samples(
        self, sample_ids: list[str], partition_id: str, fields: list[str]
    ) -> dict[str, list[Tensor]]:
        """The named fields of the samples, in the order asked for.

        Raises:
            ValueError: the partition lacks one of the samples.
        """
        batch = transfer_queue.kv_batch_get(sample_ids, partition_id, fields)
        if len(batch) != len(sample_ids):  # TransferQueue leaves out what it lacks
            absent = sorted(set(sample_ids) - set(self.list_sample_ids(partition_id)))
            raise ValueError(f"partition {partition_id} lacks {', '.join(absent)}")
        return {name: list(batch[name].unbind()) for name in fields}

    def get_tags(self, partition_id: str) -> dict[str, dict[str, Any]]:
        """The tags of every sample of a partition, by sample id."""
        return transfer_queue.kv_list(partition_id).get(partition_id, {})

    def list_sample_ids(self, partition_id: str) -> list[str]:
        """The sorted keys of a partition; [] for one that does not exist."""
        return sorted(self.get_tags(partition_id))

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> None:
        if sample_ids:
            transfer_queue.kv_clear(sample_ids, partition_id)

    def save_checkpoint(self, folder: Path) -> None:
        transfer_queue.save_checkpoint(folder)

    def load_checkpoint(self, folder: Path) -> None:
        transfer_queue.load_checkpoint(folder)
