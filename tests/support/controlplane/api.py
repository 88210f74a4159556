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
DRY_RUN = "dryRun=All"
STRICTLY = "fieldValidation=Strict"


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


def _collection(namespace: str, document: Mapping[str, Any]) -> str:
    """Where the objects of its kind are. Each kind of ours has a regular plural."""
    return path_of(document["apiVersion"], f"{document['kind'].lower()}s", namespace)


Warnings = list[str]
Answer = tuple[int, bytes, Warnings]
"""Its HTTP status, its body and the API server's warnings."""


def _answer(
    connection: http.client.HTTPSConnection,
    method: str,
    path: str,
    body: str | None,
    headers: Mapping[str, str],
) -> Answer:
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.read(), response.headers.get_all("Warning") or []


class Api:
    """Requests to one API server. Safe to use from many threads.

    Each thread keeps a connection for its reads: tests poll, and a new connection costs client and server
    four times the CPU of a request. A write that may not arrive twice has a connection of its own.

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
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        repeatable: bool = False,
        warnings: Warnings | None = None,
    ) -> Any:
        """The answer's JSON (text for ``/healthz`` and the like). Raises ApiError and OSError.

        ``repeatable``: it may arrive twice, as each GET may. ``warnings``: gets those of the API server.
        """
        headers = {**self._headers, "Accept": accept, "Content-Type": content_type}
        text = None if body is None else json.dumps(body)
        ask = self._ask if repeatable or method == "GET" else self._send
        try:
            status, data, warned = ask(method, path, text, headers)
        except http.client.HTTPException as exc:
            raise ConnectionError(f"{method} {path}: {exc!r}") from exc
        if warnings is not None:
            warnings += warned
        try:
            answer = json.loads(data)
        except ValueError:
            answer = data.decode(errors="replace")
        if status >= 400:
            raise ApiError(status, answer if isinstance(answer, dict) else {"message": answer})
        return answer

    def _send(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Answer:
        """On a connection of its own."""
        with contextlib.closing(self._connect()) as connection:
            return _answer(connection, method, path, body, headers)

    def _ask(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Answer:
        """On this thread's connection, or on a new one where that is none or has ended."""
        connection: http.client.HTTPSConnection | None = getattr(self._kept, "connection", None)
        if connection is not None:
            try:
                return self._exchange(connection, method, path, body, headers)
            except TimeoutError:
                raise
            except (OSError, http.client.HTTPException):
                pass  # the server may have closed it, or be another one by now
        connection = self._connect()
        answer = self._exchange(connection, method, path, body, headers)
        self._kept.connection = connection
        return answer

    def _exchange(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        body: str | None,
        headers: Mapping[str, str],
    ) -> Answer:
        try:
            return _answer(connection, method, path, body, headers)
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

    def try_out(
        self, namespace: str, document: Mapping[str, Any], *, warnings: Warnings | None = None
    ) -> Json:
        """What the API server would store of a new ``document``; it stores nothing.

        It refuses unknown fields, as it does for kubectl. Raises :class:`ApiError`.
        """
        path = f"{_collection(namespace, document)}?{STRICTLY}&{DRY_RUN}"
        tried: Json = self.request("POST", path, document, repeatable=True, warnings=warnings)
        return tried

    def apply(
        self,
        namespace: str,
        document: Mapping[str, Any],
        *,
        dry_run: bool = False,
        manager: str = "slackwater-operator",
        warnings: Warnings | None = None,
    ) -> Json:
        """Server-side apply, as the operator does it. With ``dry_run`` nothing is stored."""
        query = f"fieldManager={manager}&force=true&{STRICTLY}" + (f"&{DRY_RUN}" if dry_run else "")
        path = f"{_collection(namespace, document)}/{quote(document['metadata']['name'])}?{query}"
        applied: Json = self.request(
            "PATCH", path, document, content_type=APPLY_PATCH, repeatable=True, warnings=warnings
        )
        return applied

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
