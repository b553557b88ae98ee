# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""More of what the judge must reject, beside the tests that travel with it."""

import json
import os
import signal
from concurrent.futures import ProcessPoolExecutor

import prefix_recovery_evidence as small
import pytest
from prefix_recovery_evidence import (
    CHECKS,
    COMPLETED,
    MASK,
    RESTORED,
    judge,
    judged,
    parity,
)


@pytest.mark.parametrize(
    ("path", "value", "failed"),
    [
        ("rec.2.3.prompt_ids.0", [1, 2], CHECKS[0]),
        ("ref.3", [small.row("ref", 3, 0, 0)], CHECKS[0]),
        ("rec.2.3.step", 1, CHECKS[0]),
        ("rec.2.3.generation_logprobs.0.6", None, CHECKS[0]),  # shorter
        ("rec.2.3.input_lengths.0", 8, CHECKS[0]),
        ("cuts.0.generation_index", 1, CHECKS[1]),
        ("log.1", RESTORED.format("d" * 64, "0" * 64), CHECKS[1]),
        ("log.1", RESTORED.format("d" * 64, "0" * 63), CHECKS[1]),
        ("log.2", COMPLETED.replace("s=3", "s=4"), CHECKS[1]),
        ("log.2", COMPLETED.replace("s=3", "s=2").replace("s=1", "s=0"), CHECKS[1]),
        (
            "probe",
            [{"train_step": x, "staging_keys": ["k"]} for x in (1, 2)],
            CHECKS[2],
        ),
    ],
)
def test_one_change_fails_its_check(tmp_path, path, value, failed):
    status, names = judged(tmp_path, small.changed(path, value))
    assert status == 1 and failed in names


@pytest.mark.parametrize(
    ("column", "value", "failed"),
    [
        ("rewards", 1.0, CHECKS[3:4]),
        ("token_loss_mask", [0.0] * 7, [CHECKS[x] for x in (0, 1, 4)]),
        ("sample_loss_mask", 0.0, CHECKS[:1]),
        ("token_ids", [float("nan")] * 7, [CHECKS[x] for x in (0, 1, 4)]),
    ],
)
def test_what_is_wrong_in_both_runs_fails(tmp_path, column, value, failed):
    evidence = small.sound()
    for rows in (rows for run in ("ref", "rec") for rows in evidence[run].values()):
        for row in rows:
            row[column] = [value]
    assert judged(tmp_path, evidence) == (1, failed)


def test_a_step_too_many_in_both_runs_fails(tmp_path):
    evidence = small.sound()
    for run in ("ref", "rec"):
        evidence[run][3] = [small.row(run, 3, x, y) for x in (0, 1) for y in (0, 1)]
    assert judged(tmp_path, evidence) == (1, CHECKS[:1])


def test_a_key_that_only_the_first_record_of_a_step_has_is_live(tmp_path):
    evidence = small.sound()
    evidence["probe"].insert(0, {"train_step": 1, "staging_keys": ["k"]})
    assert judged(tmp_path, evidence) == (1, CHECKS[2:3])


def test_thresholds_decide_on_log_probs(tmp_path):
    evidence = small.sound()
    evidence["rec"][1][0]["generation_logprobs"] = [[-0.25 * x - 0.1 for x in MASK]]
    loose = "--min-identical-logprobs=0.8", "--max-logprob-difference=0.2"
    assert judged(tmp_path, evidence) == (1, CHECKS[4:])
    assert judged(tmp_path, evidence, *loose) == (0, [])
    assert judged(tmp_path, evidence, loose[0], "--max-logprob-difference=0.05")[0] == 1


@pytest.mark.parametrize(("here", "there"), [(None, -0.25), (None, float("-inf"))])
def test_a_log_prob_that_is_missing_in_one_run_is_far_off(tmp_path, here, there):
    evidence = small.sound()
    evidence["ref"][1][0]["generation_logprobs"][0][5] = there
    evidence["rec"][1][0]["generation_logprobs"][0][5] = here
    loose = "--min-identical-logprobs=0.5"
    assert judged(tmp_path, evidence, loose) == (1, CHECKS[4:])
    assert judged(tmp_path, evidence, loose, "--max-logprob-difference=9")[0] == 1

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    json.loads((tmp_path / "verdict.json").read_text(), parse_constant=refuse)


