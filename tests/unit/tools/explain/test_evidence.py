# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import json
import re
from argparse import Namespace
from pathlib import Path

import prefix_recovery_evidence as small
import pytest
from judged import LENGTH, alter_token, judge, sound, with_cut_rows, write_run
from prefix_recovery_evidence import parity

from tools.explain.causes import likely_causes
from tools.explain.evidence import compare, read_verdict

LIMITS = Namespace(min_identical_logprobs=0.97, max_logprob_difference=0.5)


@pytest.fixture
def failing(tmp_path):
    return judge(tmp_path / "evidence", with_cut_rows(alter_token), status=1)


NO_VERDICTS = ["", "[]", "{}", '{"checks": 1}', '{"checks": [{}]}']


@pytest.mark.parametrize("text", [*NO_VERDICTS, '{"checks": [], "evidence": {}}'])
def test_a_malformed_verdict_is_refused_by_name(tmp_path, text):
    path = tmp_path / "verdict.json"
    path.write_text(text)
    with pytest.raises(parity.EvidenceError, match=rf"\A.*{re.escape(str(path))}.*\Z"):
        read_verdict(path)


def test_a_limit_that_is_no_number_is_refused(failing):
    failing.write_text(failing.read_text().replace(": 1.0", ': "one"'))
    with pytest.raises(parity.EvidenceError, match="expected min_identical_logprobs"):
        read_verdict(failing)


@pytest.mark.parametrize(
    "name",
    ["verdict.json", "selection", "log", "probe", "rec/exp_001/train_data_step1.jsonl"],
)
def test_torn_evidence_is_refused_by_name_in_one_line(failing, name):
    path = failing.parent / name
    path.write_text(path.read_text()[:-30] + "generation prefix restored: rollout_id=")
    with pytest.raises(parity.EvidenceError, match=rf"\A.*{re.escape(str(path))}.*\Z"):
        read_verdict(failing)


@pytest.mark.parametrize(
    "name", ["selection", "log", "probe", "step_1/gym_checkpoint.json"]
)
def test_missing_evidence_is_refused_by_name(failing, name):
    (failing.parent / name).unlink()
    with pytest.raises(OSError, match=re.escape(str(failing.parent / name))):
        read_verdict(failing)


def test_evidence_without_a_dump_is_refused(failing):
    for path in failing.parent.glob("rec/*/*"):
        path.unlink()
    with pytest.raises(parity.EvidenceError, match="rec/exp_001: expected a train"):
        read_verdict(failing)


def test_evidence_that_moved_with_its_verdict_is_found(failing):
    moved = failing.parent.rename(failing.parent.with_name("moved"))
    assert read_verdict(moved / "verdict.json").failing() == ["rows match"]


def test_evidence_that_was_gathered_beside_the_verdict_is_found(failing):
    verdict = json.loads(failing.read_text())
    for name, given in verdict["evidence"].items():
        if str(given).startswith("/"):
            verdict["evidence"][name] = f"/another/machine/{name}/{Path(given).name}"
    failing.write_text(json.dumps(verdict))
    assert read_verdict(failing).failing() == ["rows match"]


def test_folders_of_the_same_name_are_told_apart(failing):
    folder = failing.parent
    (folder / "reference").mkdir()
    (folder / "ref").rename(folder / "reference/logs")
    (folder / "rec").rename(folder / "logs")
    verdict = failing.read_text().replace(f'{folder}/ref"', f'{folder}/reference/logs"')
    failing.write_text(verdict.replace(f'{folder}/rec"', f'{folder}/logs"'))
    moved = folder.rename(folder.with_name("moved"))
    evidence = read_verdict(moved / "verdict.json")
    assert evidence.rows["reference"][0].group_id == "ref0"
    assert evidence.rows["recovery"][0].group_id == "rec0"


def test_the_verdict_lists_what_the_documentation_says(failing):
    verdict = json.loads(failing.read_text())
    assert verdict.keys() == {"passed", "evidence", "checks"}
    for check in verdict["checks"]:
        assert check.keys() == {"name", "counts", "problems"}
        assert all(isinstance(problem, str) for problem in check["problems"])


def test_later_steps_are_not_suspected_of_what_an_earlier_one_began(tmp_path):
    evidence = with_cut_rows(alter_token)
    for row in evidence["rec"][2]:
        row["generation_logprobs"][0][10:] = [-9.0] * (LENGTH - 10)
    found = read_verdict(judge(tmp_path, evidence))
    assert len(found.differing) == 6
    assert {identity.step for identity in found.suspects()} == {1}


def test_a_row_that_is_trained_twice_is_shown_where_it_differs(tmp_path):
    evidence = sound()
    again = json.loads(json.dumps(evidence["rec"][1][3]))
    alter_token({name: again[name][0] for name in ("token_ids",)})
    evidence["rec"][1].insert(0, again)
    ((_, pair),) = read_verdict(judge(tmp_path, evidence)).suspects().items()
    assert pair.first("token_ids") is not None


def runs(tmp_path, steps, others):
    """The log folders of two equal runs with the given steps."""
    found = []
    for name, kept in (("ref", steps), ("rec", others)):
        evidence = small.sound(steps=5)
        evidence[name] = {step: evidence[name][step] for step in kept}
        found.append(write_run(tmp_path / name, evidence, name))
    return found


def test_runs_that_begin_at_a_later_step_can_be_compared(tmp_path):
    assert compare(*runs(tmp_path, [4, 5], [4, 5]), LIMITS).failing() == []


@pytest.mark.parametrize("steps, others", [([1, 2], [1]), ([1], [1, 2])])
def test_a_step_of_one_run_alone_fails_a_comparison(tmp_path, steps, others):
    found = compare(*runs(tmp_path, steps, others), LIMITS)
    assert found.failing() == ["rows match"]
    assert len(found.checks[0].problems) == 4


def test_runs_without_a_common_step_cannot_be_compared(tmp_path):
    with pytest.raises(parity.EvidenceError, match="no train step in common"):
        compare(*runs(tmp_path, [1], [2]), LIMITS)


def test_restored_runs_that_share_their_groups_can_be_compared(tmp_path):
    folders = [write_run(tmp_path / name, sound(), "rec") for name in "ab"]
    assert compare(*folders, LIMITS).failing() == []
    other = write_run(tmp_path / "c", with_cut_rows(alter_token), "rec")
    (cause,) = likely_causes(compare(folders[0], other, LIMITS))
    assert cause.startswith("token ids were altered")


def test_a_comparison_without_rows_fails(tmp_path):
    folders = runs(tmp_path, [1], [1])
    for log_dir in folders:
        (log_dir / "exp_001/train_data_step1.jsonl").write_text("")
    assert compare(*folders, LIMITS).failing() == ["generation log-probs agree"]


def test_a_log_folder_of_several_runs_is_refused_by_name(tmp_path):
    folder, other = runs(tmp_path, [1], [1])
    (folder / "exp_002").mkdir()
    with pytest.raises(parity.EvidenceError, match=rf"{folder}: .* found 2"):
        compare(folder, other, LIMITS)
