"""The way from v1alpha1 to v1beta1: 1,000 stored jobs are migrated while the operator runs, and none may be touched.

etcd, API server, scheduler, controller manager and operator are real; KWOK simulates nodes. The
CustomResourceDefinitions are those that the next release would have, and its operator is this one with another version
(`NEXT`). The commands are those of docs/versioning.md. The audit log has every write of the operator.

python -m tests.soak.storage_migration --jobs 1000 --write docs/versioning.md
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from mptraining_api.crd import custom_resource_definition, sweep_definition
from mptraining_api.validation.api_versions import GROUP, VERSION
from tests.soak import document_table
from tests.soak.sweep_kills import SEARCHES
from tests.soak.sweep_kills import document as sweep_document
from tests.testbed import ControlPlane, Options, Refused, Server
from tests.testbed.binaries import binary
from tests.testbed.kubernetes.access import apply_crd, wait_until
from tests.testbed.kubernetes.installation import OPERATOR, SYSTEM, grant_lease, install
from tests.testbed.nodes.kwok import start_kwok
from tests.testbed.processes import free_ports

NEXT = "v1beta1"
NAMESPACE = "versions"
BEGIN, END = "<!-- storage migration, made by `make soak` -->", "<!-- storage migration until here -->"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "versioning.md"
# The operator of the release whose version is NEXT: this one, with the two constants that such a release changes.
NEXT_OPERATOR = f"""
import importlib.util, pathlib, sys
spec = importlib.util.find_spec("mptraining_api.validation.api_versions")
text = pathlib.Path(spec.origin).read_text()
for old, new in (('VERSION = "{VERSION}"', 'VERSION = "{NEXT}"'), ('= ("{VERSION}",)', '= ("{NEXT}", "{VERSION}")')):
    assert old in text, old
    text = text.replace(old, new)
module = importlib.util.module_from_spec(spec)
exec(compile(text, spec.origin, "exec"), module.__dict__)
sys.modules[spec.name] = module
from mptraining_operator.__main__ import start
start(pathlib.Path(sys.argv[1]))
"""
# Of all jobs: a fifth has ended, a fifth is suspended, the others run.
_ENDED, _SUSPENDED = 0.2, 0.2
_SWEEPS = 3
_USER = f"system:serviceaccount:{SYSTEM}:{OPERATOR}"
_WRITES = ("create", "update", "patch", "delete", "deletecollection")
# A lock that is renewed all the time, and questions about tokens, which store nothing.
_NOT_WRITES = ("leases", "tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews")
# Seconds after a step in which the operator lists and watches again; then it has been quiet for as long.
_SETTLED = 6.0
_PATIENCE = 900.0
_CHILDREN = ("apis/batch/v1/{}/jobs", "api/v1/{}/pods", "api/v1/{}/services", "api/v1/{}/configmaps")
# Object of the API server.
Raw = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A step of the migration: its duration in seconds, the operator's writes in it and the job that it changed."""

    name: str
    seconds: float
    writes: Counter[str]
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """All objects: jobs and sweeps without version and resourceVersion, and the children's uid and resourceVersion."""

    jobs: Mapping[str, Raw]
    children: Mapping[str, tuple[str, str]]

    def changed_since(self, before: Seen, *, children: bool = True) -> tuple[str, ...]:
        """Return the names of what differs, is new or is missing."""
        pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [(self.jobs, before.jobs)]
        if children:
            pairs.append((self.children, before.children))
        return tuple(
            name for mine, theirs in pairs for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)
        )


