"""Devices, the tf.distribute strategy, preemption, and coordination with the other workers."""
