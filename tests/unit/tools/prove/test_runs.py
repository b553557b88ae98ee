# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The helpers of the fault catalogue and of the soak, without a run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import faults, runs, soak


def write_step(dump: Path, step: int, tokens: list[int], group_id: str = "a") -> None:
    record = {
        "idx": 0,
        "step": step,
        "sample_id": [f"{group_id}_g0"],
        "metadata": [{"group_id": group_id, "prompt_idx": 0}],
        "token_ids": [tokens],
    }
    dump.mkdir(parents=True, exist_ok=True)
    path = dump / f"train_data_step{step}.jsonl"
    path.write_text(json.dumps(record) + "\n")


def test_end_session_ends_a_child_that_ignores_its_group():
    child = (
        "import subprocess, time; subprocess.Popen(['sleep', '60'], process_group=0)"
    )
    leader = subprocess.Popen(
        [sys.executable, "-c", f"{child}; print(flush=True); time.sleep(60)"],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert leader.stdout and leader.stdout.readline()
    assert len(runs.session_pids(leader.pid)) == 2
    runs.end_session(leader.pid)
    assert leader.wait() == -9
    assert runs.session_pids(leader.pid) == []


def test_wait_until_names_what_did_not_happen():
    with pytest.raises(runs.RunError, match="the sky falls: did not happen within 0"):
        runs.wait_until("the sky falls", lambda: False, 0)


def test_wait_until_returns_the_first_true_value():
    values = iter([None, [], [7]])
    assert runs.wait_until("a value", lambda: next(values), 5) == [7]


def test_table_is_plain_when_it_is_no_terminal(capsys):
    runs.print_table("Title", ["a", "bb"], [["long", "x"]])
    assert capsys.readouterr().out == "Title\na     bb\nlong  x\n"


def test_rows_are_equal_whatever_their_group_is_called(tmp_path):
    write_step(tmp_path / "a", 1, [1, 2], "a")
    write_step(tmp_path / "b", 1, [1, 2], "b")
    assert faults.rows_of(tmp_path / "a") == faults.rows_of(tmp_path / "b")


def test_run_without_a_fault_must_pass_every_check():
    assert faults.result_of("", [], True) == "passed"
    assert faults.result_of("", ["x"], True) == "FALSE ALARM"


@pytest.mark.parametrize(
    ("failed", "same_rows", "result"),
    [
        (["x", "y"], False, "caught"),
        (["y"], False, "caught by another check only"),
        ([], False, "MISSED"),
        ([], True, "NO EFFECT on the rows"),
    ],
)
def test_result_of_a_fault_that_check_x_must_catch(failed, same_rows, result):
    assert faults.result_of("x", failed, same_rows) == result


def test_joined_dump_prefers_the_restored_run(tmp_path):
    killed, restored, joined = (tmp_path / name for name in "krj")
    write_step(killed, 1, [1])
    write_step(killed, 2, [2])
    write_step(restored, 2, [9])
    problems = soak.join_dumps(killed, restored, joined, 3)
    assert problems == ["step 2 was trained again, with other rows"]
    assert "[[1]]" in (joined / "train_data_step1.jsonl").read_text()
    assert "[[9]]" in (joined / "train_data_step2.jsonl").read_text()
    assert not (joined / "train_data_step3.jsonl").exists()


def test_joined_probe_drops_what_the_killed_run_began_but_did_not_keep(tmp_path):
    lines = [json.dumps({"train_step": step, "staging_keys": []}) for step in (1, 2)]
    (tmp_path / "killed").write_text("\n".join(lines) + "\n")
    (tmp_path / "restored").write_text(lines[1] + "\n")
    soak.join_probes(tmp_path / "killed", tmp_path / "restored", 1, tmp_path / "joined")
    assert (tmp_path / "joined").read_text().splitlines() == lines


def test_moment_follows_from_seed_and_number_alone():
    assert soak.moment(1, 5, 3) == soak.moment(1, 5, 3)
    assert soak.moment(1, 5, 3) != soak.moment(2, 5, 3)


def test_kinds_of_moments_take_turns():
    kinds = {soak.moment(1, number, 3).kind for number in range(len(soak.KINDS))}
    assert kinds == {*soak.KINDS}
