"""The trainer: one worker's process, from its environment to its exit code.

`run` maps errors to an exit code; `train` runs a job in labelled sections. `source` prepares the user's code,
`distribution` the devices and peers, `data` the batches, `model` the compiled model, `numerics` loss scaling and
recovery, `loop` the training step on the device, `training` the fit loop on the host, `checkpoints` and `export` the
files. `scripts` runs programs that call `fit` themselves. `reporting` writes Events.
"""
