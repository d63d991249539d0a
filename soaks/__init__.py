"""The long forms of tests that train, each with a report in the documents: `make soak` runs them.

The kill-and-resume matrix, in the order to read it: `matrix` (the configurations, and what is done to each), `rounds`
(one run, killed again and again, and its digest), `faults` (how a worker is killed, and what a mutation leaves out of
its checkpoints), `forks` (workers in a second instead of five), `program` (what they train), `report` (the table in
docs/reliability.md). `python -m soaks.matrix --help`.

Chaos, in the order to read it: `chaos_schedule` (what goes wrong when), `chaos_jobs` (what runs meanwhile, and how it
must end), `chaos_record` (what happened, by watches of its own), `chaos_verdict` (what must hold), `chaos_run` (one
round of it; `chaos_calls` asks a broken server again), `chaos_servers` (on a control plane, with `chaos_metrics`),
`chaos_kind` (on the kind cluster, with `chaos_replicas` and `chaos_training`), `chaos_report` and `chaos` (the
command). `python -m soaks.chaos --help`.
"""
