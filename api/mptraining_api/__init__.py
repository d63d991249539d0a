"""The MPTrainingJob resource and every contract between operator, trainer and client, as immutable values.

`spec` is the resource as a user writes it; `rules` validate it; `resolve` decides every default and returns a
`resolved_job`. `launch` defines the worker processes, `events` what they report, `run_folder` the files that they
write, `outcomes` their exit codes, and `status` the resource's status. The package depends on pydantic and PyYAML only.
"""
