"""The controller's interface to its backend: objects and Events. `Kube` and `LocalObjects` implement it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, Protocol

Object = dict[str, Any]
Objects = list[Object]

MANAGER = "slackwater-operator"
"""The field manager of what the operator writes, but for statuses."""


class ObjectApi(Protocol):
    """Reads and writes objects. Errors: as `kubernetes.client.Kube`, which is one."""

    async def get(
        self, api_version: str, kind: str, namespace: str, name: str, *, metadata_only: bool = False
    ) -> Object | None:
        """The object, or None where there is none."""
        ...

    async def list(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        label_selector: str = "",
        *,
        field_selector: str = "",
    ) -> Objects:
        """The objects of a kind that the selectors choose."""
        ...

    async def apply(self, manifest: Object) -> Object:
        """Server-side apply; gives the object as it is now."""
        ...

    async def apply_status(self, manifest: Object) -> Object:
        """Server-side apply of `status` alone."""
        ...

    async def create(self, manifest: Object) -> Object:
        """Creates an object that must not be there yet; else `KubeConflict`."""
        ...

    async def patch(self, api_version: str, kind: str, namespace: str, name: str, body: Object) -> Object:
        """A JSON merge patch; with a uid or resourceVersion in it, `KubeConflict` where that differs."""
        ...

    async def delete(
        self,
        api_version: str,
        kind: str,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        grace_s: int | None = None,
    ) -> bool:
        """Deletes an object. False: it was gone already, or is another one than `uid`."""
        ...

    async def served(self, api_version: str, kind: str) -> bool:
        """Whether objects of that kind can be kept."""
        ...


class EventRecorder(Protocol):
    """Posts Events about an object."""

    def post(
        self,
        regarding: Object,
        reason: str,
        message: str,
        *,
        kind: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Returns at once and raises nothing."""
        ...


def micro_time(at_ms: int) -> str:
    """A meta/v1 MicroTime: RFC 3339 in UTC, always with six digits: `2026-01-02T03:04:05.678000Z`."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"
