# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Faults of restored prefixes, and of the staging keys that they were read from.

`read_prefix` reads a prefix, `continue_from` gives it to a call, `retire` its keys.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minirl import snapshot
from minirl.faults.fault import KEYS, LOGPROBS, PREFIXES, ROWS, Controller, fault, wrap
from minirl.generation import Call, Prefix


def _change_prefixes(change: Callable[[Prefix], Prefix | None]) -> None:
    def around(read: Any, record: dict[str, Any], manager: Any) -> Prefix | None:
        prefix = read(record, manager)
        return prefix and change(prefix)

    wrap(snapshot, "read_prefix", around)


@fault(PREFIXES, "the last token of each prefix is dropped, and sampled again")
def prefix_last_token_dropped(controller: Controller) -> None:
    _change_prefixes(
        lambda x: replace(x, token_ids=x.token_ids[:-1], logprobs=x.logprobs[:-1])
    )


@fault(ROWS, "the token at the boundary of prefix and tail is there twice")
def prefix_boundary_token_repeated(controller: Controller) -> None:
    _change_prefixes(
        lambda x: replace(
            x,
            token_ids=x.token_ids + x.token_ids[-1:],
            logprobs=x.logprobs + x.logprobs[-1:],
        )
    )


@fault(ROWS, "one token of each prefix is another one")
def prefix_token_replaced(controller: Controller) -> None:
    def change(prefix: Prefix) -> Prefix:
        middle = len(prefix.token_ids) // 2
        token_ids = list(prefix.token_ids)
        token_ids[middle] += 1
        return replace(prefix, token_ids=token_ids)

    _change_prefixes(change)


@fault(PREFIXES, "a call continues from its sibling's prefix")
def prefix_of_a_sibling(controller: Controller) -> None:
    first: dict[str, Prefix] = {}  # by group

    def around(read: Any, record: dict[str, Any], manager: Any) -> Prefix | None:
        prefix = read(record, manager)
        group_id = record["episode_id"]["rollout_id"].partition("_g")[0]
        if prefix and group_id in first:
            return replace(first[group_id], request_digest=prefix.request_digest)
        if prefix:
            first[group_id] = prefix
        return prefix

    wrap(snapshot, "read_prefix", around)


@fault(PREFIXES, "each prefix is the shorter one of the snapshot before")
def prefix_of_an_older_snapshot(controller: Controller) -> None:
    def change(prefix: Prefix) -> Prefix | None:
        keys = prefix.staging_keys[:-1]
        if not keys:
            return None
        token_ids, logprobs = controller.rollouts.engine.read_staged(keys)
        digest = snapshot.prefix_digest(prefix.request_digest, token_ids, logprobs)
        return replace(prefix, token_ids=token_ids, logprobs=logprobs, digest=digest)

    _change_prefixes(change)


@fault(PREFIXES, "a cut call starts from scratch instead of being continued")
def prefix_ignored(controller: Controller) -> None:
    _change_prefixes(lambda prefix: None)


@fault(PREFIXES, "each prefix is restored twice")
def prefix_restored_twice(controller: Controller) -> None:
    def around(continue_from: Any, call: Call, prefix: Prefix) -> None:
        continue_from(call, prefix)
        continue_from(call, prefix)

    wrap(controller.rollouts.engine, "continue_from", around)


@fault(PREFIXES, "a call ends with its prefix, without a tail")
def prefix_tail_empty(controller: Controller) -> None:
    async def around(decode: Any, call: Call) -> None:
        if not call.prefix:
            await decode(call)

    wrap(controller.rollouts.engine, "decode", around)


@fault(LOGPROBS, "the log-probs of each prefix are zeros")
def prefix_logprobs_zeroed(controller: Controller) -> None:
    _change_prefixes(lambda x: replace(x, logprobs=[0.0] * len(x.logprobs)))


@fault(LOGPROBS, "the log-probs of one prefix are lost, the others are kept")
def prefix_logprobs_lost_once(controller: Controller) -> None:
    lost = set[str]()  # its call

    def change(prefix: Prefix) -> Prefix:
        if lost:
            return prefix
        lost.add(prefix.model_call_id)
        return replace(prefix, logprobs=[0.0] * len(prefix.logprobs))

    _change_prefixes(change)


@fault(LOGPROBS, "the log-probs of each prefix are recomputed at other weights")
def prefix_logprobs_recomputed(controller: Controller) -> None:
    policy = copy.copy(controller.policy)
    policy.model = copy.deepcopy(controller.policy.model)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)

    def around(continue_from: Any, call: Call, prefix: Prefix) -> None:
        token_ids = torch.tensor([call.prompt_ids + prefix.token_ids])
        logprobs = policy._logprobs(token_ids)[0, len(call.prompt_ids) :].tolist()
        continue_from(call, replace(prefix, logprobs=logprobs))

    wrap(controller.rollouts.engine, "continue_from", around)


@fault(
    LOGPROBS,
    "position ids are shifted by one after each prefix",
    check_near_greedy=ROWS,  # each row then has another likeliest token somewhere
)
def positions_shifted(controller: Controller) -> None:
    def position(call: Call) -> int:
        prefix = call.prefix.token_ids if call.prefix else []
        in_tail = prefix and call.fed >= len(call.prompt_ids) + len(prefix)
        return call.fed + bool(in_tail)

    Call.position = property(position)  # type: ignore[assignment, method-assign]


@fault(
    ROWS,
    "a tail is sampled as if it began the call: from the state of an RNG",
    harmless_near_greedy="the likeliest token is chosen, whatever was drawn",
)
def sampling_restarted(controller: Controller) -> None:
    def around(uniforms: Any, call: Call) -> np.ndarray:
        return np.roll(uniforms(call), len(call.token_ids))

    wrap(controller.rollouts.engine, "uniforms", around)


# -- staging keys ----------------------------------------------------------------------


@fault(KEYS, "the keys of the old prefixes are never retired")
def keys_never_retired(controller: Controller) -> None:
    wrap(controller.rollouts.engine, "retire", lambda retire, prefix: None)


@fault(KEYS, "the keys of the old prefixes are retired once training has begun")
def keys_retired_late(controller: Controller) -> None:
    engine, late = controller.rollouts.engine, list[Prefix]()
    retire = engine.retire
    wrap(engine, "retire", lambda retire, prefix: late.append(prefix))

    def around(begin_train_step: Any, *args: Any) -> None:
        begin_train_step(*args)
        while late:
            retire(late.pop())

    wrap(controller.policy, "begin_train_step", around)


@fault(KEYS, "one of the several keys of a cut is not retired")
def key_left_over(controller: Controller) -> None:
    def around(retire: Any, prefix: Prefix) -> None:
        retire(replace(prefix, staging_keys=prefix.staging_keys[1:]))

    wrap(controller.rollouts.engine, "retire", around)


@fault(KEYS, "the next trainer checkpoint still refers to the keys of the snapshot")
def keys_in_successor(controller: Controller) -> None:
    name = "gym_checkpoint.json"
    (*_, newest) = snapshot.published(controller._snapshot_dir)
    stale = json.loads((newest / name).read_text())["staging_keys"]

    def around(save_checkpoint: Any, folder: Path) -> None:
        document = json.loads((folder / name).read_text()) | {"staging_keys": stale}
        (folder / name).write_text(json.dumps(document))
        save_checkpoint(folder)

    wrap(controller.policy, "save_checkpoint", around)
