# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The judge: sound evidence passes, and any change that matters does not."""

import copy
import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

UNIT = Path(__file__).parents[1]
SCRIPT = UNIT.parent / "functional/_gym_prefix_recovery_parity.py"
spec = importlib.util.spec_from_file_location("_gym_prefix_recovery_parity", SCRIPT)
parity = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = parity  # so that worker processes can unpickle its classes
spec.loader.exec_module(parity)

STEPS, PROMPTS, GENERATIONS = 2, 2, 2
MASK = [0, 1, 1, 0, 1, 1, 1]  # prompt, first turn, tool result, the turn that was cut
CHECKS = ["rows match", "prefixes trained once", "old keys retired", "reward signal"]
CHECKS += ["generation log-probs agree"]
PER_TOKEN = ["token_ids", "token_loss_mask", "advantages", "generation_logprobs"]
PER_TOKEN += ["prev_logprobs"]
LINE = "(actor) generation prefix {}: rollout_id=rec0_g0_aff model_call_id=new"
LINE += " source_model_call_id=old prefix_tokens=2 "
RESTORED = LINE.format("restored") + "prefix_digest={0} prefix_ids_sha256={1}"
COMPLETED = LINE.format("completed") + "tail_tokens=1 total_generation_tokens=3"


def _row(run: str, step: int, prompt: int, generation: int) -> dict[str, Any]:
    ids = [100 * step + 10 * prompt + generation + token for token in range(7)]
    noise = [-0.25 * mask for mask in MASK]
    columns = {"token_ids": ids, "token_loss_mask": [float(x) for x in MASK]}
    columns |= {name: noise for name in PER_TOKEN[2:]}
    scalars = {"input_lengths": 7, "rewards": float(generation)}
    prompt += (step - 1) * PROMPTS
    scalars |= {"sample_loss_mask": 1.0, "sample_id": f"{run}{prompt}_g{generation}"}
    metadata = {"prompt_idx": prompt}
    values = {**columns, **scalars, "metadata": metadata, "prompt_ids": ids[:1]}
    return {"idx": 0, "step": step} | {name: [x] for name, x in values.items()}


def _sound() -> dict[str, Any]:
    """Evidence of one cut, of step 1, prompt 0, generation 0 after two tokens."""
    shape = [(p, g) for p in range(PROMPTS) for g in range(GENERATIONS)]
    evidence: dict[str, Any] = {
        run: {step: [_row(run, step, *x) for x in shape] for step in (1, 2)}
        for run in ("ref", "rec")
    }
    sha256 = hashlib.sha256(b"104,105").hexdigest()
    cut = {"group_id": "rec0", "generation_index": 0, "model_call_id": "old"}
    cut |= {"generation_token_count": 2, "digest": "d" * 64, "staging_keys": ["k", "l"]}
    evidence["cuts"] = [cut]
    evidence["log"] = ["noise", RESTORED.format("d" * 64, sha256), COMPLETED]
    evidence["probe"] = [{"train_step": x, "staging_keys": ["z"]} for x in (1, 2)]
    return evidence | {"kept": {"gym": ["z"]}}


def _judge(root: Path, evidence: dict[str, Any], *arguments: str) -> tuple[int, Any]:
    """Exit status, and the names of the failed checks or the error line."""
    for run in ("ref", "rec"):
        folder = root / run / "exp_001"
        folder.mkdir(parents=True, exist_ok=True)
        for step in evidence[run]:
            text = "".join(json.dumps(row) + "\n" for row in evidence[run][step])
            (folder / f"train_data_step{step}.jsonl").write_text(text)
        (folder / "train_data_step1.jsonl.part-0").write_text("never to be read")
    (root / "selection").write_text(json.dumps({"cuts": evidence["cuts"]}))
    (root / "log").write_text("\n".join(evidence["log"]) + "\n")
    probe = "".join(json.dumps(record) + "\n" for record in evidence["probe"])
    (root / "probe").write_text(probe)
    kept = json.dumps({"staging_keys": evidence["kept"]})
    (root / "gym_checkpoint.json").write_text(kept)
    return _judge_files(root, *arguments)


