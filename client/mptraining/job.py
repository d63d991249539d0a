"""A job of a cluster in the hand of a user: what it does, says, and leaves behind."""

from __future__ import annotations

from collections.abc import Sequence

from mptraining.api_server import JOBS, ApiServer, Raw
from mptraining.cluster import HERE, Where, connect
from mptraining.job_view import JobView, view
from mptraining_api.status import Attempt


class Job(dict[str, str | None]):
    """One MPTrainingJob. Also the dict that `tensorflow_cloud.run` returns, with `job_id` and `docker_image`.

    Holds no state of the job: every method asks the cluster anew. Every method raises ClusterProblem.
    """

    def __init__(
        self,
        server: ApiServer,
        document: Raw,
        *,
        where: Where = HERE,
        warnings: Sequence[str] = (),
    ) -> None:
        metadata, spec = document["metadata"], document.get("spec") or {}
        super().__init__(job_id=metadata["name"], docker_image=(spec.get("podTemplate") or {}).get("image"))
        self.name: str = metadata["name"]
        self.namespace: str = metadata.get("namespace") or server.namespace
        self.uid: str = metadata["uid"]
        self.where = where
        self.warnings = tuple(warnings)
        self._server = server.within(self.namespace)

    def __repr__(self) -> str:
        return f"<Job {self.namespace}/{self.name}>"

    def status(self) -> JobView:
        """How the job stands now; printed, it says why and what to do."""
        return view(self._server.get(JOBS, self.name))

    @property
    def attempts(self) -> list[Attempt]:
        """The last ten, the oldest first."""
        return list(self.status().status.attempts or ())

    def cancel(self) -> None:
        """Deletes the job: the workers save a checkpoint and leave. The run folder stays."""
        self._server.delete(JOBS, self.name, uid=self.uid)

    def suspend(self) -> None:
        """The workers save a checkpoint and give their machines back, until `resume`."""
        self._suspend(True)

    def resume(self) -> None:
        """Goes on from the last checkpoint."""
        self._suspend(False)

    def _suspend(self, value: bool) -> None:
        patch = {"metadata": {"uid": self.uid}, "spec": {"runPolicy": {"suspend": value}}}
        self._server.patch(JOBS, self.name, patch)


def attach(name: str, where: Where = HERE) -> Job:
    """The job of that name, also after this program was restarted. Raises NotFound."""
    server = connect(where)
    return Job(server, server.get(JOBS, name), where=where)
