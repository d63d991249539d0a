"""Simulated nodes and pods: a scripted kubelet, KWOK, logs and exec, and one pod that runs as a process."""
