"""The kind cluster on which tests, soaks and examples run, and the servers that need no cluster.

Read `up` (what `make cluster` does; `down` undoes it), then `engine` (Docker or Podman), `nodes` (whether they are
well) and `kubectl`; `images` (what `make images` builds and loads), `installation` (the operator on the cluster).
`binaries` obtains etcd and the API server for tests without a cluster.
"""
