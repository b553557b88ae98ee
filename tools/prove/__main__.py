# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Entry point of the proofs; see each with --help."""

import argparse
import importlib
import sys

COMMANDS = ["faults", "soak", "bench", "gpu", "vllm"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.prove", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    args, rest = parser.parse_known_args(sys.argv[1:2])
    sys.argv = [f"{parser.prog} {args.command}", *rest, *sys.argv[2:]]
    return importlib.import_module(f"tools.prove.{args.command}").main()


if __name__ == "__main__":
    sys.exit(main())
