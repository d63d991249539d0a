"""The next step that follows a message of Kubernetes; tests/golden/plans/waiting.yaml has the whole messages."""

from __future__ import annotations

import pytest

from mptraining_operator.jobs.plan.next_steps import of_container, of_placement, of_refusal


@pytest.mark.parametrize(
    ("message", "step"),
    [
        (
            "minimum memory usage per Container is 1Gi, but request is 512Mi",
            "Write podTemplate.resources.requests.memory and podTemplate.resources.limits.memory within the LimitRange",
        ),
        (
            "cpu max limit to request ratio per Container is 1, but no request is specified",
            "Write podTemplate.resources.requests.cpu and podTemplate.resources.limits.cpu within the LimitRange",
        ),
        (
            "failed quota: team: must specify limits.memory for: trainer; limits.cpu for: trainer",
            "Write podTemplate.resources.limits.cpu and podTemplate.resources.limits.memory: the quota requires it",
        ),
        (
            "exceeded quota: q, requested: requests.cpu=1, used: requests.cpu=0, limited: requests.cpu=100m",
            "Lower workers",
        ),
        ("exceeded quota: few", "It starts when others have ended; or lower workers or podTemplate.resources"),
        ('serviceaccount "trainer" not found', "Create the ServiceAccount, or correct podTemplate.serviceAccountName."),
        ("no PriorityClass with name high", "Create the PriorityClass, or correct scheduling.priorityClassName."),
        ('RuntimeClass "gvisor" not found', "Create the RuntimeClass, or correct podTemplate.runtimeClassName."),
        ('violates PodSecurity "restricted:latest"', "Remove what it names from podTemplate, or use a namespace"),
        ('failed calling webhook "mesh.example"', "The webhook does not answer: ask its administrator."),
        ("anything else", "Ask the administrator of the namespace's quota and policies."),
    ],
)
def test_the_step_after_a_refusal(message: str, step: str) -> None:
    assert of_refusal(f"pods is forbidden: {message}", "team").startswith(step)


@pytest.mark.parametrize(
    ("message", "step"),
    [
        ('persistentvolumeclaim "data" not found', "Create the claim, or correct podTemplate.volumes."),
        ("pod has unbound immediate PersistentVolumeClaims", "Its claim has no volume: kubectl describe pvc -n team"),
        ("volume node affinity conflict", "The volume of its claim is in a place without a free machine of this kind."),
        ("had untolerated taint {gpu: yes}", "Write a toleration for the taint in podTemplate.tolerations, or remove"),
        ("2 Insufficient cpu, 1 had untolerated taint", "Each worker requests 4 cpu; lower accelerator.countPerWorker"),
        ("Insufficient memory", ""),
    ],
)
def test_the_step_for_a_pod_without_a_node(message: str, step: str) -> None:
    found = of_placement(f"0/3 nodes are available: {message}.", "team", {}, {"cpu": "4"})
    assert found.startswith(step)
    assert bool(found) == bool(step)


@pytest.mark.parametrize(
    ("message", "step"),
    [
        ('secret "token" not found', "Create what is missing, or correct env or envFrom of podTemplate."),
        ("CrashLoopBackOff: back-off 10s", "Its output: kubectl logs flowers-1-0 --container proxy --namespace team"),
        ("context deadline exceeded", "More: kubectl describe pod flowers-1-0 --namespace team"),
    ],
)
def test_the_step_for_a_container_that_does_not_start(message: str, step: str) -> None:
    assert of_container(message, "team", "flowers-1-0", "proxy") == step
