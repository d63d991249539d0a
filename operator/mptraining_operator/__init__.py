"""The operator: watches MPTrainingJobs and keeps one gang of trainer pods running for each.

Read in the order of the data. `watch` (kopf's streams) and `relist` hand what they see to the `intake`: cut down by
`trim` it goes into the `cache`, and the job's key into the `work_queue`. `reconcile` takes a key, asks the cache for a
`snapshot` (parsed by `read`), and `plan`, a pure function, decides with the policies `attempt_start` (with `admission`:
the administrator's limits), `attempt_run`, `attempt_end` (with `verdict`, `backoff`, `waiting`, `deadlines`),
`suspend`, `gone` and `cleanup`; `standing` writes conditions and phase. The result, `actions`, is carried out by
`apply` (with `creation` and `frozen_job`) through `cluster`, the only module that knows the Kubernetes client, by whose
answers `server_time` tells the time; `children` and `pods` (with `mounts`, `environment`, `secret_sources`, `source`)
build the objects, called as `names` says. Beside that: `progress_endpoint` (`progress`, `progress_request`, `tokens`,
`certificate`, `progress_writer`, `progress_schedule`, `progress_status`), `lease` (who leads), `health`, `metrics`,
`log`, `announce`, and `settings`. `assembly` puts the parts together for `__main__`. `chart_values` is the model of the
Helm chart's values, `chart` writes the files of the chart that follow from models, and `self_check` is what `helm test`
runs.
"""
