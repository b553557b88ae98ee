# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Sound evidence of two runs, as a dict to change, to write to disk and to judge.

Both siblings of the first prompt of step 1 were cut, early and late in their list.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

FUNCTIONAL = Path(__file__).parents[2] / "functional"
sys.path.insert(0, str(FUNCTIONAL))

import _gym_prefix_recovery_parity as parity  # noqa: E402

Evidence = dict[str, Any]

CHECKS = ["rows match", "prefixes trained once", "old keys retired", "reward signal"]
CHECKS += ["generation log-probs agree"]
LIST = 5  # where a row's last turn begins, after a prompt, a call and its result
DIGEST = "d" * 64


def row(run: str, step: int, prompt_idx: int, generation: int, items: int) -> Evidence:
    """A row as a run dumps it: 2 prompt tokens, 2 of a call, 1 result, then a list."""
    mask = [0.0, 0.0, 1.0, 1.0, 0.0] + [1.0] * items
    first = 1000 * step + 100 * prompt_idx + 10 * generation
    per_token = {
        "token_ids": [first + token for token in range(len(mask))],
        "token_loss_mask": mask,
        "advantages": [(generation % 2 - 0.5) * x for x in mask],
        "generation_logprobs": [-x / (2 + at) for at, x in enumerate(mask)],
        "prev_logprobs": [-x / (3 + at) for at, x in enumerate(mask)],
    }
    columns = per_token | {
        "sample_id": f"{run}{prompt_idx}_g{generation}",
        "metadata": {"prompt_idx": prompt_idx, "weight_version": step - 1},
        "input_lengths": len(mask),
        "rewards": float(generation % 2),
        "sample_loss_mask": 1.0,
        "pre_seq_error_sample_loss_mask": 1.0,
        "prompt_ids": per_token["token_ids"][:2],
    }
    return {"idx": 0, "step": step} | {name: [x] for name, x in columns.items()}


def cut(generation: int, prefix: int) -> Evidence:
    """An entry of the selection, of a rollout of the first prompt."""
    rollout_id = f"rec0_g{generation}_a{generation:032x}"
    return {
        "group_id": "rec0",
        "generation_index": generation,
        "model_call_id": f"old{generation}",
        "prefix_token_count": prefix,
        "prefix_digest": DIGEST,
        "staging_keys": [f"{rollout_id}/{piece}" for piece in (0, 1)],
        "gym_rollout_id": rollout_id,
        "gym_attempt": 0,
    }


def log_lines(entry: Evidence, items: int, token_ids: list[int]) -> list[str]:
    """What a restored run logs of a cut, in the form of the newest heads."""
    prefix, number = entry["prefix_token_count"], entry["generation_index"]
    joined = ",".join(map(str, token_ids[LIST:][:prefix]))
    sha256 = hashlib.sha256(joined.encode()).hexdigest()
    call = f"rollout_id={entry['gym_rollout_id']}-a1 model_call_id=new{number}"
    call += f" source_model_call_id=old{number} prefix_tokens={prefix}"
    start = "(Worker pid=7) INFO:nemo_rl.worker:worker.py:9: generation prefix"
    return [
        f"{start} restored: {call} prefix_digest={DIGEST}"
        f" weight_version_span=[0,0] prefix_ids_sha256={sha256}",
        f"{start} completed: {call} tail_tokens={items - prefix}"
        f" total_generation_tokens={items}",
    ]


def sound(
    steps: int = 2, prompts: int = 2, generations: int = 2, items: int = 12
) -> Evidence:
    """Evidence that passes; `ref` and `rec` have the rows of each step."""
    evidence: Evidence = {"ref": {}, "rec": {}, "log": ["train step 1/2"]}
    for run in ("ref", "rec"):
        for step in range(1, steps + 1):
            indices = range((step - 1) * prompts, step * prompts)
            evidence[run][step] = [
                row(run, step, prompt_idx, generation, items)
                for prompt_idx in indices
                for generation in range(generations)
            ]
    evidence["cuts"] = [cut(0, 2), cut(1, items - 2)]
    for entry in evidence["cuts"]:
        (trained,) = evidence["rec"][1][entry["generation_index"]]["token_ids"]
        evidence["log"] += log_lines(entry, items, trained)
    evidence["probe"] = [
        {"train_step": step, "staging_keys": ["other"]} for step in range(1, steps + 1)
    ]
    evidence["successor"] = {"gym": ["other"]}
    sizes = {"steps": steps, "prompts-per-step": prompts}
    evidence["sizes"] = sizes | {"generations-per-prompt": generations}
    return evidence


def change(evidence: Evidence, path: str, value: Any) -> Evidence:
    """Set, or with None delete, what a dotted path names; returns the evidence.

    In a path `both` is ref and rec, and `*` is every key or index.
    """
    holders: list[Any] = [evidence]
    *parents, last = path.split(".")
    for part in parents:
        holders = [holder[key] for holder in holders for key in _keys(holder, part)]
    for holder, key in [(x, key) for x in holders for key in _keys(x, last)]:
        if value is None:
            del holder[key]
        else:
            holder[key] = value
    return evidence


def _keys(holder: Any, part: str) -> list[Any]:
    if part == "*":
        return list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    return ["ref", "rec"] if part == "both" else [int(part) if part.isdigit() else part]


def write(root: Path, evidence: Evidence) -> list[str]:
    """The evidence as files, a document a line; returns the judge's arguments."""
    files = {"selection": [{"cuts": evidence["cuts"]}], "log": evidence["log"]}
    files["probe"] = evidence["probe"]
    files["step_1/gym_checkpoint.json"] = [{"staging_keys": evidence["successor"]}]
    for run in ("ref", "rec"):
        files[f"{run}/exp_001/train_data_step1.jsonl.part-0"] = ["never to be read"]
        for step, rows in evidence[run].items():
            files[f"{run}/exp_001/train_data_step{step}.jsonl"] = rows
    for name, lines in files.items():
        texts = [x if isinstance(x, str) else json.dumps(x) for x in lines]
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("".join(f"{text}\n" for text in texts))
    options = {"reference-log-dir": "ref", "recovery-log-dir": "rec"}
    options |= {"selection": "selection", "recovery-log": "log"}
    options |= {"staging-keys": "probe", "successor-checkpoint": "step_1"}
    paths = {name: root / path for name, path in options.items()}
    paths["verdict"] = root / "verdict.json"
    return [f"--{name}={x}" for name, x in (paths | evidence["sizes"]).items()]


def judge(arguments: list[str]) -> int:
    """The judge's exit status; what it prints goes to descriptors 1 and 2."""
    with mock.patch.object(sys, "argv", ["parity", *arguments]):
        try:
            return parity.main()
        except SystemExit as error:
            return int(error.code or 0)


def problems(root: Path) -> dict[str, list[str]]:
    """The problems of each failed check, from the verdict."""
    checks = json.loads((root / "verdict.json").read_text())["checks"]
    assert [check["name"] for check in checks] == CHECKS
    return {x["name"]: x["problems"] for x in checks if x["problems"]}
