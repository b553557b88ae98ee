# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0
"""The prompts: data rows in NeMo-Gym's form, checked as they are read."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minirl.constraint import Constraint
from minirl.tokenizer import Tokenizer
from minirl.workplace import ENVIRONMENTS

AGENTS = {
    "workplace_assistant_checkpoint_test_agent": "workplace_assistant",
    "example_session_state_mgmt_simple_agent": "example_session_state_mgmt",
}


@dataclass(frozen=True)
class Prompt:
    """One data row: what the policy is asked, and where its tool calls go."""

    prompt_idx: int
    agent: str  # the Gym agent that runs its episodes
    environment: str  # a key of `ENVIRONMENTS`
    prompt_ids: list[int]
    tool: dict[str, Any]  # the one that the first turn is forced to call
    max_output_tokens: int
    row: dict[str, Any]

    @property
    def has_free_turn(self) -> bool:
        """Whether an unconstrained turn follows the tool's result."""
        return self.environment == "workplace_assistant"


def _prompt(prompt_idx: int, row: dict[str, Any], tokenizer: Tokenizer) -> Prompt:
    agent = row["task_source"]
    if agent not in AGENTS:
        raise ValueError(f"task_source: expected one of {list(AGENTS)}, found {agent}")
    environment = AGENTS[agent]
    params = row["responses_create_params"]
    if not isinstance(params["tool_choice"], dict):
        found = params["tool_choice"]
        raise ValueError(f"tool_choice: expected a function to force, found {found!r}")
    forced = params["tool_choice"]["name"]
    tools = [tool for tool in params["tools"] if tool["name"] == forced]
    if len(tools) != 1:
        raise ValueError(f"tools: expected {forced} once, found it {len(tools)} times")
    Constraint(tokenizer, tools[0])
    ENVIRONMENTS[environment](row).reward()
    prompt_ids = tokenizer.render_prompt(params["input"])
    limit = params["max_output_tokens"]
    if not isinstance(limit, int) or limit < 1:
        raise ValueError(f"max_output_tokens: expected 1 or more, found {limit!r}")
    return Prompt(prompt_idx, agent, environment, prompt_ids, tools[0], limit, row)


def load_prompts(path: Path, tokenizer: Tokenizer) -> list[Prompt]:
    """Every row of a JSONL file.

    Raises:
        ValueError: the file cannot be read, is empty, or a row lacks a field or holds
            what minirl cannot run; one line names the file, the line and the field.
    """
    prompts: list[Prompt] = []
    try:
        with path.open() as lines:
            for line in lines:
                prompts.append(_prompt(len(prompts), json.loads(line), tokenizer))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except KeyError as error:
        raise ValueError(f"{path}:{len(prompts) + 1}: no field {error}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}:{len(prompts) + 1}: {error}") from None
    if not prompts:
        raise ValueError(f"{path}: expected a data row a line, found none")
    return prompts
