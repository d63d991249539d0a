"""Affinity and topology spread of the pods, with Kubernetes' fields (core/v1): closed, so that a typo is refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from mptraining_api.model import Count, Model

_Key = Annotated[str, StringConstraints(min_length=1, max_length=317)]
_Value = Annotated[str, StringConstraints(max_length=63)]
# Of nodes: Gt and Lt compare with numbers.
_NodeOperator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
_Values = Annotated[list[_Value], Field(max_length=256)]
_Names = Annotated[list[Annotated[str, StringConstraints(max_length=317)]], Field(max_length=64)]
_Weight = Annotated[int, Field(ge=1, le=100)]


class NodeRequirement(Model):
    """A requirement on a label or on the name of a node."""

    key: _Key = Field(description="Label of the nodes.")
    operator: _NodeOperator = Field(description="Relation of the label to values.")
    values: Annotated[list[Annotated[str, StringConstraints(max_length=253)]], Field(max_length=256)] | None = Field(
        None, description="For In, NotIn, Gt and Lt."
    )


class NodeSelectorTerm(Model):
    """Requirements that all hold."""

    match_expressions: Annotated[list[NodeRequirement], Field(max_length=64)] | None = Field(
        None, description="On labels."
    )
    match_fields: Annotated[list[NodeRequirement], Field(max_length=4)] | None = Field(None, description="On the name.")


class NodeSelector(Model):
    """Terms of which one holds."""

    node_selector_terms: Annotated[list[NodeSelectorTerm], Field(min_length=1, max_length=64)] = Field(
        description="Terms of which one holds."
    )


class PreferredNodes(Model):
    """Nodes that are preferred."""

    weight: _Weight = Field(description="1 to 100.")
    preference: NodeSelectorTerm = Field(description="The nodes.")


class NodeAffinity(Model):
    """Nodes by their labels."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = Field(
        None, description="The only nodes."
    )
    preferred_during_scheduling_ignored_during_execution: (
        Annotated[list[PreferredNodes], Field(max_length=64)] | None
    ) = Field(None, description="Nodes that are preferred.")


class LabelRequirement(Model):
    """A requirement on a label of pods or namespaces."""

    key: _Key = Field(description="Label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="Relation of the label to values.")
    values: _Values | None = Field(None, description="For In and NotIn.")


class LabelSelector(Model):
    """Pods or namespaces by their labels."""

    match_labels: (
        Annotated[dict[Annotated[str, StringConstraints(max_length=317)], _Value], Field(max_length=64)] | None
    ) = Field(None, description="Labels with these values.")
    match_expressions: Annotated[list[LabelRequirement], Field(max_length=64)] | None = Field(
        None, description="Requirements that all hold."
    )


class PodAffinityTerm(Model):
    """Pods, and the places that are the same or another one than theirs."""

    topology_key: _Key = Field(description="Label of the nodes; one value of it is one place.")
    label_selector: LabelSelector | None = Field(None, description="The pods.")
    namespaces: _Names | None = Field(None, description="Of the pods; by default the job's.")
    namespace_selector: LabelSelector | None = Field(None, description="Of the pods.")
    match_label_keys: _Names | None = Field(None, description="Labels with the same value as the job's pods have.")
    mismatch_label_keys: _Names | None = Field(None, description="Labels with another value.")


class PreferredPods(Model):
    """Places that are preferred."""

    weight: _Weight = Field(description="1 to 100.")
    pod_affinity_term: PodAffinityTerm = Field(description="The pods and the places.")


class PodAffinity(Model):
    """Places by the pods that run there."""

    required_during_scheduling_ignored_during_execution: (
        Annotated[list[PodAffinityTerm], Field(max_length=64)] | None
    ) = Field(None, description="All of them hold.")
    preferred_during_scheduling_ignored_during_execution: (
        Annotated[list[PreferredPods], Field(max_length=64)] | None
    ) = Field(None, description="Places that are preferred.")


class Affinity(Model):
    """Nodes and neighbours of the pods."""

    node_affinity: NodeAffinity | None = Field(None, description="Nodes by their labels.")
    pod_affinity: PodAffinity | None = Field(None, description="Near these pods.")
    pod_anti_affinity: PodAffinity | None = Field(None, description="Away from these pods.")


class SpreadConstraint(Model):
    """An even number of pods in each place."""

    max_skew: Count = Field(description="Difference between the places with the most and the fewest pods.")
    topology_key: _Key = Field(description="Label of the nodes.")
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(description="Requirement or preference.")
    label_selector: LabelSelector | None = Field(None, description="The pods that count; by default the attempt's.")
    min_domains: Count | None = Field(None, description="The least number of places.")
    node_affinity_policy: Literal["Honor", "Ignore"] | None = Field(None, description="Whether it selects the places.")
    node_taints_policy: Literal["Honor", "Ignore"] | None = Field(None, description="Whether they exclude places.")
    match_label_keys: _Names | None = Field(None, description="Labels with the same value as the job's pods have.")
