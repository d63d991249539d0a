"""Keras generation, precision policy, loss scaling, XLA compilation and op determinism of a job."""

from __future__ import annotations

from typing import Literal

from mptraining_api import accelerators
from mptraining_api.accelerators import AcceleratorType
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.devices import Devices
from mptraining_api.resolved_job import Choice, Policy, ResolvedPrecision
from mptraining_api.spec import JobSpec, Training

ASKED_FOR = "asked for"
POLICY = "spec.precision.policy"
Keras = Literal["Keras3", "Legacy"]
JitCompile = Literal["Always", "WherePossible", "Never"]

# The default of initial_scale in keras.optimizers.LossScaleOptimizer.
INITIAL_LOSS_SCALE = 32768.0
# GPUs below 7.0 (Volta) have no Tensor Cores, so that float16 is no faster (NVIDIA, Mixed Precision Training guide).
FLOAT16_CAPABILITY = 7.0
_CAPABILITIES = {"mixed_float16": f"float16 needs {FLOAT16_CAPABILITY}", "mixed_bfloat16": "bfloat16 needs 8.0"}
_AUTO = "Write policy: Auto, which chooses for each machine."
_ON_A_CPU = {
    "mixed_float16": "every CPU emulates float16, slowly",
    "mixed_bfloat16": "faster than float32 only on a CPU with AVX512-BF16 or AMX",
}


def keras_generation(spec: JobSpec, requested: Devices) -> tuple[Keras, Choice]:
    """Return Keras 3 or tf_keras by the requested devices, so that a CPU fallback runs the same program.

    Keras 3 has almost no support for TPUStrategy (keras#19448), and its `fit` fails under
    MultiWorkerMirroredStrategy (keras#20585). Raises InvalidSpec if the spec requests Keras3 there.
    """
    tpu = requested.accelerator.kind == "tpu"
    several_workers = spec.program.script is not None and requested.workers > 1
    if spec.keras == "Keras3" and (tpu or (several_workers and spec.strategy != "None")):
        case = "on a TPU" if tpu else f"for a script on {requested.workers} workers, where its model.fit fails"
        raise InvalidSpec(
            "spec.keras", f"'Keras3' {case}", expected="Legacy or Auto", next_step="Write keras: Legacy (tf_keras)."
        )
    if spec.keras in ("Keras3", "Legacy"):
        picked: Keras = "Keras3" if spec.keras == "Keras3" else "Legacy"
        because = ASKED_FOR
    elif tpu or several_workers:
        picked = "Legacy"
        because = (
            "Keras 3 has no TPUStrategy" if tpu else "a script's model.fit on several workers works in tf_keras only"
        )
    else:
        picked, because = "Keras3", "the current Keras works here"
    return picked, Choice(field="spec.keras", value=picked, because=because)


def precision(spec: JobSpec, requested: Devices, devices: Devices, keras: Keras) -> tuple[ResolvedPrecision, Choice]:
    """Return the policy and the loss scaling under mixed_float16.

    `requested` determines the allowed policies, `devices` (different after a CPU fallback) the value of Auto. Raises
    InvalidSpec for a policy that the accelerator cannot compute.
    """
    written = spec.precision.policy if spec.precision else None
    scale = spec.precision.loss_scale if spec.precision else None
    own_scaling = spec.program.script is not None and keras == "Keras3"
    policy: Policy
    if spec.program.uses_trained_models:
        policy, because = "float32", "trained models are exported under float32"
    elif written is None or written == "Auto":
        policy, because = _automatic(devices, own_scaling=own_scaling)
    else:
        policy, because = written, "asked for"
        _refuse_impossible(
            written, requested, own_scaling=own_scaling, has_alternatives=spec.accelerator.alternatives is not None
        )
        if devices.accelerator.kind == "cpu" and written.startswith("mixed_"):
            because = f"asked for; {_ON_A_CPU[written]}"
    resolved = ResolvedPrecision(
        policy=policy,
        loss_scale_mode=(scale.mode if scale else None) or "Dynamic",
        loss_scale=(scale.value if scale else None) or INITIAL_LOSS_SCALE,
    )
    return resolved, Choice(field=POLICY, value=policy, because=because)


