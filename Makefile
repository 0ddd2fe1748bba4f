# One front door. `make help` lists what there is; `make check` is what CI runs.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
BIN := $(VENV)/bin
export PYTHONSAFEPATH = 1

.DEFAULT_GOAL := help

help: ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  %-12s %s\n", $$1, $$2}'

check: ## to be replaced
	true
.PHONY: help check
