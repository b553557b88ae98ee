# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Why a whole run fails: which rows it trained, what it restored, what it kept.

Each function looks at the evidence, and returns a sentence, or None where it does not
apply. All that apply are told.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from _gym_prefix_recovery_parity import Cut

from tools.explain.evidence import Evidence
from tools.explain.pairs import Identity

Counts = Counter[Identity]


def _were(n: int, what: str = "row") -> str:
    return f"a {what} was" if n == 1 else f"{n} {what}s were"


def _several(pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Whether something is paired with more than one other."""
    partners = defaultdict(set)
    for one, other in pairs:
        partners[one].add(other)
    return any(len(found) > 1 for found in partners.values())


# -- rows ------------------------------------------------------------------------------


def training_state_lost(evidence: Evidence) -> str | None:
    if not evidence.differing:
        return None
    first = min(evidence.differing).step
    names = "generation_logprobs", "prev_logprobs"
    suspects = evidence.suspects().values()
    other = any(x.first(name) is not None for x in suspects for name in names)
    if first == min(evidence.steps("reference")) or not other:
        return None
    return (
        f"rows of step >= {first} only: training state (weights, optimizer, schedule)"
        " was not recovered, or the step before was trained differently"
    )


def same_dump(evidence: Evidence) -> str | None:
    if evidence.planned_rows is None:  # two runs restored from one snapshot may share
        return None
    reference, recovery = ({x.group_id for x in y} for y in evidence.rows.values())
    if not recovery or not recovery <= reference:
        return None
    return "both runs have the same groups: one dump is compared with itself"


def reference_incomplete(evidence: Evidence) -> str | None:
    found, expected = len(evidence.times["reference"]), evidence.planned_rows
    if expected in (None, found):
        return None
    return f"the reference itself has {found} rows, expected {expected}"


def _missing_and_extra(evidence: Evidence) -> tuple[Counts, Counts]:
    a, b = evidence.times["reference"], evidence.times["recovery"]
    return a - b, b - a


def step_missing(evidence: Evidence) -> str | None:
    missing = {*evidence.steps("reference")} - {*evidence.steps("recovery")}
    if not missing:
        return None
    return (
        f"the recovery has no rows of step {min(missing)}: its dump was not published,"
        " or the run ended before"
    )


def rows_elsewhere(evidence: Evidence) -> str | None:
    missing, extra = _missing_and_extra(evidence)
    now = {x[1:]: x.step for x in sorted(extra, reverse=True)}
    moved = [x for x in sorted(missing) if x[1:] in now]
    if not moved:
        return None
    return (
        f"{_were(len(moved))} trained in another step (step {now[moved[0][1:]]} instead"
        f" of {moved[0].step}): buffered rollouts or the sampler's place were lost"
    )


def rows_lost(evidence: Evidence) -> str | None:
    missing, extra = _missing_and_extra(evidence)
    elsewhere, steps = {x[1:] for x in extra}, evidence.steps("recovery")
    lost = [x for x in missing if x.step in steps and x[1:] not in elsewhere]
    if not lost:
        return None
    return f"{_were(len(lost))} lost: neither resumed from the snapshot nor run again"


def rows_twice(evidence: Evidence) -> str | None:
    missing, extra = _missing_and_extra(evidence)
    known, moved = evidence.times["reference"], {x[1:] for x in missing}
    again = {x[1:] for x in known} - moved
    twice = [x for x in extra if x in known or x[1:] in again]
    if not twice:
        return None
    return (
        f"{_were(len(twice))} trained twice: resumed and started again, not cleared"
        " after its step, or left in the dump by the killed run"
    )


def rows_unknown(evidence: Evidence) -> str | None:
    _, extra = _missing_and_extra(evidence)
    known = {x[1:] for x in evidence.times["reference"]}
    unknown = [x for x in extra if x[1:] not in known]
    if not unknown:
        return None
    what = f"{_were(len(unknown))} trained that the reference lacks"
    return f"{what}: other data, or a place in the data set that was lost"


def groups_mixed(evidence: Evidence) -> str | None:
    prompts = [(x.prompt_idx, x.group_id) for x in evidence.rows["recovery"]]
    if _several(prompts):
        return "a prompt's siblings are in several groups: one of them was started anew"
    if _several((group, prompt) for prompt, group in prompts):
        return "several prompts share a group: its sample ids were used again"
    return None


def nothing_to_learn(evidence: Evidence) -> str | None:
    if "reward signal" not in evidence.failing():
        return None
    if len({row.reward for row in evidence.rows["reference"]}) == 1:
        return (
            "all rewards are the same: the workload gives nothing to learn, so no proof"
        )
    return (
        "every advantage of a step is 0: rewards do not differ where the estimator"
        " compares them, so later steps prove nothing"
    )


# -- cuts, by the log ------------------------------------------------------------------


def _of_cuts(evidence: Evidence, holds: Callable[[Cut], Any], what: str) -> str | None:
    n = sum(bool(holds(cut)) for cut in evidence.cuts)
    were = "was" if n == 1 else "were"
    return f"{n} of {len(evidence.cuts)} cut calls {were} {what}" if n else None


def no_cut(evidence: Evidence) -> str | None:
    if evidence.cuts or "prefixes trained once" not in evidence.failing():
        return None
    return "no call was cut: the snapshot was taken before or after all decoding"


def not_restored(evidence: Evidence) -> str | None:
    what = "restarted instead of continued, or dropped: the log has no restored line"
    return _of_cuts(evidence, lambda cut: not cut.restored, f"{what} of them")


def restored_twice(evidence: Evidence) -> str | None:
    what = "restored more than once: the prefix is there twice, or the call ran twice"
    return _of_cuts(evidence, lambda cut: len(cut.restored) > 1, what)


def restored_shorter(evidence: Evidence) -> str | None:
    def shorter(cut: Cut) -> bool:
        found = [int(record["prefix_tokens"]) for record in cut.restored]
        return min(found, default=cut.prefix_token_count) < cut.prefix_token_count

    what = (
        "restored with fewer tokens than were cut: tokens were lost, or the prefix is"
    )
    return _of_cuts(evidence, shorter, f"{what} an older snapshot's")


def restored_longer(evidence: Evidence) -> str | None:
    def longer(cut: Cut) -> bool:
        found = [int(record["prefix_tokens"]) for record in cut.restored]
        return max(found, default=0) > cut.prefix_token_count

    what = "restored with more tokens than were cut: some are there twice"
    return _of_cuts(evidence, longer, what)


def restored_another_prefix(evidence: Evidence) -> str | None:
    def another(cut: Cut) -> bool:
        return any(
            record["prefix_digest"] != cut.prefix_digest
            and int(record["prefix_tokens"]) == cut.prefix_token_count
            for record in cut.restored
        )

    what = "restored with another prefix: the digest is not that of the cut"
    return _of_cuts(evidence, another, what)


def wrong_attempt(evidence: Evidence) -> str | None:
    def wrong(cut: Cut) -> bool:
        expected = f"{cut.gym_rollout_id}-a{cut.gym_attempt + 1}"
        found = [record["rollout_id"] for record in [*cut.restored, *cut.completed]]
        return any(rollout_id != expected for rollout_id in found)

    what = "continued by another rollout or attempt than the next one"
    return _of_cuts(evidence, wrong, what)


def not_completed(evidence: Evidence) -> str | None:
    what = "restored and never completed: given up, or the run ended before"
    return _of_cuts(evidence, lambda cut: cut.restored and not cut.completed, what)


def no_tail(evidence: Evidence) -> str | None:
    def ends(cut: Cut) -> bool:
        return any(int(record["tail_tokens"]) == 0 for record in cut.completed)

    return _of_cuts(evidence, ends, "completed without a tail: nothing was continued")


def not_cut(evidence: Evidence) -> str | None:
    if not evidence.strays:
        return None
    return "the log continues calls that were not cut: of another snapshot or selection"


# -- staging keys ----------------------------------------------------------------------


def old_keys_live(evidence: Evidence) -> str | None:
    keys = {key for cut in evidence.cuts for key in cut.staging_keys}
    live = {step: found & keys for step, found in evidence.probe if found & keys}
    if not live:
        return None
    if len(live) < len({step for step, _ in evidence.probe}):
        return f"old prefix keys retired late: still live as step {max(live)} begins"
    some = "" if set().union(*live.values()) == keys else "some of the "
    return f"{some}old prefix keys never retired: they are live as every step begins"


def successor_keeps_keys(evidence: Evidence) -> str | None:
    keys = {key for cut in evidence.cuts for key in cut.staging_keys}
    if not evidence.successor_keys & keys:
        return None
    return "the next trainer checkpoint still refers to the keys of the snapshot"


def step_begun_twice(evidence: Evidence) -> str | None:
    times = Counter(step for step, _ in evidence.probe)
    twice = [step for step, n in times.items() if n > 1]
    return (
        f"step {min(twice)} was begun more than once: it was retried" if twice else None
    )


RUN_CAUSES: list[Callable[[Evidence], str | None]] = [
    training_state_lost,
    same_dump,
    reference_incomplete,
    step_missing,
    rows_elsewhere,
    rows_lost,
    rows_twice,
    rows_unknown,
    groups_mixed,
    nothing_to_learn,
    no_cut,
    not_restored,
    restored_twice,
    restored_shorter,
    restored_longer,
    restored_another_prefix,
    wrong_attempt,
    not_completed,
    no_tail,
    not_cut,
    old_keys_live,
    successor_keeps_keys,
    step_begun_twice,
]
