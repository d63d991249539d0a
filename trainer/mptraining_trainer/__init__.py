"""The trainer: one process that trains a resolved job on its devices, beside its equals on other machines.

Read in the order a job takes: `source` with `unpack`, `requirements` and `package_cache` (the program's code, first),
`__main__` (from the environment), `run` (from error to outcome), `train` and `session` (the job in sections; `worker`
is what they share). The ground: `rendezvous` (of several workers), `runtime` (devices and strategy), `keras_generation`
(Keras 3 or tf_keras). The data: `splits` opens (`open_data`) and caches (`caching`, in what `room` there is) what
`input` makes batches of, with `columns`, `decode`, `batching`, `preprocess`, and an `input_meter` of what it costs;
`example_spec` says what comes out. The model: `program` from `applications` or an `entry_point`, with its
`compile_arguments`, made of `keras_objects`. Whose run folder it is: `claim`, with a `fence` against attempts that are
over. Before the first step: `preflight` decides over `facts`, which `first_look` and `cpu` gather. Training: `assembly`
(everything that depends on the policy), `loop` (K steps in one call, an `execution`) and `evaluation` over `objective`
(a replica's share), `replicas`, `precision`, the `running_sum` of losses, `moving_statistics`, `optimizer` (the
learning rate), `xla`; `measure` (which policy is fastest here), `watch` (are the numbers finite?), `recovery` (what
follows when not), `culprit` (where it began), `training.exclusion` (which records did it); `pace` (where executions
end) and `course` (what happens between them) with its `speed`, a `device_meter` and `profiling`, `checkpoint` with
`checkpoint_files` and `checkpoint_state`, the `origin` of its numbers and the `replica_values` of variables that
replicas keep apart, `agreement` (of several workers before the first step), `skipped` (bad records), `preemption`,
`parting` (of several workers); `hooks` beside it for the program's `callbacks` (which `callback_kinds`, and their
`callback_files`) and for `best_weights` by a `monitor`. The end: `export` and `publish`, or `hand_over` without a run
folder. A script trains itself: `script_run`, `script` and its `fits`; a notebook's program finds a `notebook_shell`
there, and its errors a `notebook_place`. Looking at a model without training it: `inspection`, with `layer_calls` and
`saved_tensors`. `telemetry` is what a worker says, in `whole_lines` and without `secret_values`; `progress_report` how
the operator hears of it, `failures` how errors in mid-training are explained, `storage_watch` what is said of storage
that does not answer.

Nothing is imported here: `__main__` and `preemption` must run before TensorFlow.
"""
