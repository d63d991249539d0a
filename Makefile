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

# If it were set, every process of a test would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

include hack/tools.mk

.PHONY: help setup demo test test-all lint lint-chart unit training apiserver e2e browser kind \
  smoke soak format lock manifests images cluster cluster-down docs bench clean
help:
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

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

demo: $(INSTALLED) ## the main job on real data: digits in float32 and bfloat16, compared, the model used
	@$(BIN)/python examples/demo/run.py

# $(call side_by_side,STAGE STAGE): run targets at the same time, each line with the name of its stage; fail if one fails.
# In a subshell, since `wait` returns the status of the last command of a pipeline that ended before, which is sed's.
define side_by_side
@pids=; for stage in $(1); do \
  ( { began=$$SECONDS; $(MAKE) --no-print-directory $$stage 2>&1; echo "passed in $$((SECONDS - began)) s"; } | sed -u "s/^/$$stage | /" ) & \
  pids+=" $$!"; done; failed=0; for pid in $$pids; do wait $$pid || failed=1; done; exit $$failed
endef
# Tests of servers and processes get a second try on a busy machine; the first failure is shown all the same.
PYTEST = $(BIN)/python -m pytest -q --durations=10
SECOND_TRY := --reruns 1 --reruns-delay 1 --max-suite-reruns 3 --rerun-show-tracebacks

test: $(INSTALLED) ## lint and unit tests, then training and the API server: what every change must pass
	$(call side_by_side,lint unit)
	$(call side_by_side,training apiserver)

test-all: export MPTRAINING_TEST_ALL = 1
test-all: $(INSTALLED) build/next ## every test but soak's: also both generations of Keras, kills, notebooks, the board in Chromium, kind
	$(call side_by_side,lint unit)
	$(call side_by_side,training apiserver)
	@PYTHONPATH=build/next $(PYTEST) tests/training/test_keras_internals.py -k "not Legacy"
	@$(MAKE) --no-print-directory docs e2e browser kind

# The newest Keras and TensorFlow that are not final.
build/next: $(INSTALLED)
	@$(BIN)/uv pip install --quiet --target $@ --no-deps --prerelease allow keras-nightly "tensorflow-cpu>=2.22.0rc0"

lint: $(INSTALLED) ## formatting, style, types, layers, stale files
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@PYTHONPATH=api:operator:trainer:client $(BIN)/lint-imports --no-cache | tail -n 3
	@$(MAKE) --no-print-directory lint-chart
lint-chart: build/bin/actionlint build/bin/helm build/bin/helm-docs
	@test ! -x build/bin/actionlint || build/bin/actionlint -shellcheck= -pyflakes=
	@test ! -x build/bin/helm || { build/bin/helm lint --strict --quiet $(CHART_SETTINGS) charts/mptraining && \
	  $(INSTALL_YAML) | cmp --quiet - manifests/install.yaml || { echo "charts or manifests/install.yaml: run: make manifests"; exit 1; }; }
	@test ! -x build/bin/helm-docs || $(CHART_DOCS) | cmp --quiet - charts/mptraining/README.md || \
	  { echo "charts/mptraining/README.md: stale. Run: make manifests"; exit 1; }

# The stages of the tests. `make unit` alone is the quickest check.
unit: $(INSTALLED) build/bin/fake-gcs-server
	@$(PYTEST) tests/unit -n auto --maxprocesses 4

# Tests are taken one by one where they are left over, since the longest take a minute.
training: $(INSTALLED) build/bin/fake-gcs-server
	@$(PYTEST) tests/training -n 2 --dist worksteal $(SECOND_TRY)

# By files, whose fixtures have fixed names; each process has a control plane of its own.
apiserver: $(INSTALLED) servers
	@$(PYTEST) tests/apiserver -n 2 --dist loadfile $(SECOND_TRY)

e2e: $(INSTALLED) servers build/bin/kube-score $(ENVIRONMENTS)
	@$(PYTEST) tests/e2e --ignore tests/e2e/kind --ignore tests/e2e/browser -n 2 --dist worksteal $(SECOND_TRY)

kind: $(INSTALLED)
	@$(call unless_impossible,$(PYTHON) -m hack.cluster.up,the tests on kind); \
	$(BIN)/python -m hack.cluster.images; $(PYTEST) tests/e2e/kind $(SECOND_TRY)

browser: $(INSTALLED) chromium
	@$(PYTEST) tests/e2e/browser -n 2 $(SECOND_TRY)

# The end of .ci/run, after `make cluster images`.
smoke: $(INSTALLED) build/bin/helm
	@$(PYTEST) tests/e2e/kind/test_smoke.py

soak: $(INSTALLED) servers build/kueue/kueue build/bin/kube-scheduler-coscheduling ## hours: random tests in their long form, kills, chaos, the oldest and newest Kubernetes, parity
	@tests/soak/run.sh

format: $(INSTALLED) ## applies ruff's formatting and automatic fixes
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

lock: $(INSTALLED) ## regenerates requirements.lock and the images' locks from pyproject.toml
	@# Without the extras mlflow and wandb, which tests have in an environment of their own.
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --extra operator --extra trainer-cpu --extra board --extra notebook --extra dev \
	  --no-emit-package tensorflow --no-emit-index-url --no-emit-find-links -o requirements.lock pyproject.toml
	@hack/images/lock.sh

manifests: $(INSTALLED) build/bin/helm build/bin/helm-docs ## the CRDs, the chart's values and table, install.yaml: from the models
	@$(BIN)/python -m hack.crd
	@$(BIN)/python -m hack.helm_chart
	@$(CHART_DOCS) > charts/mptraining/README.md
	@$(INSTALL_YAML) > build/install.yaml && mv build/install.yaml manifests/install.yaml

images: $(INSTALLED) ## the images of operator and trainer, built and loaded into the kind cluster
	@$(BIN)/python -m hack.cluster.images

cluster: ## a kind cluster with two workers, kept until cluster-down (docs/guide/operate.md)
	@$(PYTHON) -m hack.cluster.up
cluster-down: ## removes it
	@$(PYTHON) -m hack.cluster.down

docs: $(INSTALLED) build/env/docs/.installed ## the documentation as a site, in build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 build/env/docs/bin/python -m mkdocs build --quiet

BENCH ?= trainer
bench: $(INSTALLED) servers $(if $(filter operator,$(BENCH)),build/bin/training-operator.v1) ## BENCH=trainer|operator|records|parity: figures against other tools
	@$(BIN)/python -m hack.$(if $(filter parity,$(BENCH)),,bench.)$(BENCH) $(ARGS)

clean: ## everything that can be made again, the virtual environment apart
	@rm -rf build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
