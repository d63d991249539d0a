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
# What reads, checks and documents the chart.
HELM := v3.19.0
HELM_DOCS := v1.14.2
KUBECONFORM := v0.7.0
KUBE_SCORE := v1.20.0
# Kubeflow's operator, which `make bench-operator` measures against.
PEER := v1.9.3
# The newest Katib that Go's checksum database knows.
KATIB := v0.14.0
# The newest that the Go module proxy serves.
KUEUE := v0.19.2
# Schedulers of gangs, whose CustomResourceDefinitions the tests apply.
SCHEDULER_PLUGINS := v0.34.7
VOLCANO := v1.13.0
CONTROLLER_GEN := v0.19.0
ACTIONLINT := v1.7.12
OLDER := build/keras-older
TRACKING := build/tracking
DOCS := build/docs-tools
FUZZ := build/fuzz-tools
WORKFLOW_TOOLS := build/workflow-tools

# An environment beside .venv, in the folder of the target, from the locks among its prerequisites.
define own_environment
@$(BIN)/python -m venv --without-pip $(@D)
@for lock in $(filter %.lock,$^); do \
  $(BIN)/uv pip install --quiet --python $(@D)/bin/python --require-hashes --no-deps --compile-bytecode -r $$lock; done
endef
# What it lacks comes from .venv.
define over_venv
@echo "import site; site.addsitedir('$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
  > "$$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/over.pth"
endef

# Where it is set, every process of a test compiles what it imports, pytest all tests once more.
unexport PYTHONDONTWRITEBYTECODE

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
lock: $(INSTALLED) ## regenerates requirements.lock and the images' locks from pyproject.toml
	@# Without the extras mlflow and wandb, which tests have in an environment of their own.
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --extra operator --extra trainer-cpu --extra board --extra notebook --extra dev \
	  --no-emit-package tensorflow --no-emit-index-url --no-emit-find-links -o requirements.lock pyproject.toml
	hack/images/lock.sh

.PHONY: demo
demo: $(INSTALLED) ## the main job on real data: digits in float32 and bfloat16, compared, the model used
	@$(BIN)/python examples/demo/run.py

# Stages with a + between them run at the same time: those of servers mostly wait, training keeps the cores busy. Kind is
# last, since its cluster stays and takes a tenth of a core.
STAGES := servers lint+test-browser test-unit test-cluster+test-training test-kind

.PHONY: test
test: $(INSTALLED) ## every check and test, with the time of each stage
	@$(BIN)/python hack/run_stages.py $(STAGES)

.PHONY: manifests
manifests: $(INSTALLED) build/bin/helm build/bin/helm-docs ## crd.yaml, the chart's values, schema and table, install.yaml: from the models
	@$(BIN)/python -m mptraining_api.crd
	@$(BIN)/python -m hack.helm_chart
	@$(CHART_DOCS) > charts/mptraining/README.md
	@$(INSTALL_YAML) > build/install.yaml && mv build/install.yaml manifests/install.yaml

# helm's own guess of a version depends on how it was built.
KUBE_VERSION := 1.34.0
# A tag of Kubernetes' modules: gangs' scheduler plugins are built with it.
TESTED_KUBERNETES := 1.34.4
# The oldest and the newest that are promised: charts/mptraining/Chart.yaml, hack/cluster/binaries.py.
# Both ends are in `make soak`.
ENDS_OF_KUBERNETES := 1.30 1.36
# Everything that `kubectl apply -f` needs, in one file. No registry has a name in .invalid (RFC 2606).
INSTALL_YAML := { echo '\# Made by `make manifests` from charts/mptraining. Replace registry.invalid by your registry.'; \
  build/bin/helm template mptraining charts/mptraining \
  --namespace mptraining-system --set namespace.create=true,global.imageRegistry=registry.invalid --skip-tests --kube-version $(KUBE_VERSION); }
