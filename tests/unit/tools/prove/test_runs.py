# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""What the proofs print."""

from tools.prove import runs


def test_table_is_plain_when_it_is_no_terminal(capsys):
    runs.print_table("Title", ["a", "bb"], [["long", "x"]])
    assert capsys.readouterr().out == "Title\na     bb\nlong  x\n"
