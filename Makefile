# `make demo` and `make test` each set up what they need. Everything lives in .venv.
.DEFAULT_GOAL := help
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON_RANGE := >=3.11,<3.14

.PHONY: help setup demo test test-slow lint type lock interop clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(STAMP) ## make .venv with everything that the demo and the tests need

$(STAMP): pyproject.toml requirements.lock
	@sh scripts/setup.sh $(VENV) '$(PYTHON_RANGE)'
	@touch $(STAMP)

demo: $(STAMP) ## record, train and evaluate a policy in a simulator, from nothing (about 3 minutes on two cores)
	@$(BIN)/lerobot-train experiment=demo

test: $(STAMP) ## the tests (under 5 minutes on two cores)
	@$(BIN)/python -m pytest

test-slow: $(STAMP) ## the tests that take minutes
	@$(BIN)/python -m pytest -m slow

lint: $(STAMP) ## ruff and the type checker
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory type

type: $(STAMP) ## the type checker alone
	@$(BIN)/pyright

lock: ## resolve requirements.lock anew, for every platform
	@uv pip compile --universal --python-version 3.11 --extra metaworld --extra dev pyproject.toml --output-file requirements.lock \
		--custom-compile-command "make lock" --no-emit-index-url --quiet

interop: $(STAMP) ## compare checkpoints with LeRobot's: make interop PEER=<python that has lerobot>
	@$(BIN)/python tests/interop/act_checkpoint.py $(PEER)

clean: ## remove what was built; outputs/ stays
	@rm -rf $(VENV) dist build .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
