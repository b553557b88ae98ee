# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
from copy import copy

import numpy as np
import prefix_recovery_evidence as small
from judged import CUT_AT, LENGTH, judge, sound, with_cut_rows
from matplotlib import colors
from matplotlib.image import imread

from tools.explain.evidence import read_verdict
from tools.explain.figure import DIFFERS, LOGPROBS, ROWS, draw
from tools.explain.pairs import Identity


def picture(folder, evidence):
    draw(read_verdict(judge(folder, evidence)), folder / "figure.png")
    return imread(folder / "figure.png")[:, :, :3]


def has(image, color):
    return bool((np.abs(image - colors.to_rgb(color)).max(axis=2) < 0.01).any())


def test_a_passing_run_has_nothing_marked(tmp_path):
    image = picture(tmp_path, sound())
    panel = image[: -image.shape[0] // 5]  # without the legend
    assert not has(panel, DIFFERS) and not has(panel, LOGPROBS)


def test_other_tokens_are_marked(tmp_path):
    def alter(row):
        row["token_ids"][CUT_AT:] = [99] * (LENGTH - CUT_AT)

    plain = picture(tmp_path / "a", sound())
    marked = picture(tmp_path / "b", with_cut_rows(alter))
    assert not has(plain[100:250], DIFFERS) and has(marked[100:250], DIFFERS)


def test_log_prob_differences_are_drawn(tmp_path):
    def alter(row):
        row["generation_logprobs"][CUT_AT:] = [-5.0] * (LENGTH - CUT_AT)

    assert has(picture(tmp_path, with_cut_rows(alter)), LOGPROBS)


def test_non_finite_log_probs_are_drawn(tmp_path):
    def alter(row):
        row["generation_logprobs"][CUT_AT] = float("nan")
        row["generation_logprobs"][CUT_AT + 1] = float("-inf")

    assert has(picture(tmp_path, with_cut_rows(alter)), LOGPROBS)


def test_a_lost_row_is_drawn_without_tokens(tmp_path):
    evidence = sound()
    del evidence["rec"][1][0]
    assert has(picture(tmp_path, evidence), DIFFERS)


def test_a_columns_name_is_never_read_as_a_formula(tmp_path):
    evidence = small.change(sound(), "rec.1.0.a$^$b", [1.0])
    assert has(picture(tmp_path, evidence), DIFFERS)


def test_a_large_run_gives_a_page_of_bounded_height(tmp_path):
    evidence = read_verdict(judge(tmp_path, sound()))
    pair = evidence.pairs[1, 0, 0]
    for step in range(1, 9):
        for prompt in range(50):
            evidence.pairs[Identity(step, prompt, 0)] = pair
            row = copy(pair.reference)
            row.step, row.prompt_idx = step, prompt
            for rows in evidence.rows.values():
                rows.append(row)
    draw(evidence, tmp_path / "figure.png")
    assert imread(tmp_path / "figure.png").shape[0] < 100 * (ROWS * 0.27 * 2 + 5)
