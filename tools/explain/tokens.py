# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""How a token is written for a person: its id, and its text by a tokenizer."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tools.explain.pairs import Pair

POLICY = Path(__file__).parents[2] / "minirl" / "workplace-policy"
UNREADABLE = AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError
Decode = Callable[[int], str]


def load_decoder(name: str | None, pairs: Iterable[Pair]) -> Decode:
    """What writes a token: its id, and its text where a tokenizer knows all of them.

    Args:
        name: minirl's folder or transformers' name; minirl's shipped policy if None.
        pairs: the rows whose tokens may be written.

    Raises:
        OSError: the tokenizer that was asked for can't be loaded or is too small.
    """
    size = 0
    tokenizer: Any = None
    try:
        from minirl.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(name or POLICY)
        size = tokenizer.vocab_size
    except (ImportError, *UNREADABLE) as error:
        if name:
            tokenizer = _load_transformers(name, error)
            size = len(tokenizer)
    columns = [column for pair in pairs for column in pair.columns("token_ids")]
    largest = max((int(column.max()) for column in columns), default=0)
    if largest >= size:
        if name:
            found = f"{size} tokens, but the dump has token {largest}"
            raise OSError(f"--tokenizer {name}: {found}")
        return str
    return lambda token: f"{token} {tokenizer.decode([token])!r}"


def _load_transformers(name: str, error: Exception) -> Any:
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(name)
    except ImportError:
        reason = f"not minirl's ({error!r}), and transformers is not installed"
    except UNREADABLE as problem:
        reason = f"{problem}".splitlines()[0]
    raise OSError(f"--tokenizer {name}: {reason}")
