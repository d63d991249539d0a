"""The long forms of tests that train, each with a report in the documents: `make soak` runs them.

The kill-and-resume matrix, in the order to read it: `matrix` (the configurations, and what is done to each), `rounds`
(one run, killed again and again, and its digest), `faults` (how a worker is killed, and what a mutation leaves out of
its checkpoints), `forks` (workers in a second instead of five), `program` (what they train), `report` (the table in
docs/reliability.md). `python -m soaks.matrix --help`.
"""
