# `make demo` and `make test` each set up what they need. Everything lives in .venv, or in the environment that
# `make setup PYTHON=<folder>` named, which no other target changes.
.DEFAULT_GOAL := help
SHELL := /bin/sh
VENV := .venv
STAMP := $(VENV)/.installed
CHOSEN := $(shell cat .venv-choice 2>/dev/null)
# Only what was typed counts: other tools' variables carry these names too.
typed = $(if $(filter command,$(origin $(1))),$($(1)))
ENVIRONMENT := $(call typed,PYTHON)
PY := $(or $(CHOSEN),$(VENV)/bin/python)
READY := $(if $(CHOSEN),chosen,$(STAMP))

.PHONY: help setup chosen demo demo-sweep bench bench-quick test test-slow lint type gpu-check lock interop clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: ## make .venv, for the card that is here (BACKEND=cpu|cuda|rocm|xpu), or install around the PyTorch of PYTHON=<environment>
	@sh scripts/setup.sh '$(call typed,BACKEND)' '$(ENVIRONMENT)'

$(STAMP): pyproject.toml requirements.lock
	@sh scripts/setup.sh again

chosen:
	@test -x '$(PY)' || { echo "error: $(PY), chosen with make setup PYTHON=, is gone: type make setup" >&2; exit 2; }

demo: $(READY) ## record, train and evaluate a policy in a simulator, from nothing (about 3 minutes on two cores); ARGS="steps=100"
	@'$(PY)' -m lerobot.train experiment=demo $(ARGS)

demo-sweep: $(READY) ## the demo in full precision and in bfloat16 with two seeds each, shortened, with its report (about 4 minutes)
	@'$(PY)' -m lerobot.train --multirun experiment=demo precision=no,bf16 seed=1000,2000 steps=600 env_eval_freq=0 \
		eval.n_episodes=30 eval.baselines=[] eval.videos=0 $(ARGS)

bench: $(READY) ## an update beside a bare PyTorch loop of the same policy, as ratios
	@'$(PY)' scripts/bench.py

bench-quick: $(READY) ## the same, shorter
	@'$(PY)' scripts/bench.py --quick

test: $(READY) ## the tests (under 5 minutes on two cores); ARGS="tests/policies -k chunk"
	@'$(PY)' -m pytest $(ARGS)

test-slow: $(READY) ## the tests that take minutes
	@'$(PY)' -m pytest -m slow $(ARGS)

lint: $(READY) ## ruff, the type checker, and hadolint on the Dockerfiles
	@'$(PY)' -m ruff check . && '$(PY)' -m ruff format --check .
	@"$$(dirname '$(PY)')/hadolint" docker/Dockerfile.*
	@$(MAKE) --no-print-directory type

type: $(READY) ## the type checker alone
	@'$(PY)' -m pyright --pythonpath '$(PY)'

gpu-check: $(if $(ENVIRONMENT),,$(READY)) ## what only a card can show, under 8 minutes; offline: PYTHON=<environment> WHEELS=<folder>
	@sh scripts/gpu_check.sh '$(or $(ENVIRONMENT),$(PY))' '$(call typed,WHEELS)' $(ARGS)

lock: ## resolve requirements.lock anew, for every platform
	@uv pip compile --universal --python-version 3.11 --extra metaworld --extra pusht --extra dev pyproject.toml --output-file requirements.lock \
		--custom-compile-command "make lock" --no-emit-index-url --quiet

interop: $(READY) ## ACT checkpoints here and in LeRobot, installed for it once (.venv-interop) or PEER=<python that has lerobot>
	@sh scripts/interop.sh '$(PY)' '$(call typed,PEER)'

clean: ## remove what was built; outputs/ stays, and so does an environment that PYTHON= named
	@rm -rf $(VENV) .venv-choice .venv-interop dist build .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
