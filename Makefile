# Every target sets itself up: nothing but make and Python >= 3.11 is needed.
#   make demo          a tour that ends with a picture: 1 to 2 minutes, mostly of installing and compiling
#   make test          the tests, each property once (make test-rest: the others; make test-slow: the long ones;
#                      make test-all: all of them; make test-core: whether a JAX works)
#   make lint types    what CI checks besides
#   make notebooks     runs all notebooks, and keeps what they show beside them
#   make docs          the site, in build/site
# Another interpreter or environment: make test PYTHON=python3.13 VENV=/tmp/venv

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin

# One stamp for each set of extras, inside the environment: it goes when the environment goes.
EXTRAS_demo := cli,plot,sklearn
EXTRAS_test := test
EXTRAS_core := core
EXTRAS_notebooks := notebooks
EXTRAS_docs := docs
installed = $(VENV)/.installed-$(1)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-core test-rest test-slow lint types notebooks docs format clean

help:
	@sed -n '2,8s/^# *//p' Makefile

demo: $(call installed,demo)
	$(BIN)/python examples/demo.py

test: $(call installed,test)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

# In 32 bits, as users have them. Another version of JAX: make test-core VENV=/tmp/oldest REQUIRE='jax==0.9.2 jaxlib==0.9.2'
CORE := tests/test_core.py tests/test_precision.py tests/test_derivatives_float32.py
test-core: $(call installed,core)
	JAXSVM_TEST_X64=0 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not slow' $(CORE)

test-rest: $(call installed,test)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'thorough and not slow'

test-slow: $(call installed,test)
	$(BIN)/python -m pytest -q -m slow

test-all: test test-rest test-slow

lint: $(call installed,test)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(call installed,test)
	$(BIN)/basedpyright --pythonpath $(BIN)/python

notebooks: $(call installed,notebooks)
	$(BIN)/python -m jupytext --to ipynb --execute notebooks/*.py

docs: $(call installed,docs)
	$(BIN)/python benchmarks/results_page.py
	$(BIN)/python -m mkdocs build --strict

format: $(call installed,test)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist demo-output .jax-cache .pytest_cache .ruff_cache .hypothesis
	find jaxsvm tests -name __pycache__ -type d -exec rm -rf {} +
	rm -f $(VENV)/.installed-*

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRAS_$*)]" $(REQUIRE)
	@touch $@

# A venv that failed half-way would look finished to the next call, so it is removed.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "jaxsvm needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -n 1)." >&2; \
	  echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
