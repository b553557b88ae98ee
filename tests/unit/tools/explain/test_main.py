# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import sys
from xml.etree import ElementTree

import pytest
from judged import CUT_AT, alter_token, changed, judge, sound, with_cut_rows, write_run

from minirl.tokenizer import Tokenizer
from tools.explain import __main__, ci, report
from tools.explain.evidence import read_verdict
from tools.explain.tokens import POLICY


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line: its exit status, stdout and stderr."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)

    def run(*arguments):
        capsys.readouterr()  # what the judge printed
        monkeypatch.setattr(sys, "argv", ["explain", *map(str, arguments)])
        status = __main__.main()
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def failing(tmp_path):
    return judge(tmp_path / "evidence", with_cut_rows(alter_token), status=1)


def test_a_passing_verdict_exits_0(tmp_path, run):
    status, out, _ = run(judge(tmp_path, sound(), status=0))
    assert status == 0 and "all 5 checks hold" in out and "Likely cause" not in out


def test_a_failing_verdict_exits_1_and_says_where_and_why(failing, run):
    status, out, _ = run(failing)
    assert status == 1
    assert "step 1 differs first, in 2 of its 4 rows" in out
    assert "only rows that were cut in mid-decode" in out
    assert "all of prompt 0" in out
    assert "counted from the cut: +2" in out
    assert "token ids were altered after decoding" in out


def test_what_the_judge_has_printed_is_not_printed_again(failing, run):
    _, out, _ = run(failing)
    problem = read_verdict(failing).checks[0].problems[0]
    assert "1 of 5 checks failed: rows match" in out
    assert problem not in out and "PASS" not in out


def test_a_shared_instance_is_told_only_where_there_are_several(failing):
    evidence = read_verdict(failing)
    both = {"rec0_g0": "gym_1", "rec0_g1": "gym_1"}
    evidence.instances = both
    assert "all of instance gym_1" not in report.in_common(evidence)
    evidence.instances = both | {"rec9_g0": "gym_2"}
    assert "all of instance gym_1" in report.in_common(evidence)


def test_the_selection_names_the_instances(tmp_path):
    evidence = changed("cuts.0.gym_instance_id", "gym_1")
    assert read_verdict(judge(tmp_path, evidence)).instances == {"rec0_g0": "gym_1"}


def test_both_runs_stand_side_by_side(failing, run):
    lines = run(failing)[1].splitlines()
    (line,) = (x for x in lines if x.startswith(f"{CUT_AT + 2} "))
    row = read_verdict(failing).pairs[1, 0, 0].reference
    assert line.split()[1] == "≠"
    assert f" {row.columns['token_ids'][CUT_AT + 2]} " in line
    assert line.split().count("99") == 1


def test_log_probs_are_told_by_part(failing, run):
    lines = run(failing)[1].splitlines()
    (line,) = (x for x in lines if x.startswith("continued tails"))
    assert line.split()[2:] == ["4", "100.00", "%", "0"]
    assert "rows with another token in the recovery: 2 of 8" in lines


def test_a_share_below_one_is_never_rounded_to_it(tmp_path):
    evidence = read_verdict(judge(tmp_path, sound()))
    part = evidence.logprobs.parts["rows never cut"]
    part.tokens, part.identical = 100000, 99999
    _, _, identical, _ = report.logprob_table(evidence).columns
    assert [*identical.cells][-1] == "99.99 %"


def test_a_log_has_no_escape_codes(failing, run):
    assert "\x1b" not in run(failing)[1]


def test_tokens_are_decoded_by_a_tokenizer_that_knows_them(tmp_path, run):
    evidence = with_cut_rows(alter_token)
    for rows in [evidence[name][step] for name in ("ref", "rec") for step in (1, 2)]:
        for row in rows:
            row["token_ids"] = [[x % 100 for x in row["token_ids"][0]]]
    evidence["log"] = ["train step 1/2"]
    _, out, _ = run(judge(tmp_path, evidence))
    assert f"99 {Tokenizer.load(POLICY).decode([99])!r}" in out


def test_a_tokenizer_that_is_too_small_is_refused(failing, run):
    status, _, error = run(failing, "--tokenizer", POLICY)
    assert status == 2 and "tokens, but the dump has token 2334" in error


