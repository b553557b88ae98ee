# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
import copy
import json

import pytest

from minirl.dataset import load_prompts

PARAMS = "responses_create_params"
TOOL = f"{PARAMS}.tools.0"
WORKPLACE, COUNTER = 0, 2
FIELDS_READ = {
    WORKPLACE: [
        "task_source",
        "ground_truth",
        "ground_truth.0.name",
        "ground_truth.0.arguments",
        PARAMS,
        f"{PARAMS}.input",
        f"{PARAMS}.input.0.role",
        f"{PARAMS}.input.0.content",
        f"{PARAMS}.tool_choice",
        f"{PARAMS}.tool_choice.name",
        f"{PARAMS}.max_output_tokens",
        f"{PARAMS}.tools",
        f"{TOOL}.name",
        f"{TOOL}.parameters",
        f"{TOOL}.parameters.properties",
    ],
    COUNTER: ["task_source", "initial_count", "expected_count"],
}


@pytest.fixture
def load(tmp_path, tokenizer):
    """Loads rows from a file, after a good first one."""

    def load(*lines):
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(line + "\n" for line in lines))
        return load_prompts(path, tokenizer)

    return load


@pytest.fixture
def refusal(load, prompt_rows, tmp_path):
    """What a ValueError says of a bad second line, after the file and its number."""

    def refusal(line):
        with pytest.raises(ValueError) as error:
            load(json.dumps(prompt_rows[0]), line)
        place, _, text = str(error.value).partition(": ")
        assert place == f"{tmp_path / 'prompts.jsonl'}:2" and "\n" not in text
        return text

    return refusal


def changed(rows, row, path, value=None):
    """A row as text, with the value at a path replaced, or deleted if it is None."""
    result = parent = copy.deepcopy(rows[row])
    *parents, last = path.split(".")
    for key in parents:
        parent = parent[int(key) if key.isdigit() else key]
    if value is None:
        del parent[last]
    else:
        parent[last] = value
    return json.dumps(result)


@pytest.mark.parametrize(
    "row, path", [(row, path) for row, paths in FIELDS_READ.items() for path in paths]
)
def test_missing_field_is_named(refusal, prompt_rows, row, path):
    name = path.rpartition(".")[2]
    assert refusal(changed(prompt_rows, row, path)) == f"no field {name!r}"


def test_workload_of_the_harness_loads(tmp_path, tokenizer, write_workload):
    path = write_workload(tmp_path / "prompts.jsonl", [5, 6, 7], steps=2)
    prompts = load_prompts(path, tokenizer)
    assert [prompt.prompt_idx for prompt in prompts] == list(range(8))
    assert [prompt.has_free_turn for prompt in prompts] == [True, True, True, False] * 2


def test_prompt_is_the_rows_messages(prompts, prompt_rows, tokenizer):
    (message,) = prompt_rows[0]["responses_create_params"]["input"]
    text = f"<|user|>{message['content']}<|end|><|assistant|>"
    assert tokenizer.decode(prompts[0].prompt_ids) == text


def test_prompt_has_the_forced_tool_and_the_limit(prompts):
    assert [prompt.tool["name"] for prompt in prompts] == [
        "calendar_create_event",
        "calendar_create_event",
        "increment_counter",
    ]
    assert [prompt.max_output_tokens for prompt in prompts] == [280, 400, 512]


def test_agent_says_which_environment_runs_the_episode(prompts):
    assert [(prompt.agent, prompt.environment) for prompt in prompts[1:]] == [
        ("workplace_assistant_checkpoint_test_agent", "workplace_assistant"),
        ("example_session_state_mgmt_simple_agent", "example_session_state_mgmt"),
    ]


def test_unknown_agent_is_refused_by_name(refusal, prompt_rows):
    text = refusal(changed(prompt_rows, WORKPLACE, "task_source", "some_agent"))
    assert text.startswith("task_source: expected one of ")
    assert text.endswith("found some_agent")


def test_forced_tool_that_is_not_there_is_refused_by_name(refusal, prompt_rows):
    text = refusal(changed(prompt_rows, WORKPLACE, f"{TOOL}.name", "email_send"))
    assert text == "tools: expected calendar_create_event once, found it 0 times"


def test_schema_that_cannot_be_constrained_is_refused(refusal, prompt_rows):
    path = f"{TOOL}.parameters.properties.duration"
    text = refusal(changed(prompt_rows, WORKPLACE, path, {"type": "number"}))
    assert text.startswith("property duration: no constraint")


@pytest.mark.parametrize("limit", [0, -1, "many", 1.5])
def test_limit_that_is_no_number_of_tokens_is_refused(refusal, prompt_rows, limit):
    path = f"{PARAMS}.max_output_tokens"
    assert "max_output_tokens" in refusal(changed(prompt_rows, WORKPLACE, path, limit))


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tool_that_is_not_forced_is_refused(refusal, prompt_rows, choice):
    text = refusal(changed(prompt_rows, WORKPLACE, f"{PARAMS}.tool_choice", choice))
    assert "tool_choice" in text


@pytest.mark.parametrize("line", ["{", "", "[]", "3", "null"])
def test_line_that_is_no_row_is_refused(refusal, line):
    assert refusal(line)


def test_empty_file_is_refused(load):
    with pytest.raises(ValueError, match=r"prompts\.jsonl: expected a data row"):
        load()


def test_missing_file_is_refused_by_path(tmp_path, tokenizer):
    with pytest.raises(ValueError, match=r"none\.jsonl: No such file"):
        load_prompts(tmp_path / "none.jsonl", tokenizer)
