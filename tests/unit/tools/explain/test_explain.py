# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import sys
from xml.etree import ElementTree

import pytest
from explain_evidence import CUT_AT, alter_token, cut_rows, judged, unchanged, write_run

from minirl.tokenizer import Tokenizer
from tools import explain
from tools.evidence import read_verdict


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line: its exit status, stdout and stderr."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)

    def run(*arguments):
        capsys.readouterr()  # what the judge printed
        monkeypatch.setattr(sys, "argv", ["explain.py", *map(str, arguments)])
        status = explain.main()
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def failing(tmp_path):
    return judged(tmp_path / "evidence", cut_rows(alter_token))


def test_a_passing_verdict_exits_0(tmp_path, run):
    status, out, _ = run(judged(tmp_path))
    assert status == 0 and "Likely cause" not in out


def test_a_failing_verdict_exits_1_and_says_where_and_why(failing, run):
    status, out, _ = run(failing)
    assert status == 1
    assert "step 1 differs first, in 2 of its 4 rows" in out
    assert "only rows that were cut in mid-decode" in out
    assert "all of prompt 0" in out
    assert "counted from the cut: +2" in out
    assert "token ids were altered after decoding" in out


def test_a_shared_instance_is_told_only_where_there_are_several(failing):
    evidence = read_verdict(failing)
    both = {"rec0_g0": "gym_1", "rec0_g1": "gym_1"}
    evidence.instances = both
    assert "all of instance gym_1" not in explain.in_common(evidence)
    evidence.instances = both | {"rec9_g0": "gym_2"}
    assert "all of instance gym_1" in explain.in_common(evidence)


def test_both_runs_stand_side_by_side(failing, run):
    (line,) = (
        x for x in run(failing)[1].splitlines() if x.startswith(f"{CUT_AT + 2} ")
    )
    evidence = read_verdict(failing)
    expected = evidence.pairs[1, 0, 0].reference.columns["token_ids"][CUT_AT + 2]
    assert line.split()[1] == "≠"
    assert f" {expected:g} " in line and line.split().count("99") == 1


def test_a_log_has_no_escape_codes(failing, run):
    assert "\x1b" not in run(failing)[1]


def test_tokens_are_decoded_by_a_tokenizer_that_knows_them(failing, run, tmp_path):
    Tokenizer([f"x{'y' * i}" for i in range(1, 60)]).save(tmp_path)
    assert "99 'z'" not in (out := run(failing, "--tokenizer", tmp_path)[1])
    assert f"99 {Tokenizer.load(tmp_path).decode([99])!r}" in out


def test_tokens_are_ids_where_the_default_tokenizer_lacks_some(tmp_path, run):
    def large(row):
        row["token_ids"][CUT_AT + 2] = 150000

    _, out, _ = run(judged(tmp_path, cut_rows(large)))
    assert "150000" in out and "'" not in out.partition("token ")[2]


def test_a_tokenizer_that_is_too_small_is_refused(failing, run, tmp_path):
    Tokenizer([]).save(tmp_path)
    status, _, error = run(failing, "--tokenizer", tmp_path)
    assert status == 2 and "103 tokens, but the dump has token 1" in error


def test_malformed_evidence_exits_2_with_one_line(tmp_path, run):
    (tmp_path / "verdict.json").write_text("{}")
    status, out, error = run(tmp_path / "verdict.json")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert str(tmp_path / "verdict.json") in error


def test_junit_has_a_test_case_per_check(failing, run, tmp_path):
    run(failing, "--junit", tmp_path / "junit.xml")
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert len(suite) == int(suite.get("tests", 0)) == 5
    assert failed == ["rows match"] and suite.get("failures") == "1"
    assert "token ids were altered" in suite[0][0].text


def test_github_gets_annotations_and_a_summary(failing, run, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    out = run(failing)[1]
    assert "\n::error title=rows match::step 1, prompt 0" in out
    assert "\n::error title=likely cause::token ids were altered" in out
    assert "**token ids were altered" in (tmp_path / "summary.md").read_text()


def test_an_annotation_stays_one_line(failing, capsys, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    evidence = read_verdict(failing)
    evidence.checks[0]["problems"][0]["message"] = "50%\nmore"
    capsys.readouterr()
    explain.annotate(evidence, "")
    assert "::50%25%0Amore (2 in all)\n" in capsys.readouterr().out


def test_equal_runs_compare_as_passing(tmp_path, run):
    write_run(tmp_path / "a", "a", unchanged)
    write_run(tmp_path / "b", "b", unchanged)
    assert run("--compare", tmp_path / "a", tmp_path / "b" / "exp_001")[0] == 0


def test_a_comparison_allows_noise_and_can_be_strict(tmp_path, run):
    def noise(step, rows):
        rows[0]["generation_logprobs"][0][-1] -= 0.1
        return rows

    write_run(tmp_path / "a", "a", unchanged)
    write_run(tmp_path / "b", "b", noise)
    arguments = "--compare", tmp_path / "a", tmp_path / "b"
    assert run(*arguments, "--min-identical-logprobs=0.9")[0] == 0
    assert run(*arguments, "--min-identical-logprobs=1")[0] == 1
    assert run(*arguments, "--max-logprob-difference=0.01")[0] == 1


def test_rows_with_columns_of_other_lengths_are_explained_too(tmp_path, run):
    def cut_short(row):
        del row["generation_logprobs"][-3:]

    status, out, _ = run(judged(tmp_path, cut_rows(cut_short)))
    assert status == 1 and "Likely cause" in out
