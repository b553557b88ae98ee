# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
from judged import CUT_AT, LENGTH, changed, judge, sound, with_cut_rows
from prefix_recovery_evidence import LIST

from tools.explain import pairs
from tools.explain.evidence import read_verdict


def test_regions_cover_a_row_without_gaps(tmp_path):
    pair = read_verdict(judge(tmp_path, sound())).pairs[1, 0, 0]
    names, begins, ends = zip(*pairs.regions(pair, pair.recovery), strict=True)
    assert begins == (0, 2, 4, LIST, CUT_AT)
    assert ends == (*begins[1:], LENGTH)
    assert names[-2:] == (pairs.PREFIX, pairs.TAIL)


def test_a_row_that_generated_nothing_is_all_prompt(tmp_path):
    evidence = changed("rec.1.0.token_loss_mask", [[0.0] * LENGTH])
    pair = read_verdict(judge(tmp_path, evidence)).pairs[1, 0, 0]
    assert pairs.regions(pair, pair.recovery) == [(pairs.PROMPT, 0, LENGTH)]
    assert not pair.was_cut


def test_place_is_by_the_reference_where_the_recoverys_mask_is_wrong(tmp_path):
    def cover_tool_result(row):
        row["token_loss_mask"][LIST - 1] = 1.0

    verdict = judge(tmp_path, with_cut_rows(cover_tool_result))
    pair = read_verdict(verdict).pairs[1, 0, 0]
    assert pairs.place(pair, LIST - 1) == pairs.TOOL_RESULT
    assert pairs.place(pair, CUT_AT) == pairs.TAIL
