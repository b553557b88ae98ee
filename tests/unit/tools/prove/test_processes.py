# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""A job's processes are found by their environment, and all of them end."""

import os
import subprocess
import sys

import pytest

from tools.prove import processes

CHILD = """
import subprocess, time
subprocess.Popen(["sleep", "60"], start_new_session=True)
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def job(tmp_path):
    """A process whose child has a session of its own, as RAY_TMPDIR tells."""
    leader = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env=os.environ | {"RAY_TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    assert leader.stdout and leader.stdout.readline()
    yield leader
    processes.end_job(tmp_path)
    leader.wait()


def test_processes_of_a_job_are_found_in_any_session(job, tmp_path):
    pids = processes.job_pids(tmp_path)
    assert len(pids) == 2 and job.pid in pids
    assert len({os.getsid(pid) for pid in pids}) == 2


def test_end_job_ends_them_all(job, tmp_path):
    processes.end_job(tmp_path)
    assert job.wait() == -9
    assert processes.job_pids(tmp_path) == []


def test_folder_whose_name_only_begins_alike_is_another_job(job, tmp_path):
    processes.end_job(tmp_path.with_name(tmp_path.name[:-1]))
    assert len(processes.job_pids(tmp_path)) == 2


def test_wait_until_names_what_did_not_happen():
    with pytest.raises(
        processes.RunError, match="the sky falls: did not happen within 0"
    ):
        processes.wait_until("the sky falls", lambda: False, 0)


def test_wait_until_returns_the_first_true_value():
    values = iter([None, [], [7]])
    assert processes.wait_until("a value", lambda: next(values), 5) == [7]