CHART_DOCS := build/bin/helm-docs --chart-search-root charts/mptraining --dry-run --sort-values-order file --log-level warning

.PHONY: board-pictures
board-pictures: $(INSTALLED) chromium ## the board's pictures in docs/pictures, of runs that are written for them and of the demo's
	@$(BIN)/python -m hack.docs.board_pictures

.PHONY: lint
lint: $(INSTALLED) ## formatting, style, types, layers, stale files
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@PYTHONPATH=api:operator:trainer:client $(BIN)/lint-imports --no-cache | tail -n 3
	@$(BIN)/python -m mptraining_api.crd --check
	@$(BIN)/python -m hack.helm_chart --check
	@if command -v go >/dev/null || test -x build/bin/actionlint; then $(MAKE) --no-print-directory lint-workflows; \
	  else echo "no Go here: .github is not checked"; fi
	@if command -v go >/dev/null || test -x build/bin/helm-docs; then $(MAKE) --no-print-directory lint-chart; \
	  else echo "no Go here: charts/mptraining and manifests/install.yaml are not checked"; fi

.PHONY: lint-chart
lint-chart: $(INSTALLED) build/bin/helm build/bin/helm-docs
	@build/bin/helm lint --strict --quiet --kube-version $(KUBE_VERSION) --set global.imageRegistry=registry.invalid charts/mptraining
	@$(CHART_DOCS) | cmp --quiet - charts/mptraining/README.md || { echo "charts/mptraining/README.md: stale. Run: make manifests"; exit 1; }
	@$(INSTALL_YAML) | cmp --quiet - manifests/install.yaml || { echo "manifests/install.yaml: stale. Run: make manifests"; exit 1; }

# The second one knows what lets a stranger into a workflow.
.PHONY: lint-workflows
lint-workflows: build/bin/actionlint $(WORKFLOW_TOOLS)/.installed
	@build/bin/actionlint -shellcheck= -pyflakes=
	@$(WORKFLOW_TOOLS)/bin/zizmor --quiet --offline --no-progress .github

$(WORKFLOW_TOOLS)/.installed: hack/requirements-workflows.lock $(INSTALLED)
	$(own_environment)
	@touch $@

build/bin/actionlint:
	@echo "building actionlint"
	@GOBIN=$(CURDIR)/build/bin go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT)

build/bin/helm:
	@echo "building helm, about two minutes"
	@GOBIN=$(CURDIR)/build/bin go install helm.sh/helm/v3/cmd/helm@$(HELM)

build/bin/helm-docs:
	@echo "building helm-docs"
	@GOBIN=$(CURDIR)/build/bin go install github.com/norwoodj/helm-docs/cmd/helm-docs@$(HELM_DOCS)

build/bin/kubeconform:
	@echo "building kubeconform"
	@GOBIN=$(CURDIR)/build/bin go install github.com/yannh/kubeconform/cmd/kubeconform@$(KUBECONFORM)

build/bin/kube-score:
	@echo "building kube-score, about a minute"
	@GOBIN=$(CURDIR)/build/bin go install github.com/zegl/kube-score/cmd/kube-score@$(KUBE_SCORE)

.PHONY: format
format: $(INSTALLED) ## applies ruff's formatting and automatic fixes
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

.PHONY: test-unit
test-unit: $(INSTALLED) servers ## the tests that train nothing
	@$(BIN)/python -m pytest -q tests/unit -n auto --maxprocesses 4

# What talks to real servers and processes gets a second try on a busy machine; how it failed is shown all the same.
SECOND_TRY := --reruns 1 --reruns-delay 1 --max-suite-reruns 3 --rerun-show-tracebacks

.PHONY: chromium
chromium: ## Debian's Chromium, which the tests of the board drive; installed by apt-get where that is allowed
	@$(PYTHON) hack/chromium.py

