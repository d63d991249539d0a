"""The trainer: one worker's process, from its environment to its exit code.

`run` maps errors to an exit code; `train` runs a job in labelled sections. `job` prepares the user's code, `devices`
the devices and peers, `data` the batches, `model` the compiled model, `numerics` loss scaling and recovery, `step` the
training step on the device, `session` the fit loop on the host, `checkpoints` and `export` the files. `prediction`
evaluates and predicts by a trained model, `scripts` runs programs that call `fit` themselves, `report` writes Events.
"""
