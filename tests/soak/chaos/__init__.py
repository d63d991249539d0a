"""Jobs run while operators are killed, API servers are restarted, and pods and nodes are removed.

Reading order: `schedule` (the faults, from a seed), `jobs` (the jobs and the end that each must reach), `record` (the
observed changes, by separate watches), `verdict` (the rules that must hold), `run` (one round; `calls` retries on a
broken server), `control_plane` (on servers, with `metrics`), `kind_cluster` (on kind, with `replicas` and `training`),
`report`.
"""
