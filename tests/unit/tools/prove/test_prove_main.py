# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The entry point of the proofs."""

import pytest

from tools.prove import __main__ as prove


@pytest.mark.parametrize("command", prove.COMMANDS)
def test_help_of_each_command_names_it(command, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["prove", command, "--help"])
    with pytest.raises(SystemExit) as ended:
        prove.main()
    assert ended.value.code == 0
    assert f"python -m tools.prove {command}" in capsys.readouterr().out


def test_unknown_command_is_refused_with_the_choices(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["prove", "nothing"])
    with pytest.raises(SystemExit) as ended:
        prove.main()
    assert ended.value.code == 2
    assert "faults" in capsys.readouterr().err
