# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""What a run logs: through `logging`, to standard output, with NeMo-RL's prefix."""

import logging
import os
import sys

FORMAT = "%(levelname)s:%(name)s:%(filename)s:%(lineno)d: %(message)s"


def set_up_logging() -> None:
    """Let minirl's loggers write; called once in each process of a run.

    Raises:
        ValueError: `NRL_LOG_LEVEL`, by default INFO, names no level of `logging`.
    """
    level = os.environ.get("NRL_LOG_LEVEL", "INFO")
    levels = logging.getLevelNamesMapping()
    if level.upper() not in levels:
        raise ValueError(f"NRL_LOG_LEVEL: expected one of {[*levels]}, found {level}")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(FORMAT))
    logger = logging.getLogger("minirl")
    logger.setLevel(level.upper())
    logger.handlers = [handler]
    logger.propagate = False  # or a handler of the root would write each line again