.PHONY: test-browser
test-browser: $(INSTALLED) ## the tests of the board in Chromium
	@$(MAKE) --no-print-directory chromium || { test -z "$${CI:-}" && echo "no Chromium here: the tests of the board in a browser are left out"; }
	@$(BIN)/python -m pytest -q tests/e2e/browser -n 2 $(SECOND_TRY) --durations=5

.PHONY: test-cluster
test-cluster: $(INSTALLED) servers ## the tests against a Kubernetes API server and other servers
	@# Three at once, each with a control plane of its own: the tests mostly wait. By files, whose fixtures have fixed names.
	@$(BIN)/python -m pytest -q tests/apiserver -n 3 --dist loadfile $(SECOND_TRY) --durations=10

.PHONY: test-kind
test-kind: $(INSTALLED) ## the tests on a kind cluster, which is made for them and kept
	@$(MAKE) --no-print-directory cluster images || { test -z "$${CI:-}" && echo "no cluster here: the tests on kind are left out"; }
	@$(BIN)/python -m pytest -q tests/e2e/kind $(SECOND_TRY) --durations=5

.PHONY: test-training
test-training: $(INSTALLED) servers $(OLDER)/.installed $(TRACKING)/.installed ## the tests that train models and start workers
	@# Two at once: most of a test is tracing or the start of a process, which keeps one core busy. Tests are taken one
	@# by one where they are left over, since the longest take a minute.
	@$(BIN)/python -m pytest -q tests/training tests/e2e/client tests/e2e/docs tests/e2e/operator tests/e2e/trainer -n 2 --dist worksteal $(SECOND_TRY) --durations=10

.PHONY: servers
servers: ## what tests talk to: fake-gcs-server, Kubernetes' control plane, kwok; and what checks the chart (needs Go)
	@if command -v go >/dev/null; then $(MAKE) --no-print-directory build/bin/fake-gcs-server build/bin/kwok build/kwok-stages build/katib/gjson build/gang-crds build/peer-crds \
	    build/bin/helm build/bin/helm-docs build/bin/kubeconform build/bin/kube-score; \
	  else echo "no Go here: the tests against a storage server are left out"; fi
	@$(PYTHON) hack/cluster/binaries.py || { test $$? = 3 && echo "the tests against a Kubernetes API server are left out"; }

# For `make soak`: its version is that of the control plane in build/bin (hack/cluster/binaries.py).
build/bin/kube-scheduler-coscheduling: tests/testbed/coscheduling/main.go tests/testbed/coscheduling/build.sh
	@echo "building kube-scheduler with the plugin Coscheduling: five minutes of processor time, seconds once hyperkube is built here"
	@tests/testbed/coscheduling/build.sh $(CURDIR)/$@ $(TESTED_KUBERNETES) $(SCHEDULER_PLUGINS)

build/bin/kwok:
	@echo "building kwok, about a minute"
	@GOBIN=$(CURDIR)/build/bin go install sigs.k8s.io/kwok/cmd/kwok@$(KWOK)