def _automatic(devices: Devices, *, own_scaling: bool) -> tuple[Policy, str]:
    accelerator = accelerators.lookup(devices.accelerator.type)
    policy, because = automatic_policy(accelerator)
    if policy == "mixed_float16" and own_scaling and devices.replicas > 1:
        cause = (
            f"Keras 3's own loss scaling is wrong with {devices.replicas} replicas, so a script gets no mixed_float16"
        )
        return ("mixed_bfloat16" if "mixed_bfloat16" in accelerator.policies else "float32"), cause
    return policy, because


def automatic_policy(accelerator: AcceleratorType) -> tuple[Policy, str]:
    """Return the policy that Auto chooses for a program whose loss scaling is the trainer's, and why."""
    if accelerator.kind == "cpu":
        return "float32", "a CPU is fastest or safest with float32"
    if accelerator.kind == "tpu":
        return "mixed_bfloat16", "TPUs multiply in bfloat16"
    capability = accelerator.compute_capability or 0.0
    if capability < FLOAT16_CAPABILITY:
        return "float32", f"compute capability {capability} has no Tensor Cores (from {FLOAT16_CAPABILITY})"
    return "mixed_float16", f"compute capability {capability} has Tensor Cores"


def _refuse_impossible(policy: Policy, requested: Devices, *, own_scaling: bool, has_alternatives: bool) -> None:
    accelerator = accelerators.lookup(requested.accelerator.type)
    if policy != "Measure" and policy not in accelerator.policies:
        cause = ""
        if accelerator.kind == "gpu":
            needs = _CAPABILITIES[policy]
            cause = f" (compute capability {accelerator.compute_capability}, {needs})"
        raise InvalidSpec(
            POLICY,
            f"{accelerator.title} cannot compute {policy!r}{cause}",
            expected=", ".join(("Auto", *accelerator.policies)),
            next_step=_AUTO if has_alternatives else f"Write policy: {accelerator.policies[-1]}, or leave it out.",
        )
    if policy == "mixed_float16" and own_scaling and requested.replicas > 1:
        raise InvalidSpec(
            POLICY,
            f"'mixed_float16' for a Keras 3 script with {requested.replicas} replicas: its loss scaling would be wrong",
            expected="Auto, float32 or mixed_bfloat16",
            next_step="Write keras: Legacy to keep mixed_float16.",
        )


def jit_compile(spec: JobSpec, devices: Devices, policy: Policy) -> tuple[JitCompile, Choice]:
    """Return whether XLA compiles the step; WherePossible skips, with a notice, a model that XLA cannot compile."""
    picked: JitCompile
    if spec.jit_compile in ("Always", "Never"):
        picked, because = ("Always" if spec.jit_compile == "Always" else "Never"), "asked for"
    elif devices.accelerator.kind == "cpu":
        picked, because = "Never", "XLA makes training slower on a CPU"
    elif devices.accelerator.kind == "tpu":
        picked, because = "WherePossible", "a TPU computes what XLA compiled"
    elif policy == "float32":
        picked, because = "Never", "XLA helps a GPU in mixed precision; float32 kernels are tuned already"
    else:
        picked, because = "WherePossible", "XLA fuses the casts of mixed precision"
    return picked, Choice(field="spec.jitCompile", value=picked, because=because)


def deterministic(spec: JobSpec, devices: Devices) -> tuple[bool, Choice]:
    """Return whether TensorFlow's op determinism is enabled.

    It makes a resumed run bitwise equal to an uninterrupted one, but its cost on a GPU has no upper bound: cuDNN and
    XLA do not autotune, scatters are computed on the CPU, and some operations raise errors. Published measurements are
    6 % (framework-reproducibility#10), 80 s that became more than 10 minutes (tensorflow#62100, a T4), and maxima of
    196 to 746 % on three GPUs (Zhuang et al., Randomness in Neural Network Training, MLSys 2022). Therefore it is off
    by default.
    """
    written = (spec.training or Training()).deterministic
    kind = devices.accelerator.kind
    if written in ("Always", "Never"):
        picked, because = written == "Always", "asked for"
    elif kind == "gpu":
        picked, because = False, "on a GPU it may double the time of a step; Always makes resumed runs equal bit by bit"
    elif kind == "tpu":
        picked, because = False, "TensorFlow's switch is about GPUs"
    else:
        picked, because = False, "this loop computes the same bits each time on a CPU without it"
    return picked, Choice(field="spec.training.deterministic", value="Always" if picked else "Never", because=because)
