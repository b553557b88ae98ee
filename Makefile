# SPDX-FileCopyrightText: Copyright (c) 2026 The prefix-recovery-parity authors
# SPDX-License-Identifier: Apache-2.0

PYTHON ?= python3
KILLS ?= 10
BIN := $(CURDIR)/.venv/bin
TEST := tests/functional/grpo_async_gym_single_controller_prefix_recovery.sh
export PATH := $(BIN):$(PATH)

.PHONY: parity test lint bench faults soak pretrain lock install-into clean

parity: .venv/ready  ## run the parity test on minirl
	@status=0; bash $(TEST) $(ARGS) || status=$$?; \
	[ $$status -ne 1 ] || $(BIN)/python -m tools.explain || true; exit $$status

test: .venv/ready lint  ## lint, and run all unit tests
	@$(BIN)/python -m pytest

lint: .venv/ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy tests/functional minirl examples tools
	@$(BIN)/shellcheck --severity=warning tests/functional/*.sh tools/*.sh .ci/run

bench: .venv/ready  ## the figures of docs/benchmarks.md
	@$(BIN)/python -m tools.prove bench $(ARGS)

faults: .venv/ready  ## plant every fault; each must be caught by its check
	@$(BIN)/python -m tools.prove faults $(ARGS)

soak: .venv/ready  ## kill KILLS runs at random moments; none may raise an alarm
	@$(BIN)/python -m tools.prove soak --kills $(KILLS) $(ARGS)

pretrain: .venv/ready  ## train the policy's weights again
	@$(BIN)/python -m minirl.pretraining $(ARGS)

install-into: ## copy the harness into DEST, a NeMo-RL checkout
	@bash tools/install_into.sh "$(DEST)"

lock: .venv/ready  ## pin what is installed
	@{ $(BIN)/pip freeze | grep -v '^torch=='; echo torch==2.13.0; } \
		| LC_ALL=C sort -f >requirements.lock

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/ready: requirements.lock
	@echo "installing requirements.lock into .venv (once)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@touch $@
