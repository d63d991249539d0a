"""The operator's settings: valid files, and the messages about invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptraining_api.problems import InvalidSpec
from mptraining_operator.app import limits
from mptraining_operator.settings import Identity, OperatorSettings


def test_without_a_file_the_defaults_hold() -> None:
    settings = OperatorSettings.load(None)
    assert settings == OperatorSettings()
    assert settings.lease.duration_seconds == 10


def test_a_file_overrides_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("cpuFallback: true\nnamespaces: [a, b]\nlease: {durationSeconds: 15}\nprogress: {port: 9443}\n")
    settings = OperatorSettings.load(file)
    assert (settings.cpu_fallback, settings.namespaces, settings.grace_seconds) == (True, ("a", "b"), 60)
    assert (settings.lease.duration_seconds, settings.lease.renew_seconds, settings.progress.port) == (15, 2.0, 9443)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cpuFalback: true", "cpuFalback"),
        ("graceSeconds: many", "graceSeconds"),
        ("lease: {durationSeconds: 1}", "lease.durationSeconds"),
        ("lease: {durationSeconds: 5, renewSeconds: 3}", "renewSeconds of at most 2"),
        ("healthPort: 8443", "a healthPort other than progress.port, 8443"),
        ("logLevel: LOUD", "WARNING or ERROR"),
        ("namespaces: [Team_A]", "the name of a namespace"),
        ("runtimes: {default: {output: s3://runs}}", "gs://bucket/folder"),
        ("runtimes: {default: {images: {cpu: a b}}}", "is no image"),
        ("runtimes: {default: {limits: {accelerators: [t5]}}}", "runtimes.default.limits.accelerators[0]"),
        (
            "runtimes: {a: {limits: {workersPerNamespace: 5}}}",
            "runtimes.a.limits.workersPerNamespace: a limit on the namesp",
        ),
        ("deviceClasses: {T4: a}", "deviceClasses.T4: 'T4' is spelled differently in the catalogue. Write 't4'."),
        (
            "deviceClasses: {a100-40gb: a, a100: b}",
            "deviceClasses.a100: 'a100' is the GPU of 'a100-40gb' again; expected one DeviceClass for",
        ),
        ("deviceClasses: {cpu: a}", "deviceClasses.cpu: 'cpu' is no GPU"),
        ("gangSchedulers: {volcano: a b}", "gangSchedulers.volcano: 'a b' is not valid; expected the name of a sched"),
        (
            "runtimes: {a: {podTemplate: {annotations: {a b: c}}}}",
            "runtimes.a.podTemplate.annotations.a b: 'a b' is no key of an annotation, such as team or example.com/te",
        ),
        ("runtimes: {a: {podTemplate: {labels: {Example.com/a: c}}}}", "'Example.com/a' is no name of"),
        ("notifications: {url: hooks.example/T0/s3cret}", "notifications.url: no URL; expected https://…, or ${NAME}"),
        ("notifications: {url: 'https://hooks.example/$'}", "notifications.url: no URL; expected"),
        ("notifications: {template: '{jobb}'}", "notifications.template: unknown placeholder {jobb}; expected one of"),
        ("notifications: {template: '{\"text\": {job}}'}", "notifications.template: no JSON: Expecting value"),
        ("notifications: {events: [Started]}", "notifications.events[0]"),
        ("[", "not YAML"),
    ],
)
def test_a_wrong_file_is_named_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(InvalidSpec) as caught:
        OperatorSettings.load(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def refusal(file: Path, text: str) -> list[str]:
    file.write_text(text)
    with pytest.raises(InvalidSpec) as caught:
        OperatorSettings.load(file)
    return [line.removeprefix(f"{file}:") for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "runtimes: {default: {limits: {registries: ['https://x.io/y'], images: [a b]}}, a: {images: {gpu: x y}}}",
            [
                "runtimes.default.limits.images[0]: 'a b' is no image, such as registry.example.com/team/trainer:1",
                "runtimes.default.limits.registries[0]: 'https://x.io/y' is no registry, such as docker.io or reg",
                "runtimes.a.images.gpu: 'x y' is no image, such as registry.example.com/team/trainer:1",
            ],
        ),
        ("deviceClasses: {nvidia-t4: a}", ["deviceClasses.nvidia-t4: unknown accelerator 'nvidia-t4'. Did you mean"]),
        (
            "runtimes: {a: {provisionin: Spot, foo: 1}}",
            ["runtimes.a.provisionin: unknown field. Did you mean 'provisioning'?", "runtimes.a.foo: unknown field."],
        ),
        (
            "{runtimes: {2024: {}, true: {}, null: {}}, defaultRuntimes: {a: '2024'}, graceSeconds: many}",
            ["graceSeconds: 'many' is not valid; expected a whole number"],
        ),
    ],
)
def test_all_mistakes_are_listed_each_with_the_file_and_the_field(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    lines = refusal(tmp_path / "settings.yaml", text)
    assert [line[: len(words) + 3] for line, words in zip(lines, expected, strict=True)] == [
        f"1: {words}" for words in expected
    ]


def test_mistakes_between_fields_are_listed_beside_wrong_fields_each_with_its_line(tmp_path: Path) -> None:
    text = """\
