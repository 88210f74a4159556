"""Requests to the API server, each within a limit of time and of bytes, over one pool of connections.

On aiohttp directly: the official client builds a model of every answer and asks for the whole API at its
start. `access.py` finds the server and the credentials.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any, Self

import aiohttp

from slackwater_operator.kubernetes import kinds
from slackwater_operator.kubernetes.access import Access
from slackwater_operator.kubernetes.errors import KubeConflict, KubeError, KubeUnavailable, from_answer
from slackwater_operator.kubernetes.object_api import MANAGER, Object

logger = logging.getLogger(__name__)

STATUS_MANAGER = "slackwater-operator-status"
REQUEST_TIMEOUT_S = 10.0
PAGE = 250
"""Objects a page of a list: the whole of 1000 pods at once would be some 40 MB for a moment."""
KINDS_MAX_AGE_S = 60.0
ANSWER_MAX_BYTES = 64 << 20
"""A page of the largest objects that etcd stores (1.5 MiB) could have more; of ours it has some 10 MB."""

_REVIEWS = "authorization.k8s.io/v1"
_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_MERGE = "application/merge-patch+json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class Kube:
    """One API server. Every request ends within the time limit, or raises `KubeUnavailable`.

    Errors: `KubeConflict` 409, `KubeForbidden` 401 and 403, `KubeInvalid` 400 and 422, `KubeUnavailable` no
    connection, no answer in time, 429 and 5xx; else `KubeError`. Requests are not repeated here; the
    next reconciliation repeats them.
    """

    def __init__(
        self, access: Access, *, request_timeout_s: float = REQUEST_TIMEOUT_S, manager: str = MANAGER
    ) -> None:
        """Use `connect`. Needs a running loop; no request is made yet.

        Args:
            access: where and as whom.
            request_timeout_s: of each request, with connecting and reading the answer.
            manager: the field manager of what is written, but for statuses.
        """
        self.access = access
        self._timeout_s, self._manager = request_timeout_s, manager
        self._session = access.session(timeout_s=request_timeout_s, user_agent=manager)
        self._served: dict[str, tuple[float, dict[str, str]]] = {}
        self._warned: set[str] = set()

    @classmethod
    async def connect(
        cls, *, request_timeout_s: float = REQUEST_TIMEOUT_S, context: str = "", manager: str = MANAGER
    ) -> Self:
        """Connects by KUBECONFIG (if set, or a context is named), else a pod's account, else ~/.kube/config.

        Raises:
            KubeConfigError: there is none of these, or it is unusable.
        """
        return cls(await Access.find(context), request_timeout_s=request_timeout_s, manager=manager)

    async def get(
        self, api_version: str, kind: str, namespace: str, name: str, *, metadata_only: bool = False
    ) -> Object | None:
        """The object, or None where there is none."""
        path = await self._path(api_version, kind, namespace, name)
        try:
            return await self._request("GET", path, accept=_METADATA if metadata_only else _JSON)
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        label_selector: str = "",
        *,
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> list[Object]:
        """All objects of a kind, page by page; each with its `apiVersion` and `kind`.

        Args:
            api_version: of the kind.
            kind: of the objects.
            namespace: where; None: everywhere.
            label_selector: which; empty: all.
            field_selector: which, by fields that the API server can select by; empty: all.
            metadata_only: without spec, status and data.
        """
        path = await self._path(api_version, kind, namespace or "")
        query = {"limit": str(PAGE)}
        if label_selector:
            query["labelSelector"] = label_selector
        if field_selector:
            query["fieldSelector"] = field_selector
        objects: list[Object] = []
        while True:
            accept = _METADATA_LIST if metadata_only else _JSON
            page = await self._request("GET", path, query=query, accept=accept)
            objects += [{**item, "apiVersion": api_version, "kind": kind} for item in page.get("items") or ()]
            more = page.get("metadata", {}).get("continue", "")
            if not more:
                return objects
            query["continue"] = more

    async def apply(self, manifest: Object, *, force: bool = True, dry_run: bool = False) -> Object:
        """Server-side apply; gives the object as it is now.

        An apply that changes nothing leaves the resourceVersion as it is. A field that was applied before
        and is left out now is removed, or falls back to its default (`replicas`: to 1).

        Args:
            manifest: what the operator wants, with apiVersion, kind, name and namespace.
            force: take over fields that belong to others; else `KubeConflict` names them.
            dry_run: only say what would come out.
        """
        return await self._apply(manifest, self._manager, subresource="", force=force, dry_run=dry_run)

    async def apply_status(self, manifest: Object) -> Object:
        """Server-side apply of `status` through its subresource, manager `slackwater-operator-status`.

        Args:
            manifest: apiVersion, kind, metadata with name and namespace (and uid, so that it is no other),
                status.
        """
        return await self._apply(manifest, STATUS_MANAGER, subresource="status", force=True, dry_run=False)

    async def create(self, manifest: Object) -> Object:
        """Creates an object that must not be there yet; `KubeConflict` (`AlreadyExists`) where it is."""
        metadata = manifest["metadata"]
        path = await self._path(manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""))
        return await self._request("POST", path, query={"fieldManager": self._manager}, body=manifest)

    async def replace(self, manifest: Object) -> Object:
        """Replaces the object of the same resourceVersion; `KubeConflict` where that has changed."""
        path = await self._path_of(manifest)
        return await self._request("PUT", path, query={"fieldManager": self._manager}, body=manifest)

    async def patch(
        self, api_version: str, kind: str, namespace: str, name: str, body: Object, *, subresource: str = ""
    ) -> Object:
        """A JSON merge patch (RFC 7386); with a resourceVersion in it, `KubeConflict` where that differs."""
        path = await self._path(api_version, kind, namespace, name, subresource)
        return await self._request(
            "PATCH", path, query={"fieldManager": self._manager}, body=body, content_type=_MERGE
        )

    async def delete(
        self,
        api_version: str,
        kind: str,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        propagation: str = "Background",
        grace_s: int | None = None,
    ) -> bool:
        """Deletes an object. False: it was gone already, or is another one than `uid`.

        Args:
            api_version: of the kind.
            kind: of the object.
            namespace: its namespace.
            name: its name.
            uid: only this one (a precondition: the API server checks it).
            propagation: `Background`, `Foreground` or `Orphan`: what becomes of what it owns.
            grace_s: a pod's time to end; None: its own.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        path = await self._path(api_version, kind, namespace, name)
        try:
            await self._request("DELETE", path, body=options)
        except KubeConflict:
            if not uid:
                raise
            return False
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def served(self, api_version: str, kind: str, *, fresh: bool = False) -> bool:
        """Whether the API server knows that kind. Remembered for a minute, unless `fresh` asks anew."""
        if fresh:
            self._served.pop(api_version, None)
        return kind in await self._kinds_of(api_version)

    async def may(self, verb: str, api_version: str, kind: str, namespace: str | None = None) -> bool:
        """Whether this client has that right (a SelfSubjectAccessReview); None: in all namespaces."""
        group = api_version.rpartition("/")[0]
        resource = {"verb": verb, "group": group, "resource": kinds.plural_of(api_version, kind)}
        review = {
            "apiVersion": _REVIEWS,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**resource, "namespace": namespace or ""}},
        }
        path = kinds.path(_REVIEWS, "selfsubjectaccessreviews", "")
        return bool((await self._request("POST", path, body=review))["status"]["allowed"])

    async def pod_json(self, namespace: str, pod: str, port: int, path: str) -> Object:
        """What a pod answers at `path`, which the API server asks it (the right to get pods/proxy)."""
        proxy = kinds.path("v1", "pods", namespace, f"{pod}:{port}", "proxy")
        return await self._request("GET", proxy + path)

    async def version(self) -> str:
        """The API server's version, `v1.35.4`: the cheapest request that shows that it is there."""
        return str((await self._request("GET", "/version")).get("gitVersion", ""))

    async def close(self) -> None:
        """Closes the connections."""
        await self._session.close()

    # --- inside ---------------------------------------------------------------------------------------------

    async def _apply(
        self, manifest: Object, manager: str, *, subresource: str, force: bool, dry_run: bool
    ) -> Object:
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        if dry_run:
            query["dryRun"] = "All"
        path = await self._path_of(manifest, subresource)
        return await self._request("PATCH", path, query=query, body=manifest, content_type=_APPLY)

    async def _path_of(self, manifest: Object, subresource: str = "") -> str:
        metadata = manifest["metadata"]
        namespace = metadata.get("namespace", "")
        return await self._path(
            manifest["apiVersion"], manifest["kind"], namespace, metadata["name"], subresource
        )

    async def _path(
        self, api_version: str, kind: str, namespace: str, name: str = "", subresource: str = ""
    ) -> str:
        plural = kinds.plural_of(api_version, kind) or (await self._kinds_of(api_version)).get(kind)
        if plural is None:
            raise KubeError(404, "NotFound", f"the API server does not know {kind} of {api_version}")
        return kinds.path(api_version, plural, namespace, name, subresource)

    async def _kinds_of(self, api_version: str) -> dict[str, str]:
        """Kind -> its name in URLs, of a group and version; empty where that is not served."""
        at, known = self._served.get(api_version, (float("-inf"), {}))
        if time.monotonic() - at < KINDS_MAX_AGE_S:
            return known
        try:
            answer = await self._request("GET", kinds.base(api_version))
        except KubeError as error:
            if error.status != 404:
                raise
            answer = {}
        known = {
            str(resource["kind"]): str(resource["name"])
            for resource in answer.get("resources", ())
            if "/" not in resource["name"]
        }
        self._served[api_version] = (time.monotonic(), known)
        return known

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> Object:
        what = f"{method} {path}"
        try:
            async with self._session.request(
                method,
                self.access.server + path,
                params=query,
                data=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
                headers={"Accept": accept, "Content-Type": content_type},
                allow_redirects=False,
            ) as response:
                answer = _decode(await self._read(response, what))
                status, headers = response.status, response.headers
        except TimeoutError as error:
            raise KubeUnavailable(
                0, "Timeout", f"{what}: no response from {self.access.server} within {self._timeout_s:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise KubeUnavailable(
                0,
                "Unreachable",
                f"{what}: {self.access.server} cannot be reached: {error or type(error).__name__}",
            ) from error
        self._warn(headers.get("Warning", ""), what)
        if status >= 300:
            raise from_answer(status, answer, what, retry_after_s=_seconds(headers.get("Retry-After", "")))
        if not isinstance(answer, dict):
            raise KubeUnavailable(
                status,
                "NotJSON",
                f"{what}: the response does not come from a Kubernetes API server: {answer!r:.80}",
            )
        return answer

    async def _read(self, response: aiohttp.ClientResponse, what: str) -> bytes:
        try:
            await response.content.readexactly(ANSWER_MAX_BYTES + 1)
        except asyncio.IncompleteReadError as ended:
            return ended.partial
        raise KubeUnavailable(
            response.status,
            "TooLarge",
            f"{what}: {self.access.server} sent more than {ANSWER_MAX_BYTES} bytes: make the objects smaller",
        )

    def _warn(self, warning: str, what: str) -> None:
        """The API server's warnings (an unknown field, a deprecated version): each once."""
        if warning and warning not in self._warned and len(self._warned) < 1000:
            self._warned.add(warning)
            logger.warning("%s: API server warning: %s", what, warning)


def _decode(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode(errors="replace")


def _seconds(retry_after: str) -> float:
    return float(retry_after) if retry_after.isdecimal() else 0.0
