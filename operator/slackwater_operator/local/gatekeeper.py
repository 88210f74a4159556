"""Opens a worker's gate: POST /join on its health port."""

from __future__ import annotations

import asyncio
import secrets
import time

from slackwater.runtime.takeover.signing import sign_request, target_of

_REQUEST = "POST /join HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n"


class GateError(Exception):
    """A gate that could not be opened; the next reconciliation tries again."""


async def open_gate(port: int, pod: str, process: str, *, key: bytes = b"", timeout_s: float = 5.0) -> None:
    """Lets the worker whose health endpoint listens on this loopback port join the group.

    Args:
        port: the port.
        pod: what the worker's process is called.
        process: the token of the process's start: no other process takes the request.
        key: what the request is signed with, for workers that have this key; empty: none has one.
        timeout_s: how long it may take.

    Raises:
        GateError: it did not answer, or not with success.
    """
    head = _REQUEST
    if key:
        now_ms, nonce = time.time_ns() // 1_000_000, secrets.token_hex(16)
        target = target_of(pod, process)
        signed = sign_request(key, "POST", "/join", b"", now_ms=now_ms, nonce=nonce, target=target)
        head += f"Authorization: {signed}\r\n"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"{head}\r\n".encode())
                await writer.drain()
                status = (await reader.readline()).split()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError) as error:
        raise GateError(f"no answer on port {port}: {error or 'too slow'}") from None
    if len(status) < 2 or not status[1].startswith(b"2"):
        raise GateError(f"port {port} answered {b' '.join(status).decode('latin-1')!r}")
