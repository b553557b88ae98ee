# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""`make install-into`: whole, only into a NeMo-RL checkout, over no file of theirs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FUNCTIONAL = Path("tests/functional")
SCRIPT = FUNCTIONAL / "grpo_async_gym_single_controller_prefix_recovery.sh"
HOOK = FUNCTIONAL / "_single_controller_turn_recovery_hook.py"
PROBE = FUNCTIONAL / "_single_controller_staging_key_probe.py"
UNIT = Path("tests/unit/functional")


@pytest.fixture
def checkout(tmp_path):
    """What a NeMo-RL checkout is known by."""
    for name in ("nemo_rl/__init__.py", "examples/run_grpo_single_controller.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    base_test = tmp_path / FUNCTIONAL / "grpo_async_gym_single_controller.sh"
    base_test.parent.mkdir(parents=True)
    base_test.write_text('echo "entry point: $SC_TEST_ENTRYPOINT"; exit 1\n')
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


def test_the_harness_arrives_byte_for_byte(checkout):
    before = files(checkout)
    said = f"cd {checkout} && uv run --no-sync bash ./{SCRIPT}\n"
    assert install(checkout) == (0, said)
    new = {x: y for x, y in files(checkout).items() if x not in before}
    assert all((ROOT / path).read_bytes() == content for path, content in new.items())
    assert len([path for path in new if path.parent == FUNCTIONAL]) == 5
    assert len([path for path in new if path.parent == UNIT]) == 5
    assert install(checkout) == (0, said)  # again, over itself


def test_its_unit_tests_pass_there(checkout):
    assert install(checkout)[0] == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", UNIT]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_folder_that_is_no_checkout_is_left_alone(tmp_path):
    status, said = install(tmp_path)
    assert status == 2 and said.startswith(f"error: {tmp_path} is no NeMo-RL checkout")
    assert files(tmp_path) == {}


def test_a_file_that_differs_is_overwritten_only_by_force(checkout):
    (checkout / SCRIPT).write_text("theirs")
    before = files(checkout)
    status, said = install(checkout)
    assert status == 2 and "FORCE=1" in said and str(checkout / SCRIPT) in said
    assert files(checkout) == before
    assert install(checkout, FORCE="1")[0] == 0
    assert (checkout / SCRIPT).read_bytes() == (ROOT / SCRIPT).read_bytes()


@pytest.mark.parametrize("force", ["0", "1"])
def test_a_hook_of_theirs_stays_and_ours_is_used(checkout, force):
    (checkout / HOOK).write_text("theirs")
    assert install(checkout, FORCE=force)[0] == 0
    assert (checkout / HOOK).read_text() == "theirs"
    assert (checkout / PROBE).read_bytes() == (ROOT / HOOK).read_bytes()
    done = subprocess.run(
        ["bash", checkout / SCRIPT],
        env=os.environ | {"SC_PREFIX_RECOVERY_MIN_FREE_MB": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and f"entry point: {checkout / PROBE}" in done.stderr
