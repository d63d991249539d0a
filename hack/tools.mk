# What tests and checks run besides Python: programs from Go modules, environments from locks, Chromium. Each is built by
# the stage that needs it. `include`d by the Makefile.

# $(call unless_impossible,COMMAND,WHAT): exit code 3 means that this machine cannot have it; in CI it must.
unless_impossible = $(1) || { test $$? = 3 -a -z "$${CI:-}" || exit 1; echo "left out here: $(2)"; exit 0; }

# The same for programs from Go modules: the beginning of a recipe, which then ends.
define needs_go
@command -v go >/dev/null || { echo "no Go here: left out is what needs $(@F)"; test -z "$${CI:-}"; exit; }; mkdir -p $(@D);
endef

# $(call go_program,NAME,PACKAGE@VERSION,TIME)
define go_program
build/bin/$(1):
	$$(needs_go) echo "building $(1)$(3)"; GOBIN=$$(CURDIR)/build/bin go install $(2)
endef
$(eval $(call go_program,fake-gcs-server,github.com/fsouza/fake-gcs-server@v1.55.1))
$(eval $(call go_program,kwok,sigs.k8s.io/kwok/cmd/kwok@v0.7.0))
$(eval $(call go_program,helm,helm.sh/helm/v3/cmd/helm@v3.19.0, (two minutes)))
$(eval $(call go_program,helm-docs,github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2))
$(eval $(call go_program,actionlint,github.com/rhysd/actionlint/cmd/actionlint@v1.7.12))
$(eval $(call go_program,kube-score,github.com/zegl/kube-score/cmd/kube-score@v1.20.0))
# Kubeflow's operator, which `make bench BENCH=operator` measures against.
PEER := v1.9.3
$(eval $(call go_program,training-operator.v1,github.com/kubeflow/training-operator/cmd/training-operator.v1@$(PEER), (two minutes)))

# The folder of a Go module's sources.
module = $$(go mod download -json $(1) | sed -n 's/^.*"Dir": "\(.*\)",*$$/\1/p')

# What KWOK's pods do: its own definitions of nodes that initialize and pods that run, complete and leave at once.
build/kwok-stages:
	$(needs_go) mkdir -p $@ && cp "$(call module,sigs.k8s.io/kwok@v0.7.0)"/kustomize/stage/{node,pod}/fast/*-*.yaml $@/ && chmod u+w $@/*

build/peer-crds:
	$(needs_go) mkdir -p $@.part && cp "$(call module,github.com/kubeflow/training-operator@$(PEER))"/manifests/base/crds/kubeflow.org_*.yaml $@.part/ && \
	  chmod u+w $@.part/* && mv $@.part $@

# Schedulers of gangs. Volcano's module with its types has no CustomResourceDefinitions: made as Volcano makes its own.
SCHEDULER_PLUGINS := v0.34.7
build/gang-crds:
	$(needs_go) mkdir -p $@.part && cp "$(call module,sigs.k8s.io/scheduler-plugins@$(SCHEDULER_PLUGINS))"/config/crd/bases/scheduling.x-k8s.io_podgroups.yaml $@.part/ && \
	  cd "$(call module,volcano.sh/apis@v1.13.0)" && go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.19.0 crd \
	  paths=./pkg/apis/scheduling/v1beta1 output:crd:dir=$(CURDIR)/$@.part && cd $(CURDIR) && \
	  rm $@.part/scheduling.volcano.sh_queues.yaml && chmod u+w $@.part/* && mv $@.part $@

# Katib's CRDs, the OpenAPI schema of its types, and GJSON, in which it states conditions. v0.14.0 is the newest Katib
# that Go's checksum database knows.
build/katib/gjson: tests/testbed/gjson/main.go tests/testbed/gjson/go.mod
	$(needs_go) folder="$(call module,github.com/kubeflow/katib@v0.14.0)" && \
	  cp "$$folder"/manifests/v1beta1/components/crd/[!k]*.yaml "$$folder"/pkg/apis/v1beta1/swagger.json $(@D)/ && chmod u+w $(@D)/* && \
	  cd $(<D) && go build -o $(CURDIR)/$@ .

# In its own module, whose go.sum pins all that it needs: `go install` of a version asks the proxy for all versions too.
build/kueue/kueue:
	$(needs_go) echo "building Kueue (ten minutes)" && folder="$(call module,sigs.k8s.io/kueue@v0.19.2)" && \
	  mkdir -p $(@D)/chart && cp -r "$$folder"/charts/kueue/. $(@D)/chart/ && chmod -R u+w $(@D)/chart && \
	  cd "$$folder" && GOFLAGS=-mod=readonly go build -o $(CURDIR)/$@ ./cmd/kueue

# Its version is that of the control plane (hack/cluster/binaries.py).
build/bin/kube-scheduler-coscheduling: tests/testbed/coscheduling/main.go tests/testbed/coscheduling/build.sh
	$(needs_go) echo "building kube-scheduler with the plugin Coscheduling (five minutes)" && tests/testbed/coscheduling/build.sh $(CURDIR)/$@ 1.34.4 $(SCHEDULER_PLUGINS)

.PHONY: servers control-plane chromium
servers: control-plane build/bin/fake-gcs-server build/bin/kwok build/kwok-stages build/katib/gjson build/gang-crds build/peer-crds \
  build/bin/helm
control-plane:
	@$(call unless_impossible,$(PYTHON) hack/cluster/binaries.py,the tests against a Kubernetes API server)
# Debian's; without a font it draws boxes.
CHROMIUM := apt-get install -y -qq --no-install-recommends chromium fonts-liberation
chromium:
	@command -v chromium >/dev/null || $(call unless_impossible,\
	  ( { command -v apt-get && test "$$(id -u)" = 0; } >/dev/null || { echo "no chromium command. As root: $(CHROMIUM)" >&2; exit 3; }; \
	  export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && $(CHROMIUM) >/dev/null ),the tests of the board in a browser)

# Environments beside .venv, from their locks. What they lack comes from .venv; an older Keras must lack what it lacks.
ENVIRONMENTS := $(patsubst %,build/env/%/.installed,keras-older tracking formats)
build/env/%/.installed: hack/requirements/%.lock $(INSTALLED)
	@echo "setting up $(@D)"
	@$(BIN)/python -m venv --without-pip $(@D)
	@$(BIN)/uv pip install --quiet --python $(@D)/bin/python --require-hashes --no-deps --compile-bytecode -r $<
	@test $* = keras-older || echo "import site; site.addsitedir('$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
	  > "$$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/over.pth"
	@touch $@

# helm's own guess of a version depends on how it was built.
CHART_SETTINGS := --kube-version 1.34.0 --set global.imageRegistry=registry.invalid
# Everything that `kubectl apply -f` needs, in one file. No registry has a name in .invalid (RFC 2606).
INSTALL_YAML := { echo '\# Made by `make manifests` from charts/mptraining. Replace registry.invalid by your registry.'; \
  build/bin/helm template mptraining charts/mptraining --namespace mptraining-system --set namespace.create=true \
  $(CHART_SETTINGS) --skip-tests; }
CHART_DOCS := build/bin/helm-docs --chart-search-root charts/mptraining --dry-run --sort-values-order file --log-level warning
