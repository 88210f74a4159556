"""The kubelet's client of the API server: JSON requests, and watches that never end."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.controlplane.api import ApiError, Json

RETRY_S = 0.1
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


@dataclass(frozen=True)
class Change:
    """What a watch saw. ``type``: LISTED (``items`` is everything there is), ADDED, MODIFIED or DELETED."""

    type: str
    object: Json
    items: tuple[Json, ...] = ()


class AsyncApi:
    """One session to the API server of ``kubeconfig`` (JSON, a client certificate)."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.url: str = cluster["server"]
        self.ca = Path(cluster["certificate-authority"])
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(user["client-certificate"], user["client-key"])
        self._session = aiohttp.ClientSession(
            self.url,
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            timeout=aiohttp.ClientTimeout(total=10),
        )

    async def close(self) -> None:
        """Closes the session."""
        await self._session.close()

    async def request(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json"
    ) -> Json:
        """The answer. Raises :class:`ApiError`, or ``aiohttp.ClientError``, ``OSError``, ``TimeoutError``."""
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, path, data=data, headers={"Content-Type": content_type}
        ) as response:
            return await _answer(response)

    async def insist(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json"
    ) -> Json:
        """As :meth:`request`, tried until the API server answers it; raises :class:`ApiError` only.

        A server that has just started answers 403 and 429 for a moment.
        """
        refusals = 0
        while True:
            try:
                return await self.request(method, path, body, content_type=content_type)
            except (aiohttp.ClientError, OSError, TimeoutError):
                pass
            except ApiError as exc:
                refusals += exc.status == 403
                if (exc.status not in (403, 429) and exc.status < 500) or refusals > 50:
                    raise
            await asyncio.sleep(RETRY_S)

    async def watch(self, path: str, *, metadata_only: bool = False) -> AsyncIterator[Change]:
        """Lists, then tells of each change; lists again whenever the watch breaks. Never ends."""
        accept = {"Accept": _METADATA_LIST if metadata_only else "application/json"}
        while True:
            try:
                async with self._session.get(path, headers=accept) as response:
                    listed = await _answer(response)
                yield Change("LISTED", {}, tuple(listed["items"] or ()))
                async for change in self._follow(path, listed["metadata"]["resourceVersion"], metadata_only):
                    yield change
            except (aiohttp.ClientError, OSError, TimeoutError, ApiError):
                pass
            await asyncio.sleep(RETRY_S)

    async def _follow(self, path: str, version: str, metadata_only: bool) -> AsyncIterator[Change]:
        accept = {"Accept": _METADATA if metadata_only else "application/json"}
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "false"}
        endless = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with self._session.get(path, params=query, headers=accept, timeout=endless) as response:
            if response.status >= 400:
                await _answer(response)
            async for line in _lines(response.content):
                change = json.loads(line)
                if change["type"] == "ERROR":
                    return
                yield Change(change["type"], change["object"])


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    # Not `async for line in content`, which refuses lines of more than 128 KiB.
    rest = b""
    async for chunk in content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line


async def _answer(response: aiohttp.ClientResponse) -> Json:
    data = await response.read()
    try:
        body: Any = json.loads(data)
    except ValueError:
        body = {"message": data.decode(errors="replace")}
    if response.status >= 400:
        raise ApiError(response.status, body if isinstance(body, Mapping) else {"message": str(body)})
    return dict(body)
