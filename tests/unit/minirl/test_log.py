# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import os
import re
import subprocess
import sys

import pytest

SCRIPT = """
import logging
from minirl.log import set_up_logging
set_up_logging()
logging.basicConfig()  # as a library may do
logging.getLogger("minirl.generation").info("restored")
logging.getLogger("minirl.generation").warning("skipped")
"""


def logged(level):
    """What a process writes to standard output and error."""
    environment = {key: x for key, x in os.environ.items() if key != "NRL_LOG_LEVEL"}
    if level:
        environment["NRL_LOG_LEVEL"] = level
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("level", [None, "INFO", "info", "DEBUG"])
def test_line_has_the_prefix_of_its_logger_and_is_written_once(level):
    output = logged(level).stdout.splitlines()
    assert re.fullmatch(r"INFO:minirl\.generation:<string>:\d+: restored", output[0])
    assert len(output) == 2 and not logged(level).stderr


@pytest.mark.parametrize("level, lines", [("WARNING", 1), ("ERROR", 0)])
def test_level_above_info_hides_the_lines(level, lines):
    output = logged(level).stdout.splitlines()
    assert len(output) == lines and "restored" not in "".join(output)


def test_unknown_level_is_refused_by_name():
    last = logged("LOUD").stderr.splitlines()[-1]
    assert last.startswith("ValueError: NRL_LOG_LEVEL: expected one of ")
    assert last.endswith("found LOUD")