# What its pods do: its own definitions of nodes that initialize and pods that run, complete and leave at once.
build/kwok-stages: build/bin/kwok
	@mkdir -p $@
	@cp "$$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok@$(KWOK))"/kustomize/stage/{node,pod}/fast/*-*.yaml $@/
	@chmod u+w $@/*

# In its own module, whose go.sum pins all that it needs: `go install` of a version asks the proxy for all versions too.
.PHONY: kueue
kueue: build/kueue/kueue ## Kueue's controller and chart, for the tests against it
build/kueue/kueue:
	@echo "building Kueue $(KUEUE), about ten minutes"
	@folder="$$(go mod download -json sigs.k8s.io/kueue@$(KUEUE) | sed -n 's/^.*"Dir": "\(.*\)",*$$/\1/p')"; \
	  mkdir -p $(@D)/chart && cp -r "$$folder"/charts/kueue/. $(@D)/chart/ && chmod -R u+w $(@D)/chart && \
	  cd "$$folder" && GOFLAGS=-mod=readonly go build -o $(CURDIR)/$@ ./cmd/kueue

build/bin/training-operator.v1:
	@echo "building Kubeflow's training-operator, about two minutes"
	@GOBIN=$(CURDIR)/build/bin go install github.com/kubeflow/training-operator/cmd/training-operator.v1@$(PEER)

build/peer-crds:
	@mkdir -p $@.part
	@folder="$$(go mod download -json github.com/kubeflow/training-operator@$(PEER) | sed -n 's/^.*"Dir": "\(.*\)",*$$/\1/p')"; \
	  cp "$$folder"/manifests/base/crds/kubeflow.org_*.yaml $@.part/
	@chmod u+w $@.part/* && mv $@.part $@

# Volcano's module with its types has no file of them: made from the types as Volcano makes its own.
build/gang-crds:
	@mkdir -p $@.part
	@folder="$$(go mod download -json sigs.k8s.io/scheduler-plugins@$(SCHEDULER_PLUGINS) | sed -n 's/^.*"Dir": "\(.*\)",*$$/\1/p')"; \
	  cp "$$folder"/config/crd/bases/scheduling.x-k8s.io_podgroups.yaml $@.part/
	@cd "$$(go mod download -json volcano.sh/apis@$(VOLCANO) | sed -n 's/^.*"Dir": "\(.*\)",*$$/\1/p')"; \
	  go run sigs.k8s.io/controller-tools/cmd/controller-gen@$(CONTROLLER_GEN) crd paths=./pkg/apis/scheduling/v1beta1 \
	  output:crd:dir=$(CURDIR)/$@.part
	@rm $@.part/scheduling.volcano.sh_queues.yaml
	@chmod u+w $@.part/* && mv $@.part $@

# Katib's CRDs, the OpenAPI schema of its types, and GJSON, in which it states conditions.
build/katib/gjson: tests/testbed/gjson/main.go tests/testbed/gjson/go.mod
	@mkdir -p $(@D)
	@folder="$$(go mod download -json github.com/kubeflow/katib@$(KATIB) | sed -n 's/^.*"Dir": "\(.*\)",*$$/\1/p')"; \
	  cp "$$folder"/manifests/v1beta1/components/crd/[!k]*.yaml "$$folder"/pkg/apis/v1beta1/swagger.json $(@D)/
	@chmod u+w $(@D)/*
	@cd $(<D) && go build -o $(CURDIR)/$@ .

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

# A real MLflow server, and the clients of MLflow and W&B. What they need besides has versions of its own, which come
# before those of .venv; 0.6 GB.
$(TRACKING)/.installed: tests/requirements-tracking.lock $(INSTALLED)
	@echo "setting up MLflow and W&B in $(TRACKING)"
	$(own_environment)
	$(over_venv)
	@touch $@

# MkDocs, over .venv as well: the reference is made from the code.
$(DOCS)/.installed: hack/docs/requirements.lock $(INSTALLED)
	$(own_environment)
	$(over_venv)
	@touch $@

.PHONY: docs
docs: $(DOCS)/.installed ## the documentation as a site, in build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --quiet

.PHONY: links
links: $(INSTALLED) ## requests every external link of the documents
	@$(BIN)/python -m hack.docs.links

.PHONY: cluster
cluster: ## a kind cluster with two workers, kept until cluster-down (docs/cluster.md)
	@$(PYTHON) -m hack.cluster.up

.PHONY: cluster-down
cluster-down: ## removes the kind cluster
	@$(PYTHON) -m hack.cluster.down

.PHONY: images
images: $(INSTALLED) ## the images of operator and trainer, built and loaded into the cluster
	@$(BIN)/python -m hack.cluster.images

# Atheris, over .venv: it fuzzes what is installed there.
$(FUZZ)/.installed: tests/requirements-fuzz.lock $(INSTALLED)
	$(own_environment)
	$(over_venv)
	@touch $@

.PHONY: fuzz
fuzz: $(FUZZ)/.installed ## every parser of bytes that others write, for an hour: FUZZ_MINUTES=60
	@$(BIN)/python -m tests.soak.fuzz --minutes $(FUZZ_MINUTES)

FUZZ_MINUTES ?= 60

.PHONY: soak
soak: $(INSTALLED) servers kueue $(FUZZ)/.installed build/bin/kube-scheduler-coscheduling ## the long forms of the random tests, the oldest and the newest Kubernetes, the examples on the kind cluster if there is one, accuracy under mixed policies, make parity
	@$(BIN)/python -m pytest -q tests/unit tests/apiserver/records --hypothesis-profile=soak --timeout=7200
	@$(BIN)/python -m tests.soak.fuzz --minutes $(FUZZ_MINUTES) --write docs/security.md
	@$(BIN)/python -m tests.soak.kill_and_resume.matrix --write docs/reliability.md
	@$(BIN)/python -m tests.soak.kill_and_resume.preemption
	@$(BIN)/python -m tests.soak.kill_and_resume.elastic --write docs/reliability.md
	@$(BIN)/python -m tests.soak.machines_over_time --write docs/reliability.md
	@$(BIN)/python -m tests.soak.queue_preemptions --write docs/reliability.md
	@$(BIN)/python -m tests.soak.chaos --on servers --kills 200 --write docs/reliability.md
	@$(BIN)/python -m tests.soak.sweep_kills --trials 40 --kills 50 --write docs/reliability.md
	@test ! -e build/cluster/kubeconfig || $(BIN)/python -m tests.soak.chaos --on kind --kills 200 --write docs/reliability.md
	@test ! -e build/cluster/kubeconfig || $(BIN)/python -m tests.soak.starved_nodes --write docs/reliability.md
	@$(BIN)/python -m pytest -q tests/soak --durations=20
	@$(BIN)/python -m hack.parity --programs $(PROGRAMS) --seed $(SEED)
	@for release in $(ENDS_OF_KUBERNETES); do \
	  $(PYTHON) hack/cluster/binaries.py --kubernetes $$release; export MPTRAINING_KUBERNETES=$$release; \
	  $(BIN)/python -m pytest -q tests/apiserver -n 3 --dist loadfile --durations=10; \
	  $(BIN)/python -m tests.soak.chaos --on servers --kills 40; \
	done
	@test ! -e build/cluster-1.36/kubeconfig || MPTRAINING_KUBERNETES=1.36 $(MAKE) --no-print-directory test-kind
	@test ! -e build/cluster-1.36/kubeconfig || \
	  MPTRAINING_KUBERNETES=1.36 $(BIN)/python -m tests.soak.in_place_restart --write docs/measured.md

# Results are kept in build/parity: the same programs are not run twice while the sources stay as they are.
PROGRAMS ?= 2000
SEED ?= 1

.PHONY: parity
parity: $(INSTALLED) ## generated Keras programs, trained by plain fit and by this trainer: PROGRAMS=2000 SEED=1
	@$(BIN)/python -m hack.parity --programs $(PROGRAMS) --seed $(SEED)

.PHONY: bench-trainer
bench-trainer: $(INSTALLED) ## the loop against Keras fit and a bare tf.function
	@$(BIN)/python -m hack.bench.trainer

.PHONY: bench-operator
bench-operator: $(INSTALLED) servers build/bin/training-operator.v1 ## the operator against Kubeflow's and bare Jobs
	@$(BIN)/python -m hack.bench.operator

.PHONY: bench-records
bench-records: $(INSTALLED) servers ## the reader of records against TensorFlow's, Python's and the network's limit
	@$(BIN)/python -m hack.bench.records

.PHONY: clean
clean: ## everything that can be made again, the virtual environment apart
	@rm -rf build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
