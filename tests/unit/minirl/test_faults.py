# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The fault catalogue is well formed, and every fault is caught by its check."""

import re
from dataclasses import replace

import pytest
from fault_runs import FaultRuns

from minirl.faults import FAULTS, fault_named
from tools import FUNCTIONAL
from tools.prove.faults import CONTROL, QUICK
from tools.prove.workload import MODES

JUDGE = (FUNCTIONAL / "_gym_prefix_recovery_parity.py").read_text()
SMALL = {
    "exact": replace(MODES["exact"], lists=(24, 2), generations=3),
    "near-greedy": replace(MODES["near-greedy"], lists=(15, 2)),
}


def test_every_fault_names_a_check_of_the_judge():
    for fault in FAULTS.values():
        for check in (fault.check, fault.check_near_greedy):
            assert f'"{check}"' in JUDGE, fault.name


def test_every_check_of_the_judge_has_a_fault():
    checks = re.findall(r'Check\("([^"]+)"', JUDGE)
    assert {fault.check for fault in FAULTS.values()} == {*checks}


def test_every_fault_says_what_breaks_in_words_of_its_own():
    assert len({fault.breaks for fault in FAULTS.values()}) == len(FAULTS)


def test_unknown_fault_is_an_error_that_names_the_choices():
    with pytest.raises(ValueError, match=r"one of .*'row_lost'.*, found row_los$"):
        fault_named("row_los")


# -- every fault, restored and judged ------------------------------------------------


def planted(mode, steps):
    """The faults to plant in runs of so many steps: all of them in exact mode.

    Near-greedy they are the most telling ones, for time's sake, and those that another
    check catches there; `make faults` has all of them in both.
    """
    return [
        fault
        for fault in FAULTS.values()
        if fault.shows_in_step == steps
        and MODES[mode].check_of(fault)
        and (
            mode == "exact"
            or fault.name in QUICK
            or fault.check != fault.check_near_greedy
        )
    ]


CASES = [
    pytest.param(mode, steps, fault, id=f"{mode}-{fault.name if fault else CONTROL}")
    for mode in MODES
    for steps in (1, 2, 3)
    for fault in [None, *planted(mode, steps)]
    if fault or steps == 3
]


@pytest.fixture(scope="module")
def fault_runs(tmp_path_factory):
    """The runs of a mode and a number of steps."""
    made = {}

    def make(mode, steps):
        if (mode, steps) not in made:
            folder = tmp_path_factory.mktemp("faults")
            workload = replace(SMALL[mode], steps=steps)
            faults = [None, *planted(mode, steps)]
            made[mode, steps] = FaultRuns(folder, workload, faults)
        return made[mode, steps]

    yield make
    for runs in made.values():
        runs.close()


@pytest.mark.parametrize(("mode", "steps", "fault"), CASES)
def test_fault_is_caught_by_the_check_named_for_it(fault_runs, mode, steps, fault):
    expected = "caught" if fault else "passed"
    assert fault_runs(mode, steps).result(fault) == expected
