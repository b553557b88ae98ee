# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Explain a verdict to a person, or compare the training dumps of any two runs.

    python -m tools.explain [VERDICT] [--figure FILE.png] [--junit FILE.xml]
    python -m tools.explain --compare REFERENCE_LOGS OTHER_LOGS

A verdict's checks were printed by the judge; of a comparison they are printed here.
Exits 0 if all checks hold, 1 if one fails, 2 if the input is of no use.
"""

import argparse
import io
import math
import os
import sys
from functools import partial
from pathlib import Path

import _gym_prefix_recovery_parity as parity
from rich.console import Console

from tools import FUNCTIONAL
from tools.explain.ci import annotate, write_junit
from tools.explain.evidence import Evidence, compare, read_verdict
from tools.explain.report import show
from tools.explain.tokens import load_decoder

VERDICT = "grpo_async_gym_single_controller_prefix_recovery/verdict.json"
WIDTH = 120  # of a plain log


def explain(options: argparse.Namespace) -> Evidence:
    """Print the explanation, and write what was asked for."""
    if options.compare:
        reference, other = options.compare
        evidence = compare(reference, other, options)
        sys.stdout.writelines(parity._report(evidence.checks))
    else:
        evidence = read_verdict(options.verdict)
    decode = load_decoder(options.tokenizer, evidence.pairs.values())
    console = partial(Console, highlight=False, markup=False, emoji=False)
    width = None if sys.stdout.isatty() else WIDTH
    show(console(width=width), evidence, decode)
    if options.junit:
        write_junit(options.junit, evidence)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        plain = io.StringIO()
        show(console(file=plain, width=WIDTH), evidence, decode)
        annotate(evidence, plain.getvalue())
    if options.figure:
        from tools.explain.figure import draw  # matplotlib takes a second to import

        draw(evidence, options.figure)
    sys.stdout.flush()
    return evidence


def main() -> int:
    summary = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(
        prog="python -m tools.explain", description=summary
    )
    parser.add_argument("verdict", nargs="?", type=Path, default=FUNCTIONAL / VERDICT)
    logs = "REFERENCE_LOGS", "OTHER_LOGS"
    parser.add_argument("--compare", nargs=2, type=Path, metavar=logs)
    limit = "of --compare (default: %(default)s)"
    parser.add_argument(
        "--min-identical-logprobs", type=float, default=0.97, help=limit
    )
    parser.add_argument("--max-logprob-difference", type=float, default=0.5, help=limit)
    parser.add_argument("--tokenizer", help="minirl's folder, or transformers' name")
    parser.add_argument("--figure", type=Path, help="PNG of every row")
    parser.add_argument("--junit", type=Path, help="JUnit XML, a test case per check")
    options = parser.parse_args()
    if not 0 <= options.min_identical_logprobs <= 1:
        parser.error("--min-identical-logprobs: expected a share from 0 to 1")
    if not 0 <= options.max_logprob_difference < math.inf:
        parser.error("--max-logprob-difference: expected a number from 0 on")
    if isinstance(sys.stdout, io.TextIOWrapper):  # ids may be of any characters
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        evidence = explain(options)
    except (ImportError, OSError, parity.EvidenceError) as error:
        print(f"error: nothing to explain: {error}", file=sys.stderr)
        return 2
    return 1 if evidence.failing() else 0


if __name__ == "__main__":
    sys.exit(main())
