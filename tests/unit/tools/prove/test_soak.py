# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The helpers of the soak, without a run."""

import json

from dumps import write_step

from tools.prove import soak


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
