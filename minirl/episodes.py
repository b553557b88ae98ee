# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Synthetic episodes: what the policy learns from, token by token.

An episode is a whole chat of the workload's form, with other names, e-mails, times,
durations and lists. In a quarter of them the call has another duration than the one
asked for, so that sampled calls of one prompt earn different rewards.
"""

import random
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from minirl.tokenizer import Tokenizer

WORKPLACE_PROMPT = (
    'Call calendar_create_event once with event_name "{name}", participant_email '
    '"{email}", event_start "{start}" and duration "{duration}". After its result, '
    "write the integers from {first} to {last}, one per line, and nothing else."
)
COUNTER_PROMPT = (
    "Call increment_counter once with count {count} and checkpoint_proof set to the "
    "integers from {first} to {last}."
)
COUNTER_CALL = 'increment_counter{{"count":{count},"checkpoint_proof":['
TOOL_RESULT = '{{"event_id":"{event_id:08d}"}}'
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
DOMAINS = ("example.com", "example.org", "example.net")
DURATIONS = range(15, 185, 5)  # minutes
COUNTER_ITEMS = 64
TRAINED_LENGTH = 1.25  # times the longest list needed; it does not extrapolate

COUNTER_SHARE = 0.25  # of all episodes
SENTINEL_SHARE = 0.1  # of Workplace episodes: the workload's own event must be exact
OTHER_DURATION_SHARE = 0.25  # of Workplace episodes
SHORT_SHARE = 0.75  # of all lists
SHORT_ITEMS = 16
STOP_WEIGHT = 8.0


@dataclass(frozen=True)
class Event:
    """The arguments that a Workplace prompt asks for; by default the workload's."""

    name: str = "checkpoint recovery sentinel"
    email: str = "checkpoint-recovery@example.com"
    start: str = "2025-01-15 10:00:00"
    duration: int = 30  # minutes


@dataclass(frozen=True)
class Episode:
    """A whole chat, token by token.

    Attributes:
        tokens: token ids.
        weights: weight in the loss; 0 for tokens that the policy does not generate.
        integers: the integer that a list's token belongs to, its separator or stop
            included; -1 outside lists.
    """

    tokens: list[int]
    weights: list[float]
    integers: list[int]


def vocabulary() -> list[str]:
    """The words that are one token each: those of the prompts, calls and names."""
    texts = [WORKPLACE_PROMPT, COUNTER_PROMPT, COUNTER_CALL, TOOL_RESULT, *DOMAINS]
    found = re.findall(r"[A-Za-z_]{2,}", re.sub(r"{\w+(:\w+)?}", "", " ".join(texts)))
    return list(dict.fromkeys([*found, *NAME_WORDS]))


def workplace_episode(
    tokenizer: Tokenizer,
    event: Event,
    first: int,
    last: int,
    event_id: int,
    called_duration: int | None = None,
) -> Episode:
    """The call, its result and the list first..last.

    Args:
        tokenizer: with the `vocabulary`.
        event: what the prompt asks for.
        first, last: the list's integers, in the prompt and in the answer.
        event_id: in the tool's result.
        called_duration: minutes in the call, where they differ from the event's.
    """
    prompt = WORKPLACE_PROMPT.format(**vars(event), first=first, last=last)
    arguments = {
        "event_name": event.name,
        "participant_email": event.email,
        "event_start": event.start,
        "duration": str(called_duration or event.duration),
    }
    call = tokenizer.render_tool_call("calendar_create_event", arguments)
    result = tokenizer.render_tool_result(TOOL_RESULT.format(event_id=event_id))
    return _join(
        _span(tokenizer.render_prompt([{"role": "user", "content": prompt}]), 0.0),
        _span(call, 1.0),
        _span(result, 0.0),
        _list_span(tokenizer, first, last, "\n", tokenizer.end_id),
    )


def counter_episode(tokenizer: Tokenizer, count: int, first: int, last: int) -> Episode:
    """The call of the counter, whose proof is the list first..last."""
    prompt = COUNTER_PROMPT.format(count=count, first=first, last=last)
    call = tokenizer.encode(COUNTER_CALL.format(count=count))
    (close,) = tokenizer.encode("]")
    return _join(
        _span(tokenizer.render_prompt([{"role": "user", "content": prompt}]), 0.0),
        _span([tokenizer.call_id, *call], 1.0),
        _list_span(tokenizer, first, last, ",", close),
        _span([*tokenizer.encode("}"), tokenizer.end_id], 1.0),
    )


def _join(*spans: Episode) -> Episode:
    return Episode(
        [token for span in spans for token in span.tokens],
        [weight for span in spans for weight in span.weights],
        [integer for span in spans for integer in span.integers],
    )


def _span(tokens: list[int], weight: float) -> Episode:
    return Episode(tokens, [weight] * len(tokens), [-1] * len(tokens))


def _list_span(
    tokenizer: Tokenizer, first: int, last: int, separator: str, stop: int
) -> Episode:
    tokens, integers = [], []
    for integer in range(first, last + 1):
        text = f"{integer}{separator}" if integer < last else f"{integer}"
        tokens += tokenizer.encode(text)
        integers += [integer] * len(text)
    weights = [1.0] * len(tokens)
    return Episode([*tokens, stop], [*weights, STOP_WEIGHT], [*integers, last])


def random_event(rng: random.Random) -> Event:
    """An event as a user might ask for; no word repeats within a name or an e-mail."""
    name = rng.sample(NAME_WORDS, rng.randint(1, 4))
    mailbox = rng.sample(NAME_WORDS, rng.randint(1, 3))
    if rng.random() < 0.3:
        mailbox = name[:2]
    day = f"{rng.randint(2023, 2028)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    clock = f"{rng.randrange(24):02d}:{rng.randrange(0, 60, 5):02d}:00"
    return Event(
        name=" ".join(name),
        email=f"{rng.choice('-.').join(mailbox)}@{rng.choice(DOMAINS)}",
        start=f"{day} {clock}",
        duration=rng.choice(DURATIONS),
    )


def random_episode(tokenizer: Tokenizer, rng: random.Random, max_items: int) -> Episode:
    """A training episode whose list ends at `max_items` or before."""
    counter = rng.random() < COUNTER_SHARE
    if counter:
        max_items = min(max_items, int(COUNTER_ITEMS * TRAINED_LENGTH))
    start = 0 if counter else 1
    last = start + rng.randrange(max_items)
    first = start
    if rng.random() < SHORT_SHARE:
        first = rng.randint(max(start, last - SHORT_ITEMS + 1), last)
    if counter:
        count = 1 if rng.random() < 0.5 else rng.randint(2, 9)
        return counter_episode(tokenizer, count, first, last)
    event = Event() if rng.random() < SENTINEL_SHARE else random_event(rng)
    called_duration = None
    if rng.random() < OTHER_DURATION_SHARE:
        called_duration = rng.choice(DURATIONS)
    event_id = rng.randrange(100 if rng.random() < 0.5 else 10**8)
    return workplace_episode(tokenizer, event, first, last, event_id, called_duration)


def collate(episodes: list[Episode], device: torch.device) -> tuple[Tensor, ...]:
    """Tokens int64, weights float32 and integers int64, each [batch, time]."""
    length = max(len(episode.tokens) for episode in episodes)

    def padded(name: str, fill: float) -> Tensor:
        rows = [getattr(episode, name) for episode in episodes]
        rows = [row + [fill] * (length - len(row)) for row in rows]
        return torch.tensor(rows, device=device)

    return padded("tokens", 0), padded("weights", 0.0), padded("integers", -1)