def test_a_tokenizer_that_cannot_be_loaded_is_refused_in_one_line(
    failing, run, tmp_path
):
    status, _, error = run(failing, "--tokenizer", tmp_path / "none")
    assert (status, error.count("\n")) == (2, 1) and "--tokenizer" in error


def test_malformed_evidence_exits_2_with_one_line(tmp_path, run):
    (tmp_path / "verdict.json").write_text("{}")
    status, out, error = run(tmp_path / "verdict.json")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert str(tmp_path / "verdict.json") in error


ODD = {
    "a column of text": ("rec.1.0.teacher", ["a\ud800"]),
    "a column of lists": ("rec.1.0.teacher", [[{"a": 1}, None]]),
    "a column is missing": ("rec.1.0.prev_logprobs", None),
    "a masked row": ("rec.1.0.sample_loss_mask", [0.0]),
    "an odd group": ("rec.1.0.sample_id", ["a\ud800\x00_g0"]),
    "no row of a step": ("rec.1", []),
    "no cut row": ("rec.1.0", None),
    "no cut": ("cuts", []),
    "no key": ("cuts.0.staging_keys", []),
    "a prefix of nothing": ("cuts.0.prefix_token_count", 0),
    "a prefix longer than its row": ("cuts.0.prefix_token_count", 99),
    "a prefix less than nothing": ("cuts.0.prefix_token_count", -3),
    "nothing generated": ("rec.1.0.token_loss_mask", [[0.0] * 25]),
    "no reference": ("ref.1", []),
    "no log-prob": ("rec.1.0.generation_logprobs", [[None] * 25]),
    "no advantage": ("ref.1.0.advantages", [[None] * 25]),
    "no reward": ("rec.1.0.rewards", [None]),
    "another dump alone": ("ref.1.0.metadata", [{"prompt_idx": 77}]),
}


@pytest.mark.parametrize("path, value", ODD.values(), ids=ODD)
def test_what_the_judge_takes_is_explained(tmp_path, run, path, value):
    verdict = judge(tmp_path, changed(path, value), status=1)
    figure, junit = tmp_path / "figure.png", tmp_path / "junit.xml"
    status, out, error = run(verdict, "--figure", figure, "--junit", junit)
    assert (status, error) == (1, "") and "Likely cause" in out
    assert figure.exists() and ElementTree.parse(junit)


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
    evidence.checks[0].problems[0] = "50%\nmore"
    capsys.readouterr()
    ci.annotate(evidence, "")
    assert "::50%25%0Amore (2 in all)\n" in capsys.readouterr().out


def test_equal_runs_compare_as_passing(tmp_path, run):
    folders = [write_run(tmp_path / name, sound(), name) for name in ("ref", "rec")]
    status, out, _ = run("--compare", *folders)
    assert status == 0 and out.startswith("PASS rows match: 8 rows\nPASS ")


def test_a_comparison_allows_noise_and_can_be_strict(tmp_path, run):
    evidence = sound()
    evidence["rec"][1][0]["generation_logprobs"][0][-1] -= 0.1
    folders = [write_run(tmp_path / name, evidence, name) for name in ("ref", "rec")]
    assert run("--compare", *folders, "--min-identical-logprobs=0.9")[0] == 0
    assert run("--compare", *folders, "--min-identical-logprobs=1")[0] == 1
    status, out, _ = run("--compare", *folders, "--max-logprob-difference=0.01")
    assert status == 1 and "log-probs differ, tokens equal" in out


@pytest.mark.parametrize("limit", ["nan", "-1", "inf"])
@pytest.mark.parametrize("option", ["min-identical-logprobs", "max-logprob-difference"])
def test_a_limit_that_limits_nothing_is_refused(run, option, limit):
    with pytest.raises(SystemExit, match="2"):
        run("--compare", "a", "b", f"--{option}={limit}")


def test_an_empty_step_compares_as_lost_rows(tmp_path, run):
    folders = [write_run(tmp_path / name, sound(), name) for name in ("ref", "rec")]
    (folders[1] / "exp_001/train_data_step1.jsonl").write_text("")
    status, out, _ = run("--compare", *folders, "--figure", tmp_path / "figure.png")
    assert status == 1 and "the recovery has no rows of step 1" in out
