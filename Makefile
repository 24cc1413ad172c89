# make help   lists the targets. Every target that needs the environment makes it first.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV    := .venv
PY      := $(VENV)/bin/python
PIP     := $(PY) -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
KERNELS := $(wildcard src/hdnn/kernels/*.h src/hdnn/kernels/*.cpp src/hdnn/kernels/*/*.h)
CPP     := $(KERNELS) $(wildcard tests/kernels/*.cpp)
NODE    := node_modules/.package-lock.json
PYTHON  ?=                # an interpreter to use instead of the first suitable one on the PATH
WORKERS ?= 2              # test processes; 0 runs the tests in one process, as a debugger needs
PYTEST  ?=                # further arguments for pytest: make test PYTEST='-k skew'

.PHONY: help setup demo test test-all sanitize lint format types bench docs wheel clean FORCE

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.dev  ## make .venv with hdnn (editable) and the development tools

demo: $(VENV)/.dev  ## run robots, identify a system, train the paper's networks: demo.png and demo.html
	$(PY) -m hdnn demo

# One torch thread a process: two processes with two threads each are slower than either alone.
test: $(VENV)/.dev  ## run the fast tests and the examples in docstrings, docs and README
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n $(strip $(WORKERS)) -m 'not slow' $(PYTEST)

test-all: $(VENV)/.dev  ## run all tests, also those marked slow: processes, compilers, browsers
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n $(strip $(WORKERS)) $(PYTEST)

sanitize: $(VENV)/.dev  ## run the tests of the kernels under the address, undefined and thread sanitizers
	.ci/sanitize $(PY)

lint: $(VENV)/.dev $(NODE)  ## check style and formatting
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/clang-format --dry-run -Werror $(CPP)
	$(call javascript,biome ci --error-on-warnings)

format: $(VENV)/.dev $(NODE)  ## repair formatting and what the linter can repair
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $(CPP)
	$(call javascript,biome check --write)

types: $(VENV)/.dev $(NODE)  ## check the types
	$(PY) -m mypy
	$(call javascript,tsc -p jsconfig.json)

bench: $(VENV)/.bench  ## compare speed (ratios on one machine) with the bench extra
	$(PY) benchmarks/bench.py

# All pages are written each time: of others, the search would forget the index entries.
docs: $(VENV)/.docs  ## build the site into build/docs; a warning is an error
	$(PY) -m sphinx -q -W --keep-going -a -j auto -b html docs build/docs
	@echo "The site is in build/docs. To look at it, the playground included:" \
	    "$(PY) -m http.server --directory build/docs, then http://localhost:8000"

wheel:  ## build wheel and sdist into dist, and use both from a fresh environment
	.ci/wheel $(PYTHON)

clean:  ## remove caches and build products; keeps .venv (rm -r .venv to start afresh)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
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

# Without a C++ compiler hdnn is installed without its kernels, and again as soon as there is one.
# With a compiler, an error in the kernels is an error here.
compiler = $(shell $${CXX:-c++} -std=c++17 -fsyntax-only -include thread -x c++ /dev/null 2> /dev/null && echo 1)
library  = $(wildcard $(VENV)/lib/python*/site-packages/hdnn/kernels/libhdnn.*)
missing  = $(if $(library),,$(if $(compiler),FORCE))

# torch comes first and pinned, so that no later step can pick another release; so does what builds
# hdnn: without build isolation, nothing unpinned is downloaded.
$(VENV)/.dev: pyproject.toml constraints.txt CMakeLists.txt $(KERNELS) $(VENV)/.modules $(missing) | $(VENV)/bin/python
	$(PIP) torch scikit-build-core cmake ninja
	HDNN_REQUIRE_KERNELS=$(compiler) $(PIP) --no-build-isolation --editable '.[dev]'
	@ls $(VENV)/lib/python*/site-packages/hdnn/kernels/libhdnn.* > /dev/null 2>&1 || echo \
	    "No C++ compiler: hdnn has no compiled kernels and computes with its slower reference backend." \
	    "Install gcc or clang, and the next make builds them." >&2
	@touch $@

# An editable installation knows where every module is, so it is renewed when one comes or goes.
$(VENV)/.modules: FORCE | $(VENV)/bin/python
	@find src/hdnn -name '*.py' | LC_ALL=C sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

# The tools that check JavaScript; without npm, that alone is left out.
$(NODE): package.json package-lock.json
	@if command -v npm > /dev/null; then npm ci --ignore-scripts --no-audit --no-fund --loglevel=error > /dev/null; \
	else echo "npm is not installed: the playground's JavaScript is not checked"; fi

javascript = @if [ -f $(NODE) ]; then echo $(1); node_modules/.bin/$(1); fi

$(VENV)/.bench $(VENV)/.docs: $(VENV)/.%: pyproject.toml constraints.txt | $(VENV)/.dev
	$(PIP) --no-build-isolation --editable '.[dev,$*]'
	@touch $@
