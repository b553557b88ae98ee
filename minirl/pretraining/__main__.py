# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Trains the policy on synthetic Workplace episodes, from nothing.

    python -m minirl.pretraining [--out minirl/workplace-policy] [--max-items 450]

The policy learns to call the tool that the user asks for with the user's arguments
and to write a list of integers that ends where it was told to. At the end comes the
gate: greedy decoding must be exact for every prompt of the workload and for nearly all
unseen ones, or nothing is written and the exit status is 1.
"""

import argparse
import random
import sys
from pathlib import Path

import torch

from minirl.model import load_policy, save_policy
from minirl.pretraining.episodes import vocabulary
from minirl.pretraining.gate import gate
from minirl.pretraining.training import Trainer, new_model, train, training_batches
from minirl.tokenizer import Tokenizer

SHIPPED_POLICY = Path(__file__).parents[1] / "workplace-policy"


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=SHIPPED_POLICY)
    parser.add_argument("--gate-only", action="store_true", help="judge what is in OUT")
    parser.add_argument("--max-items", type=int, default=450)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch-tokens", type=int, default=2560)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse_options(arguments)
    torch.set_num_threads(1)  # a second thread is no faster on so small a model
    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.gate_only:
        tokenizer = Tokenizer.load(options.out)
        model = load_policy(options.out, device)
    else:
        tokenizer = Tokenizer.from_words(vocabulary())
        model = new_model(tokenizer, options.max_items, options.layers).to(device)
        batches = training_batches(
            tokenizer,
            random.Random(options.seed),
            options.max_items,
            options.steps,
            options.batch_tokens,
        )
        trainer = Trainer(model, options.muon_rate, options.adam_rate)
        train(model, batches, trainer, options.steps)
    unseen = random.Random(f"unseen {options.seed}")
    problems = gate(model, tokenizer, options.max_items, unseen)
    for problem in problems:
        print(f"gate: {problem}", file=sys.stderr)
    if problems:
        return 1
    if not options.gate_only:
        options.out.mkdir(parents=True, exist_ok=True)
        tokenizer.save(options.out)
        save_policy(model, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
