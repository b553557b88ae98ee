# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
from explain_evidence import CUT_AT, LENGTH, START, cut_rows, judged

from tools import pairs
from tools.evidence import read_verdict


def test_regions_cover_a_row_without_gaps(tmp_path):
    pair = read_verdict(judged(tmp_path)).pairs[1, 0, 0]
    names, begins, ends = zip(*pairs.regions(pair, pair.recovery), strict=True)
    assert begins == (0, 4, 9, START, CUT_AT)
    assert ends == (*begins[1:], LENGTH)
    assert names[-2:] == (pairs.PREFIX, pairs.TAIL)


def test_place_is_by_the_reference_where_the_recoverys_mask_is_wrong(tmp_path):
    def cover_tool_result(row):
        row["token_loss_mask"][START - 3 : START] = [1.0] * 3

    evidence = read_verdict(judged(tmp_path, cut_rows(cover_tool_result)))
    pair = evidence.pairs[1, 0, 0]
    assert pairs.place(pair, START - 1) == pairs.TOOL_RESULT
    assert pairs.place(pair, CUT_AT) == pairs.TAIL
