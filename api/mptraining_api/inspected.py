"""What the trainer says of a model that it built to be looked at: plain values, layer by layer, under each policy."""

from __future__ import annotations

from mptraining_api.model import Model


class LayerFacts(Model):
    """One layer that computes, in the order of the computation.

    `output_shape` is that of one example. `inputs` and `outputs` are the widths of its matrix multiplication (units,
    channels; None where there is none), `multiply_adds` those of one example.
    """

    name: str
    kind: str
    compute: str
    output: str
    output_shape: tuple[int | None, ...]
    parameters: int
    # None for a layer without variables.
    variables: str | None = None
    inputs: int | None = None
    outputs: int | None = None
    multiply_adds: int = 0
    softmax: bool = False


class PolicyFacts(Model):
    """The model under one precision policy.

    `activations` are the bytes that the backward pass needs of the forward pass for each example; `copies` those that
    it needs once, such as weights in the compute dtype. `output` is the dtype of the model's output, `softmax` names
    those below float32 that are no layer's activation, with their dtype.
    """

    policy: str
    layers: tuple[LayerFacts, ...]
    output: str
    output_layer: str
    activations: int
    copies: int
    softmax: tuple[str, ...] = ()


class ModelFacts(Model):
    """A model as the job trains it. Bytes are those of one replica; `slots` are the optimizer's."""

    name: str
    keras: str
    parameters: int
    trainable: int
    weights: int
    slots: int
    gradients: int
    policies: tuple[PolicyFacts, ...]
    # Layers in whose loops more is kept than was counted.
    uncounted: tuple[str, ...] = ()
