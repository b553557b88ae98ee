# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The policy's tokenizer, and how a chat is written in its tokens.

A byte-level vocabulary of the `tokenizers` library: the special tokens, then the 256
bytes, then whole words, each with and without a leading space. Digits occur only as
single bytes, so a number is always one token per digit: a policy that reads and writes
digits can count to numbers that it never saw in training.
"""

import json
import re
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

SPECIAL_TOKENS = (
    "<|pad|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|call|>",
)
FILE_NAME = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"

_WORD = re.compile(r"[A-Za-z_]+")
_PIECES = r" ?[A-Za-z_]+|[\s\S]"
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": "<|pad|>",
    "eos_token": "<|end|>",
    "chat_template": _CHAT_TEMPLATE,
    "clean_up_tokenization_spaces": False,
}


class Tokenizer:
    """Text to token ids and back, without loss.

    Attributes:
        vocab_size: number of tokens.
        texts: each token's text; a special token's name, U+FFFD for a byte that is no
            character by itself.
        pad_id, end_id, system_id, user_id, assistant_id, tool_id, call_id: ids of the
            special tokens; `pad_id` is 0 and `end_id`, 1, ends a turn.
    """

    def __init__(self, document: str):
        """Take the text of a `tokenizer.json`."""
        self._library = tokenizers.Tokenizer.from_str(document)
        # A text can't smuggle in the end of a turn.
        self._library.encode_special_tokens = True
        self.vocab_size = self._library.get_vocab_size()
        self.texts = [self.decode([token_id]) for token_id in range(self.vocab_size)]
        (
            self.pad_id,
            self.end_id,
            self.system_id,
            self.user_id,
            self.assistant_id,
            self.tool_id,
            self.call_id,
        ) = range(len(SPECIAL_TOKENS))

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[str]]:
        """Pickle the document: the library would lose what `__init__` sets."""
        return Tokenizer, (self._library.to_str(),)

    @classmethod
    def from_words(cls, words: list[str]) -> "Tokenizer":
        """A tokenizer in which some words are one token each.

        Raises:
            ValueError: a word has other characters than letters and underscores, one
                character only, or repeats.
        """
        for word in words:
            if len(word) < 2 or not _WORD.fullmatch(word):
                raise ValueError(
                    f"word {word!r}: expected two or more letters and underscores"
                )
        if len(set(words)) != len(words):
            raise ValueError("words repeat")
        space = "Ġ"  # how the byte-level alphabet writes it
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokens = [*SPECIAL_TOKENS, *alphabet, *words, *(space + word for word in words)]
        vocabulary = {token: index for index, token in enumerate(tokens)}
        # A piece is a token of its own or falls into its bytes: nothing is merged.
        library = tokenizers.Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_PIECES), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        library.decoder = decoders.ByteLevel()
        library.add_special_tokens(
            [AddedToken(token, special=True) for token in SPECIAL_TOKENS]
        )
        return cls(library.to_str())

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        """Read `tokenizer.json`.

        Raises:
            FileNotFoundError: `folder` has none.
            ValueError: the library can't read it.
        """
        path = Path(folder) / FILE_NAME
        document = path.read_text(encoding="utf-8")
        try:
            return cls(document)
        except Exception as error:  # the library has no class of its own
            raise ValueError(f"{path}: expected a tokenizer: {error}") from None

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json`, and what `transformers` needs beside it."""
        document = self._library.to_str(pretty=True)
        (Path(folder) / FILE_NAME).write_text(document + "\n", encoding="utf-8")
        config = json.dumps(_CONFIG, indent=2)
        (Path(folder) / CONFIG_FILE).write_text(config + "\n", encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; names of special tokens in it are plain characters."""
        return self._library.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Text of token ids; special tokens appear as their names."""
        return self._library.decode(ids, skip_special_tokens=False)

    def render_prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a chat, up to where the assistant's turn begins.

        Args:
            messages: each {"role": "system" | "user" | "assistant" | "tool",
                "content": text}. Tool schemas are not part of the prompt; they reach
                the decoder as constraints.

        Raises:
            ValueError: unknown role.
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
