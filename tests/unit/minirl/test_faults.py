# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The fault catalogue is well formed, and its most telling faults are caught."""

import re

import pytest

from minirl.faults import FAULTS, fault_named
from tools.faults import QUICK, run_catalogue
from tools.runs import FUNCTIONAL, Workload, Workspace

JUDGE = (FUNCTIONAL / "_gym_prefix_recovery_parity.py").read_text()


def test_every_fault_names_a_check_of_the_judge():
    for fault in FAULTS.values():
        assert f'"{fault.check}"' in JUDGE, fault.name


def test_every_check_of_the_judge_has_a_fault():
    checks = re.findall(r'_check\(\s*"([^"]+)"', JUDGE)
    assert {fault.check for fault in FAULTS.values()} == {*checks}


def test_every_fault_says_what_breaks_in_words_of_its_own():
    assert len({fault.breaks for fault in FAULTS.values()}) == len(FAULTS)


def test_unknown_fault_is_an_error_that_names_the_choices():
    with pytest.raises(ValueError, match=r"one of .*'row_lost'.*, found row_los$"):
        fault_named("row_los")


@pytest.mark.slow
def test_most_telling_faults_are_caught_by_the_checks_named_for_them():
    with Workspace(Workload(), jobs=3) as workspace:
        faults = [FAULTS[name] for name in QUICK]
        control, *outcomes = run_catalogue(workspace, faults)
    assert control.result == "passed"
    assert {x.name: x.result for x in outcomes} == dict.fromkeys(QUICK, "caught")
