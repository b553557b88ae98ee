# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""What is printed of a verdict: what differing rows share, causes, rows, log-probs."""

import math
from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table

from tools.explain.causes import likely_causes
from tools.explain.evidence import Evidence
from tools.explain.logprobs import Part
from tools.explain.pairs import PER_TOKEN, RUNS, Pair, place
from tools.explain.tokens import Decode

BEFORE, AFTER = 5, 8  # tokens shown around the first difference
SCALARS = "rewards", "sample_loss_mask"
EXAMPLES = 3  # causes of which one row is shown


def summary(evidence: Evidence) -> str:
    """One line: which checks failed."""
    failing, total = evidence.failing(), len(evidence.checks)
    if failing:
        return f"{len(failing)} of {total} checks failed: {', '.join(failing)}"
    return f"all {total} checks hold"


def in_common(evidence: Evidence) -> list[str]:
    """What the differing rows of the first step with any share, a sentence each."""
    if not (suspects := evidence.suspects()):
        return []
    pairs, (step, *_) = list(suspects.values()), next(iter(suspects))
    rows = sum(identity.step == step for identity in evidence.times["reference"])
    found = [f"step {step} differs first, in {len(pairs)} of its {rows} rows"]
    if later := sum(identity.step > step for identity in evidence.differing):
        found.append(f"{later} rows of later steps differ, too: it may follow from it")
    cut = [pair for pair in pairs if pair.cut]
    if len(cut) == len(pairs):
        found.append("only rows that were cut in mid-decode")
    elif cut:
        whole = f"{len(pairs) - len(cut)} were not"
        found.append(f"{len(cut)} were cut in mid-decode, {whole}")
    elif evidence.cuts:
        found.append("only rows never cut")
    if len(pairs) > 1:
        found += [f"all of {shared}" for shared in _shared(evidence, suspects)]
    differences = [(pair, pair.first_differences()) for pair in pairs]
    for name in PER_TOKEN:
        firsts = [(pair, x[name]) for pair, x in differences if name in x]
        if firsts:
            return [*found, _where(name, firsts)]
    return found


def _shared(evidence: Evidence, suspects: dict[Any, Pair]) -> list[str]:
    """The one prompt, generation or Gym instance that all the rows are of."""
    values: dict[str, set[Any]] = {
        "prompt": {identity.prompt_idx for identity in suspects},
        "generation": {identity.generation for identity in suspects},
    }
    if len(set(evidence.instances.values())) > 1:
        ids = [pair.recovery.sample_id for pair in suspects.values()]
        values["instance"] = {evidence.instances.get(x, "") for x in ids} - {""}
        if not evidence.instances.keys() >= {*ids}:
            del values["instance"]
    return [f"{name} {x}" for name, (x, *others) in values.items() if not others]


def _where(name: str, firsts: list[tuple[Pair, int]]) -> str:
    places = Counter(place(pair, at) for pair, at in firsts)
    named = ", ".join(
        f"in {x} ({n} row{'s' * (n > 1)})" for x, n in places.most_common()
    )
    earliest = min(at for _, at in firsts)
    found = f"{PER_TOKEN[name]} differ first {named}, never before token {earliest}"
    if all(pair.was_cut for pair, _ in firsts):
        offsets = [at - pair.cut_at for pair, at in firsts]
        ends = sorted({min(offsets), max(offsets)})
        found += f"; counted from the cut: {' to '.join(f'{x:+d}' for x in ends)}"
    return found


def causes(evidence: Evidence) -> list[str]:
    """The likely causes, a sentence each, with the rows that they explain."""
    total = len(evidence.suspects())
    return [
        cause + (f" ({len(rows)} of {total} rows, first {rows[0]})" if rows else "")
        for cause, rows in likely_causes(evidence).items()
    ]


def token_table(pair: Pair, decode: Decode) -> Table | None:
    """The tokens of both runs around the first difference, or None if none differs."""
    name, at = next(iter(pair.first_differences().items()), ("", 0))
    if not name:
        return None
    detail = "generation_logprobs" if name == "token_ids" else name
    tokens, details = pair.columns("token_ids"), pair.columns(detail)
    table = _table("token", "", "place", *RUNS)
    for run in RUNS:
        table.add_column(f"{PER_TOKEN[detail]},\n{run}", justify="right", no_wrap=True)
    differs = pair.differs("token_ids"), pair.differs(name)
    end = min(at + AFTER, max(map(len, tokens)))
    for i in range(max(at - BEFORE, 0), end):
        other = any(x[i : i + 1].any() for x in differs)
        cells = [decode(int(x[i])) if i < len(x) else "-" for x in tokens]
        numbers = [f"{x[i] + 0.0:.6g}" if i < len(x) else "-" for x in details]
        style = "bold red" if other else None
        where = place(pair, i)
        table.add_row(str(i), "≠" * other, where, *cells, *numbers, style=style)
    return table


def logprob_table(evidence: Evidence) -> Table:
    """How many generation log-probs are identical in each part of the rows."""
    table = _table("log-probs of equal tokens")
    for header in ("tokens", "identical", "largest difference"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, part in evidence.logprobs.parts.items():
        if part.tokens:
            largest = f"{part.largest:.3g}"
            table.add_row(name, f"{part.tokens}", _percent(part), largest)
    return table


def _percent(part: Part) -> str:
    """Rounded down, so that only all of them are 100 %."""
    return f"{math.floor(part.share * 10000) / 100:.2f} %"


def _table(*headers: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for header in headers:
        table.add_column(header, no_wrap=header not in RUNS)
    return table


def show(console: Console, evidence: Evidence, decode: Decode) -> None:
    """Print what differing rows share, likely causes, examples, and log-probs."""

    def line(text: str, style: str | None = None) -> None:
        console.print(text, style=style, soft_wrap=True)

    line(f"\n{summary(evidence)}", "bold red" if evidence.failing() else "green")
    if common := in_common(evidence):
        line("\nWhat the differing rows have in common", "bold")
        for sentence in common:
            line(f"  - {sentence}")
    if likely := causes(evidence):
        line("\nLikely cause", "bold")
        for sentence in likely:
            line(f"  - {sentence}", "yellow")
    examples = [rows[0] for rows in likely_causes(evidence).values() if rows]
    for identity in examples[:EXAMPLES]:
        pair = evidence.pairs[identity]
        table = token_table(pair, decode)
        scalars = [x for x in SCALARS if pair.first(x) is not None]
        if table or scalars:
            line(f"\n{identity}, the first difference", "bold")
        for name in scalars:
            a, b = (x.item() for x in pair.columns(name))
            line(f"{name}: reference {a:g}, recovery {b:g}", "bold red")
        if table:
            console.print(table)
    flipped, rows = evidence.logprobs.flipped, evidence.logprobs.rows
    if rows:
        line("")
        console.print(logprob_table(evidence))
        line(f"rows with another token in the recovery: {flipped} of {rows}")
