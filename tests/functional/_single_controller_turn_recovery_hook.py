# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The single-controller entry point, with a probe of the live staging keys.

Set as SC_TEST_ENTRYPOINT. As each train step begins it appends {train_step,
staging_keys} to the file that SC_STAGING_KEYS_FILE names.
"""

import json
import os
from pathlib import Path
from typing import Any

from examples import run_grpo_single_controller


class _StagingKeyProbe:
    """Stands in for `begin_train_step` of one trainer; travels into the actor with it.

    The controller does not pass the step, but begins each exactly once, in order.
    """

    def __init__(self, trainer: Any, dp_client: Any, partition: str, step: int) -> None:
        self.begin_train_step = trainer.begin_train_step
        self.dp_client = dp_client
        self.partition = partition
        self.step = step
        self.path = Path(os.environ["SC_STAGING_KEYS_FILE"]).absolute()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.step += 1
        keys = self.dp_client.list_sample_ids(self.partition)
        with self.path.open("a") as file:
            record = {"train_step": self.step, "staging_keys": keys}
            file.write(json.dumps(record) + "\n")
        return self.begin_train_step(*args, **kwargs)


def _with_probe(setup: Any) -> Any:
    def setup_single_controller(master_config: Any, *args: Any, **kwargs: Any) -> Any:
        actor_args, timing_metrics = setup(master_config, *args, **kwargs)
        trainer = actor_args.trainer_handle
        trainer.begin_train_step = _StagingKeyProbe(  # on the instance: a class
            trainer,  # patch would be lost on the way into the actor
            actor_args.dp_client,
            master_config.token_capture.staging_partition,
            actor_args.save_state.current_step,
        )
        return actor_args, timing_metrics

    return setup_single_controller


if __name__ == "__main__":
    run_grpo_single_controller.setup_single_controller = _with_probe(
        run_grpo_single_controller.setup_single_controller
    )
    run_grpo_single_controller.main()
