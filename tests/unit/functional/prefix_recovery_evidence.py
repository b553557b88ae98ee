# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""Small evidence of two runs, as a dict to change, to write to disk and to judge.

Two steps of two prompts of two; step 1, prompt 0, generation 0 was cut after two tokens
of its last turn."""

import contextlib
import hashlib
import io
import json
import sys
from importlib import util
from pathlib import Path
from typing import Any
from unittest import mock

FUNCTIONAL = Path(__file__).parents[2] / "functional"
MASK = [0, 1, 1, 0, 1, 1, 1]  # prompt, first turn, tool result, the turn that was cut
CHECKS = ["rows match", "prefixes trained once", "old keys retired", "reward signal"]
CHECKS += ["generation log-probs agree"]
PER_TOKEN = ["token_ids", "token_loss_mask", "advantages", "generation_logprobs"]
PER_TOKEN += ["prev_logprobs"]
LINE = "(actor) generation prefix {}: rollout_id=rec0_g0_aff model_call_id=new"
LINE += " source_model_call_id=old prefix_tokens=2 "
RESTORED = LINE.format("restored") + "prefix_digest={0} prefix_ids_sha256={1}"
COMPLETED = LINE.format("completed") + "tail_tokens=1 total_generation_tokens=3"
OPTIONS = {"reference-log-dir": "ref", "recovery-log-dir": "rec", "selection": "cuts"}
OPTIONS |= {"recovery-log": "log", "staging-keys": "probe", "verdict": "verdict.json"}
SHAPE = ["--steps=2", "--prompts-per-step=2", "--generations-per-prompt=2"]


def load(name: str) -> Any:
    """A file of the harness, as a module that worker processes can find."""
    spec = util.spec_from_file_location(f"tested{name}", FUNCTIONAL / f"{name}.py")
    module = sys.modules[spec.name] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


parity = load("_gym_prefix_recovery_parity")


def row(run: str, step: int, prompt: int, generation: int) -> dict[str, Any]:
    ids = [100 * step + 10 * prompt + generation + token for token in range(7)]
    prompt += (step - 1) * 2
    values: dict[str, Any] = {x: [-0.25 * mask for mask in MASK] for x in PER_TOKEN}
    values |= {"token_ids": ids, "token_loss_mask": [float(x) for x in MASK]}
    values |= {"input_lengths": 7, "rewards": float(generation), "prompt_ids": ids[:1]}
    values |= {"sample_loss_mask": 1.0, "sample_id": f"{run}{prompt}_g{generation}"}
    values |= {"metadata": {"prompt_idx": prompt}}
    return {"idx": 0, "step": step} | {name: [x] for name, x in values.items()}


def sound() -> dict[str, Any]:
    shape = [(prompt, generation) for prompt in (0, 1) for generation in (0, 1)]
    evidence: dict[str, Any] = {
        run: {step: [row(run, step, *x) for x in shape] for step in (1, 2)}
        for run in ("ref", "rec")
    }
    cut = {"group_id": "rec0", "generation_index": 0, "model_call_id": "old"}
    cut |= {"generation_token_count": 2, "digest": "d" * 64, "staging_keys": ["k", "l"]}
    sha256 = hashlib.sha256(b"104,105").hexdigest()
    log = ["noise", RESTORED.format("d" * 64, sha256), COMPLETED]
    probe = [{"train_step": x, "staging_keys": ["z"]} for x in (1, 2)]
    evidence |= {"cuts": [cut], "log": log, "probe": probe}
    return evidence | {"kept": {"gym": ["z"]}}


def change(evidence: Any, path: str, value: Any) -> None:
    """Set, or with None delete, what a dotted path names in the evidence."""
    *parents, last = [int(x) if x.isdigit() else x for x in path.split(".")]
    for key in parents:
        evidence = evidence[key]
    evidence[last] = value
    if value is None:
        del evidence[last]


def changed(path: str, value: Any) -> dict[str, Any]:
    """Sound evidence with one change."""
    change(evidence := sound(), path, value)
    return evidence


def write(root: Path, evidence: dict[str, Any]) -> None:
    """The evidence, a file each, with a JSON document or a string a line."""
    files = {"cuts": [{"cuts": evidence["cuts"]}], "log": evidence["log"]}
    files["probe"] = evidence["probe"]
    files["gym_checkpoint.json"] = [{"staging_keys": evidence["kept"]}]
    for run in ("ref", "rec"):
        files[f"{run}/exp_001/train_data_step1.jsonl.part-0"] = ["never to be read"]
        for step, rows in evidence[run].items():
            files[f"{run}/exp_001/train_data_step{step}.jsonl"] = rows
    for name, lines in files.items():
        texts = [x if isinstance(x, str) else json.dumps(x) for x in lines]
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("".join(f"{text}\n" for text in texts))


def judge(root: Path, *arguments: str) -> tuple[int, Any]:
    """Exit status, and the names of the failed checks, or what stderr says."""
    command = [f"--{name}={root / path}" for name, path in OPTIONS.items()]
    argv = ["parity", *command, f"--successor-checkpoint={root}", *SHAPE, *arguments]
    stderr = io.StringIO()
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stderr(stderr):
        status = parity.main()
    if status == 2:
        return status, stderr.getvalue()
    checks = json.loads((root / "verdict.json").read_text())["checks"]
    assert [check["name"] for check in checks] == CHECKS
    return status, [check["name"] for check in checks if not check["passed"]]


def judged(root: Path, evidence: dict[str, Any], *arguments: str) -> tuple[int, Any]:
    write(root, evidence)
    return judge(root, *arguments)
