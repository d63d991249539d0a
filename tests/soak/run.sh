#!/usr/bin/env bash
# What `make soak` runs: hours. It prints figures; docs/results.md has those of the last whole run.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=.venv/bin/python

$python -m pytest -q tests/unit --hypothesis-profile=soak --timeout=7200
$python -m tests.soak.kill_and_resume.matrix
$python -m tests.soak.chaos --kills 200
$python -m pytest -q tests/soak --durations=20
$python -m hack.parity --programs 2000 --seed 1

# The oldest and the newest Kubernetes that are promised.
for release in $($python -c 'from hack.cluster.binaries import OTHERS; print(*OTHERS)'); do
  $python hack/cluster/binaries.py --kubernetes "$release"
  export MPTRAINING_KUBERNETES=$release
  $python -m pytest -q tests/apiserver -n 2 --dist loadfile --durations=10
  $python -m tests.soak.chaos --kills 40
done
