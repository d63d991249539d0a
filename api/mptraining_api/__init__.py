"""The contract between operator, trainer and client: pure values and pure functions over pydantic alone.

Read in the order a job travels: `job` (what the user wrote; its sections: `spec_accelerator`, `spec_precision`,
`spec_program`, `spec_data`, `spec_training`, `spec_output`, `spec_run`, `spec_pods`). `rules` (what no field can say
alone; each a `rule`: `section_rules`, `data_rules`, `pod_rules`, `cross_field_rules`). `accelerators` (the catalogue),
`resolve` (every default decided, with reasons, by `devices`, `policies`, `batches`, `training_defaults`, `placement`)
giving `resolved`; `advice` on it, `rate_scaling` among it, and a `model_report` on what the trainer `inspected`; what
an administrator allows, `job_limits` (with `image_reference`); `run_policy` for the operator. `launch` (the processes),
`events` (what they say; `evidence` of what they did about their numbers), `run_folder` (what they leave), `outcomes`
(how they end), `status` (what the operator says), `labels` (what its objects are called). `machine_configs` and
`inside_job` are what tensorflow-cloud's users know, for the client and for the same program in the job;
`tensorflow_cloud_package` is the rest of its package. `keras_2_code` recognizes programs that need tf_keras, by
`keras_2_names`.
`metric_direction` says which way a metric improves, `model` is the base of all values, `problems` how errors speak;
`crd` writes the CRD.
"""