class Cluster:
    """The servers and one operator, as a context manager."""

    def __init__(self, folder: Path, *, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._stack = ExitStack()
        self._kwok: Server | None = None
        self._operator: Server | None = None
        self.steps: list[Step] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            options = Options(audit=True, scheduler=True, client_qps=2000)
            self.control_plane = stack.enter_context(ControlPlane(self._folder, options))
            install(self.control_plane)
            grant_lease(self.control_plane, NAMESPACE)
            self.control_plane.namespace(NAMESPACE)
            self.rest = self.control_plane.rest
            for number in range(4):
                room = {"cpu": "10k", "memory": "100Ti"}
                self.control_plane.nodes.create(f"kwok-{number}", capacity=room, kwok=True)
            stack.callback(self._stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _stop(self) -> None:
        for server in (self._operator, self._kwok):
            if server is not None:
                server.stop(seconds=15)

    # -- the operator -------------------------------------------------------------------------------------------

    def start_operator(self, *, version: str) -> None:
        """Start the operator that requests this version, instead of the one that runs."""
        if self._operator is not None:
            self._operator.stop(seconds=30)
        (port,) = free_ports(1)
        settings = self._folder / f"{version}.yaml"
        settings.write_text(yaml.safe_dump(_settings(port)))
        token = self.control_plane.token(SYSTEM, OPERATOR, seconds=12 * 3600)
        environment = {
            "KUBECONFIG": str(self.control_plane.kubeconfig(f"operator-{version}", token)),
            "POD_NAME": f"operator-{version}",
            "POD_NAMESPACE": SYSTEM,
            "POD_SERVICE_ACCOUNT": OPERATOR,
        }
        own = ["-m", "mptraining_operator", "run", "--settings"] if version == VERSION else ["-c", NEXT_OPERATOR]
        log = self._folder / f"operator-{version}.log"
        self._operator = Server([sys.executable, *own, str(settings)], log=log, environment=environment)
        self._operator.wait_until(lambda: "leading as" in log.read_text(), seconds=_PATIENCE)

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("operator-*.log")))

    def writes(self, since: int) -> Counter[str]:
        """Return the operator's writes after the first `since` requests, by verb and resource."""
        return Counter(
            f"{each.verb} {each.resource}"
            for each in self.control_plane.requests()[since:]
            if each.user == _USER and each.verb in _WRITES and each.resource not in _NOT_WRITES
        )

    def quiet(self) -> None:
        """Wait until the operator has written nothing for some seconds. Raises TimeoutError."""
        last = len(self.control_plane.requests())

        def nothing() -> bool:
            nonlocal last
            time.sleep(_SETTLED)
            before, last = last, len(self.control_plane.requests())
            return not self.writes(before)

        wait_until(nothing, "an operator that writes nothing", seconds=_PATIENCE)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def fill(self, jobs: int, copied: int) -> None:
        """Create the jobs, some sweeps that are suspended, and wait until each is in its phase.

        `copied` more have spec and status of one that is suspended, which saves an operator's time for each.
        """
        ended, suspended = int(jobs * _ENDED), int(jobs * _SUSPENDED)
        self._simulate(complete=True)
        self.create([document(f"ended-{number:04}") for number in range(ended)])
        self._phases({"Succeeded": ended})
        self._simulate(complete=False)
        self.create([document(f"waits-{number:04}", suspend=True) for number in range(suspended)])
        self.create([document(f"runs-{number:04}") for number in range(jobs - ended - suspended)])
        for number in range(_SWEEPS):
            sweep = sweep_document(SEARCHES[1], trials=4, seed=7, name=f"sweep-{number}")
            sweep["spec"]["runPolicy"] = {"suspend": True}
            self.rest.post(path(VERSION, "mptrainingsweeps"), sweep)
        self._phases({"Succeeded": ended, "Suspended": suspended, "Running": jobs - ended - suspended})
        self._operator_stopped()
        self._copy(self.rest.get(f"{path(VERSION)}/waits-0000")["status"], copied)
        self.start_operator(version=VERSION)
        self.quiet()

    def _operator_stopped(self) -> None:
        if self._operator is not None:
            self._operator.stop(seconds=60)
            self._operator = None

    def _copy(self, status: Raw, number: int) -> None:
        """Create suspended jobs with this status, as an operator leaves them."""

        def make(name: str) -> None:
            made = self.rest.post(path(VERSION), document(name, suspend=True))
            self.rest.put(f"{path(VERSION)}/{name}/status", {**made, "status": status})

        with ThreadPoolExecutor(8) as creators:
            list(creators.map(make, (f"copied-{each:04}" for each in range(number))))

    def _simulate(self, *, complete: bool) -> None:
        if self._kwok is not None:
            self._kwok.stop(seconds=15)
        self._kwok = start_kwok(self.control_plane, complete=complete)

    def create(self, bodies: Sequence[Raw]) -> None:
        with ThreadPoolExecutor(8) as creators:
            list(creators.map(lambda body: self.rest.post(path(body["apiVersion"].split("/")[1]), body), bodies))

    def _phases(self, expected: Mapping[str, int]) -> None:
        def reached() -> bool:
            time.sleep(2)
            return self.phases(VERSION) == expected

        wait_until(reached, f"phases {dict(expected)}", seconds=_PATIENCE)

    def phases(self, version: str) -> Counter[str]:
        return Counter(each.get("status", {}).get("phase", "") for each in self._list(path(version)))

    def _list(self, where: str) -> list[Raw]:
        """Return all objects, in pages: a busy server ends an answer that takes it a minute."""
        found, rest = [], ""
        while True:
            page = self.rest.get(where, {"limit": "100", **({"continue": rest} if rest else {})})
            found += page["items"]
            rest = page["metadata"].get("continue", "")
            if not rest:
                return found

    def see(self, version: str) -> Seen:
        """Return all objects as the API server has them in this version."""
        jobs = {
            f"{each['kind']} {each['metadata']['name']}": _comparable(each)
            for plural in ("mptrainingjobs", "mptrainingsweeps")
            for each in self._list(path(version, plural))
        }
        children = {
            f"{where.rsplit('/', 1)[1]} {each['metadata']['name']}": (
                each["metadata"]["uid"],
                each["metadata"]["resourceVersion"],
            )
            for where in _CHILDREN
            for each in self._list("/" + where.format(f"namespaces/{NAMESPACE}"))
        }
        return Seen(jobs, children)

    # -- versions -----------------------------------------------------------------------------------------------

    def serve(self, served: Sequence[str], stored: str) -> None:
        """Apply the CustomResourceDefinitions of a release and wait until the API server serves all versions."""
        for definition in (custom_resource_definition(served, stored), sweep_definition(served, stored)):
            apply_crd(self.rest, definition)
        wait_until(lambda: all(self._is_served(each) for each in served), f"{served} served", seconds=_PATIENCE)

    def _is_served(self, version: str) -> bool:
        try:
            self.rest.get(path(version), {"limit": "1"})
        except Refused:
            return False
        return True

    def in_etcd(self) -> Counter[str]:
        """Return the number of stored jobs and sweeps of each version."""
        found = [
            each
            for plural in ("mptrainingjobs", "mptrainingsweeps")
            for each in self.control_plane.stored(f"{GROUP}/{plural}")
        ]
        return Counter(each["apiVersion"].rpartition("/")[2] for each in found)

    def run(self, script: str) -> str:
        """Run commands of docs/versioning.md. Raises RuntimeError."""
        kubectl = binary("kubectl")
        environment = {
            "PATH": f"{kubectl.parent}:/usr/bin:/bin",
            "KUBECONFIG": str(self.control_plane.admin_kubeconfig),
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
            env={**environment, "HOME": str(self._folder)},
        )
        if done.returncode:
            raise RuntimeError(f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout

    @contextmanager
    def step(self, name: str, *, version: str, children: bool = True) -> Iterator[None]:
        """Measure a step, then wait for the operator and record what it wrote and what is no longer as before.

        `children`: whether they are compared; not where the step itself changes them.
        """
        before, asked = self.see(version), len(self.control_plane.requests())
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        time.sleep(_SETTLED)
        changed = self.see(version).changed_since(before, children=children)
        self.steps.append(Step(name, seconds, self.writes(asked), changed))
        self._say(f"{name}: {seconds:.1f} s, {len(changed)} changed, the operator wrote {dict(self.steps[-1].writes)}")

    def migrate(self) -> list[str]:
        """Go the way of docs/versioning.md; return what is not as it should be."""
        wrong: list[str] = []
        commands = documented_commands()
        everything = sum(self.in_etcd().values())
        both = (NEXT, VERSION)
        with self.step(f"{NEXT} served, {VERSION} stored", version=VERSION):
            self.serve(both, VERSION)
        with self.step(f"{NEXT} stored, {VERSION} deprecated", version=VERSION):
            self.serve(both, NEXT)
        if self.in_etcd() != {VERSION: everything}:
            wrong.append(f"before the migration etcd has {dict(self.in_etcd())}")
        with self.step("every object stored again", version=VERSION):
            self.run(commands["store"])
        if self.in_etcd() != {NEXT: everything}:
            wrong.append(f"after the migration etcd has {dict(self.in_etcd())}")
        with self.step(f"{VERSION} removed from status.storedVersions", version=VERSION):
            self.run(commands["forget"])
        with self.step(f"the operator that requests {NEXT}", version=NEXT):
            self.start_operator(version=NEXT)
        with self.step("owner references of the children", version=NEXT, children=False):
            self.run(commands["owners"])
        wrong += self._old_owners()
        # Its garbage collector remembers in which version it first saw an object, and asks for that version.
        with self.step("kube-controller-manager restarted", version=NEXT):
            self.control_plane.restart_controller_manager()
            time.sleep(2 * _SETTLED)
        with self.step(f"{VERSION} no longer served", version=NEXT):
            self.serve((NEXT,), NEXT)
        return wrong + [
            f"{each.name}: changed {each.changed[:5]}, the operator wrote {dict(each.writes)}"
            for each in self.steps
            if each.changed or each.writes
        ]

    def _old_owners(self) -> list[str]:
        """Return the children whose owner reference has the old version."""
        return [
            f"{where}: {each['metadata']['name']} has an owner in {VERSION}"
            for where in _CHILDREN
            for each in self._list("/" + where.format(f"namespaces/{NAMESPACE}"))
            if f"{GROUP}/{VERSION}" in [found["apiVersion"] for found in each["metadata"].get("ownerReferences", ())]
        ]

    def use(self) -> list[str]:
        """Use the new version: create, resume and delete a job; return what is not as it should be."""
        self.rest.post(path(NEXT), document("new", version=NEXT))
        self.rest.patch(f"{path(NEXT)}/waits-0000", {"spec": {"runPolicy": {"suspend": False}}})
        for name in ("new", "waits-0000"):
            wait_until(lambda name=name: self._phase(name) == "Running", f"{name} runs", seconds=_PATIENCE)  # type: ignore[misc]
        wrong = []
        for name in ("runs-0000", "ended-0000", "new"):
            self.rest.delete(f"{path(NEXT)}/{name}", {"propagationPolicy": "Foreground"})
            try:
                wait_until(lambda name=name: not self._left(name), f"children of {name}", seconds=180)  # type: ignore[misc]
            except TimeoutError:
                wrong.append(f"{name} was deleted and left {self._left(name)}")
        return wrong

    def _phase(self, name: str) -> str:
        return str(self.rest.get(f"{path(NEXT)}/{name}").get("status", {}).get("phase", ""))

    def _left(self, name: str) -> list[str]:
        """Return the job itself and its children, as long as they exist."""
        jobs = [each["metadata"]["name"] for each in self._list(path(NEXT))]
        labelled = {"labelSelector": f"{GROUP}/job={name}"}
        children = [
            f"{where.rsplit('/', 1)[1]}/{each['metadata']['name']}"
            for where in _CHILDREN
            for each in self.rest.get("/" + where.format(f"namespaces/{NAMESPACE}"), labelled)["items"]
        ]
        return [each for each in jobs if each == name] + children


def path(version: str, plural: str = "mptrainingjobs") -> str:
    return f"/apis/{GROUP}/{version}/namespaces/{NAMESPACE}/{plural}"


def document(name: str, *, version: str = VERSION, suspend: bool = False) -> Raw:
    """Return a job of one worker."""
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "MPTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "accelerator": {"type": "cpu"},
            "program": {"application": {"name": "mlp", "classes": 10}},
            "data": {"train": ["gs://versions/train-*.tfrecord"]},
            "output": {"uri": f"gs://versions/{name}"},
            **({"runPolicy": {"suspend": True}} if suspend else {}),
        },
    }


