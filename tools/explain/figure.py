# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""A picture of the evidence: a strip per trained row, a panel per train step.

A strip is the recovery's row, coloured by what its tokens are; below it are the
differences of the generation log-probs. What differs from the reference is marked.
"""

import math
import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tools.explain import pairs
from tools.explain.causes import likely_causes
from tools.explain.evidence import Evidence
from tools.explain.pairs import Identity, Pair, regions

COLORS = {  # of Okabe and Ito, told apart by colour-blind readers too
    pairs.PROMPT: "#DDDDDD",
    pairs.TURN: "#999999",
    pairs.TOOL_RESULT: "#F0E442",
    pairs.PREFIX: "#0072B2",
    pairs.TAIL: "#56B4E9",
    pairs.REST: "#F4F4F4",
}
DIFFERS, LOGPROBS = "#D55E00", "#CC1188"
STEPS, ROWS = 6, 40  # panels, and rows in a panel, that a page has room for
GAP, STRIP, LANE = 0.06, 0.5, 0.36  # of a row's height of 1
SMALLEST = 1e-7  # log-prob difference that still shows


def draw(evidence: Evidence, path: Path) -> None:
    """Write the picture as a PNG; of a large run, the first differing rows."""
    identities = [*evidence.how_often()]
    unequal = {x for x, (n, m) in evidence.how_often().items() if n != m}
    wrong = evidence.differing | unequal
    shown = {x.step for x in evidence.pairs.keys() | wrong}
    failing = {x.step for x in wrong}
    steps = sorted(sorted(shown, key=lambda x: (x not in failing, x))[:STEPS])
    panels = []
    for step in steps:
        ranked = sorted((x not in wrong, x) for x in identities if x.step == step)
        panels.append(sorted(identity for _, identity in ranked[:ROWS]))
    across = min(len(steps), 3)
    down = math.ceil(len(steps) / across)
    figure = plt.figure(layout="constrained")
    size = 5.4 * across + 0.6, (max(map(len, panels)) * 0.27 + 0.8) * down + 1.8
    figure.set_size_inches(size)
    drawn = [evidence.pairs[x] for rows in panels for x in rows if x in evidence.pairs]
    largest = max((_gaps(pair).max(initial=0) for pair in drawn), default=0)
    for number, (step, rows) in enumerate(zip(steps, panels, strict=True), 1):
        axes = figure.add_subplot(down, across, number)
        _panel(axes, evidence, rows, wrong, largest)
        n, total = len(wrong & {*rows}), sum(x.step == step for x in identities)
        summary = f"{n} of {total} rows differ" if n else f"all {total} rows are equal"
        axes.set_title(f"step {step}: {summary}", loc="left", fontsize=11)
    _frame(figure, evidence, len(wrong), across, largest)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _frame(
    figure: Figure, evidence: Evidence, wrong: int, across: int, largest: float
) -> None:
    rows, failed = len(evidence.how_often()), evidence.failing()
    if failed:
        found = f"{wrong} of {rows} rows differ" if wrong else ", ".join(failed)
        causes = [*likely_causes(evidence)][:2]
        lines = [f"FAIL: {found}", *(textwrap.fill(x, 58 * across) for x in causes)]
    else:
        cut = f", {len(evidence.cuts)} of them cut in mid-decode" * bool(evidence.cuts)
        lines = [f"PASS: {rows} rows are equal{cut}"]
    color = DIFFERS if failed else "#007755"
    title = figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=13)
    title.set(color=color, weight="bold", parse_math=False)
    handles: list[Patch | Line2D] = []
    for name, fill in COLORS.items():
        if name != pairs.REST:
            label = name.removeprefix("the ").removeprefix("a ")
            handles.append(Patch(color=fill, label=label))
    handles.append(Patch(color=DIFFERS, label="differs from the reference"))
    marker = Line2D([], [], linestyle="", marker="v", color="black")
    marker.set_label("first difference")
    bar = Line2D([], [], linestyle="", marker="|", color=LOGPROBS, markersize=9)
    bar.set_label(f"log-prob difference, log scale {SMALLEST:g} to {largest:.2g}")
    handles += [marker] * bool(wrong) + [bar] * bool(largest)
    columns = {1: 2, 2: 3}.get(across, 4)
    figure.legend(
        handles=handles, loc="outside lower left", ncols=columns, frameon=False
    )


def _panel(
    axes: Axes,
    evidence: Evidence,
    rows: list[Identity],
    wrong: set[Identity],
    largest: float,
) -> None:
    known = [evidence.pairs[x] for x in rows if x in evidence.pairs]
    lengths = [len(x) for pair in known for x in pair.columns("token_ids")]
    width = max(lengths, default=100)
    labels: list[str] = []
    for y, identity in enumerate(rows):
        _, prompt, generation = identity
        new = not y or prompt != rows[y - 1][1]
        labels.append(f"prompt {prompt}   g{generation}" if new else f"g{generation}")
        if new and y:
            axes.axhline(y - 0.5, color="#DDDDDD", linewidth=0.6, zorder=0)
        end, notes = width, []
        if identity in evidence.pairs:
            pair = evidence.pairs[identity]
            end = max(map(len, pair.columns("token_ids")))
            notes = _notes(pair) if identity in wrong else []
            _strip(axes, y, pair, largest)
        else:
            axes.broken_barh(
                [(0, width)],
                (y - 0.5 + GAP, STRIP),
                facecolor="none",
                edgecolor=DIFFERS,
                linestyle=":",
            )
        reference, recovery = evidence.how_often()[identity]
        if reference != recovery:
            notes = [_how_often(reference, recovery)]
        axes.text(
            end + 0.02 * width,
            y - 0.5 + GAP + STRIP / 2,
            ", ".join(notes),
            va="center_baseline",
            fontsize=8,
            color=DIFFERS,
        )
    axes.set_yticks(np.arange(len(rows)) - 0.5 + GAP + STRIP / 2, labels)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, width * 1.3)
    axes.set_xticks([x for x in axes.get_xticks() if x <= width])
    axes.set_xlabel("token", fontsize=8, loc="left")
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)


def _strip(axes: Axes, y: int, pair: Pair, largest: float) -> None:
    top = y - 0.5 + GAP
    a, b = pair.columns("token_ids")
    # the recovery's own mask may be what is wrong
    row = pair.reference if len(a) == len(b) else pair.recovery
    for name, begin, end in regions(pair, row):
        axes.broken_barh([(begin, end - begin)], (top, STRIP), facecolor=COLORS[name])
    columns = [pair.differs(name) for name in ("token_ids", "token_loss_mask")]
    n = max(map(len, columns))
    differs = np.any([np.pad(x, (0, n - len(x))) for x in columns], axis=0)
    edges = np.diff(differs, prepend=False, append=False).nonzero()[0]
    spans = [(x, end - x) for x, end in zip(edges[::2], edges[1::2], strict=True)]
    axes.broken_barh(spans, (top + 0.3 * STRIP, 0.4 * STRIP), facecolor=DIFFERS)
    if spans:
        axes.plot(spans[0][0], top, "v", color="black", markersize=4, clip_on=False)
    gaps = _gaps(pair)
    if not gaps.any():
        return
    at, base = gaps.nonzero()[0], top + STRIP + LANE
    decades = np.log10(np.maximum([*gaps[at], largest], SMALLEST) / SMALLEST)
    height = decades[:-1] / max(decades[-1], 1)
    axes.hlines(base, 0, n, color="#DDDDDD", linewidth=0.5, zorder=0)
    bottoms = base - LANE * (0.15 + 0.85 * height)
    axes.vlines(at, bottoms, base, color=LOGPROBS, linewidth=0.8)


def _gaps(pair: Pair) -> np.ndarray:
    """How far generation log-probs are apart, [L]; 0 where the tokens differ."""
    tokens, (a, b) = pair.columns("token_ids"), pair.columns("generation_logprobs")
    n = min(map(len, (*tokens, a, b)))
    counted = (tokens[0][:n] == tokens[1][:n]) & pair.differs("generation_logprobs")[:n]
    with np.errstate(invalid="ignore"):
        return np.where(
            counted, np.nan_to_num(np.abs(a[:n] - b[:n]), nan=1, posinf=1), 0
        )


def _how_often(reference: int, recovery: int) -> str:
    if not recovery:
        return "lost"
    if not reference:
        return "not in the reference"
    return f"trained {recovery} times, not {reference}"


def _notes(pair: Pair) -> list[str]:
    """What differs first in a row, and its reward if that does."""
    found = pair.first_differences().items()
    notes = [f"{pairs.PER_TOKEN[name]} from {at}" for name, at in found][:1]
    if pair.first("rewards") is not None:
        a, b = (x.item() for x in pair.columns("rewards"))
        notes.insert(0, f"reward {a:g} → {b:g}")
    return notes
