# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The single-controller entry point, with a probe of the live staging keys.

As a train step begins, {train_step, staging_keys} goes to $SC_STAGING_KEYS_FILE.
"""

import json
import os
from typing import Any

from examples import run_grpo_single_controller as entry_point


class _StagingKeyProbe:
    """Wraps `begin_train_step`, which runs once a step and is not told its number."""

    def __init__(self, actor_args: Any, partition: str) -> None:
        self.begin_train_step = actor_args.trainer_handle.begin_train_step
        self.dp_client = actor_args.dp_client
        self.partition = partition
        self.step = actor_args.save_state.current_step
        self.path = os.path.abspath(os.environ["SC_STAGING_KEYS_FILE"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.step += 1
        keys = self.dp_client.list_sample_ids(self.partition)
        with open(self.path, "a") as file:
            print(
                json.dumps({"train_step": self.step, "staging_keys": keys}), file=file
            )
        return self.begin_train_step(*args, **kwargs)


def _setup_with_probe(master_config: Any, *args: Any, **kwargs: Any) -> Any:
    actor_args, timing_metrics = setup_single_controller(master_config, *args, **kwargs)
    probe = _StagingKeyProbe(actor_args, master_config.token_capture.staging_partition)
    # On the instance: a patch of its class would be lost on the way into the actor.
    actor_args.trainer_handle.begin_train_step = probe
    return actor_args, timing_metrics


if __name__ == "__main__":
    setup_single_controller: Any = entry_point.setup_single_controller
    entry_point.setup_single_controller = _setup_with_probe
    entry_point.main()
