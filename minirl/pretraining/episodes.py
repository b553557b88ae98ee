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
    CREATE_EVENT,
    EVENT,
    INCREMENT_COUNTER,
    PROOF_ITEMS,
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
        positions: of the tokens, in the whole chat.
    """

    tokens: list[int]
    weights: list[float]
    integers: list[int]
    positions: list[int]


def vocabulary() -> list[str]:
    """The words that are one token each: those of the prompts, calls and names."""
    texts = [WORKPLACE_PROMPT, COUNTER_PROMPT, *DOMAINS, "event_id"]
    for tool in (CREATE_EVENT, INCREMENT_COUNTER):
        texts += [tool["name"], *tool["parameters"]["properties"]]
    found = re.findall(r"[A-Za-z_]{2,}", re.sub(r"{\w+}", "", " ".join(texts)))
    return list(dict.fromkeys([*found, *NAME_WORDS]))


def workplace_episode(
    tokenizer: Tokenizer,
    event: Event,
    last: int,
    event_id: int,
    called_duration: str | None = None,
) -> Episode:
    """The call, its result and the list 1..last.

    Args:
        tokenizer: with the `vocabulary`.
        event: what the prompt asks for.
        last: the list's last integer, in the prompt and in the answer.
        event_id: in the tool's result.
        called_duration: minutes in the call, where they differ from the event's.
    """
    prompt = WORKPLACE_PROMPT.format(**event, first=1, last=last)
    arguments = event | {"duration": called_duration or event["duration"]}
    result = json.dumps({"event_id": f"{event_id:08d}"}, separators=(",", ":"))
    return _join(
        _span(tokenizer.render_prompt([{"role": "user", "content": prompt}]), 0.0),
        _span(tokenizer.render_tool_call(CREATE_EVENT["name"], arguments), 1.0),
        _span(tokenizer.render_tool_result(result), 0.0),
        _list_span(tokenizer, 1, last, "\n", tokenizer.end_id),
    )


def counter_episode(tokenizer: Tokenizer, count: int, last: int) -> Episode:
    """The call of the counter, whose proof is the list 0..last."""
    prompt = COUNTER_PROMPT.format(count=count, first=0, last=last)
    arguments = {"count": count, "checkpoint_proof": []}
    call = tokenizer.render_tool_call(INCREMENT_COUNTER["name"], arguments)
    close, brace, end = call[-3:]
    return _join(
        _span(tokenizer.render_prompt([{"role": "user", "content": prompt}]), 0.0),
        _span(call[:-3], 1.0),
        _list_span(tokenizer, 0, last, ",", close),
        _span([brace, end], 1.0),
    )


def _join(*spans: Episode) -> Episode:
    tokens = [token for span in spans for token in span.tokens]
    return Episode(
        tokens,
        [weight for span in spans for weight in span.weights],
        [integer for span in spans for integer in span.integers],
        list(range(len(tokens))),
    )


def _span(tokens: list[int], weight: float) -> Episode:
    length = len(tokens)
    return Episode(tokens, [weight] * length, [-1] * length, list(range(length)))


def _list_span(
    tokenizer: Tokenizer, first: int, last: int, separator: str, stop: int
) -> Episode:
    listed = range(first, last + 1)
    tokens = [*tokenizer.encode(separator.join(map(str, listed))), stop]
    integers = [integer for integer in listed for _ in f"{integer}{separator}"]
    weights = [1.0] * (len(tokens) - 1)
    positions = list(range(len(tokens)))
    return Episode(tokens, [*weights, STOP_WEIGHT], integers, positions)


def without_list(episode: Episode) -> Episode:
    """The episode up to its list."""
    return _only(episode, [integer < 0 for integer in episode.integers])


def without_call(episode: Episode, prompt_tokens: int) -> Episode:
    """A Workplace episode without its call, and with the end of its prompt only."""
    called = [
        weight > 0 and integer < 0
        for weight, integer in zip(episode.weights, episode.integers, strict=True)
    ]
    begin = called.index(True) - prompt_tokens
    kept = [not call and at >= begin for at, call in enumerate(called)]
    return _only(episode, kept)


def with_gaps(episode: Episode, kept: Collection[int]) -> Episode:
    """An episode of which only some of the list's integers are left.

    Those keep their positions, as if the others stood between them. What can't be
    known, the digits that follow a gap, has no weight.
    """
    weights, integers = list(episode.weights), list(episode.integers)
    first = min(integer for integer in integers if integer >= 0)
    for at, integer in enumerate(episode.integers[:-1]):
        after_gap = integer > first and integer - 1 not in kept
        if after_gap and episode.integers[at + 1] == integer:
            weights[at], integers[at] = 0.0, -1
    gapped = Episode(episode.tokens, weights, integers, episode.positions)
    return _only(gapped, [x < 0 or x in kept for x in episode.integers])


def _only(episode: Episode, kept: list[bool]) -> Episode:
    """The tokens that are kept, at their positions in the whole chat."""
    return Episode(
        list(compress(episode.tokens, kept)),
        list(compress(episode.weights, kept)),
        list(compress(episode.integers, kept)),
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
        episode = counter_episode(tokenizer, count, last)
        if rng.random() < WHOLE_SHARE:
            return episode
        return with_gaps(episode, kept_integers(rng, last))
    short = rng.random() < SHORT_SHARE
    last = rng.randint(1, min(max_items, PROOF_ITEMS) if short else max_items)
    event = EVENT if rng.random() < WORKLOAD_EVENT_SHARE else random_event(rng)
    called_duration = None
    if rng.random() < OTHER_DURATION_SHARE:
        called_duration = str(rng.choice(DURATIONS))
    event_id = rng.randrange(100 if rng.random() < 0.5 else 10**8)
    episode = workplace_episode(tokenizer, event, last, event_id, called_duration)
    if rng.random() < WHOLE_SHARE:
        return episode
    part = rng.random()
    if part < CALL_SHARE:
        return without_list(episode)
    if part < CALL_SHARE + LIST_SHARE:
        episode = without_call(episode, prompt_tokens=rng.randint(72, 90))
    return with_gaps(episode, kept_integers(rng, last))


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
