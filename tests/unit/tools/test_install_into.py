# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""`make install-into`: whole, into a NeMo-RL checkout, over theirs only by force."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FUNCTIONAL = Path("tests/functional")
SCRIPT = FUNCTIONAL / "grpo_async_gym_single_controller_prefix_recovery.sh"
HOOK = FUNCTIONAL / "_single_controller_turn_recovery_hook.py"
UNIT = Path("tests/unit/functional")
OURS = UNIT / "test_single_controller_turn_recovery_hook.py"
THEIRS = Path("tests/unit/algorithms/test_turn_recovery.py")


@pytest.fixture
def checkout(tmp_path):
    """What a NeMo-RL checkout is known by, and two tests of theirs."""
    texts = {
        Path("nemo_rl/__init__.py"): "",
        Path("examples/run_grpo_single_controller.py"): "",
        FUNCTIONAL / "grpo_async_gym_single_controller.sh": "",
        THEIRS: f"from tests.functional.{HOOK.stem} import probe\n",
        THEIRS.with_name("test_other.py"): f"# not{HOOK.stem}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def install(checkout, **environment):
    """Exit status, and what it says."""
    command = ["bash", ROOT / "tools/install_into.sh", checkout]
    environment = os.environ | environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def files(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in paths}


def run_line(checkout):
    return f"cd {checkout} && uv run --no-sync bash ./{SCRIPT}\n"


def test_the_harness_arrives_byte_for_byte(checkout):
    before = files(checkout)
    assert install(checkout) == (0, run_line(checkout))
    new = {x: y for x, y in files(checkout).items() if x not in before}
    assert all((ROOT / path).read_bytes() == content for path, content in new.items())
    assert len([path for path in new if path.parent == FUNCTIONAL]) == 5
    assert len([path for path in new if path.parent == UNIT]) == 5
    assert len(new) == 12 and before.items() <= files(checkout).items()
    assert install(checkout) == (0, run_line(checkout))  # again, over itself


def test_its_unit_tests_pass_there(checkout):
    assert install(checkout)[0] == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", UNIT]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_folder_that_is_no_checkout_is_left_alone(tmp_path):
    status, said = install(tmp_path)
    assert status == 2 and said.startswith(f"error: {tmp_path} is no NeMo-RL checkout")
    assert files(tmp_path) == {}


def test_without_force_nothing_is_changed(checkout):
    (checkout / HOOK).write_text("theirs")
    (checkout / OURS).parent.mkdir(parents=True)
    (checkout / OURS).write_text(f"import {HOOK.stem}\n")
    before = files(checkout)
    status, said = install(checkout)
    assert status == 2 and said.startswith("error: ") and said.count("\n") == 1
    assert f"FORCE=1 would replace {HOOK} {OURS} and remove {THEIRS}," in said
    assert files(checkout) == before


def test_force_replaces_files_and_removes_their_tests(checkout):
    for path in (SCRIPT, HOOK, OURS):
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).write_text(f"import {HOOK.stem}\n")
    status, said = install(checkout, FORCE="1")
    *lines, last = said.splitlines(keepends=True)
    assert (status, last) == (0, run_line(checkout))
    names = [SCRIPT, HOOK, OURS, THEIRS]
    assert [line.split()[1].strip(",") for line in lines] == list(map(str, names))
    assert not (checkout / THEIRS).exists()
    assert (checkout / THEIRS.with_name("test_other.py")).exists()
    for path in (SCRIPT, HOOK, OURS):
        assert (checkout / path).read_bytes() == (ROOT / path).read_bytes()


def test_a_test_of_theirs_stays_where_nothing_is_replaced(checkout):
    assert install(checkout, FORCE="1") == (0, run_line(checkout))
    assert (checkout / THEIRS).exists()


@pytest.mark.parametrize("force", ["0", "1"])
def test_nothing_is_half_copied(checkout, force):
    (checkout / UNIT).parent.mkdir(exist_ok=True)
    (checkout / UNIT).write_text("a file where a folder has to be")
    before = files(checkout)
    assert install(checkout, FORCE=force)[0] != 0
    assert files(checkout) == before
