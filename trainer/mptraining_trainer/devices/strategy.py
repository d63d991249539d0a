"""This process's devices, and the tf.distribute strategy that `mptraining_api.resolve.devices` chose."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import tensorflow as tf

from mptraining_api.launch import WorkerIdentity, tf_config
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.host import native_bfloat16
from mptraining_trainer.keras_backend import Keras

# With lower-case proxy variables gRPC sends the traffic between workers to the proxy, and the workers hang. The proxy
# itself stays set, because access to buckets may need it.
_NO_GRPC_PROXY, _NO_PROXY = "no_grpc_proxy", "no_proxy"


def make_strategy(job: ResolvedJob, identity: WorkerIdentity, environment: MutableMapping[str, str]) -> Any:
    """Return the strategy over this process's devices. Call it before any other TensorFlow operation.

    Raises InvalidSpec if the accelerators that the job requested are missing.
    """
    if job.training is not None and job.training.deterministic:
        tf.config.experimental.enable_op_determinism()
    if job.workers > 1:
        peers = sorted({host.rpartition(":")[0] for host in identity.hosts})
        others = environment.get(_NO_GRPC_PROXY) or environment.get(_NO_PROXY, "")
        environment[_NO_GRPC_PROXY] = ",".join([*peers, *filter(None, [others])])
        if job.strategy == "None":
            # For the strategy that the script creates.
            environment["TF_CONFIG"] = tf_config(identity)
    if job.accelerator.kind == "tpu":
        return _on_tpu(job)
    several = job.strategy == "MultiWorkerMirrored"
    if job.accelerator.kind == "cpu":
        tf.config.set_visible_devices([], "GPU")
        if job.replicas_per_worker > 1 and not several:
            cpu = tf.config.list_physical_devices("CPU")[0]
            replicas = [tf.config.LogicalDeviceConfiguration() for _ in range(job.replicas_per_worker)]
            tf.config.set_logical_device_configuration(cpu, replicas)
    else:
        gpus = tf.config.list_physical_devices("GPU")
        if len(gpus) < job.replicas_per_worker:
            raise _missing(job, f"{len(gpus)} GPUs")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    if several:
        # Measured with TensorFlow 2.21: the constructor waits for all workers. If a worker is killed later, the others
        # notice it within a second by reset connections, otherwise after ten seconds by its heartbeat; the current
        # collective operation then raises (see `report.errors`), and only `os._exit` ends the process without
        # waiting for the other workers.
        environment["TF_CONFIG"] = tf_config(identity)
        return tf.distribute.MultiWorkerMirroredStrategy()
    if job.strategy == "None":
        return tf.distribute.get_strategy()
    kind = job.accelerator.kind.upper()
    return tf.distribute.MirroredStrategy([f"{kind}:{index}" for index in range(job.replicas_per_worker)])


def devices(strategy: Any) -> tuple[str, ...]:
    """Return the short names of the devices that compute, such as GPU:0."""
    if strategy is tf.distribute.get_strategy() and not tf.distribute.has_strategy():
        # The default strategy does not report its devices; TensorFlow uses the first GPU if there is one. Listing
        # logical devices would initialize TensorFlow, after which a script can no longer create a
        # MultiWorkerMirroredStrategy.
        names = [(tf.config.get_visible_devices("GPU") or tf.config.get_visible_devices("CPU"))[0].name]
    else:
        names = strategy.extended.worker_devices
    return tuple(":".join(name.split(":")[-2:]) for name in names)


def started_fields(job: ResolvedJob, keras: Keras, strategy: Any) -> dict[str, Any]:
    """Return the fields of `Started` that every program has: versions, devices, strategy and numbers."""
    return {
        "strategy": job.strategy,
        "precision": job.precision.policy,
        "keras": keras.version,
        "tensorflow": tf.__version__,
        "devices": devices(strategy),
        "workers": job.workers,
        "replicas_in_sync": strategy.num_replicas_in_sync,
        "native_bfloat16": native_bfloat16() if job.accelerator.kind == "cpu" else None,
    }


def _on_tpu(job: ResolvedJob) -> Any:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        raise _missing(job, "no TPU") from error
    return tf.distribute.TPUStrategy(resolver)


def _missing(job: ResolvedJob, devices: str) -> InvalidSpec:
    promised = job.accelerator
    return InvalidSpec(
        "spec.accelerator",
        f"promised {promised.count_per_worker} x {promised.type} and sees {devices}",
        next_step="Check the node's drivers and the image's variant, or allow the CPU: cpuFallback in the operator's "
        "settings, `mptj run` on a laptop.",
    )
