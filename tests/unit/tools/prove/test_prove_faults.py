# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The helpers of the fault catalogue, without a run."""

import pytest
from dumps import write_step

from tools.prove import faults


def test_rows_are_equal_whatever_their_group_is_called(tmp_path):
    write_step(tmp_path / "a", 1, [1, 2], "a")
    write_step(tmp_path / "b", 1, [1, 2], "b")
    assert faults.rows_of(tmp_path / "a") == faults.rows_of(tmp_path / "b")


def test_run_without_a_fault_must_pass_every_check():
    assert faults.result_of("", [], True) == "passed"
    assert faults.result_of("", ["x"], True) == "FALSE ALARM"


@pytest.mark.parametrize(
    ("failed", "same_rows", "result"),
    [
        (["x", "y"], False, "caught"),
        (["y"], False, "caught by another check only"),
        ([], False, "MISSED"),
        ([], True, "NO EFFECT on the rows"),
    ],
)
def test_result_of_a_fault_that_check_x_must_catch(failed, same_rows, result):
    assert faults.result_of("x", failed, same_rows) == result
