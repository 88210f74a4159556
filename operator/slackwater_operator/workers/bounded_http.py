"""HTTP requests to pods and Prometheus. Answers are not trusted: no redirects or decompression, few bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import aiohttp


class BadAnswer(Exception):
    """An answer that is not read. The message says why."""


class Answer(NamedTuple):
    """An answer's status, its headers, and its body as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def bounded_session(
    timeout_s: float, *, connector: aiohttp.TCPConnector | None = None
) -> aiohttp.ClientSession:
    """A session for `request`: one deadline for each request with connecting, no proxies, no cookies."""
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        trust_env=False,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity"},
    )


async def request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    most_bytes: int,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    server_name: str = "",
) -> Answer:
    """Makes a request. A redirect is an answer like any other; bytes are counted as they come.

    Args:
        session: a `bounded_session`.
        method: GET, POST and so on.
        url: where to.
        most_bytes: how long the answer's body may be.
        body: what is sent.
        headers: beside the usual ones.
        server_name: what the server's certificate must be valid for; "": the URL's host.

    Raises:
        BadAnswer: the body is longer, or packed.
        aiohttp.ClientError, TimeoutError, OSError: there is no answer, or not all of it.
    """
    sent = session.request(
        method,
        url,
        data=body or None,
        headers=headers,
        allow_redirects=False,
        server_hostname=server_name or None,
    )
    async with sent as answer:
        if answer.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise BadAnswer("the response is compressed (Content-Encoding), which was not requested")
        parts, size = [], 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > most_bytes:
                raise BadAnswer(f"the response is larger than {most_bytes} bytes")
            parts.append(part)
        return Answer(answer.status, answer.headers, b"".join(parts))
