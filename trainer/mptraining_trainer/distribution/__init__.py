"""Devices, the tf.distribute strategy, and coordination with the other workers."""
