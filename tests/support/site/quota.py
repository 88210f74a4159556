"""Resource quotas that stand in a group's way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.controlplane import ControlPlane, path_of, until


@contextmanager
def resource_quota(control_plane: ControlPlane, namespace: str, name: str, **hard: str) -> Iterator[None]:
    """A quota that the API server enforces during the block. ``hard``: its limits by resource."""
    path = path_of("v1", "resourcequotas", namespace)
    quota = {"metadata": {"name": name}, "spec": {"hard": hard}}
    control_plane.api.create(path, {"apiVersion": "v1", "kind": "ResourceQuota", **quota})

    def is_enforced() -> bool:
        quota = control_plane.api.get(f"{path}/{name}")
        return quota is not None and "hard" in quota["status"]

    until(is_enforced, "the quota counts")
    yield
    control_plane.api.delete(f"{path}/{name}")
