"""The contract between operator, trainer and client: pure values and pure functions over pydantic alone.

Read in the order a job travels: `job` (what the user wrote) with `rules`, `accelerators` (the catalogue), `resolve`
(every default decided, with reasons) giving `resolved`, `launch` (the processes), `events` (what they say),
`outcomes` (how they end), `status` (what the operator says). `problems` is how errors speak; `crd` writes the CRD.
"""
