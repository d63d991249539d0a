"""Jobs run while operators are killed, API servers are restarted, and pods are removed.

Reading order: `schedule` (the faults, from a seed), `jobs` (the jobs and the end that each must reach), `record` (the
observed changes, by separate watches), `verdict` (the rules that must hold), `run` (one round; `calls` retries on a
broken server), `control_plane` (the servers, with `metrics`), `report`.
"""
