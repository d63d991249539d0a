"""The trainer: one worker's process, from its environment to its exit code.

`run` turns errors into an exit code; `train` follows a job in labelled sections. `source` prepares the user's code,
`distribution` the devices and peers, `data` the batches, `model` the compiled model, `loop` the training step on the
device, `training` the fit loop on the host, `checkpoints` and `export` the files. `scripts` runs programs that call
`fit` themselves. `reporting` writes Events.
"""
