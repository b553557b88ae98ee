# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Entry point of minirl, at NeMo-RL's path and with NeMo-RL's names.

    python examples/run_grpo_single_controller.py --config FILE [OVERRIDE ...]

Exits 2 with one line when the configuration or the data cannot be used.

A small job spends most of its time on starting, so what takes long is done at once: Ray
starts while the driver imports torch, and the actors' workers import it side by side.
"""

import argparse
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import ray

from minirl.config import load_config
from minirl.log import set_up_logging
from minirl.tokenizer import Tokenizer

logger = logging.getLogger("minirl.driver")
PRELOAD = "minirl.preload"
ACTORS = 3  # the controller's and TransferQueue's two, each in a worker of its own


def setup_single_controller(
    master_config: Any, tokenizer: Any
) -> tuple[Any, dict[str, float]]:
    """See `minirl.setup.setup_single_controller`, which needs torch."""
    return import_module("minirl.setup").setup_single_controller(
        master_config, tokenizer
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    args, overrides = parser.parse_known_args()
    os.environ["RAY_DEDUP_LOGS"] = "0"
    # TransferQueue sets torch back to the threads that it had when it was imported.
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        set_up_logging()
        master_config = load_config(args.config, overrides)
        tokenizer = Tokenizer.load(master_config.policy.tokenizer.name)
        with ThreadPoolExecutor(1) as pool:
            preload = pool.submit(import_module, PRELOAD)
            ray.init(
                address="local",
                num_cpus=ACTORS,
                include_dashboard=False,
                object_store_memory=100 << 20,
                _system_config={
                    "preload_python_modules": [PRELOAD],
                    "worker_maximum_startup_concurrency": ACTORS,
                },
            )
            actor_class = preload.result().SingleControllerActor
        actor_args, timing_metrics = setup_single_controller(master_config, tokenizer)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    logger.info("setup took %.1f s", timing_metrics["setup_s"])
    gpus = int(actor_args.device == "cuda")
    actor = actor_class.options(num_gpus=gpus).remote(actor_args)
    ray.get(actor.run.remote())
    # no ray.shutdown(): Ray's exit hook does it once the actor's last lines are there


if __name__ == "__main__":
    main()
