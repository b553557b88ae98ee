# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Synthetic episodes: what the policy learns from, token by token.

An episode is a whole chat of the workload's form, with other names, e-mails, times,
durations and lists. In a quarter of them the call has another duration than the one
asked for, so that sampled calls of one prompt earn different rewards.
"""

import json
import random
import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from minirl.pretraining.workload import (
    COUNTER_PROMPT,
    EVENT,
    PROOF_ITEMS,
    TOOLS,
    WORKPLACE_PROMPT,
)
from minirl.tokenizer import Tokenizer

Event = dict[str, str]  # the arguments of the call, by their names

NAMES = """
    checkpoint recovery sentinel example alpha amber annual april audit autumn beta
    board book brief bridge budget call camera career change city class client cloud
    coast coffee core crew daily data deep delta demo design desk dinner draft dream
    east echo energy engine evening field final first focus forest forum garden gate
    global gold green group guest harbor health hiring house idea india island
    journal july june kernel kickoff lake launch legal light lunch main map market
    meeting metric model monday morning music north ocean office open orbit paper
    partner phase pilot plan planet policy prefix press prize project quarter quick
    radio rain release remote report research review river road sales school second
    sector select signal silver solar south spring staff star station status storm
    story studio summer summit support sync system target team test third token
    tower travel update vendor version video village vision vote water weekly west
    winter work yearly zone
"""
NAME_WORDS = NAMES.split()
CREATE_EVENT, COUNT = TOOLS
DOMAINS = ("example.com", "example.org", "example.net")
DURATIONS = range(15, 185, 5)  # minutes
TRAINED_LENGTH = 1.25  # times the longest list needed; it does not extrapolate

COUNTER_SHARE = 0.25  # of all episodes
WORKLOAD_EVENT_SHARE = 0.1  # of Workplace episodes: the workload's event must be exact
OTHER_DURATION_SHARE = 0.25  # of Workplace episodes
SHORT_SHARE = 0.2  # of lists: PROOF_ITEMS integers or fewer
WHOLE_SHARE = 0.08  # of episodes: nothing left out
CALL_SHARE = 0.25  # of the other Workplace episodes: no list
LIST_SHARE = 0.55  # of the other Workplace episodes: no call, little of the prompt
STOP_WEIGHT = 8.0


@dataclass(frozen=True)
class Episode:
    """A chat, token by token.

    Attributes:
        tokens: token ids.
        weights: weight in the loss; 0 for tokens that the policy does not generate.
        integers: the integer that a list's token belongs to, its separator or stop
            included; -1 outside lists.
        parts: what the tokens belong to: "prompt", "call", "result" or "list".
        positions: of the tokens, in the whole chat.
    """

    tokens: list[int]
    weights: list[float]
    integers: list[int]
    parts: list[str]
    positions: list[int]


def vocabulary() -> list[str]:
    """The words that are one token each: those of the prompts, calls and names."""
    texts = [WORKPLACE_PROMPT, COUNTER_PROMPT, *DOMAINS, "event_id"]
    for tool, properties in TOOLS.items():
        texts += [tool, *properties]
    found = re.findall(r"[A-Za-z_]{2,}", re.sub(r"{\w+}", "", " ".join(texts)))
    return list(dict.fromkeys([*found, *NAME_WORDS]))


def workplace_episode(
    tokenizer: Tokenizer,
    event: Event,
    last: int,
    event_id: int,
    called_duration: str | None = None,
    kept: Collection[int] | None = None,
) -> Episode:
    """The call, its result and the list 1..last.

    Args:
        tokenizer: with the `vocabulary`.
        event: what the prompt asks for.
        last: the list's last integer, in the prompt and in the answer.
        event_id: in the tool's result.
        called_duration: minutes in the call, where they differ from the event's.
        kept: the integers of the list that are not left out, the last one among them,
            or none; None for all.
    """
    prompt = WORKPLACE_PROMPT.format(**event, first=1, last=last)
    arguments = event | {"duration": called_duration or event["duration"]}
    result = json.dumps({"event_id": f"{event_id:08d}"}, separators=(",", ":"))
    begin, end = _turn(tokenizer)
    return _join(
        begin,
        _span("prompt", tokenizer.encode(prompt), 0.0),
        end,
        _span(
            "call", tokenizer.render_tool_call("calendar_create_event", arguments), 1.0
        ),
        _span("result", tokenizer.render_tool_result(result), 0.0),
        _list_span(tokenizer, range(1, last + 1), "\n", tokenizer.end_id, kept),
    )


def counter_episode(
    tokenizer: Tokenizer, count: int, last: int, kept: Collection[int] | None = None
) -> Episode:
    """The call of the counter, whose proof is the list 0..last; `kept` as above."""
    prompt = COUNTER_PROMPT.format(count=count, first=0, last=last)
    arguments = {"count": count, "checkpoint_proof": []}
    call = tokenizer.render_tool_call(COUNT, arguments)
    close, brace, end = call[-3:]
    begin, asked = _turn(tokenizer)
    return _join(
        begin,
        _span("prompt", tokenizer.encode(prompt), 0.0),
        asked,
        _span("call", call[:-3], 1.0),
        _list_span(tokenizer, range(last + 1), ",", close, kept),
        _span("call", [brace, end], 1.0),
    )


def _turn(tokenizer: Tokenizer) -> tuple[Episode, Episode]:
    """What stands before and after a prompt's text."""
    user, end, assistant = tokenizer.render_prompt([{"role": "user", "content": ""}])
    return _span("prompt", [user], 0.0), _span("prompt", [end, assistant], 0.0)


