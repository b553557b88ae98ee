# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Explain a verdict to a person, or compare the training dumps of any two runs.

    python tools/explain.py [VERDICT] [--figure FILE.png] [--junit FILE.xml]
    python tools/explain.py --compare REFERENCE_LOG_DIR OTHER_LOG_DIR

Exits 0 if all checks hold, 1 if one fails, 2 if the input is of no use.
"""

import argparse
import io
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for minirl and tools, wherever this is started from

from tools.causes import likely_causes  # noqa: E402
from tools.evidence import MALFORMED, Evidence, compare, read_verdict  # noqa: E402
from tools.harness import FUNCTIONAL  # noqa: E402
from tools.pairs import PER_TOKEN, Identity, Pair, place  # noqa: E402

VERDICT = "grpo_async_gym_single_controller_prefix_recovery/verdict.json"
POLICY = ROOT / "minirl/workplace-policy"
BEFORE, AFTER = 5, 8  # tokens shown around the first difference
WIDTH = 120  # of a plain log
EXAMPLES = 3  # causes of which one row is shown
Decode = Callable[[int], str]


def load_decoder(name: str | None, pairs: dict[Identity, Pair]) -> Decode:
    """What writes a token: its id, and its text where a tokenizer is at hand.

    Raises:
        OSError: the tokenizer that was asked for can't be loaded or is too small.
    """
    size = 0
    tokenizer: Any = None
    try:
        from minirl.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(name or POLICY)
        size = tokenizer.vocab_size
    except (ImportError, *MALFORMED) as error:
        if name:
            tokenizer = _load_transformers(name, error)
            size = len(tokenizer)
    rows = [row for pair in pairs.values() for row in (pair.reference, pair.recovery)]
    largest = max((row.columns["token_ids"].max(initial=0) for row in rows), default=0)
    if largest >= size:
        if name:
            found = f"{size} tokens, but the dump has token {largest:.0f}"
            raise OSError(f"--tokenizer {name}: {found}")
        return str
    return lambda token: f"{token} {tokenizer.decode([token])!r}"


def _load_transformers(name: str, error: Exception) -> Any:
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(name)
    except ImportError:
        reason = f"not minirl's ({error!r}), and transformers is not installed"
    except (*MALFORMED, RuntimeError) as problem:
        reason = f"{problem}".splitlines()[0]
    raise OSError(f"--tokenizer {name}: {reason}")


def in_common(evidence: Evidence) -> list[str]:
    """What the differing rows of the first step with any share, a sentence each."""
    if not (suspects := evidence.suspects()):
        return []
    pairs, (step, *_) = list(suspects.values()), next(iter(suspects))
    rows = sum(identity[0] == step for identity in evidence.times["reference"])
    found = [f"step {step} differs first, in {len(pairs)} of its {rows} rows"]
    if later := len(evidence.differing()) - len(pairs):
        found.append(f"{later} rows of later steps differ, too: it may follow from it")
    cut = [pair for pair in pairs if pair.cut]
    if len(cut) == len(pairs):
        found.append("only rows that were cut in mid-decode")
    elif evidence.cuts:
        whole = f"{len(pairs) - len(cut)} were not" if cut else "only rows never cut"
        found.append(f"{len(cut)} were cut in mid-decode, {whole}" if cut else whole)
    shared: dict[str, set[Any]] = {
        "prompt": {identity[1] for identity in suspects},
        "generation": {identity[2] for identity in suspects},
    }
    if len(set(evidence.instances.values())) > 1 and len(cut) == len(pairs):
        instances = {evidence.instances[pair.cut.sample_id] for pair in pairs}
        shared["instance"] = instances
    for name, values in shared.items():
        if len(values) == 1 and len(pairs) > 1:
            found.append(f"all of {name} {values.pop()}")
    for name in PER_TOKEN:
        firsts = [(x, at) for x in pairs if (at := x.first(name)) is not None]
        if firsts:
            found.append(_where(name, firsts))
            break
    return found


def _where(name: str, firsts: list[tuple[Pair, int]]) -> str:
    places = Counter(place(pair, at) for pair, at in firsts)
    named = ", ".join(f"in {x} ({n} rows)" for x, n in places.most_common())
    earliest = min(at for _, at in firsts)
    found = f"{PER_TOKEN[name]} differ first {named}, never before token {earliest}"
    if all(pair.cut for pair, _ in firsts):
        offsets = [at - pair.cut_at for pair, at in firsts]
        ends = sorted({min(offsets), max(offsets)})
        found += f"; counted from the cut: {' to '.join(f'{x:+d}' for x in ends)}"
    return found


def token_table(pair: Pair, decode: Decode) -> Table | None:
    """The tokens of both runs around the first difference, or None if none differs."""
    found = ((x, at) for x in PER_TOKEN if (at := pair.first(x)) is not None)
    name, at = next(found, ("", 0))
    if not name:
        return None
    detail = "generation_logprobs" if name == "token_ids" else name
    tokens, details = pair.columns("token_ids"), pair.columns(detail)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for header in ("token", "", "place"):
        table.add_column(header, no_wrap=True)
    for run in ("reference", "recovery"):
        table.add_column(run)
    for run in ("reference", "recovery"):
        table.add_column(f"{PER_TOKEN[detail]},\n{run}", justify="right", no_wrap=True)
    differs = pair.differs("token_ids"), pair.differs(name)
    end = min(at + AFTER, max(map(len, tokens)))
    for i in range(max(at - BEFORE, 0), end):
        other = any(x[i : i + 1].any() for x in differs)
        cells = [decode(int(x[i])) if i < len(x) else "-" for x in tokens]
        numbers = [f"{x[i]:.6g}" if i < len(x) else "-" for x in details]
        where = place(pair, i)
        style = "bold red" if other else None
        table.add_row(str(i), "≠" * other, where, *cells, *numbers, style=style)
    return table


def show(console: Console, evidence: Evidence, decode: Decode) -> None:
    """Print the checks, what differing rows share, likely causes, and examples."""

    def line(text: str, style: str | None = None) -> None:
        console.print(text, style=style, soft_wrap=True)

    for check in evidence.checks:
        word, style = ("PASS", "green") if check["passed"] else ("FAIL", "bold red")
        counts = ", ".join(f"{n} {what}" for what, n in check["counts"].items())
        line(f"{word} {check['name']}: {counts}", style)
        for problem in check["problems"][:1]:
            more = len(check["problems"]) - 1
            line(f"     {problem['message']}" + f" (and {more} more)" * (more > 0))
    for title, found in (
        ("What the differing rows have in common", in_common(evidence)),
        ("Likely cause", _causes(evidence)),
    ):
        if found:
            line(f"\n{title}", "bold")
        for sentence in found:
            line(f"  - {sentence}", "yellow" if title == "Likely cause" else None)
    examples = [rows[0] for rows in likely_causes(evidence).values() if rows]
    for identity in examples[:EXAMPLES]:
        pair = evidence.pairs[identity]
        line(f"\n{_name(identity)}, the first difference", "bold")
        for name in ("rewards", "sample_loss_mask"):
            if pair.first(name) is not None:
                a, b = (x.item() for x in pair.columns(name))
                line(f"{name}: reference {a:g}, recovery {b:g}", "bold red")
        if table := token_table(pair, decode):
            console.print(table)


def _name(identity: Identity) -> str:
    return "step {}, prompt {}, generation {}".format(*identity)


def _causes(evidence: Evidence) -> list[str]:
    total = len(evidence.suspects())
    return [
        cause
        + (f" ({len(rows)} of {total} rows, first {_name(rows[0])})" if rows else "")
        for cause, rows in likely_causes(evidence).items()
    ]


def write_junit(path: Path, evidence: Evidence) -> None:
    """JUnit XML with one test case per check."""
    failures = sum(not check["passed"] for check in evidence.checks)
    counts = {"tests": str(len(evidence.checks)), "failures": str(failures)}
    names = {"name": "prefix recovery parity", **counts}
    suite = ElementTree.Element("testsuite", names)
    for check in evidence.checks:
        names = {"classname": "prefix_recovery_parity", "name": check["name"]}
        case = ElementTree.SubElement(suite, "testcase", names)
        if not check["passed"]:
            messages = [problem["message"] for problem in check["problems"]]
            failure = ElementTree.SubElement(case, "failure", message=messages[0])
            failure.text = "\n".join(
                [*messages, "", "Likely cause:", *_causes(evidence)]
            )
    ElementTree.ElementTree(suite).write(path, encoding="unicode", xml_declaration=True)


def annotate(evidence: Evidence, text: str) -> None:
    """GitHub's annotations, one a failed check and cause, and the step's summary."""

    def escape(value: str) -> str:
        return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    failed = [check for check in evidence.checks if not check["passed"]]
    for check in failed:
        message = f"{check['problems'][0]['message']} ({len(check['problems'])} in all)"
        print(f"::error title={escape(check['name'])}::{escape(message)}")
    for cause in _causes(evidence):
        print(f"::error title=likely cause::{escape(cause)}")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        head = "### Prefix recovery parity: " + ("fails" if failed else "holds")
        causes = [f"- **{cause}**" for cause in _causes(evidence)]
        with open(summary, "a") as file:
            file.write("\n".join([head, "", *causes, "", "```", text + "```", ""]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verdict", nargs="?", type=Path, default=FUNCTIONAL / VERDICT)
    parser.add_argument("--compare", nargs=2, type=Path, metavar="LOG_DIR")
    parser.add_argument("--min-identical-logprobs", type=float, default=0.99)
    parser.add_argument("--max-logprob-difference", type=float, default=0.5)
    parser.add_argument("--tokenizer", help="minirl's folder, or transformers' name")
    parser.add_argument("--figure", type=Path, help="PNG of every row")
    parser.add_argument("--junit", type=Path, help="JUnit XML, a test case per check")
    options = parser.parse_args()
    try:
        if options.compare:
            evidence = compare(options.compare[0], options.compare[1], options)
        else:
            evidence = read_verdict(options.verdict)
        decode = load_decoder(options.tokenizer, evidence.pairs)
        width = None if sys.stdout.isatty() else WIDTH
        console = Console(width=width, highlight=False, markup=False, emoji=False)
        show(console, evidence, decode)
        if options.junit:
            write_junit(options.junit, evidence)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            plain = io.StringIO()
            show(
                Console(file=plain, width=WIDTH, markup=False, emoji=False),
                evidence,
                decode,
            )
            annotate(evidence, plain.getvalue())
        if options.figure:
            from tools.figure import draw

            draw(evidence, options.figure)
    except (ImportError, OSError) as error:
        print(f"error: nothing to explain: {error}", file=sys.stderr)
        return 2
    return 0 if all(check["passed"] for check in evidence.checks) else 1


if __name__ == "__main__":
    sys.exit(main())
