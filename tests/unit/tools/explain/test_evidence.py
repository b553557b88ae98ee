# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import re

import pytest
from explain_evidence import LENGTH, alter_token, cut_rows, judged, unchanged, write_run

from tools.evidence import compare, read_verdict

LIMITS = argparse.Namespace(min_identical_logprobs=0.99, max_logprob_difference=0.5)


@pytest.fixture
def failing(tmp_path):
    return judged(tmp_path / "evidence", cut_rows(alter_token))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"checks": [{}]}', '{"checks": [], "evidence": {}}']
)
def test_a_malformed_verdict_is_refused_by_name(tmp_path, text):
    path = tmp_path / "verdict.json"
    path.write_text(text)
    with pytest.raises(OSError, match=rf"\A.*{re.escape(str(path))}.*\Z"):
        read_verdict(path)


@pytest.mark.parametrize(
    "name",
    [
        "verdict.json",
        "selected-snapshot.json",
        "phase2.log",
        "phase2-staging-keys.jsonl",
        "phase2-logs/exp_001/train_data_step1.jsonl",
    ],
)
def test_torn_evidence_is_refused_by_name_in_one_line(failing, name):
    path = failing.parent / name
    path.write_text(path.read_text()[:-30] + "generation prefix ")
    with pytest.raises(OSError, match=rf"\A.*{re.escape(str(path))}.*\Z"):
        read_verdict(failing)


def test_evidence_without_a_dump_is_refused(failing):
    for path in failing.parent.glob("phase2-logs/*/*"):
        path.unlink()
    with pytest.raises(OSError, match="found none"):
        read_verdict(failing)


def test_evidence_that_moved_with_its_verdict_is_found(failing):
    moved = failing.parent.rename(failing.parent.with_name("moved"))
    assert read_verdict(moved / "verdict.json").failing() == ["rows match"]


def test_the_verdict_lists_what_the_documentation_says(failing):
    verdict = json.loads(failing.read_text())
    assert verdict.keys() >= {"passed", "evidence", "checks"}
    for check in verdict["checks"]:
        assert check.keys() >= {"name", "passed", "counts", "problems"}
    problem = verdict["checks"][0]["problems"][0]
    assert problem.keys() >= {"message", "step", "prompt_idx", "generation", "place"}


def test_later_steps_are_not_suspected_of_what_an_earlier_one_began(tmp_path):
    def edit(step, rows):
        if step == 2:
            for row in rows:
                row["generation_logprobs"][0][10:] = [-9.0] * (LENGTH - 10)
        return cut_rows(alter_token)(step, rows)

    evidence = read_verdict(judged(tmp_path, edit))
    assert len(evidence.differing()) == 6
    assert {identity[0] for identity in evidence.suspects()} == {1}


def test_runs_that_begin_at_a_later_step_can_be_compared(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, name, unchanged, steps=(4, 5))
    assert compare(tmp_path / "a", tmp_path / "b", LIMITS).failing() == []


def test_a_step_of_one_run_alone_fails_a_comparison(tmp_path):
    write_run(tmp_path / "a", "a", unchanged, steps=(1, 2))
    write_run(tmp_path / "b", "b", unchanged, steps=(1,))
    for runs in ("ab", "ba"):
        evidence = compare(*(tmp_path / name for name in runs), LIMITS)
        assert evidence.failing() == ["rows match"]


def test_runs_without_a_common_step_cannot_be_compared(tmp_path):
    write_run(tmp_path / "a", "a", unchanged, steps=(1,))
    write_run(tmp_path / "b", "b", unchanged, steps=(2,))
    with pytest.raises(OSError, match="no train step in common"):
        compare(tmp_path / "a", tmp_path / "b", LIMITS)


def test_a_log_folder_of_several_runs_is_refused_by_name(tmp_path):
    write_run(tmp_path, "a", unchanged)
    (tmp_path / "exp_001").rename(tmp_path / "exp_002")
    write_run(tmp_path, "a", unchanged)
    with pytest.raises(OSError, match="exp_001, exp_002"):
        compare(tmp_path, tmp_path, LIMITS)
