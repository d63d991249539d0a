# `make demo` and `make test` are all a newcomer needs; each sets up what it stands on.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# The lock leaves tensorflow out, so that tf-keras, which names it, does not bring it beside tensorflow-cpu.
TENSORFLOW := tensorflow==2.21.0
UV := 0.13.8
FAKE_GCS_SERVER := v1.55.1
OLDER := build/keras-older

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

.PHONY: setup
setup: $(INSTALLED) ## the virtual environment .venv with everything in it

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else f"Python 3.11 to 3.13 is needed, this is {v[0]}.{v[1]}: make PYTHON=python3.11 ...")'
	@echo "setting up $(VENV): about 400 MB to download, a minute or two"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV)
	@# Compiled now: TensorFlow's 4,000 modules would otherwise be compiled at its first import, or at every one.
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps --compile-bytecode -r requirements.lock
	@$(BIN)/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("tensorflow") is None)' || \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --compile-bytecode "$(TENSORFLOW)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: lock
lock: $(INSTALLED) ## requirements.lock anew from pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes \
	  --no-emit-package tensorflow --no-emit-index-url --no-emit-find-links -o requirements.lock pyproject.toml

.PHONY: demo
demo: $(INSTALLED) ## the main job on real data: digits in float32 and bfloat16, compared, the model used
	@$(BIN)/python demo/run.py

STAGES := lint servers test-unit test-training

.PHONY: test
test: $(INSTALLED) ## every check and test, with the time of each stage
	@times=""; \
	for stage in $(STAGES); do \
	  echo "=== make $$stage"; start=$$SECONDS; \
	  $(MAKE) --no-print-directory $$stage || exit 1; \
	  times+=$$(printf '%-14s %5d s' $$stage $$((SECONDS - start)))$$'\n'; \
	done; \
	printf '=== times\n%s' "$$times"

.PHONY: lint
lint: $(INSTALLED) ## formatting, style, types, layers, stale files
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@PYTHONPATH=api:operator:trainer:client $(BIN)/lint-imports --no-cache | tail -n 3
	@$(BIN)/python -m mptraining_api.crd --check

.PHONY: format
format: $(INSTALLED) ## mends formatting and what ruff can mend by itself
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

.PHONY: test-unit
test-unit: $(INSTALLED) servers ## the tests that train nothing
	@$(BIN)/python -m pytest -q -m "not training" -n auto --maxprocesses 4

.PHONY: test-training
test-training: $(INSTALLED) servers $(OLDER)/.installed ## the tests that train models and start workers
	@$(BIN)/python -m pytest -q -m training --durations=10

.PHONY: servers
servers: ## fake-gcs-server, for the tests of gs:// (needs Go)
	@if command -v go >/dev/null; then $(MAKE) --no-print-directory build/bin/fake-gcs-server; \
	  else echo "no Go here: the tests against a storage server are left out"; fi

build/bin/fake-gcs-server:
	@echo "building fake-gcs-server, about a minute"
	@GOBIN=$(CURDIR)/build/bin go install github.com/fsouza/fake-gcs-server@$(FAKE_GCS_SERVER)

# An older Keras, to see that exported models travel.
$(OLDER)/.installed: tests/requirements-keras-older.lock $(INSTALLED)
	@echo "setting up an older Keras in $(OLDER)"
	@$(BIN)/python -m venv $(OLDER)
	@$(BIN)/uv pip install --quiet --python $(OLDER)/bin/python --require-hashes --no-deps --compile-bytecode \
	  -r tests/requirements-keras-older.lock
	@touch $@

.PHONY: soak
soak: $(INSTALLED) servers ## the long forms of the random tests
	@$(BIN)/python -m pytest -q -m "not training" --hypothesis-profile=soak

.PHONY: bench-trainer
bench-trainer: $(INSTALLED) ## the loop against Keras fit and a bare tf.function
	@$(BIN)/python -m bench.trainer

.PHONY: clean
clean: ## everything that can be made again, the virtual environment apart
	@rm -rf build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
