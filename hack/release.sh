#!/usr/bin/env bash
# Everything of a release that can be made without publishing: hack/release.sh 0.2.0 ghcr.io/OWNER
# Wheel and sdist, chart, CRDs, install.yaml and schema in build/release, and the context of the images in
# build/images/context. .github/workflows/release.yml publishes them.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?"usage: hack/release.sh VERSION, such as 0.2.0"} registry=${2:-registry.invalid}

make --no-print-directory setup build/bin/helm
declared=$(.venv/bin/python -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
[ "$declared" = "$version" ] || { echo "pyproject.toml: version is $declared; expected $version"; exit 1; }
grep -qF "## [$version]" CHANGELOG.md || { echo "CHANGELOG.md: no heading ## [$version]"; exit 1; }

rm -rf build/release && mkdir -p build/release/dist
.venv/bin/python -m hatchling build --directory build/release/dist
.venv/bin/python -m zipfile --test build/release/dist/*.whl
# Helm writes 0.2.0rc1 as 0.2.0-rc1.
chart=$(sed -E 's/\.?((a|b|rc|dev)[0-9]+)$/-\1/' <<< "$version")
build/bin/helm package charts/mptraining --version "$chart" --app-version "$version" --destination build/release
build/bin/helm template mptraining "build/release/mptraining-$chart.tgz" --namespace mptraining-system --skip-tests \
  --set "namespace.create=true,global.imageRegistry=$registry" --kube-version 1.34.0 > build/release/install.yaml
cp charts/mptraining/files/crd.yaml charts/mptraining/files/crd-sweeps.yaml build/release/
.venv/bin/mptj schema > build/release/mptrainingjob.schema.json
(cd build/release && sha256sum -- *.* dist/* > SHA256SUMS)
.venv/bin/python -m hack.cluster.images context
echo "build/release has $(find build/release -type f | wc -l) files; build/images/context is ready"