@pytest.mark.parametrize("column", ["generation_logprobs", "token_loss_mask"])
def test_an_empty_list_is_a_row_that_does_not_match(tmp_path, column):
    evidence = small.sound()
    evidence["rec"][2][3][column] = [[]]
    assert judged(tmp_path, evidence)[0] == 1


def test_a_mask_over_the_tool_result_is_not_in_the_tail(tmp_path):
    evidence = small.sound()
    evidence["rec"][1][0]["token_loss_mask"][0][3] = 1.0
    assert "rows match" in judged(tmp_path, evidence)[1]
    checks = json.loads((tmp_path / "verdict.json").read_text())["checks"]
    assert checks[0]["problems"][0]["place"] == "the prompt"


@pytest.mark.parametrize("value", [None, float("-inf"), float("inf")])
def test_a_log_prob_that_is_not_finite_in_both_runs_agrees(tmp_path, value, recwarn):
    evidence = small.sound()
    for run in ("ref", "rec"):
        evidence[run][1][0]["generation_logprobs"][0][5] = value
        evidence[run][1][0]["prev_logprobs"][0][5] = value
    assert judged(tmp_path, evidence) == (0, [])
    assert not recwarn.list


def test_thresholds_of_exactness_accept_what_is_exact(tmp_path):
    exact = "--min-identical-logprobs=1", "--max-logprob-difference=0"
    assert judged(tmp_path, small.sound(), *exact) == (0, [])


def test_nothing_was_cut_and_nothing_restored_is_no_pass(tmp_path):
    evidence = small.sound()
    evidence["cuts"], evidence["log"] = [], ["noise"]
    assert judged(tmp_path, evidence) == (1, CHECKS[1:2])


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 0),
        ({"log.1": RESTORED.format("d" * 64, "0").partition(" prefix_ids")[0]}, 1),
        ({"rec.1.0.rewards": [1.0]}, 1),
        ({"rec.1.0.sample_loss_mask": [0.0]}, 1),
        ({"ref.1.0.token_ids": small.row("ref", 1, 0, 0)["token_ids"]}, 0),
        (
            {
                "ref.1.0.token_ids": small.row("ref", 1, 0, 0)["token_ids"],
                "rec.1.0.advantages.0.4": 9.0,
            },
            1,
        ),
    ],
)
def test_what_is_allowed_before_the_cut_is_other_tokens_that_were_replayed(
    tmp_path, change, status
):
    evidence = small.sound()
    evidence["ref"][1][0]["token_ids"][0][4] += 1
    for path, value in change.items():
        small.change(evidence, path, value)
    assert judged(tmp_path, evidence, "--allow-pre-cut")[0] == status


def test_order_and_representation_do_not_matter(tmp_path):
    evidence = small.sound()
    for row in evidence["rec"][1]:
        row["rewards"] = [row["rewards"]]  # some heads write [[x]]
        row["generation_logprobs"][0][0] = float("nan")
    evidence["rec"][1].reverse()
    evidence["cuts"][0]["prefix_token_count"] = 2
    del evidence["cuts"][0]["generation_token_count"]
    assert judged(tmp_path, evidence) == (0, [])


