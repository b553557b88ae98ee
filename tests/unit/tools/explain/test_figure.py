# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
from explain_evidence import CUT_AT, cut_rows, judged
from matplotlib import colors
from matplotlib.image import imread

from tools.evidence import read_verdict
from tools.figure import DIFFERS, LOGPROBS, ROWS, draw


def picture(folder, *args):
    draw(read_verdict(judged(folder, *args)), folder / "figure.png")
    return imread(folder / "figure.png")[:, :, :3]


def has(image, color):
    return bool((np.abs(image - colors.to_rgb(color)).max(axis=2) < 0.01).any())


def test_a_passing_run_has_nothing_marked(tmp_path):
    image = picture(tmp_path)
    panel = image[: -image.shape[0] // 5]  # without the legend
    assert not has(panel, DIFFERS) and not has(panel, LOGPROBS)


def test_other_tokens_are_marked(tmp_path):
    def alter(row):
        row["token_ids"][CUT_AT:] = [99] * len(row["token_ids"][CUT_AT:])

    plain, marked = picture(tmp_path / "a"), picture(tmp_path / "b", cut_rows(alter))
    assert not has(plain[100:250], DIFFERS) and has(marked[100:250], DIFFERS)


def test_log_prob_differences_are_drawn(tmp_path):
    def alter(row):
        row["generation_logprobs"][CUT_AT:] = [-5.0] * 12

    assert has(picture(tmp_path, cut_rows(alter)), LOGPROBS)


def test_a_lost_row_is_drawn_without_tokens(tmp_path):
    assert has(picture(tmp_path, lambda step, rows: rows[1:]), DIFFERS)


def test_a_large_run_gives_a_page_of_bounded_height(tmp_path):
    evidence = read_verdict(judged(tmp_path))
    pair = evidence.pairs[1, 0, 0]
    for identity in [(step, p, 0) for step in range(1, 9) for p in range(50)]:
        evidence.pairs[identity] = pair
        evidence.times["reference"][identity] = 1
        evidence.times["recovery"][identity] = 1
    draw(evidence, tmp_path / "figure.png")
    assert imread(tmp_path / "figure.png").shape[0] < 100 * (ROWS * 0.27 * 2 + 5)


def test_non_finite_log_probs_are_drawn(tmp_path):
    def alter(row):
        row["generation_logprobs"][CUT_AT] = float("nan")
        row["generation_logprobs"][CUT_AT + 1] = float("-inf")

    assert has(picture(tmp_path, cut_rows(alter)), LOGPROBS)
