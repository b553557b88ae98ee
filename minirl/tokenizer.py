# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The policy's tokenizer, and how a chat is written in its tokens.

The vocabulary is the special tokens, then newline and the printable ASCII
characters, then whole words, each with and without a leading space. Digits occur
only as single characters, so a number is always one token per digit: a policy that
reads and writes digits can count to numbers that it never saw in training.
"""

import json
import re
from pathlib import Path

SPECIAL_TOKENS = (
    "<|pad|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|call|>",
)
CHARACTERS = "\n" + "".join(map(chr, range(0x20, 0x7F)))
FILE_NAME = "tokenizer.json"

_WORD = re.compile(r"[A-Za-z_]+")
# No piece is a special token's name: a text can't smuggle in the end of a turn.
_PIECE = re.compile(r" ?[A-Za-z_]+|.", re.DOTALL)


class Tokenizer:
    """Text to token ids and back, without loss.

    Attributes:
        vocab_size: number of tokens.
        pad_id, end_id, system_id, user_id, assistant_id, tool_id, call_id: ids of the
            special tokens; `pad_id` is 0 and `end_id` ends a turn.
    """

    def __init__(self, words: list[str]):
        """Build the vocabulary.

        Args:
            words: words of letters and underscores that become one token each.

        Raises:
            ValueError: a word has another character, one character only, or repeats.
        """
        for word in words:
            if len(word) < 2 or not _WORD.fullmatch(word):
                raise ValueError(
                    f"word {word!r}: expected two or more letters and underscores"
                )
        if len(set(words)) != len(words):
            raise ValueError("words repeat")
        self.words = list(words)
        spaced = [" " + word for word in words]
        self._tokens = [*SPECIAL_TOKENS, *CHARACTERS, *words, *spaced]
        self._ids = {token: index for index, token in enumerate(self._tokens)}
        self.vocab_size = len(self._tokens)
        (
            self.pad_id,
            self.end_id,
            self.system_id,
            self.user_id,
            self.assistant_id,
            self.tool_id,
            self.call_id,
        ) = range(len(SPECIAL_TOKENS))

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        """Read `tokenizer.json`; FileNotFoundError when `folder` has none."""
        return cls(json.loads((Path(folder) / FILE_NAME).read_text())["words"])

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` into the existing `folder`."""
        text = json.dumps({"words": self.words}, indent=1)
        (Path(folder) / FILE_NAME).write_text(text + "\n")

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; names of special tokens in it are plain characters.

        Raises:
            ValueError: a character is neither printable ASCII nor a newline.
        """
        ids = []
        for piece in _PIECE.findall(text):
            if piece in self._ids:
                ids.append(self._ids[piece])
                continue
            for character in piece:
                if character not in self._ids:
                    raise ValueError(
                        f"can't encode character {character!r}: expected printable "
                        "ASCII or a newline"
                    )
                ids.append(self._ids[character])
        return ids

    def decode(self, ids: list[int]) -> str:
        """Text of token ids; special tokens appear as their names."""
        return "".join(self._tokens[index] for index in ids)

    def render_prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a chat, up to where the assistant's turn begins.

        Args:
            messages: each {"role": "system" | "user" | "assistant" | "tool",
                "content": text}. Tool schemas are not part of the prompt; they reach
                the decoder as constraints.

        Raises:
            ValueError: unknown role, or content that can't be encoded.
        """
        role_ids = {
            "system": self.system_id,
            "user": self.user_id,
            "assistant": self.assistant_id,
            "tool": self.tool_id,
        }
        ids = []
        for message in messages:
            role = message["role"]
            if role not in role_ids:
                raise ValueError(f"role {role!r}: expected one of {list(role_ids)}")
            ids += [role_ids[role], *self.encode(message["content"]), self.end_id]
        return [*ids, self.assistant_id]

    def render_tool_result(self, text: str) -> list[int]:
        """Token ids that follow a generated tool call: its result, a new turn."""
        return [self.tool_id, *self.encode(text), self.end_id, self.assistant_id]

    def render_tool_call(self, name: str, arguments: dict) -> list[int]:
        """Token ids of a tool call as the policy generates it, its end included."""
        text = name + json.dumps(arguments, separators=(",", ":"))
        return [self.call_id, *self.encode(text), self.end_id]

    def parse_tool_call(self, ids: list[int]) -> tuple[str, dict]:
        """Name and arguments of a generated turn `<|call|>NAME{...}<|end|>`.

        Raises:
            ValueError: the turn is no complete tool call.
        """
        ids = list(ids)
        framed = len(ids) > 2 and ids[0] == self.call_id and ids[-1] == self.end_id
        if not framed or min(ids[1:-1]) < len(SPECIAL_TOKENS):
            raise ValueError(f"no tool call: {self.decode(ids)!r}")
        name, brace, rest = self.decode(ids[1:-1]).partition("{")
        if not _WORD.fullmatch(name):
            raise ValueError(f"tool call without a tool's name: {self.decode(ids)!r}")
        try:
            return name, json.loads(brace + rest)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"arguments of {name!r} are not JSON ({error}): {brace + rest!r}"
            ) from error
