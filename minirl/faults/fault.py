# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""What a fault is, the register of all, and how one is planted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ROWS = "rows match"
PREFIXES = "prefixes trained once"
KEYS = "old keys retired"
REWARDS = "reward signal"
LOGPROBS = "generation log-probs agree"

Controller = Any  # a SingleController, which imports this module


@dataclass(frozen=True)
class Fault:
    """A planted bug."""

    name: str
    breaks: str  # one sentence
    check: str  # the check that must fail
    plant: Callable[[Controller], None]
    in_reference: bool  # it is in the uninterrupted run as well
    shows_in_step: int  # the train step that it takes to tell
    check_near_greedy: str  # the check that must fail there
    harmless_near_greedy: str  # why it changes nothing there; empty if it does


FAULTS: dict[str, Fault] = {}


def fault(
    check: str,
    breaks: str,
    in_reference: bool = False,
    shows_in_step: int = 1,
    check_near_greedy: str = "",
    harmless_near_greedy: str = "",
) -> Any:
    """Register the decorated function, which plants the fault of its name."""

    def register(plant: Callable[[Controller], None]) -> Any:
        name = plant.__name__
        FAULTS[name] = Fault(
            name,
            breaks,
            check,
            plant,
            in_reference,
            shows_in_step,
            check_near_greedy or check,
            harmless_near_greedy,
        )
        return plant

    return register


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function by `around`, which gets the original as first argument."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapped)