def _join(*spans: Episode) -> Episode:
    episode = Episode([], [], [], [], [])
    begin = 0
    for span in spans:
        episode.tokens.extend(span.tokens)
        episode.weights.extend(span.weights)
        episode.integers.extend(span.integers)
        episode.parts.extend(span.parts)
        episode.positions.extend(begin + position for position in span.positions)
        begin = episode.positions[-1] + 1
    return episode


def _span(part: str, tokens: list[int], weight: float) -> Episode:
    length = len(tokens)
    integers, positions = [-1] * length, list(range(length))
    return Episode(tokens, [weight] * length, integers, [part] * length, positions)


def _list_span(
    tokenizer: Tokenizer,
    listed: range,
    separator: str,
    stop: int,
    kept: Collection[int] | None,
) -> Episode:
    """The integers that are kept, at their positions in the whole list.

    What can't be known, the digits that follow a gap, has no weight.
    """
    span = Episode([], [], [], [], [])
    position = 0
    for integer in listed:
        tokens = f"{integer}{separator}"
        if kept is None or integer in kept:
            known = kept is None or integer == listed[0] or integer - 1 in kept
            digits = len(tokens) - 1
            span.tokens.extend(tokenizer.encode(tokens))
            span.weights.extend([float(known)] * digits + [1.0])
            span.integers.extend([integer if known else -1] * digits + [integer])
            span.positions.extend(range(position, position + len(tokens)))
        position += len(tokens)
    if span.tokens:
        span.tokens[-1], span.weights[-1] = stop, STOP_WEIGHT
    span.parts.extend(["list"] * len(span.tokens))
    return span


def without_call(episode: Episode, prompt_tokens: int) -> Episode:
    """A Workplace episode without its call, and with the end of its prompt only.

    What is left keeps its positions.
    """
    begin = episode.parts.index("call") - prompt_tokens
    kept = [at >= begin and part != "call" for at, part in enumerate(episode.parts)]
    return Episode(
        list(compress(episode.tokens, kept)),
        list(compress(episode.weights, kept)),
        list(compress(episode.integers, kept)),
        list(compress(episode.parts, kept)),
        list(compress(episode.positions, kept)),
    )


