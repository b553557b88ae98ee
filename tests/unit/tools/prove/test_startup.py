# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""How the start-up table names processes."""

import pytest

from tools.prove.startup import process_name


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["ray::SingleControllerActor.run"], "SingleControllerActor"),
        (["ray::SimpleStorageUnit"], "SimpleStorageUnit"),
        (["ray::IDLE", ""], "IDLE"),
        (["/venv/bin/python3", "-u", "/ray/dashboard/agent.py", "--x=y"], "agent.py"),
        (["bash", "/checkout/base_test.sh", "a=b"], "base_test.sh"),
        (["/ray/gcs_server", "--log_dir=x"], "gcs_server"),
    ],
)
def test_process_is_named_by_its_script_or_by_ray(words, name):
    assert process_name("\0".join(words)) == name
