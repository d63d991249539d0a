"""Commands and calls that reach the control plane as its administrator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testbed import ControlPlane
from tests.testbed.mptj import mptj_in_this_process  # noqa: F401


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[ControlPlane, str], None]:
    """Lets the environment name the control plane and the namespace; an empty folder is the current one."""

    def set_environment(control_plane: ControlPlane, namespace: str) -> None:
        kubeconfig = control_plane.kubeconfig("client", control_plane.rest.token, namespace=namespace)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.chdir(tmp_path)

    return set_environment
