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
KWOK := v0.7.0
# Kubeflow's operator, which `make bench-operator` measures against.
PEER := v1.9.3
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
lock: $(INSTALLED) ## requirements.lock and the images' locks anew from pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes \
	  --no-emit-package tensorflow --no-emit-index-url --no-emit-find-links -o requirements.lock pyproject.toml
	images/lock.sh

.PHONY: demo
demo: $(INSTALLED) ## the main job on real data: digits in float32 and bfloat16, compared, the model used
	@$(BIN)/python demo/run.py

STAGES := lint servers test-unit test-cluster test-kind test-training

.PHONY: test
test: $(INSTALLED) ## every check and test, with the time of each stage
	@times=""; \
	for stage in $(STAGES); do \
	  echo "=== make $$stage"; start=$$SECONDS; \
	  $(MAKE) --no-print-directory $$stage || exit 1; \
	  times+=$$(printf '%-14s %5d s' $$stage $$((SECONDS - start)))$$'\n'; \
	done; \
	printf '=== times\n%s' "$$times"

.PHONY: manifests
manifests: $(INSTALLED) ## manifests/crd.yaml from the models, manifests/install.yaml from it and operator.yaml
	@$(BIN)/python -m mptraining_api.crd
	@$(INSTALL_YAML) > manifests/install.yaml

# Everything that `kubectl apply -f` needs, in one file.
INSTALL_YAML := { echo '\# Made by `make manifests` from crd.yaml and operator.yaml.'; tail -n +2 manifests/crd.yaml; echo ---; cat manifests/operator.yaml; }

.PHONY: lint
lint: $(INSTALLED) ## formatting, style, types, layers, stale files
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@PYTHONPATH=api:operator:trainer:client $(BIN)/lint-imports --no-cache | tail -n 3
	@$(BIN)/python -m mptraining_api.crd --check
	@$(INSTALL_YAML) | cmp --quiet - manifests/install.yaml || { echo "manifests/install.yaml: stale. Run: make manifests"; exit 1; }

.PHONY: format
format: $(INSTALLED) ## mends formatting and what ruff can mend by itself
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

.PHONY: test-unit
test-unit: $(INSTALLED) servers ## the tests that train nothing
	@$(BIN)/python -m pytest -q -m "not training and not cluster and not kind" -n auto --maxprocesses 4

.PHONY: test-cluster
test-cluster: $(INSTALLED) servers ## the tests against a Kubernetes API server
	@# One process: it shares one control plane, and two cores carry no second one.
	@$(BIN)/python -m pytest -q -m cluster --durations=10

.PHONY: test-kind
test-kind: $(INSTALLED) ## the tests on a kind cluster, which is made for them and kept
	@$(MAKE) --no-print-directory cluster images || { test -z "$${CI:-}" && echo "no cluster here: the tests on kind are left out"; }
	@$(BIN)/python -m pytest -q -m kind --durations=5

.PHONY: test-training
test-training: $(INSTALLED) servers $(OLDER)/.installed ## the tests that train models and start workers
	@$(BIN)/python -m pytest -q -m training --durations=10

.PHONY: servers
servers: ## what tests talk to: fake-gcs-server, Kubernetes' control plane, kwok (needs Go)
	@if command -v go >/dev/null; then $(MAKE) --no-print-directory build/bin/fake-gcs-server build/bin/kwok build/kwok-stages; \
	  else echo "no Go here: the tests against a storage server are left out"; fi
	@$(PYTHON) cluster/binaries.py || { test $$? = 3 && echo "the tests against a Kubernetes API server are left out"; }

build/bin/kwok:
	@echo "building kwok, about a minute"
	@GOBIN=$(CURDIR)/build/bin go install sigs.k8s.io/kwok/cmd/kwok@$(KWOK)

# What its pods do: its own definitions of nodes that initialize and pods that run, complete and leave at once.
build/kwok-stages: build/bin/kwok
	@mkdir -p $@
	@cp "$$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok@$(KWOK))"/kustomize/stage/{node,pod}/fast/*-*.yaml $@/
	@chmod u+w $@/*

build/bin/training-operator.v1:
	@echo "building Kubeflow's training-operator, about two minutes"
	@GOBIN=$(CURDIR)/build/bin go install github.com/kubeflow/training-operator/cmd/training-operator.v1@$(PEER)

build/peer-crds: build/bin/training-operator.v1
	@mkdir -p $@
	@cp "$$(go list -m -f '{{.Dir}}' github.com/kubeflow/training-operator@$(PEER))"/manifests/base/crds/kubeflow.org_*.yaml $@/
	@chmod u+w $@/*

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

.PHONY: cluster
cluster: ## a kind cluster with two workers, kept until cluster-down (docs/cluster.md)
	@$(PYTHON) -m cluster.up

.PHONY: cluster-down
cluster-down: ## removes the kind cluster
	@$(PYTHON) -m cluster.down

.PHONY: images
images: $(INSTALLED) ## the operator's and the trainer's image, built and loaded into the cluster
	@$(BIN)/python -m cluster.images

.PHONY: soak
soak: $(INSTALLED) servers ## the long forms of the random tests; mixed precision's accuracy, into docs/precision.md
	@$(BIN)/python -m pytest -q -m "not training and not cluster and not kind" --hypothesis-profile=soak
	@$(BIN)/python -m bench.parity --write

.PHONY: bench-trainer
bench-trainer: $(INSTALLED) ## the loop against Keras fit and a bare tf.function
	@$(BIN)/python -m bench.trainer

.PHONY: bench-operator
bench-operator: $(INSTALLED) servers build/peer-crds ## the operator against Kubeflow's and bare Jobs
	@$(BIN)/python -m bench.operators

.PHONY: bench-records
bench-records: $(INSTALLED) servers ## the reader of records against TensorFlow's, Python's and the network's limit
	@$(BIN)/python -m bench.records

.PHONY: clean
clean: ## everything that can be made again, the virtual environment apart
	@rm -rf build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
