# make help   lists the targets. Every target that needs the environment makes it first.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV    := .venv
PY      := $(VENV)/bin/python
PIP     := $(PY) -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
PYTHON  ?=                # an interpreter to use instead of the first suitable one on the PATH
WORKERS ?= 2              # test processes; 0 runs the tests in one process, as a debugger needs
PYTEST  ?=                # further arguments for pytest: make test PYTEST='-k skew'
ATTACK  ?=                # further arguments of the attack: make attack ATTACK='--scale 0.1'

.PHONY: help setup demo test attack lint format types bench docs wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.dev  ## make .venv with hdnn (editable) and the development tools

demo: $(VENV)/.dev  ## build the networks, show their specifications, propagate a data set
	$(PY) -m hdnn demo

# Kernels are compiled first, once, not by every process of the tests.
# One torch thread a process: two processes with two threads each are slower than either alone.
test: $(VENV)/.dev  ## run all tests and the examples in docstrings, docs and README
	$(PY) -m hdnn info --warm
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n $(strip $(WORKERS)) $(PYTEST)

attack: $(VENV)/.attack  ## attack hdnn for about an hour: files, signals, disks, threads (docs/reliability.md)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(PY) -m attacks $(ATTACK)

lint: $(VENV)/.dev  ## check style and formatting
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(VENV)/.dev  ## repair formatting and what the linter can repair
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: $(VENV)/.dev  ## check the types
	$(PY) -m mypy

bench: $(VENV)/.bench  ## compare speed (ratios on one machine) with the bench extra
	$(PY) benchmarks/bench.py

docs: $(VENV)/.docs  ## build the site into build/docs; a warning is an error
	$(PY) -m sphinx -q -W --keep-going -j auto -b html docs build/docs

wheel:  ## build wheel and sdist into dist, and use both from a fresh environment
	.ci/wheel $(PYTHON)

clean:  ## remove caches and build products; keeps .venv (rm -r .venv to start afresh)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@for candidate in $(or $(strip $(PYTHON)),python3 python3.11 python3.12 python3.13 python3.14); do \
	    if "$$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' \
	        > /dev/null 2>&1; then \
	        echo "$(VENV): made with $$("$$candidate" --version)"; \
	        exec "$$candidate" -m venv $(VENV); \
	    fi; \
	done; \
	echo "hdnn needs Python 3.11 or newer with its venv module; none of these is it:" \
	     "$(or $(strip $(PYTHON)),python3 python3.11 python3.12 python3.13 python3.14)." \
	     "Install one (on Debian also its python3-venv), or name it: make setup PYTHON=/path/to/python" >&2; \
	exit 1

# torch comes first and pinned, so that no later step can pick another release. setuptools is there
# already, pinned, when hdnn is built: without build isolation, nothing unpinned is downloaded.
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) setuptools torch
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

$(VENV)/.attack: $(VENV)/.dev
	$(PIP) --no-build-isolation --editable '.[dev,attack]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) --no-build-isolation --editable '.[dev,docs]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) --no-build-isolation --editable '.[dev,bench]'
	@touch $@
