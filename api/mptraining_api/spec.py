"""MPTrainingJob as a user writes it: intent only, every default left out (`resolve` decides those, with reasons).

Every list, map and string is bounded and no field is a union, so that the same models become the CRD (`crd`). What
one field alone cannot say (exactly one program, a count against a topology) stands in `rules`. Here is the whole; each
section has a module of its own, `spec_<section>`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field

from mptraining_api.model import Model
from mptraining_api.problems import InvalidSpec
from mptraining_api.spec_accelerator import Accelerator
from mptraining_api.spec_data import Data
from mptraining_api.spec_output import Checkpoint, Export, Output, Profile
from mptraining_api.spec_pods import PodTemplate
from mptraining_api.spec_precision import Precision
from mptraining_api.spec_program import Program, Source
from mptraining_api.spec_run import RunPolicy, Scheduling
from mptraining_api.spec_training import Training

GROUP = "mptraining.dev"
VERSION = "v1alpha1"
API_VERSION: Literal["mptraining.dev/v1alpha1"] = "mptraining.dev/v1alpha1"
KIND: Literal["MPTrainingJob"] = "MPTrainingJob"

# A worker's pod is <job>-<attempt>-<index> and must stay a DNS label of 63 characters.
JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?")


class JobSpec(Model):
    """What the user wants: a program, data, an accelerator."""

    accelerator: Accelerator = Field(description="What each node computes on.")
    nodes: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="Machines of the job; a TPU's topology decides its own."
    )
    strategy: Literal["Auto", "None"] | None = Field(
        None,
        description="Auto picks the tf.distribute strategy; None for one device or a script that makes its own.",
    )
    precision: Precision | None = Field(None, description="Which numbers the model computes with.")
    jit_compile: Literal["Auto", "Always", "Never"] | None = Field(None, description="XLA.")
    keras: Literal["Auto", "Keras3", "Legacy"] | None = Field(None, description="Keras 3, or Legacy for tf_keras.")
    program: Program = Field(description="What is trained: exactly one of application, function, script.")
    source: Source | None = Field(None, description="Where the program's code comes from.")
    data: Data | None = Field(None, description="TFRecords and how they become batches.")
    training: Training | None = Field(None, description="How the model is trained.")
    checkpoint: Checkpoint | None = Field(None, description="How often the training state is saved.")
    export: Export | None = Field(None, description="The trained model as a file.")
    profile: Profile | None = Field(None, description="A range of steps recorded for TensorBoard's profiler.")
    output: Output | None = Field(None, description="The run folder.")
    run_policy: RunPolicy | None = Field(None, description="How often and how long the job may try.")
    scheduling: Scheduling | None = Field(None, description="Who decides when and where the pods run.")
    pod_template: PodTemplate | None = Field(None, description="What a job may say about its pods.")


class Metadata(Model):
    """The part of Kubernetes' metadata that a local run needs; the rest is kept for the API server."""

    model_config = Model.model_config | {"extra": "ignore"}

    name: str
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class MPTrainingJob(Model):
    """One file: apiVersion, kind, metadata, spec. `status` is the operator's and is not read here."""

    api_version: Literal["mptraining.dev/v1alpha1"] = API_VERSION
    kind: Literal["MPTrainingJob"] = KIND
    metadata: Metadata
    spec: JobSpec

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The job in the YAML file at `path`, checked by the models alone (`rules` and `resolve` check the rest).

        Raises InvalidSpec naming the file or the field.
        """
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            cause = getattr(error, "strerror", None) or "not a text file"
            raise InvalidSpec(str(path), cause, expected="an MPTrainingJob in YAML") from None
        return cls.parse_yaml(text, where=str(path))

    @classmethod
    def parse_yaml(cls, text: str, *, where: str = "job") -> Self:
        """The job written in `text`; objects of other kinds, such as its volume claim, may stand beside it.

        Raises InvalidSpec.
        """
        try:
            documents = [document for document in yaml.safe_load_all(text) if document is not None]
        except yaml.YAMLError as error:
            line = str(error).replace("\n", " ")
            raise InvalidSpec(
                where, f"not YAML: {line}", next_step="Mend the indentation or quote the value."
            ) from None
        jobs = [each for each in documents if isinstance(each, dict) and each.get("kind") == KIND] or documents
        if len(jobs) != 1 or not isinstance(jobs[0], dict):
            raise InvalidSpec(where, f"{len(jobs)} documents", expected="exactly one MPTrainingJob")
        document = {key: value for key, value in jobs[0].items() if key != "status"}
        if document.get("kind") != KIND or document.get("apiVersion") != API_VERSION:
            found = f"{document.get('apiVersion')!r}, {document.get('kind')!r}"
            raise InvalidSpec(where, f"apiVersion and kind are {found}", expected=f"{API_VERSION!r}, {KIND!r}")
        return cls.parse(document)
