"""A small synchronous client of the API server for the tests: plain paths and JSON, no object is cached."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from tests.support.waiting import HANG_S, WAIT_S

T = TypeVar("T")
Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class ApiError(Exception):
    """The API server refused: ``status`` (HTTP), ``reason`` and ``message`` as it said them."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        self.status = status
        self.reason = str(body.get("reason", ""))
        self.message = str(body.get("message", ""))
        self.body = body
        super().__init__(f"{status} {self.reason}: {self.message}")


def path_of(api_version: str, plural: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """``path_of("apps/v1", "statefulsets", "ns", "x", "scale")`` is the path of that."""
    root = "/api" if "/" not in api_version else "/apis"
    parts = [api_version]
    if namespace:
        parts += ["namespaces", namespace]
    parts += [part for part in (plural, name, subresource) if part]
    return f"{root}/{'/'.join(quote(part, safe='/') for part in parts)}"


class Api:
    """Requests to one API server. Safe to use from many threads.

    Each thread keeps a connection for its reads: tests poll, and a new connection costs client and server
    four times the CPU of a request. A write has a connection of its own, so that none is sent twice.

    ``url``: https://host:port. ``ca``: its authority. Either a client certificate (``certificate`` and
    ``key``) or a bearer ``token``.
    """

    def __init__(
        self,
        url: str,
        ca: Path,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        token: str = "",
        timeout_s: float = HANG_S,
    ) -> None:
        self._address = urlsplit(url).netloc
        self._context = ssl.create_default_context(cafile=str(ca))
        if certificate is not None:
            self._context.load_cert_chain(str(certificate), None if key is None else str(key))
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s
        self._kept = threading.local()

    def request(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json"
    ) -> Any:
        """The answer's JSON (text for ``/healthz`` and the like). Raises ApiError and OSError."""
        headers = {**self._headers, "Accept": "application/json", "Content-Type": content_type}
        text = None if body is None else json.dumps(body)
        try:
            status, data = (
                self._read(path, headers) if method == "GET" else self._send(method, path, text, headers)
            )
        except http.client.HTTPException as exc:
            raise ConnectionError(f"{method} {path}: {exc!r}") from exc
        try:
            answer = json.loads(data)
        except ValueError:
            answer = data.decode(errors="replace")
        if status >= 400:
            raise ApiError(status, answer if isinstance(answer, dict) else {"message": answer})
        return answer

    def _send(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        with contextlib.closing(self._connect()) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()

    def _read(self, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """A GET on this thread's connection, or on a new one where that is none or has ended."""
        connection: http.client.HTTPSConnection | None = getattr(self._kept, "connection", None)
        if connection is not None:
            try:
                return self._exchange(connection, path, headers)
            except TimeoutError:
                raise
            except (OSError, http.client.HTTPException):
                pass  # the server may have closed it, or be another one by now
        connection = self._connect()
        answer = self._exchange(connection, path, headers)
        self._kept.connection = connection
        return answer

    def _exchange(
        self, connection: http.client.HTTPSConnection, path: str, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        try:
            connection.request("GET", path, None, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except BaseException:
            self._kept.connection = None
            connection.close()
            raise

    def _connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._address, context=self._context, timeout=self._timeout_s)

    def get(self, path: str) -> Json | None:
        """The object at ``path``; None when there is none."""
        try:
            document: Json = self.request("GET", path)
        except ApiError as exc:
            if exc.status == 404:
                return None
            raise
        return document

    def list(self, path: str, *, label_selector: str = "", field_selector: str = "") -> list[Json]:
        """The items of the collection at ``path``."""
        query = f"?labelSelector={quote(label_selector)}&fieldSelector={quote(field_selector)}"
        items: list[Json] = self.request("GET", path + query)["items"]
        return items

    def create(self, path: str, body: Mapping[str, Any]) -> Json:
        """Creates ``body`` in the collection at ``path``."""
        made: Json = self.request("POST", path, body)
        return made

    def patch(self, path: str, body: object, *, content_type: str = MERGE_PATCH) -> Json:
        """Patches the object at ``path`` (a merge patch unless said otherwise)."""
        patched: Json = self.request("PATCH", path, body, content_type=content_type)
        return patched

    def delete(self, path: str, *, grace_s: int | None = None, propagation: str = "Background") -> bool:
        """Deletes the object at ``path``; False when there was none."""
        options: Json = {"propagationPolicy": propagation}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self.request("DELETE", path, options)
        except ApiError as exc:
            if exc.status == 404:
                return False
            raise
        return True

    def evict(self, namespace: str, pod: str) -> None:
        """Asks for the eviction of a pod. Raises :class:`ApiError` 429 where a budget does not allow it."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        self.create(path_of("v1", "pods", namespace, pod, "eviction"), body)


def until(probe: Callable[[], T | None], what: str, timeout_s: float = WAIT_S, every_s: float = 0.05) -> T:
    """The first true answer of ``probe``.

    What a client would try again counts as "not yet" on the way: a connection that fails, a 404, a 409, a
    429, and that the server or its etcd is too busy (5xx). Raises :class:`TimeoutError` naming ``what`` and
    the last thing that was seen.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        last: object
        try:
            last = answer = probe()
            if answer:
                return answer
        except OSError as exc:
            last = exc
        except ApiError as exc:
            if exc.status not in (404, 409, 429) and exc.status < 500:
                raise
            last = exc
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s; last seen: {last!r}")
        time.sleep(every_s)
