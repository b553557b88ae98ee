# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import random

import prefix_recovery_evidence as small
import pytest
from judged import ITEMS, LENGTH, changed, judge, sound

from tools.explain.causes import likely_causes
from tools.explain.evidence import read_verdict


def causes(folder, evidence):
    return list(likely_causes(read_verdict(judge(folder, evidence, status=1))))


def masked(*runs):
    evidence = sound()
    for run in runs:
        evidence[run][1][0]["sample_loss_mask"] = [0.0]
    return evidence


def placeholder():
    """A masked row without the tokens that the rollout would have generated."""
    evidence = masked("rec")
    row = evidence["rec"][1][0]
    row["token_ids"][0][5:] = [7] * (LENGTH - 5)
    row["token_loss_mask"] = [[0.0] * LENGTH]
    return evidence


def without(row):
    evidence = sound()
    del evidence["rec"][1][row]
    return evidence


def moved():
    evidence = sound()
    evidence["rec"][2].append(evidence["rec"][1].pop() | {"step": 2})
    return evidence


def trained_again(step):
    evidence = sound()
    evidence["rec"][step].append(evidence["rec"][1][3] | {"step": step})
    return evidence


def without_its_step():
    return changed("rec.2", None)


def in_another_group():
    return changed("rec.1.1.sample_id", ["rec9_g1"])


def in_the_group_of_another_prompt():
    evidence = sound()
    for row, generation in zip(evidence["rec"][1][2:], (2, 3), strict=True):
        row["sample_id"] = [f"rec0_g{generation}"]
        row["metadata"][0]["prompt_idx"] = 1
    return evidence


def of_data_that_the_reference_lacks():
    evidence = sound()
    evidence["rec"][1].append(small.row("rec", 1, 9, 0, ITEMS))
    return evidence


def with_one_dump():
    evidence = sound()
    return evidence | {"ref": evidence["rec"]}


def with_fewer_prompts():
    evidence = sound()
    for run in ("ref", "rec"):
        del evidence[run][1][2:]
    return evidence


def log(old, new, line=1):
    evidence = sound()
    assert old in evidence["log"][line]
    evidence["log"][line] = evidence["log"][line].replace(old, new)
    return evidence


def log_again():
    evidence = sound()
    evidence["log"].append(evidence["log"][1])
    return evidence


def without_log(*lines):
    evidence = sound()
    for line in lines:
        del evidence["log"][line]
    return evidence


def live(keys, steps=(0, 1)):
    evidence = sound()
    for step in steps:
        evidence["probe"][step]["staging_keys"] += keys
    return evidence


def without_advantages():
    evidence = sound()
    for run in ("ref", "rec"):
        for row in evidence[run][1]:
            row["advantages"] = [[0.0] * LENGTH]
    return evidence


def with_one_reward():
    evidence = sound()
    for row in [
        x for run in ("ref", "rec") for step in (1, 2) for x in evidence[run][step]
    ]:
        row["rewards"] = [1.0]
    return evidence


def with_other_weights_in_step_2():
    evidence, rng = sound(), random.Random(0)
    for row in evidence["rec"][2]:
        for name in ("generation_logprobs", "prev_logprobs"):
            row[name] = [[x * (1 + rng.random()) for x in row[name][0]]]
    return evidence


KEYS = [key for entry in sound()["cuts"] for key in entry["staging_keys"]]
WHOLE_RUNS = {
    "masked in the recovery": (masked("rec"), "the row is masked in the recovery only"),
    "masked in both": (masked("ref", "rec"), "the row is masked in both runs"),
    "a placeholder": (placeholder(), "the row is masked in the recovery only"),
    "a row is lost": (without(3), "a row was lost"),
    "trained twice": (trained_again(1), "a row was trained twice"),
    "trained in the next step as well": (trained_again(2), "a row was trained twice"),
    "moved": (moved(), "a row was trained in another step (step 2 instead of 1)"),
    "a step is missing": (without_its_step(), "the recovery has no rows of step 2"),
    "split": (in_another_group(), "a prompt's siblings are in several groups"),
    "unknown": (
        of_data_that_the_reference_lacks(),
        "a row was trained that the refere",
    ),
    "one dump": (with_one_dump(), "both runs have the same groups"),
    "incomplete": (with_fewer_prompts(), "the reference itself has 6 rows, expected 8"),
    "other weights": (with_other_weights_in_step_2(), "rows of step >= 2 only"),
    "no cut": (changed("cuts", []), "no call was cut"),
    "not restored": (without_log(1), "1 of 2 cut calls was restarted instead of cont"),
    "restored twice": (log_again(), "1 of 2 cut calls was restored more than once"),
    "shorter": (
        log("tokens=8", "tokens=7"),
        "1 of 2 cut calls was restored with fewer",
    ),
    "longer": (log("tokens=8", "tokens=9"), "1 of 2 cut calls was restored with more"),
    "digest": (log("d" * 64, "e" * 64), "1 of 2 cut calls was restored with another"),
    "attempt": (
        log("-a1 ", "-a2 "),
        "1 of 2 cut calls was continued by another rollout",
    ),
    "not completed": (
        without_log(2),
        "1 of 2 cut calls was restored and never completed",
    ),
    "no tail": (log("=12", "=0", 2), "1 of 2 cut calls was completed without a tail"),
    "never retired": (live(KEYS), "old prefix keys never retired: they are live as"),
    "some keys": (live(KEYS[:1]), "some of the old prefix keys never retired: they ar"),
    "retired late": (
        live(KEYS, [0]),
        "old prefix keys retired late: still live as step 1",
    ),
    "successor": (
        changed("successor.gym", KEYS),
        "the next trainer checkpoint still ref",
    ),
    "begun twice": (
        changed("probe.1.train_step", 1),
        "step 1 was begun more than once",
    ),
    "one reward": (with_one_reward(), "all rewards are the same"),
    "no advantage": (without_advantages(), "every advantage of a step is 0"),
}


@pytest.mark.parametrize("evidence, cause", WHOLE_RUNS.values(), ids=WHOLE_RUNS)
def test_what_is_wrong_with_a_run_is_named(tmp_path, evidence, cause):
    found = causes(tmp_path, evidence)
    assert any(x.startswith(cause) for x in found), found


ALONE = ["a row is lost", "trained twice", "moved", "a step is missing", "unknown"]
ALONE += ["a placeholder", "shorter", "digest", "retired late", "successor"]
ALONE += ["one reward"]


@pytest.mark.parametrize("name", ALONE)
def test_nothing_else_is_named(tmp_path, name):
    evidence, _ = WHOLE_RUNS[name]
    assert len(causes(tmp_path, evidence)) == 1


def test_a_group_of_two_prompts_is_named(tmp_path):
    found = causes(tmp_path, in_the_group_of_another_prompt())
    assert any(x.startswith("several prompts share a group") for x in found)
