# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Faults of rows, of what they train, of their environment and of their dump.

`_rows_to_train` names the rows of a step, `put_samples` stores a finished one.
"""

import copy
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from torch.nn.utils.rnn import pad_sequence

from minirl import snapshot
from minirl.data_plane import ROLLOUT_PARTITION
from minirl.faults.fault import (
    LOGPROBS,
    PREFIXES,
    REWARDS,
    ROWS,
    Controller,
    fault,
    wrap,
)
from minirl.generation import Call
from minirl.rollout import Attempt, Episode, Group
from minirl.train_data_dump import PER_TOKEN


def _change_rows_to_train(
    controller: Controller, change: Callable[[list[str]], list[str]]
) -> None:
    def around(rows_to_train: Any, tags: dict[str, Any]) -> list[str]:
        sample_ids = rows_to_train(tags)
        return sample_ids if controller.state.current_step else change(sample_ids)

    wrap(controller, "_rows_to_train", around)


def _change_rows(
    controller: Controller, change: Callable[[dict[str, Any], dict[str, Any]], None]
) -> None:
    """Let `change` edit the columns and the tags of each row that is finished."""

    def around(put_samples: Any, ids: Any, partition: str, fields: Any, *tags: Any):
        if partition == ROLLOUT_PARTITION and tags:
            change(fields, tags[0][0])
        put_samples(ids, partition, fields, *tags)

    wrap(controller.dp_client, "put_samples", around)


@fault(
    ROWS,
    "a row is not cleared after its step, and is trained in the next as well",
    shows_in_step=2,
)
def row_trained_twice(controller: Controller) -> None:
    def around(clear_samples: Any, sample_ids: list[str], partition: str) -> None:
        first = partition == ROLLOUT_PARTITION and controller.state.current_step == 1
        clear_samples(sample_ids[:-1] if first else sample_ids, partition)

    wrap(controller.dp_client, "clear_samples", around)


@fault(ROWS, "a row is lost")
def row_lost(controller: Controller) -> None:
    def change(sample_ids: list[str]) -> list[str]:
        controller.dp_client.clear_samples(sample_ids[-1:], ROLLOUT_PARTITION)
        return sample_ids[:-1]

    _change_rows_to_train(controller, change)


@fault(ROWS, "a row is trained one step late")
def row_in_the_next_step(controller: Controller) -> None:
    _change_rows_to_train(controller, lambda ids: ids[:-1])


def _change_ledger(change: Callable[[list[Group]], Iterable[Group]]) -> None:
    wrap(snapshot, "load_ledger", lambda load, ledger: [*change(load(ledger))])


@fault(ROWS, "the last sibling of a prompt becomes a group of its own")
def prompt_in_two_groups(controller: Controller) -> None:
    def change(groups: list[Group]) -> Iterable[Group]:
        for group in groups:
            *others, last = group.siblings
            if last.current.status == "completed":
                yield group
            else:
                yield replace(group, siblings=others)
                yield replace(group, group_id=uuid.uuid4().hex, siblings=[last])

    _change_ledger(change)


@fault(PREFIXES, "an episode is taken up as the attempt after the next one")
def attempt_skipped(controller: Controller) -> None:
    def change(groups: list[Group]) -> Iterable[Group]:
        for group in groups:
            for sibling in group.siblings:
                sibling.current.gym_attempt += sibling.current.status == "dispatched"
        return groups

    _change_ledger(change)


@fault(
    ROWS,
    "a finished sibling runs again, and is trained in place of its kept row",
    harmless_near_greedy="it generates the row again that was kept",
)
def finished_sibling_run_again(controller: Controller) -> None:
    again = set[str]()

    def change(groups: list[Group]) -> Iterable[Group]:
        for group in groups:
            for sibling in group.siblings:
                if sibling.current.status == "completed":
                    sibling.attempts.append(Attempt(uuid.uuid4().bytes))
                    again.add(group.rollout_id(sibling))
        return groups

    def around(uniforms: Any, call: Call) -> np.ndarray:
        drawn = uniforms(call)
        return 1 - drawn if call.rollout_id in again else drawn

    _change_ledger(change)
    wrap(controller.rollouts.engine, "uniforms", around)


@fault(ROWS, "the loss mask covers the tool's result")
def tool_result_in_loss_mask(controller: Controller) -> None:
    def change(fields: dict[str, Any], tags: dict[str, Any]) -> None:
        (mask,) = fields["token_loss_mask"]
        mask[tags["prompt_length"] :] = 1

    _change_rows(controller, change)


@fault(ROWS, "a restored row is a placeholder with sample mask 0")
def placeholder_row(controller: Controller) -> None:
    def change(fields: dict[str, Any], tags: dict[str, Any]) -> None:
        if tags["prompt_idx"] == tags["generation"] == 0:
            tags["sample_loss_mask"] = 0.0

    _change_rows(controller, change)


@fault(ROWS, "the rows of a cut prompt are masked in both runs", in_reference=True)
def cut_rows_masked(controller: Controller) -> None:
    def change(fields: dict[str, Any], tags: dict[str, Any]) -> None:
        if tags["prompt_idx"] == 0:  # the longest list, cut in every snapshot that fits
            tags["sample_loss_mask"] = 0.0

    _change_rows(controller, change)


@fault(
    ROWS,
    "the groups of step 2 have the names of step 1's, so have their rows",
    shows_in_step=2,
)
def sample_ids_used_again(controller: Controller) -> None:
    manager = controller.rollouts

    def around(begin_step: Any, step: int) -> None:
        names = [group.group_id for group in manager.groups]
        begin_step(step)
        for group, name in zip(manager.groups, names, strict=False):
            group.group_id = name

    wrap(manager, "begin_step", around)


@fault(REWARDS, "every advantage is 0 in both runs", in_reference=True, shows_in_step=2)
def advantages_zero(controller: Controller) -> None:
    wrap(controller, "_advantages", lambda advantages, rows: [0.0] * len(rows))


@fault(ROWS, "a group's advantages are over all siblings but the last")
def advantages_over_wrong_siblings(controller: Controller) -> None:
    def around(advantages: Any, rows: list[dict[str, Any]]) -> list[float]:
        last = max(row["generation"] for row in rows)
        left = iter(advantages([row for row in rows if row["generation"] != last]))
        return [0.0 if row["generation"] == last else next(left) for row in rows]

    wrap(controller, "_advantages", around)


@fault(ROWS, "step 2 is trained with the weights of step 0", shows_in_step=3)
def trained_weights_lost(controller: Controller) -> None:
    start = copy.deepcopy(controller.policy.weights())

    def around(begin_train_step: Any, *args: Any) -> None:
        if controller.state.current_step == 1:
            controller.policy.model.load_state_dict(start)
        begin_train_step(*args)

    wrap(controller.policy, "begin_train_step", around)


@fault(LOGPROBS, "step 2 is generated with the weights of step 0", shows_in_step=2)
def generation_weights_stale(controller: Controller) -> None:
    def around(update_weights: Any, weights: Any, version: int) -> None:
        if version > 1:
            update_weights(weights, version)

    wrap(controller.rollouts.engine, "update_weights", around)


@fault(ROWS, "the optimizer's state is lost after step 1", shows_in_step=3)
def optimizer_state_lost(controller: Controller) -> None:
    def around(begin_train_step: Any, *args: Any) -> None:
        controller.policy.optimizer.state.clear()
        begin_train_step(*args)

    wrap(controller.policy, "begin_train_step", around)


# -- the environment -------------------------------------------------------------------


@fault(ROWS, "the tool's side effect is lost: the session starts anew")
def tool_effect_lost(controller: Controller) -> None:
    wrap(snapshot, "restore_session", lambda restore, episode, record: None)


@fault(ROWS, "the tool's side effect happens again after the restore")
def tool_effect_twice(controller: Controller) -> None:
    def around(restore: Any, episode: Episode, record: dict[str, Any]) -> None:
        restore(episode, record)
        if calendar := record["state"].get("calendar"):
            columns = calendar["_calendar_events"]["columns"]
            event = {column["name"]: column["values"][-1] for column in columns}
            del event["event_id"]
            episode.session.call("calendar_create_event", event)

    wrap(snapshot, "restore_session", around)


@fault(REWARDS, "the verifier gives every row the same reward", in_reference=True)
def reward_constant(controller: Controller) -> None:
    def around(rows_to_train: Any, tags: dict[str, Any]) -> list[str]:
        for row in tags.values():
            row["reward"] = 1.0
        return rows_to_train(tags)

    wrap(controller, "_rows_to_train", around)


@fault(ROWS, "the verifier looks at another rollout's session")
def reward_of_another_session(controller: Controller) -> None:
    previous = [1.0]

    def change(fields: dict[str, Any], tags: dict[str, Any]) -> None:
        previous.append(tags["reward"])
        tags["reward"] = previous.pop(0)

    _change_rows(controller, change)


# -- the dump --------------------------------------------------------------------------


@fault(ROWS, "the file of step 2 is not published", shows_in_step=2)
def dump_step_missing(controller: Controller) -> None:
    def around(publish: Any, step: int) -> None:
        if step != 2:
            publish(step)

    wrap(controller.dump, "publish", around)


@fault(ROWS, "what the killed run left of step 1 is published with the step's rows")
def dump_of_killed_run_mixed_in(controller: Controller) -> None:
    run_dir = controller.dump.run_dir

    def around(publish: Any, step: int) -> None:
        if step == 1:
            part = run_dir / "train_data_step1.jsonl.part-0"
            part.with_name("train_data_step1.jsonl.part-99").write_text(
                part.read_text().splitlines()[0] + "\n"
            )
        publish(step)

    wrap(controller.dump, "publish", around)


@fault(
    ROWS,
    "the padding of a batch is not trimmed from its rows",
    harmless_near_greedy="siblings are equally long, so none is padded",
)
def dump_padding_kept(controller: Controller) -> None:

    def around(write_part: Any, *args: Any) -> None:
        *head, fields, tags = args
        padded = {
            name: list(pad_sequence(fields[name], batch_first=True))
            for name in PER_TOKEN
        }
        write_part(*head, padded, tags)

    wrap(controller.dump, "write_part", around)
