# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Entry point of minirl, at NeMo-RL's path and with NeMo-RL's names.

    python examples/run_grpo_single_controller.py --config FILE [OVERRIDE ...]

Exits 2 with one line when the configuration or the data cannot be used.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

import ray

from minirl.config import load_config
from minirl.controller import SingleControllerActor
from minirl.log import set_up_logging
from minirl.setup import setup_single_controller
from minirl.tokenizer import Tokenizer

logger = logging.getLogger("minirl.driver")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    args, overrides = parser.parse_known_args()
    try:
        set_up_logging()
        master_config = load_config(args.config, overrides)
        tokenizer = Tokenizer.load(master_config.policy.tokenizer.name)
        actor_args, timing_metrics = setup_single_controller(master_config, tokenizer)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    logger.info("setup took %.1f s", timing_metrics["setup_s"])
    os.environ["RAY_DEDUP_LOGS"] = "0"
    # TransferQueue sets torch back to the threads that it had when it was imported.
    os.environ["OMP_NUM_THREADS"] = "1"
    ray.init(address="local", include_dashboard=False, object_store_memory=100 << 20)
    gpus = int(actor_args.device == "cuda")
    actor_class = SingleControllerActor.options(num_gpus=gpus)  # type: ignore[attr-defined]
    actor = actor_class.remote(actor_args)
    ray.get(actor.run.remote())
    ray.shutdown()


if __name__ == "__main__":
    main()
