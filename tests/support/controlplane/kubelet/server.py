"""What the kubelet serves: containers' logs to the API server, and a socket for the tests."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

from aiohttp import web

from tests.support.controlplane.kubelet.container import Container
from tests.support.controlplane.kubelet.node import NodeContext
from tests.support.controlplane.kubelet.pod_runner import PodRunner
from tests.support.controlplane.pods import SOCKET_NAME

FOLLOW_S = 0.1


class KubeletServer:
    """``kubectl logs`` by HTTPS (for clients that the authority knows); the tests' socket in the folder."""

    def __init__(
        self,
        context: NodeContext,
        runners: Mapping[str, PodRunner],
        switch_off: Callable[[str], None],
    ) -> None:
        self._context = context
        self._runners = runners
        self._switch_off = switch_off
        self._served: list[web.AppRunner] = []

    async def start(self) -> int:
        """The port of the HTTPS server."""
        logs = web.Application()
        logs.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        served = web.AppRunner(logs, access_log=None, shutdown_timeout=0.1)
        await served.setup()
        await web.TCPSite(served, "127.0.0.1", 0, ssl_context=self._tls()).start()
        control = web.Application()
        control.router.add_get("/processes", self._processes)
        control.router.add_post("/signal", self._signal)
        control.router.add_post("/switch-off", self._node_off)
        answering = web.AppRunner(control, access_log=None, shutdown_timeout=0.1)
        await answering.setup()
        socket_path = self._context.directory / SOCKET_NAME
        socket_path.unlink(missing_ok=True)
        await web.UnixSite(answering, str(socket_path)).start()
        self._served = [served, answering]
        return int(served.addresses[0][1])

    async def stop(self) -> None:
        """Stops serving."""
        for served in self._served:
            await served.cleanup()

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self._context.api.ca))
        context.verify_mode = ssl.CERT_REQUIRED
        pki = self._context.api.ca.parent
        context.load_cert_chain(str(pki / "test-kubelet.crt"), str(pki / "test-kubelet.key"))
        return context

    # --- logs -------------------------------------------------------------------------------------

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        path = self._log_path(request)
        if path is None:
            return web.Response(status=404, text="no such container, or it has not started\n")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        data = path.read_bytes()
        tail = request.query.get("tailLines")
        if tail is not None:
            data = b"".join(data.splitlines(keepends=True)[-int(tail) :]) if int(tail) else b""
        await response.write(data)
        if request.query.get("follow") == "true":
            await self._follow(path, path.stat().st_size, response, request)
        return response

    async def _follow(
        self, path: Path, position: int, response: web.StreamResponse, request: web.Request
    ) -> None:
        while True:
            running = self._container(request)
            with path.open("rb") as log:
                log.seek(position)
                more = log.read()
            position += len(more)
            if more:
                await response.write(more)
            if running is None or running[1].process is None or not running[1].process.running:
                return
            await asyncio.sleep(FOLLOW_S)

    def _container(self, request: web.Request) -> tuple[PodRunner, Container] | None:
        wanted = request.match_info
        for runner in self._runners.values():
            if (runner.namespace, runner.name) == (wanted["namespace"], wanted["pod"]):
                for container in runner.containers:
                    if container.name == wanted["container"]:
                        return runner, container
        return None

    def _log_path(self, request: web.Request) -> Path | None:
        chosen = self._container(request)
        if chosen is None:
            return None
        runner, container = chosen
        run = container.restarts - (request.query.get("previous") == "true")
        path = self._context.log(runner.pod, container.name, run)
        return path if path.exists() else None

    # --- the tests' socket ------------------------------------------------------------------------

    async def _processes(self, request: web.Request) -> web.Response:
        return web.json_response(
            [
                {
                    "namespace": runner.namespace,
                    "pod": runner.name,
                    "uid": runner.uid,
                    "container": container.name,
                    "node": runner.node,
                    "ip": runner.address,
                    "pid": container.process.pid if container.process and container.process.running else 0,
                    "restarts": container.restarts,
                    "log": str(self._context.log(runner.pod, container.name, container.restarts)),
                }
                for runner in self._runners.values()
                for container in runner.containers
            ]
        )

    async def _signal(self, request: web.Request) -> web.Response:
        wanted = json.loads(await request.text())
        pids = [
            container.process.pid
            for runner in self._runners.values()
            for container in runner.containers
            if container.process is not None and container.process.running
        ]
        if wanted["pid"] not in pids:
            return web.Response(status=404, text=f"no container has the process {wanted['pid']}")
        os.killpg(wanted["pid"], wanted["signal"])
        return web.json_response({})

    async def _node_off(self, request: web.Request) -> web.Response:
        self._switch_off(json.loads(await request.text())["node"])
        return web.json_response({})