runtimes:
  Team Default: {}
  a:
    podTemplate: {hostNetwork: true, image: 5}
  b: {}
  None: {}
defaultRuntimes: {ns: zzz, other: a}
healthPort: 8443
"""
    names = "expected small letters, digits and dashes, no dash first or last, such as team-a"
    assert refusal(tmp_path / "settings.yaml", text) == [
        f"2: runtimes.Team Default: 'Team Default' is not valid; {names}. Did you mean 'team-default'?",
        '4: runtimes.a.podTemplate.image: 5 is not valid; expected text. Quote it: "5".',
        "4: runtimes.a.podTemplate.hostNetwork: unknown field. Known fields here: affinity, annotations, dnsConfig, "
        "dnsPolicy, env, envFrom, image, imagePullSecrets, initContainers, labels, lifecycle, nodeSelector, resources, "
        "runtimeClassName, serviceAccountName, tolerations, topologySpreadConstraints, volumeMounts, volumes.",
        f"6: runtimes.None: 'None' is not valid; {names}. None is reserved: runtime: None in a job means no runtime. "
        "Choose another name.",
        "7: defaultRuntimes.ns: 'zzz' is no runtime of these settings; expected one of a, b",
        "8: healthPort: 8443 is not valid; expected a healthPort other than progress.port, 8443",
    ]


def test_ports_that_are_drawn_or_not_opened_are_no_conflict_nor_capitals_in_an_annotation() -> None:
    template = {"annotations": {"Example.com/Team": "b"}}
    assert OperatorSettings.parse({"runtimes": {"a": {"podTemplate": template}}}).runtimes["a"].pod_template
    assert OperatorSettings.parse({"healthPort": 0, "progress": {"port": 0}}).health_port == 0
    assert OperatorSettings.parse({"healthPort": 8443, "progress": {"enabled": False}}).health_port == 8443


def test_plans_get_what_they_depend_on() -> None:
    settings = OperatorSettings.parse({"gangReleaseSeconds": 1})
    found = limits(settings, Identity(name="op-0", namespace="ops", service_account="op"))
    assert (found.operator_namespace, found.operator_account) == ("ops", "op")
    assert found.gang_release == 1


def test_the_identity_is_the_pods() -> None:
    given = {"POD_NAME": "op-0", "POD_NAMESPACE": "ops", "POD_SERVICE_ACCOUNT": "op"}
    found = Identity.from_environment(given, host="laptop")
    assert (found.name, found.namespace, found.service_account) == ("op-0", "ops", "op")
    found = Identity.from_environment({}, host="laptop")
    assert (found.name, found.namespace) == ("laptop", "mptraining-system")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="No such file"):
        OperatorSettings.load(tmp_path / "none.yaml")
