# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from judged import CUT_AT, ITEMS, LENGTH, PREFIX, judge, sound
from prefix_recovery_evidence import LIST

from tools.explain.evidence import read_verdict
from tools.explain.logprobs import EARLIER, PREFIXES, TAILS, UNCUT

TAIL = ITEMS - PREFIX


def counted(folder, evidence):
    return read_verdict(judge(folder, evidence)).logprobs


def test_every_generated_token_is_in_one_part(tmp_path):
    found = counted(tmp_path, sound())
    tokens = {name: part.tokens for name, part in found.parts.items()}
    assert tokens == {
        PREFIXES: 2 * PREFIX,
        TAILS: 2 * TAIL,
        EARLIER: 2 * 2,
        UNCUT: 6 * (2 + ITEMS),
    }
    assert all(part.share == 1 and not part.largest for part in found.parts.values())
    assert (found.rows, found.flipped) == (8, 0)


@pytest.mark.parametrize(
    "row, at, name",
    [(0, LIST, PREFIXES), (1, CUT_AT, TAILS), (0, 2, EARLIER), (2, -1, UNCUT)],
)
def test_a_difference_counts_in_the_part_where_it_is(tmp_path, row, at, name):
    evidence = sound()
    evidence["rec"][1][row]["generation_logprobs"][0][at] -= 0.25
    parts = counted(tmp_path, evidence).parts
    assert [x for x, part in parts.items() if part.share < 1] == [name]
    assert parts[name].identical == parts[name].tokens - 1
    assert parts[name].largest == pytest.approx(0.25)


def test_a_number_that_is_none_is_not_identical(tmp_path):
    evidence = sound()
    for run in ("ref", "rec"):
        evidence[run][1][0]["generation_logprobs"][0][CUT_AT] = None
    tails = counted(tmp_path, evidence).parts[TAILS]
    assert (tails.tokens - tails.identical, tails.largest) == (1, 0)


def test_tokens_from_a_rows_first_other_token_on_are_left_out(tmp_path):
    evidence = sound()
    evidence["rec"][1][0]["token_ids"][0][CUT_AT + 3] = 9
    evidence["rec"][1][0]["generation_logprobs"][0][CUT_AT + 4 :] = [-9] * (TAIL - 4)
    found = counted(tmp_path, evidence)
    assert found.flipped == 1
    assert found.parts[TAILS].tokens == TAIL + 3
    assert found.parts[TAILS].share == 1
    assert LENGTH == CUT_AT + TAIL
