# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The fault catalogue: bugs that recovery code has, and the check that must see each.

`++faults.plant=NAME` plants one: its function wraps or replaces what it breaks on the
started controller, so that a run without a fault has no branch for it. `make faults`
restores one snapshot with each fault in turn, and judges every run.
"""

from minirl.faults import prefixes, rows  # noqa: F401 (they register their faults)
from minirl.faults.fault import FAULTS, Controller, Fault

__all__ = ["FAULTS", "Fault", "fault_named", "plant"]


def fault_named(name: str) -> Fault:
    """Raises ValueError, with the choices, for a name that the catalogue lacks."""
    if name not in FAULTS:
        raise ValueError(f"faults.plant: expected one of {[*FAULTS]}, found {name}")
    return FAULTS[name]


def plant(name: str, controller: Controller) -> None:
    """Plant the fault into a controller that has started and not yet restored."""
    fault_named(name).plant(controller)
    print(f"Planted fault: {name}", flush=True)