def documented_commands(text: str | None = None) -> dict[str, str]:
    """Return the commands of docs/versioning.md by the name in their first line, such as `# store: …`."""
    blocks = re.findall(
        r"^```bash\n# (store|forget|owners): .*?\n(.*?)^```", text or DOCUMENT.read_text(), re.MULTILINE | re.DOTALL
    )
    return dict(blocks)


def _comparable(found: Raw) -> Raw:
    metadata = {
        key: value for key, value in found["metadata"].items() if key not in ("resourceVersion", "managedFields")
    }
    # A trial's reference to its sweep has a version too, which a step changes.
    references = [{**each, "apiVersion": ""} for each in metadata.get("ownerReferences", ())]
    return {
        "metadata": {**metadata, "ownerReferences": references},
        "spec": found["spec"],
        "status": found.get("status"),
    }


def _settings(port: int) -> Raw:
    return {
        "trainerImage": "mptraining/trainer:versions",
        "healthPort": port,
        "logFormat": "text",
        "namespaces": [NAMESPACE],
        "graceSeconds": 1,
        "progress": {"enabled": False},
        "lease": {"durationSeconds": 15, "renewSeconds": 2, "name": NAMESPACE},
    }


def table(steps: Sequence[Step], *, jobs: int, copied: int, wrong: Sequence[str]) -> str:
    """Return the table of docs/versioning.md; `copied` of the jobs are copies."""
    copies = f"{copied} are copies of a suspended job; of the others " if copied else ""
    lines = [
        f"{jobs} jobs: {copies}a fifth has ended, a fifth is suspended, the rest runs. {_SWEEPS} sweeps. "
        "etcd, API server, scheduler, controller manager and operator are real, pods are simulated.",
        "",
        "| step | seconds | jobs and children that changed | writes of the operator |",
        "|---|---|---|---|",
    ]
    for each in steps:
        lines.append(f"| {each.name} | {each.seconds:.1f} | {len(each.changed)} | {each.writes.total()} |")
    return "\n".join([*lines, "", f"Complaints: {len(wrong)}."])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.storage_migration", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--jobs", type=int, default=1000, help="stored jobs (1000)")
    parser.add_argument("--copied", type=int, default=0, help="of them copies of a suspended job, for a busy machine")
    parser.add_argument("--write", type=Path, help="the document that the table goes into")
    given = parser.parse_args(arguments)
    steps, wrong = run(given.jobs, copied=given.copied, say=lambda line: print(line, flush=True))
    text = table(steps, jobs=given.jobs, copied=given.copied, wrong=wrong)
    print(text)
    print(*wrong, sep="\n", file=sys.stderr, flush=True)
    if given.write:
        document_table.put(given.write, text, begin=BEGIN, end=END)
    return int(bool(wrong))


def run(jobs: int, *, copied: int, say: Callable[[str], None]) -> tuple[list[Step], list[str]]:
    """Fill a cluster, migrate it and use it; return the steps and what is not as it should be."""
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), say=say) as cluster:
        cluster.start_operator(version=VERSION)
        began = time.monotonic()
        cluster.fill(jobs - copied, copied)
        say(f"{jobs} jobs in their phases after {time.monotonic() - began:.0f} s")
        wrong = cluster.migrate() + cluster.use()
        if "Traceback" in cluster.logs():
            wrong.append(f"the operator's log:\n{cluster.logs()[-5000:]}")
        return cluster.steps, wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
