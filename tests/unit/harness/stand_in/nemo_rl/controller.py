# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The controller: restores, takes snapshots, trains, dumps and saves.

While snapshots are taken, lists are decoded up to their last token but one alone, so
that no run ends before it is killed.
"""

import itertools
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nemo_rl import snapshots
from nemo_rl.rollouts import log, new_rollouts

STAGING = "rollout_staging"
MAX_STEPS = "grpo.max_num_steps"
DUMP = "async_rl.log_full_train_data"


class DataPlane:
    """Of samples only their keys."""

    def __init__(self):
        self.partitions = {}

    def put_samples(self, sample_ids, partition_id):
        self.partitions.setdefault(partition_id, set()).update(sample_ids)

    def clear_samples(self, sample_ids, partition_id):
        self.partitions[partition_id] -= set(sample_ids)

    def list_sample_ids(self, partition_id):
        return sorted(self.partitions.get(partition_id, ()))


class Trainer:
    def begin_train_step(self, loss_fn):
        self.rows = []

    def train_microbatches_from_meta(self, meta):
        self.rows += meta

    def finish_train_step(self):
        return len(self.rows)


class Controller:
    def __init__(self, values):
        self.values = values
        self.log_dir = Path(values["logger.log_dir"])
        self.checkpoints = Path(values["checkpointing.checkpoint_dir"])
        self.bootstrap = self.checkpoints / "bootstrap"
        self.snapshots = self.bootstrap / "rollout_snapshots"
        self.interval_s = float(
            values["rollout_checkpointing.snapshot_attempt_interval_s"]
        )

    def does(self, what):
        phase = self.log_dir.name.removesuffix("-logs")
        return f"{phase}={what}" in os.environ.get("STAND_IN", "").split()

    def write_or_check_anchor(self):
        fingerprint = snapshots.write_or_check_anchor(self.bootstrap, self.values)
        self.fingerprint = fingerprint

    def new_rollouts(self, step):
        rows = Path(self.values["data.train.data_path"]).read_text().splitlines()
        names = ("num_prompts_per_step", "num_generations_per_prompt")
        sizes = [int(self.values[f"grpo.{name}"]) for name in names]
        return list(new_rollouts(rows, step, *sizes))

    def restore(self):
        snapshot = snapshots.find_snapshot(self.snapshots, self.fingerprint)
        fresh = self.new_rollouts(step=1)
        if snapshot is None or self.does("forgets"):
            return fresh
        return snapshots.restore(snapshot, fresh, self.data_plane, STAGING)

    def take_snapshots(self, rollouts):
        """Until the job is killed; a list begins some snapshots after another."""
        keep = int(self.values["rollout_checkpointing.keep_latest_k"])
        for number in itertools.count():
            delay = {x.group_id: 4 * x.prompt_idx for x in rollouts if x.is_list}
            for rollout in rollouts:
                if number < delay.get(rollout.group_id, 0):
                    continue
                rollout.tokens = min(rollout.tokens + 1, rollout.items - 1)
                self.data_plane.put_samples(rollout.staging_keys, STAGING)
            snapshots.publish_snapshot(
                self.snapshots,
                rollouts,
                retained=self.data_plane.list_sample_ids(STAGING),
                fingerprint=self.fingerprint,
                keep=keep,
                is_old=self.does("old-names"),
            )
            time.sleep(self.interval_s)

    def run(self, args):
        self.write_or_check_anchor()
        self.data_plane, trainer = args.dp_client, args.trainer_handle
        done, steps = args.save_state.current_step, int(self.values[MAX_STEPS])
        with ThreadPoolExecutor(1) as worker:
            for step in range(done + 1, steps + 1):
                log(f"train step {step}/{steps}")
                rollouts = self.new_rollouts(step) if step > 1 else self.restore()
                if self.interval_s < 1 and not self.does("ends"):
                    self.take_snapshots(rollouts)
                rows = [self.finish(rollout, step) for rollout in rollouts]
                worker.submit(trainer.begin_train_step, "loss").result()
                self.dump_parts(step, rows)
                worker.submit(trainer.train_microbatches_from_meta, rows).result()
                worker.submit(trainer.finish_train_step).result()
                self.publish_dump(step)
                self.save(step)

    def finish(self, rollout, step):
        self.data_plane.put_samples(rollout.staging_keys, STAGING)
        self.data_plane.clear_samples(rollout.staging_keys, STAGING)
        if rollout.source:
            tail = rollout.items - rollout.prefix
            tokens = f"tail_tokens={tail} total_generation_tokens={rollout.items}"
            rollout.log_prefix("completed", tokens)
        return rollout.row(step)

    def dump_parts(self, step, rows):
        """Of two shards, which nobody may read yet."""
        if self.does("no-dump") or self.values.get(DUMP) != "true":
            return  # an older head does not know the key
        run = max(self.log_dir.iterdir())
        for shard in (0, 1):
            lines = [json.dumps(row) + "\n" for row in rows[shard::2]]
            part = run / f"train_data_step{step}.jsonl.part-{shard}"
            part.write_text("".join(lines))

    def publish_dump(self, step):
        parts = sorted(self.log_dir.glob(f"exp_*/train_data_step{step}.jsonl.part-*"))
        texts = [part.read_text() for part in parts]
        if texts:
            partial = parts[0].with_suffix(".partial")
            partial.write_text("".join(texts))
            partial.rename(parts[0].with_suffix(""))
        for part in parts:
            part.unlink()

    def save(self, step):
        """A checkpoint, after which bootstrap snapshots and older ones are pruned."""
        partial = self.checkpoints / f"tmp_step_{step}"
        (partial / "policy").mkdir(parents=True)
        (partial / "policy/model.safetensors").write_text("weights")
        done = {"current_step": step, "trainer_version": step}
        (partial / "training_info.json").write_text(json.dumps(done))
        keys = {snapshots.INSTANCE: self.data_plane.list_sample_ids(STAGING)}
        gym = {"instances": {snapshots.INSTANCE: []}, "staging_keys": keys}
        (partial / "gym_checkpoint.json").write_text(json.dumps(gym))
        partial.rename(self.checkpoints / f"step_{step}")
        keep = self.values["checkpointing.keep_top_k"]
        if keep != "null":
            old = self.checkpoints / f"step_{step - int(keep)}"
            shutil.rmtree(old, ignore_errors=True)
        snapshots.prune(self.snapshots, keep=0)