def _judge_files(root: Path, *arguments: str) -> tuple[int, Any]:
    paths = {
        "reference-log-dir": "ref",
        "recovery-log-dir": "rec",
        "staging-keys": "probe",
    }
    paths |= {
        "selection": "selection",
        "recovery-log": "log",
        "verdict": "verdict.json",
    }
    command = [f"--{name}={root / path}" for name, path in paths.items()]
    command += [f"--successor-checkpoint={root}", f"--steps={STEPS}", *arguments]
    command += [f"--prompts-per-step={PROMPTS}"]
    command += [f"--generations-per-prompt={GENERATIONS}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["parity", *command])
        status = parity.main()
    if status == 2:
        return status, None
    checks = json.loads((root / "verdict.json").read_text())["checks"]
    assert [check["name"] for check in checks] == CHECKS
    return status, [check["name"] for check in checks if not check["passed"]]


def _change(evidence: dict[str, Any], path: str, value: Any) -> None:
    """Set, or with None delete, what a dotted path names in the evidence."""
    *parents, last = [int(x) if x.isdigit() else x for x in path.split(".")]
    for key in parents:
        evidence = evidence[key]
    if value is None:
        del evidence[last]
    else:
        evidence[last] = value


def test_sound_evidence_passes(tmp_path: Path) -> None:
    assert _judge(tmp_path, _sound()) == (0, [])


def test_reads_what_nemo_rls_own_writer_wrote() -> None:
    rows = parity._load_dump(UNIT / "data/nemo-rl-dump/exp_001", 1)
    assert [len(twins) for twins in rows.values()] == [1, 1, 1, 1]
    row = rows[parity.Identity(1, 1, 1)][0]
    assert (row.group_id, row.start, row.end) == ("00000001-prompt", 6, 11)
    assert parity._row_problem(row, row, None, False) is None


@pytest.mark.parametrize(
    ("path", "value", "failed"),
    [
        ("rec.2.3", None, "rows match"),  # lost
        ("rec.2.3", _row("rec", 2, 0, 0), "rows match"),  # repeated
        ("rec.2.3.metadata.0.prompt_idx", 9, "rows match"),
        ("rec.2.3.sample_id.0", "other_g1", "rows match"),  # split group
        ("rec.2.3.token_loss_mask.0", [0.0] * 7, "rows match"),
        ("rec.2.3.prev_logprobs", None, "rows match"),
        ("rec.2.3.prompt_ids.0", [1, 2], "rows match"),
        ("rec.3", [_row("rec", 3, 0, 0)], "rows match"),  # a step too many
        ("cuts.0", None, "prefixes trained once"),
        ("cuts.0.generation_token_count", 3, "prefixes trained once"),
        ("cuts.0.digest", "e" * 64, "prefixes trained once"),
        ("cuts.0.generation_index", 1, "prefixes trained once"),
        ("log.1", None, "prefixes trained once"),
        ("log.2", None, "prefixes trained once"),
        ("log.0", RESTORED.format("d" * 64, "0" * 64), "prefixes trained once"),
        ("log.1", RESTORED.format("d" * 64, "0" * 64), "prefixes trained once"),
        ("log.2", COMPLETED.replace("=new", "=newer"), "prefixes trained once"),
        ("log.2", COMPLETED.replace("s=3", "s=4"), "prefixes trained once"),
        ("log.0", COMPLETED.replace("=old", "=other"), "prefixes trained once"),
        ("cuts.0.staging_keys", [], "old keys retired"),
        ("probe.1", None, "old keys retired"),
        ("probe.1.staging_keys", ["l"], "old keys retired"),
        ("kept.gym", ["k"], "old keys retired"),
    ],
)
def test_one_change_fails_its_check(
    tmp_path: Path, path: str, value: Any, failed: str
) -> None:
    evidence = _sound()
    _change(evidence, path, value)
    status, names = _judge(tmp_path, evidence)
    assert status == 1 and failed in names


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_change_of_a_number_is_rejected(tmp_path: Path, data: Any) -> None:
    evidence = copy.deepcopy(_sound())
    row = evidence["rec"][data.draw(st.integers(1, 2))][data.draw(st.integers(0, 3))]
    scalars = ["rewards", "sample_loss_mask", "input_lengths"]
    column = data.draw(st.sampled_from(PER_TOKEN + scalars))
    values, at = row[column], 0
    if column in PER_TOKEN:
        generated = [at for at, mask in enumerate(MASK) if mask]
        log_prob = column == "generation_logprobs"
        at = data.draw(st.sampled_from(generated if log_prob else [*range(7)]))
        values = row[column][0] = list(row[column][0])
    values[at] += data.draw(st.sampled_from([-2, -1, 1, 3]))
    assert _judge(tmp_path, evidence)[0] in (1, 2)


def test_order_and_representation_do_not_matter(tmp_path: Path) -> None:
    evidence = _sound()
    for row in evidence["rec"][1]:
        row["rewards"] = [row["rewards"]]  # some heads write [[x]]
        row["generation_logprobs"][0] = [
            float("nan"),
            *row["generation_logprobs"][0][1:],
        ]
    evidence["rec"][1].reverse()
    evidence["cuts"][0]["prefix_token_count"] = 2
    del evidence["cuts"][0]["generation_token_count"]
    assert _judge(tmp_path, evidence) == (0, [])


def test_equal_rewards_are_no_signal(tmp_path: Path) -> None:
    evidence = _sound()
    for row in (
        row for run in ("ref", "rec") for x in (1, 2) for row in evidence[run][x]
    ):
        row["rewards"] = [1.0]
    assert _judge(tmp_path, evidence) == (1, ["reward signal"])


def test_thresholds_decide_on_log_probs(tmp_path: Path) -> None:
    evidence = _sound()
    evidence["rec"][1][0]["generation_logprobs"] = [[-0.25 * x - 0.1 for x in MASK]]
    loose = "--min-identical-logprobs=0.8", "--max-logprob-difference=0.2"
    assert _judge(tmp_path, evidence) == (1, CHECKS[4:])
    assert _judge(tmp_path, evidence, *loose) == (0, [])
    assert _judge(tmp_path, evidence, loose[0], "--max-logprob-difference=0.05")[0] == 1


@pytest.mark.parametrize(
    ("position", "status", "place"),
    [(0, 1, "the prompt"), (4, 0, "the restored prefix"), (6, 1, "the continued tail")],
)
def test_only_a_proven_difference_before_the_cut_is_allowed(
    tmp_path: Path, position: int, status: int, place: str
) -> None:
    evidence = _sound()
    evidence["ref"][1][0]["token_ids"][0][position] += 1
    assert _judge(tmp_path, evidence) == (1, CHECKS[:1])
    problem = json.loads((tmp_path / "verdict.json").read_text())["checks"][0][
        "problems"
    ]
    assert (problem[0]["place"], problem[0]["columns"]) == (
        place,
        {"token_ids": position},
    )
    assert _judge(tmp_path, evidence, "--allow-pre-cut")[0] == status


FILES = ["ref/exp_001/train_data_step1.jsonl", "rec/exp_001/train_data_step2.jsonl"]
FILES += ["selection", "probe", "gym_checkpoint.json", "log"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "torn", [b"{", b"[]", b'{"a": 1}', b"\xff", b"[" * 99999, None]
)
def test_torn_evidence_is_one_line_and_status_2(
    tmp_path: Path, name: str, torn: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    _judge(tmp_path, _sound())
    capsys.readouterr()
    (tmp_path / name).write_bytes(torn or b"")
    if torn is None:
        (tmp_path / name).unlink()
    harmless = name == "log" and torn not in (b"\xff", None)
    lost = torn is None and name.endswith("jsonl")
    assert _judge_files(tmp_path)[0] == (1 if harmless or lost else 2)
    assert harmless or lost or capsys.readouterr().err.count("\n") == 1


def test_a_torn_log_line_is_status_2(tmp_path: Path) -> None:
    evidence = _sound()
    evidence["log"].append(COMPLETED[:60])
    assert _judge(tmp_path, evidence) == (2, None)


def test_two_jobs_in_one_log_folder_are_status_2(tmp_path: Path) -> None:
    (tmp_path / "rec/exp_002").mkdir(parents=True)
    assert _judge(tmp_path, _sound()) == (2, None)
