#!/usr/bin/env bash
# build.sh TARGET KUBERNETES SCHEDULER_PLUGINS: compiles kube-scheduler of that Kubernetes (1.34.4) with the plugin
# Coscheduling of that release of scheduler-plugins (v0.34.7) from Go modules.
set -euo pipefail
target=${1:?where the binary goes} kubernetes=${2:?a release of Kubernetes} plugins=${3:?a release of scheduler-plugins}
here=$(cd "$(dirname "$0")" && pwd)
export GOFLAGS="-mod=mod -buildvcs=false" CGO_ENABLED=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/main.go" "$work" && cd "$work"
go mod init local/coscheduling
go mod edit -require="k8s.io/kubernetes@v$kubernetes" -require="sigs.k8s.io/scheduler-plugins@$plugins" \
  -replace="k8s.io/kubernetes=k8s.io/kubernetes@v$kubernetes"
go mod download "k8s.io/kubernetes@v$kubernetes"
# Kubernetes pins its staging modules to v0.0.0: point each at its released twin.
grep -oE 'k8s.io/[a-z0-9-]+ v0\.0\.0$' "$(go env GOMODCACHE)/k8s.io/kubernetes@v$kubernetes/go.mod" | awk '{print $1}' | sort -u |
  while read -r module; do go mod edit -replace="$module=$module@v0.${kubernetes#1.}"; done
go build -trimpath -o "$target" -ldflags "-s -w" .
