"""The operator's HTTP: `/healthz`, `/readyz`, `/metrics`. No authentication: it tells no secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from slackwater_operator.metrics import CONTENT_TYPE, Metrics

Verdict = tuple[bool, str]
"""Whether all is well, and what to say."""


class HealthServer:
    """Serves until it is closed."""

    def __init__(
        self, metrics: Metrics, healthy: Callable[[], Verdict], ready: Callable[[], Verdict]
    ) -> None:
        """Does nothing yet.

        Args:
            metrics: what is scraped.
            healthy: whether this process should live on.
            ready: whether it does what it should: leads with full caches, or waits.
        """
        self._metrics = metrics
        self._healthy = healthy
        self._ready = ready
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listens.

        Args:
            host: an address of this machine; "": all, IPv4 and IPv6.
            port: 0: any; `port` says which.

        Raises:
            OSError: the address cannot be had.
        """
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_text)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host or None, port, shutdown_timeout=0.2).start()
        except BaseException:
            await self.close()
            raise
        self.port = int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stops listening."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self._healthy())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self._ready())

    async def _metrics_text(self, _: web.Request) -> web.Response:
        text = await asyncio.to_thread(self._metrics.text)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


def _answer(verdict: Verdict) -> web.Response:
    well, text = verdict
    return web.Response(status=200 if well else 503, text=text + "\n")
