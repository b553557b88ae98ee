# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import asyncio
import hashlib
import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minirl.constraint import Constraint
from minirl.generation import Call, GenerationEngine, Prefix, prefix_digest

PROMPT = [3, 20, 30, 40, 1, 4]
LENGTH = 10
INTEGER = {"type": "integer"}
TOOL = {"name": "count", "parameters": {"properties": {"number": INTEGER}}}


@pytest.fixture(scope="module")
def make_engine(random_policy, tokenizer, make_config, memory_data_plane):
    """Makes an engine of four slots with an empty data plane."""

    def make(*overrides):
        overrides = ["policy.max_total_sequence_length=64", *overrides]
        config = make_config(*overrides, prompts=2)
        engine = GenerationEngine(config, memory_data_plane(), tokenizer.end_id)
        engine.load(random_policy)
        return engine

    return make


def new_call(prompt_idx=0, generation=0, turn=0, prompt=PROMPT, limit=LENGTH):
    key = (prompt_idx, generation, turn)
    return Call(f"rollout-{key}", key, list(prompt), limit, None)


def others(number=2):
    """Calls of other prompts, with other lengths."""
    return [
        new_call(prompt_idx=9 + n, prompt=PROMPT[n:] + [50], limit=3 + 5 * n)
        for n in range(number)
    ]


def run(engine, calls, steps=math.inf):
    """Run calls from the first slot on, to their end or for some steps."""

    async def decode():
        tasks = [asyncio.create_task(engine.generate(call)) for call in calls]
        await asyncio.sleep(0)
        step = 0
        while step < steps and not all(call.finish_reason for call in calls):
            engine.step()
            step += 1
        if step < steps:
            await asyncio.gather(*tasks)
        for task in tasks:
            task.cancel()

    asyncio.run(decode())
    return calls[-1]


def bits(call):
    return call.token_ids, [logprob.hex() for logprob in call.logprobs]


def cut(engine, tokens, pieces=(), call=None):
    """Cut a call after some of its tokens, staged in pieces; its prefix."""
    call = call or new_call()
    for size in sorted({*pieces, tokens}):
        call.max_tokens = size  # the engine runs it this far, the request stays
        call.finish_reason, call.fed = None, 0
        run(engine, [call])
    call.max_tokens, call.finish_reason = LENGTH, None
    return prefix_of(engine, call)


def prefix_of(engine, call):
    """What a snapshot would refer to."""
    engine.stage([call])
    token_ids, logprobs = engine.read_staged(call.staging_keys)
    return Prefix(
        call.model_call_id,
        token_ids,
        logprobs,
        call.staging_keys,
        call.first_weight_version,
        call.request_digest,
        call.digest(),
    )


@pytest.fixture(scope="module")
def alone(make_engine):
    """The call of every comparison, run alone and uninterrupted."""
    call = run(make_engine(), [new_call()])
    assert len(call.token_ids) == LENGTH
    return call
