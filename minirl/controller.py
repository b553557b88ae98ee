# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The single controller: one actor rolls out, snapshots, trains and checkpoints."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
import torch

from minirl.advantages import grpo, reinforce_plus_plus
from minirl.checkpoint import prune_checkpoints, save_trainer_checkpoint
from minirl.data_plane import ROLLOUT_PARTITION
from minirl.faults import plant
from minirl.generation import GenerationEngine
from minirl.log import set_up_logging
from minirl.model import load_policy
from minirl.policy import BatchMeta, clipped_policy_gradient
from minirl.setup import ActorArgs, snapshots_of_step
from minirl.snapshot import SnapshotWriter, gym_checkpoint, restore_snapshot
from minirl.snapshot_folder import prune_snapshots
from minirl.train_data_dump import TrainDataDump, new_run_dir
from minirl.vllm_backend import VllmEngine

logger = logging.getLogger(__name__)

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ENGINES = {
    "minirl": GenerationEngine,
    "vllm": VllmEngine,
}  # by policy.generation.backend


class SingleController:
    """Rolls out and trains one step after the other."""

    def __init__(self, actor_args: ActorArgs):
        torch.set_num_threads(1)  # one is no slower here, and safe beside other work
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # or cuBLAS may vary its sums
        self.args = actor_args
        self.config = actor_args.master_config
        self.policy = actor_args.trainer_handle
        self.dp_client = actor_args.dp_client
        self.rollouts = actor_args.rollout_manager
        self.state = actor_args.save_state
        self.checkpoint_dir = Path(self.config.checkpointing.checkpoint_dir)
        self.dump: TrainDataDump | None = None
        self.snapshot_s = 0.0
        self.snapshots = 0

    async def run(self) -> None:
        """Train until `grpo.max_num_steps` optimizer steps are done."""
        self._start()
        if self.config.faults.plant:
            plant(self.config.faults.plant, self)
        restored = self.args.snapshot is not None
        if self.args.snapshot:
            restore_snapshot(self.args.snapshot, self.rollouts)
        watchdog = asyncio.create_task(self._watch_for_stalls())
        decoding = asyncio.create_task(self.rollouts.engine.run())
        helpers = [watchdog, decoding]
        try:
            while self.state.current_step < self.config.grpo.max_num_steps:
                if not restored:
                    self.rollouts.begin_step(self.state.current_step)
                restored = False
                await self._until_done(self._roll_out(), helpers)
                await self._until_done(asyncio.to_thread(self._train_step), helpers)
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _until_done(
        self, work: Coroutine[Any, Any, None], helpers: list[asyncio.Task[None]]
    ) -> None:
        """Await the work; a helper that ends first can only have failed."""
        task = asyncio.create_task(work)
        await asyncio.wait({task, *helpers}, return_when=asyncio.FIRST_COMPLETED)
        for helper in helpers:
            if helper.done():
                task.cancel()
                helper.result()
        await task

    def _start(self) -> None:
        policy, checkpointing = self.config.policy, self.config.checkpointing
        device = self.args.device
        run_dir = new_run_dir(Path(self.config.logger.log_dir))
        if self.config.async_rl.log_full_train_data:
            self.dump = TrainDataDump(run_dir)
        with ThreadPoolExecutor(1) as pool:  # TransferQueue mostly waits as it starts
            data_plane = pool.submit(self.dp_client.start)
            self.policy.load(torch.device(device), self.args.checkpoint)
            data_plane.result()
        end_id = self.args.tokenizer.end_id
        engine_class = ENGINES[policy.generation.backend]
        engine = engine_class(self.config, self.dp_client, end_id)
        model = load_policy(policy.model_name, device, PRECISIONS[policy.precision])
        model.load_state_dict(self.policy.weights())
        engine.load(model)
        engine.weight_version = self.state.trainer_version
        self.rollouts.load(engine, self.args.prompts)
        if checkpointing.enabled:
            self.checkpoint_dir.mkdir(parents=True, exist_ok=True)

    @property
    def _snapshot_dir(self) -> Path:
        """Where snapshots go that are based on the steps trained so far."""
        return snapshots_of_step(self.checkpoint_dir, self.state.current_step)

    # -- rollouts ------------------------------------------------------------------

    async def _roll_out(self) -> None:
        """Run the step's rollouts, with snapshots beside them."""
        snapshots = asyncio.create_task(self._snapshot_periodically())
        try:
            await self._until_done(self.rollouts.run(), [snapshots])
        finally:
            snapshots.cancel()
            await asyncio.wait([snapshots])
        if not snapshots.cancelled():
            snapshots.result()

    async def _snapshot_periodically(self) -> None:
        if not self.config.checkpointing.enabled:
            await asyncio.Event().wait()
        settings = self.config.rollout_checkpointing
        writer = SnapshotWriter(
            self._snapshot_dir, self.rollouts, settings.keep_latest_k
        )
        while True:
            await asyncio.sleep(settings.snapshot_attempt_interval_s)
            began = time.monotonic()
            files = writer.cut(self.state.current_step, self.state.trainer_version)
            self.snapshot_s += time.monotonic() - began
            self.snapshots += 1
            await _to_end_of_thread(writer.publish, files)

    async def _watch_for_stalls(self) -> None:
        """Raise when neither a token nor a rollout nor a step is added for too long."""
        settings = self.config.async_rl.stall_watchdog
        seen, since = None, time.monotonic()
        while True:
            await asyncio.sleep(settings.interval_s)
            decoded = self.rollouts.engine.decoded_tokens
            progress = (decoded, self.rollouts.finished, self.state.current_step)
            if progress != seen:
                seen, since = progress, time.monotonic()
            elif time.monotonic() - since > settings.stall_timeout_s:
                raise TimeoutError(f"no progress for {settings.stall_timeout_s:g} s")

    # -- training ------------------------------------------------------------------

    def _train_step(self) -> None:
        """Train the step's rows, hand the new weights over, dump and checkpoint."""
        step = self.state.current_step + 1
        tags = self.dp_client.get_tags(ROLLOUT_PARTITION)
        sample_ids = self._rows_to_train(tags)
        meta = BatchMeta(ROLLOUT_PARTITION, sample_ids)
        rows = [tags[name] for name in sample_ids]
        self._add_training_columns(meta, rows)
        masks = self._fields(meta, ["token_loss_mask"])["token_loss_mask"]
        valid = sum(
            mask.sum().item() * row["sample_loss_mask"]
            for mask, row in zip(masks, rows, strict=True)
        )
        loss_fn = clipped_policy_gradient(self.config.loss_fn.ratio_clip)
        self.policy.begin_train_step(loss_fn, valid)
        groups: dict[str, list[str]] = {}
        for name in sample_ids:
            groups.setdefault(tags[name]["group_id"], []).append(name)
        first_idx = 0
        for shard, names in enumerate(groups.values()):
            part = BatchMeta(ROLLOUT_PARTITION, names)
            self.policy.train_microbatches_from_meta(part)
            if self.dump:
                columns = ["token_ids", "token_loss_mask", "generation_logprobs"]
                fields = self._fields(part, [*columns, "advantages", "prev_logprobs"])
                part_tags = [tags[name] for name in names]
                self.dump.write_part(step, shard, first_idx, names, fields, part_tags)
            first_idx += len(names)
        metrics = self.policy.finish_train_step()
        self.state.current_step = step
        self.state.trainer_version += 1
        engine = self.rollouts.engine
        engine.update_weights(self.policy.weights(), self.state.trainer_version)
        self.dp_client.clear_samples(sample_ids, ROLLOUT_PARTITION)
        if self.dump:
            self.dump.publish(step)
        self._save_checkpoint()
        reward = sum(row["reward"] for row in rows) / len(rows)
        logger.info(f"train step {step}/{self.config.grpo.max_num_steps}")
        logger.info(
            f"loss {metrics['loss']:.6f}, gradient norm {metrics['grad_norm']:.4f},"
            f" mean reward {reward:.3f}, {len(rows)} rows"
        )
        logger.info(
            f"so far {engine.decoded_tokens} tokens decoded in {engine.decode_s:.2f} s"
            f" and {self.snapshots} snapshots cut in {self.snapshot_s:.2f} s"
        )

    def _rows_to_train(self, tags: dict[str, dict[str, Any]]) -> list[str]:
        """The sample ids of all finished rows, prompt by prompt."""
        return sorted(
            tags, key=lambda name: (tags[name]["prompt_idx"], tags[name]["generation"])
        )

    def _fields(self, meta: BatchMeta, names: list[str]) -> dict[str, Any]:
        return self.dp_client.get_samples(meta.sample_ids, meta.partition_id, names)

    def _add_training_columns(
        self, meta: BatchMeta, rows: list[dict[str, Any]]
    ) -> None:
        """Put prev_logprobs and advantages, [L] a row, beside the rollouts' columns."""
        masks = self._fields(meta, ["token_loss_mask"])["token_loss_mask"]
        tokens = [
            mask.sum().item() * row["sample_loss_mask"]
            for mask, row in zip(masks, rows, strict=True)
        ]
        values = self._advantages(
            [row | {"trained": count} for row, count in zip(rows, tokens, strict=True)]
        )
        columns = {
            "prev_logprobs": self.policy.get_logprobs_from_meta(meta),
            "advantages": [
                mask * value * row["sample_loss_mask"]
                for mask, value, row in zip(masks, values, rows, strict=True)
            ],
        }
        self.dp_client.put_samples(meta.sample_ids, meta.partition_id, columns)

    def _advantages(self, rows: list[dict[str, Any]]) -> list[float]:
        """Each row's advantage, from its tags and how many tokens it trains."""
        estimator = self.config.grpo.adv_estimator
        inputs = [(row["group_id"], row["reward"], row["trained"]) for row in rows]
        if estimator.name == "grpo":
            return grpo(inputs)
        return reinforce_plus_plus(inputs, estimator.minus_baseline)

    def _save_checkpoint(self) -> None:
        """Publish `step_<n>` when it is due; then older ones are not needed."""
        settings, step = self.config.checkpointing, self.state.current_step
        if not settings.enabled or step % settings.save_period:
            return
        save_trainer_checkpoint(
            self.checkpoint_dir / f"step_{step}",
            {"current_step": step, "trainer_version": self.state.trainer_version},
            gym_checkpoint(self.rollouts),
            self.policy,
            self.dp_client if settings.save_data_plane else None,
        )
        prune_snapshots(snapshots_of_step(self.checkpoint_dir, 0), keep=0)
        prune_checkpoints(self.checkpoint_dir, settings.keep_top_k)


async def _to_end_of_thread(work: Callable[[Any], Any], argument: Any) -> None:
    """As `asyncio.to_thread`, but who is cancelled waits for the work to end."""
    thread = asyncio.create_task(asyncio.to_thread(work, argument))
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        await thread
        raise


@ray.remote(num_cpus=0)
class SingleControllerActor:
    """The controller as the one actor that a run's driver starts."""

    def __init__(self, actor_args: ActorArgs):
        set_up_logging()
        self.controller = SingleController(actor_args)

    def run(self) -> None:
        """Train to the end, in an event loop of its own."""
        asyncio.run(self.controller.run())
