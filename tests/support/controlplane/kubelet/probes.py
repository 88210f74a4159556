"""A container's probes and hooks: httpGet, tcpSocket, exec, and a hook's sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import aiohttp

from tests.support.controlplane.api import Json
from tests.support.controlplane.kubelet.processes import run_inside


@dataclass(frozen=True)
class Target:
    """The container that is asked."""

    pid: int
    address: str
    ports: Mapping[str, int]
    environment: Mapping[str, str]


async def act(handler: Json, target: Target, timeout_s: float) -> str:
    """Carries out a probe's or a hook's handler: why it failed, empty where it succeeded."""
    try:
        if "httpGet" in handler:
            return await _http_get(handler["httpGet"], target, timeout_s)
        if "tcpSocket" in handler:
            return await _tcp_socket(handler["tcpSocket"], target, timeout_s)
        if "exec" in handler:
            code, output = await run_inside(
                target.pid, handler["exec"]["command"], target.environment, timeout_s
            )
            return "" if code == 0 else f"exit code {code}: {output[-500:]}"
        if "sleep" in handler:
            await asyncio.sleep(handler["sleep"]["seconds"])
            return ""
    except (aiohttp.ClientError, OSError, TimeoutError) as exc:
        return f"{type(exc).__name__}: {exc}"
    return f"this kubelet cannot do {', '.join(sorted(handler))}"


def _port(given: int | str, target: Target) -> int:
    if isinstance(given, int):
        return given
    if given not in target.ports:
        raise ConnectionError(f"the container has no port called {given}")
    return target.ports[given]


async def _http_get(wanted: Json, target: Target, timeout_s: float) -> str:
    scheme = wanted.get("scheme", "HTTP").lower()
    host = wanted.get("host") or target.address
    headers = {header["name"]: header["value"] for header in wanted.get("httpHeaders", [])}
    url = f"{scheme}://{host}:{_port(wanted['port'], target)}{wanted.get('path', '/')}"
    limit = aiohttp.ClientTimeout(total=timeout_s)
    async with (
        aiohttp.ClientSession(timeout=limit) as session,
        session.get(url, headers=headers, allow_redirects=False, ssl=False) as response,
    ):
        if response.status < 400:
            return ""
        return f"HTTP probe failed with statuscode: {response.status}"


async def _tcp_socket(wanted: Json, target: Target, timeout_s: float) -> str:
    host = wanted.get("host") or target.address
    opening = asyncio.open_connection(host, _port(wanted["port"], target))
    _, writer = await asyncio.wait_for(opening, timeout_s)
    writer.close()
    return ""


async def watch(
    probe: Json,
    target: Target,
    on_result: Callable[[bool, str], Awaitable[bool]],
) -> None:
    """Probes until ``on_result(succeeded, why)`` says True: called when a threshold is reached.

    The first probe comes after ``initialDelaySeconds``, without the kubelet's random part of a period.
    """
    successes = failures = 0
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    while True:
        why = await act(probe, target, probe.get("timeoutSeconds", 1))
        successes, failures = (successes + 1, 0) if not why else (0, failures + 1)
        reached = successes >= probe.get("successThreshold", 1) or failures >= probe.get(
            "failureThreshold", 3
        )
        if reached and await on_result(not why, why):
            return
        await asyncio.sleep(probe.get("periodSeconds", 10))