def test_a_problem_of_a_row_names_the_row(tmp_path):
    evidence = small.sound()
    evidence["ref"][1][0]["token_ids"][0][6] += 1
    evidence["rec"][2][3]["generation_logprobs"][0][5] = -9.0
    assert judged(tmp_path, evidence)[0] == 1
    checks = json.loads((tmp_path / "verdict.json").read_text())["checks"]
    (problem,) = checks[0]["problems"]
    row = "step 1, prompt 0, generation 0 (reference ref0, recovery rec0)"
    what = "token_ids[6] in the continued tail: 107 became 106"
    assert problem == {
        "message": f"{row}: {what}",
        "step": 1,
        "prompt_idx": 0,
        "generation": 0,
        "reference_group_id": "ref0",
        "recovery_group_id": "rec0",
        "place": "the continued tail",
        "columns": {"token_ids": 6},
    }
    row = "step 2, prompt 3, generation 1 (reference ref3, recovery rec3)"
    message = f"{row}: generation_logprobs[5] differ by 8.75"
    assert message in [problem["message"] for problem in checks[4]["problems"]]


def test_a_line_a_check_is_printed_and_one_for_what_failed(tmp_path, capsys):
    evidence = small.sound()
    evidence["ref"][1][0]["token_ids"][0][6] += 1
    evidence["ref"][1][1]["token_ids"][0][6] += 1
    evidence["probe"][0]["staging_keys"] += ["k"]
    judged(tmp_path, evidence)
    row = "step 1, prompt 0, generation 0 (reference ref0, recovery rec0)"
    assert capsys.readouterr().out.splitlines() == [
        "FAIL rows match: 8 rows, 2 steps",
        f"     {row}: token_ids[6] in the continued tail: 107 became 106 (and 1 more)",
        "PASS prefixes trained once: 1 cuts, 2 prefix tokens",
        "FAIL old keys retired: 2 keys, 2 steps",
        "     rec0_g0: k is live as step 1 begins",
        "PASS reward signal: 4 of reward 0, 4 of reward 1",
        "PASS generation log-probs agree:"
        " 30 tokens, 30 identical, 0.0 largest difference",
    ]


FILES = ["ref/exp_001/train_data_step1.jsonl", "rec/exp_001/train_data_step2.jsonl"]
FILES += ["cuts", "probe", "gym_checkpoint.json", "log"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "torn", [b"{", b"[]", b'{"a": 1}', b"\xff", b"[" * 99999, None]
)
def test_torn_evidence_is_one_line_and_status_2(tmp_path, name, torn):
    small.write(tmp_path, small.sound())
    (tmp_path / name).write_bytes(torn or b"")
    if torn is None:
        (tmp_path / name).unlink()
    harmless = name == "log" and torn not in (b"\xff", None)
    lost = torn is None and name.endswith("jsonl")
    status, error = judge(tmp_path)
    assert status == (1 if harmless or lost else 2)
    assert (
        harmless or lost or (error.count("\n") == 1 and str(tmp_path / name) in error)
    )


def test_a_torn_log_line_is_status_2(tmp_path):
    evidence = small.sound()
    evidence["log"].append(COMPLETED[:60])
    status, error = judged(tmp_path, evidence)
    assert status == 2 and f"{tmp_path / 'log'}:4: " in error


@pytest.mark.parametrize("jobs", [0, 2])
def test_not_one_job_in_a_log_folder_is_status_2(tmp_path, jobs):
    small.write(tmp_path, small.sound())
    if jobs:
        (tmp_path / "rec/exp_002").mkdir()
    else:
        os.rename(tmp_path / "rec/exp_001", tmp_path / "elsewhere")
    assert judge(tmp_path)[0] == 2


def test_a_job_without_a_dump_is_status_2(tmp_path):
    small.write(tmp_path, small.sound())
    for path in (tmp_path / "rec/exp_001").glob("*.jsonl"):
        path.unlink()
    assert judge(tmp_path)[0] == 2


def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_in_judging_is_status_2(tmp_path, monkeypatch):
    monkeypatch.setattr(parity, "ProcessPoolExecutor", ProcessPoolExecutor)
    monkeypatch.setattr(parity, "_judge_step", killed)
    status, error = judged(tmp_path, small.sound())
    assert (status, error.count("\n")) == (2, 1)


def test_a_verdict_that_cannot_be_written_is_status_2(tmp_path):
    (tmp_path / "verdict.json").mkdir(parents=True)
    assert judged(tmp_path, small.sound())[0] == 2