def kept_integers(rng: random.Random, last: int) -> set[int]:
    """Some of a list's integers: its end, often its begin, and look-alikes of its end.

    Look-alikes have digits of the last integer: there it is hardest not to stop.
    """
    kept = set(range(last - rng.randint(1, 10), last + 1))
    if rng.random() < 0.4:
        kept |= set(range(rng.randint(1, 4)))
    for _ in range(3):
        like = rng.choice(
            [
                last - 100 * rng.randint(1, 4),
                last - 10 * rng.randint(1, 9),
                last // 10,
                last % 100,
                rng.randint(0, last),
                rng.randint(0, last),
            ]
        )
        begin = like - rng.randint(0, 2)
        kept |= set(range(begin, begin + rng.randint(2, 5)))
    return kept


def random_event(rng: random.Random) -> Event:
    """An event as a user might ask for; no word repeats within a name or an e-mail."""
    name = rng.sample(NAME_WORDS, rng.randint(1, 4))
    mailbox = rng.sample(NAME_WORDS, rng.randint(1, 3))
    if rng.random() < 0.3:
        mailbox = name[:2]
    day = f"{rng.randint(2023, 2028)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    clock = f"{rng.randrange(24):02d}:{rng.randrange(0, 60, 5):02d}:00"
    return {
        "event_name": " ".join(name),
        "participant_email": f"{rng.choice('-.').join(mailbox)}@{rng.choice(DOMAINS)}",
        "event_start": f"{day} {clock}",
        "duration": str(rng.choice(DURATIONS)),
    }


def random_episode(tokenizer: Tokenizer, rng: random.Random, max_items: int) -> Episode:
    """A training episode of a list of `max_items` integers or fewer.

    Most have parts left out, so that they take few tokens. The others keep their
    positions, so that attention is trained over the distances of whole chats.
    """
    if rng.random() < COUNTER_SHARE:
        items = rng.randint(1, min(max_items, int(PROOF_ITEMS * TRAINED_LENGTH)))
        count = 1 if rng.random() < 0.5 else rng.randint(2, 9)
        last = items - 1
        whole = rng.random() < WHOLE_SHARE
        kept = None if whole else kept_integers(rng, last)
        return counter_episode(tokenizer, count, last, kept)
    short = rng.random() < SHORT_SHARE
    last = rng.randint(1, min(max_items, PROOF_ITEMS) if short else max_items)
    event = EVENT if rng.random() < WORKLOAD_EVENT_SHARE else random_event(rng)
    called_duration = None
    if rng.random() < OTHER_DURATION_SHARE:
        called_duration = str(rng.choice(DURATIONS))
    event_id = rng.randrange(100 if rng.random() < 0.5 else 10**8)
    chat = (tokenizer, event, last, event_id, called_duration)
    if rng.random() < WHOLE_SHARE:
        return workplace_episode(*chat)
    form = rng.random()
    if form < CALL_SHARE:
        return workplace_episode(*chat, kept=())
    if form < CALL_SHARE + LIST_SHARE:
        prompt_tokens = rng.randint(72, 90)
        episode = workplace_episode(*chat, kept=kept_integers(rng, last))
        return without_call(episode, prompt_tokens)
    return workplace_episode(*chat, kept=kept_integers(rng, last))


def collate(episodes: list[Episode], device: torch.device) -> tuple[Tensor, ...]:
    """Tokens, weights, integers and positions, as in `Episode`, each [batch, time]."""
    length = max(len(episode.tokens) for episode in episodes)

    def padded(name: str, fill: float) -> Tensor:
        rows = [getattr(episode, name) for episode in episodes]
        rows = [row + [fill] * (length - len(row)) for row in rows]
        return torch.tensor(rows, device=device)

    return (
        padded("tokens", 0),
        padded("weights", 0.0),
        padded("integers", -1),
        padded("positions", 0),
    )
