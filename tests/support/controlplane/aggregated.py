"""An aggregated API server in a pod: its APIService, for as long as it can answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.controlplane.api import Json, path_of, until
from tests.support.waiting import HANG_S

if TYPE_CHECKING:
    from tests.support.controlplane.cluster import ControlPlane


@contextlib.contextmanager
def registered(plane: ControlPlane, service: Json, timeout_s: float = HANG_S) -> Iterator[None]:
    """Creates the APIService ``service`` when its Service has a ready endpoint; the API server has found it
    when this begins. It is gone when this ends. Raises :class:`TimeoutError`.

    Enter it after the namespace: with an APIService that does not answer no namespace can be deleted.
    """
    collection = path_of("apiregistration.k8s.io/v1", "apiservices")
    path = f"{collection}/{service['metadata']['name']}"
    where = service["spec"]["service"]
    until(
        lambda: _has_endpoint(plane, where["namespace"], where["name"]),
        f"{where['name']}'s endpoint",
        timeout_s,
    )
    try:
        plane.api.create(collection, service)
        until(lambda: _available(plane.api.get(path)), f"{where['name']}'s APIService", timeout_s)
        yield
    finally:
        plane.api.delete(path)


def _has_endpoint(plane: ControlPlane, namespace: str, name: str) -> bool:
    slices = plane.api.list(
        path_of("discovery.k8s.io/v1", "endpointslices", namespace),
        label_selector=f"kubernetes.io/service-name={name}",
    )
    return any(
        endpoint["conditions"].get("ready") for each in slices for endpoint in each.get("endpoints") or []
    )


def _available(service: Json | None) -> bool:
    conditions = (service or {}).get("status", {}).get("conditions") or []
    return any((condition["type"], condition["status"]) == ("Available", "True") for condition in conditions)
