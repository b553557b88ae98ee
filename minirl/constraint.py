# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Schema-constrained decoding of a forced tool call: which tokens may come next.

A call is `<|call|>` NAME ARGUMENTS `<|end|>` with compact JSON arguments in the
schema's order. All of it that the schema fixes is a literal; strings and integers are
left to the policy. The constraint masks logits, it never rewrites what was sampled.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minirl.tokenizer import SPECIAL_TOKENS, Tokenizer


@dataclass(frozen=True)
class Literal:
    """Tokens that must come next, in order."""

    token_ids: list[int]


@dataclass(frozen=True)
class Free:
    """Any number of the allowed tokens, until the next literal begins."""

    allowed: np.ndarray  # bool [vocab_size]
    integer: bool


class Constraint:
    """The state of one constrained decode; `advance` takes each sampled token."""

    def __init__(self, tokenizer: Tokenizer, tool: dict[str, Any]):
        """Compile a function tool's JSON schema.

        Raises:
            ValueError: the schema has a type that is not a string, an integer or an
                array of a fixed number of integers; the message names the property.
        """
        self._tokenizer = tokenizer
        self._zero = tokenizer.encode("0")[0]
        self._pieces: list[Literal | Free] = []
        self._piece = 0
        self._taken: list[int] = []  # tokens taken within the current piece
        self._text = tool["name"] + "{"
        properties = tool["parameters"]["properties"]
        for number, (name, schema) in enumerate(properties.items()):
            self._text += ("," if number else "") + f'"{name}":'
            self._add_value(name, schema)
        self._text += "}"
        self._end_literal()
        first, last = self._pieces[0], self._pieces[-1]
        assert isinstance(first, Literal) and isinstance(last, Literal)
        first.token_ids.insert(0, tokenizer.call_id)
        last.token_ids.append(tokenizer.end_id)

    def _end_literal(self) -> None:
        self._pieces.append(Literal(self._tokenizer.encode(self._text)))
        self._text = ""

    def _add_free(self, characters: str | None) -> None:
        """Printable ASCII but for quote and backslash; or some characters."""
        self._end_literal()
        allowed = np.zeros(self._tokenizer.vocab_size, dtype=bool)
        for token_id, text in enumerate(self._tokenizer.texts):
            if characters is not None:
                allowed[token_id] = text in characters
            else:
                plain = text.isascii() and text.isprintable()
                special = text in SPECIAL_TOKENS
                allowed[token_id] = plain and not special and not set(text) & set('"\\')
        self._pieces.append(Free(allowed, integer=characters is not None))

    def _add_value(self, name: str, schema: dict[str, Any]) -> None:
        if len(schema.get("enum", [])) == 1 and schema.get("type") == "integer":
            self._text += str(schema["enum"][0])
        elif schema.get("type") == "string":
            self._text += '"'
            self._add_free(None)
            self._text = '"'
        elif schema.get("type") == "integer":
            self._add_free("0123456789")
        elif schema.get("type") == "array" and "maxItems" in schema:
            for item in range(schema["maxItems"]):
                self._text += "," if item else "["
                self._add_value(name, schema["items"])
            self._text += "]"
        else:
            raise ValueError(f"property {name}: no constraint for schema {schema}")

    def allowed(self) -> np.ndarray:
        """Which tokens may come next, bool [vocab_size]."""
        piece = self._pieces[self._piece]
        following = np.zeros(self._tokenizer.vocab_size, dtype=bool)
        if isinstance(piece, Literal):
            following[piece.token_ids[len(self._taken)]] = True
            return following
        if not piece.integer or self._taken:
            after = self._pieces[self._piece + 1]
            assert isinstance(after, Literal)
            following[after.token_ids[0]] = True
        if piece.integer and self._taken == [self._zero]:
            return following
        return piece.allowed | following

    def advance(self, token_id: int) -> None:
        """Take the token that was sampled among the allowed ones."""
        piece = self._pieces[self._piece]
        if isinstance(piece, Free) and not piece.allowed[token_id]:
            self._piece += 1
            self._taken = []
            piece = self._pieces[self._piece]
        self._taken.append(token_id)
        if isinstance(piece, Literal) and len(self._taken) == len(piece.token_ids):
            self._piece += 1
            self._taken = []
