"""Settings of the board in a cluster: one model, read from a YAML file and embedded in the Helm chart's values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from mptraining_api.model import Model
from mptraining_api.problems import InvalidSpec
from mptraining_api.validation import patterns

# The name of a namespace in a run folder's path.
NAMESPACE = "{namespace}"
_FOLDER = r"(gs://[a-z0-9][^/?#*]*|/[^/]+)(/[^/]+)*/?"


def _folder(text: str) -> str:
    parts = text.partition("://")[2] if "://" in text else text
    if re.fullmatch(_FOLDER, text) is None or {".", ".."} & set(parts.split("/")):
        raise ValueError("gs://bucket/folder, or an absolute path as jobs write it in output.uri")
    if text.count(NAMESPACE) != text.split("/").count(NAMESPACE) or text.count(NAMESPACE) > 1:
        raise ValueError(f"{NAMESPACE} once, as one whole part of the path")
    return text.rstrip("/")


Host = Annotated[
    str, StringConstraints(max_length=253, pattern=patterns.HOST), Field(description="A name without a port.")
]
Namespace = Annotated[str, StringConstraints(max_length=63, pattern=patterns.NAMESPACE)]
Folder = Annotated[
    str,
    AfterValidator(_folder),
    Field(min_length=1, max_length=1024, json_schema_extra={"pattern": f"^{_FOLDER}$"}),
]
Port = Annotated[int, Field(ge=1, le=65535)]


class RunFolders(Model):
    """Where the jobs of a namespace keep their run folders. A job's run folder is read only if it is below such a one.

    `mount` is where the board has the files of a path; a folder in a bucket has none.
    """

    folder: Folder = Field(description="Folder as jobs name it in output.uri; {namespace} is that of the job.")
    namespace: Namespace | Literal[""] = Field(
        "", description="Namespace of the jobs. Empty: folder contains {namespace}."
    )
    mount: str = Field("", description="Folder of the board's pod with the same files.")

    @model_validator(mode="after")
    def _of_one_namespace(self) -> Self:
        if (NAMESPACE in self.folder) == bool(self.namespace):
            raise ValueError(f"either namespace, or {NAMESPACE} in folder")
        if self.folder.startswith("/") != bool(self.mount):
            raise ValueError("a mount for a path, and none for gs://")
        return self


class BoardSettings(Model):
    """Settings of the board in a cluster."""

    port: Port = Field(8666, description="Port of the pages.")
    hosts: tuple[Host, ...] = Field((), description="Names in the address at which users open the board.")
    audiences: tuple[str, ...] = Field((), description="Audiences of tokens. Empty: those of the API server.")
    review_seconds: Annotated[float, Field(gt=0, le=300)] = Field(
        30.0, description="Seconds for which the board believes that a token or a right is still valid."
    )
    namespaces: tuple[Namespace, ...] = Field((), description="Namespaces whose jobs are shown. Empty: all.")
    run_folders: tuple[RunFolders, ...] = Field((), description="Run folders by namespace.")
    default_output: str | None = Field(None, description="That of the operator.")
    default_outputs: dict[str, str] = Field({}, description="Those of the operator.")
    certificate: str | None = Field(None, description="Folder with tls.crt and tls.key. Absent: plain HTTP.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Level of the board's log.")

    @classmethod
    def load(cls, path: Path) -> BoardSettings:
        """Load the settings from a YAML file. Raises InvalidSpec."""
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except OSError as error:
            raise InvalidSpec(str(path), error.strerror or str(error), expected="a YAML file of settings") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InvalidSpec(str(path), f"not YAML: {error}") from None
        return cls.parse(document, where=str(path))
