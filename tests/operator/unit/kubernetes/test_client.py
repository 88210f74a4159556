"""`Kube` and what a server answers that is no API server. The e2e tests have a real one."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from slackwater_operator.kubernetes import client
from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeUnavailable
from tests.operator.unit.kubernetes.kubeconfig_files import access_to


async def test_an_answer_has_a_limit_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b'{"gitVersion":"', b"v" * 80, b'"}'):
            await response.write(part)
        return response

    monkeypatch.setattr(client, "ANSWER_MAX_BYTES", 97)
    application = web.Application()
    application.router.add_get("/version", answer)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ((_, port),) = runner.addresses
        kube = Kube(await access_to(monkeypatch, tmp_path, {}, server=f"http://127.0.0.1:{port}"))
        assert await kube.version() == "v" * 80
        monkeypatch.setattr(client, "ANSWER_MAX_BYTES", 96)
        with pytest.raises(KubeUnavailable, match="more than 96 bytes") as raised:
            await kube.version()
        assert raised.value.reason == "TooLarge"
        await kube.close()
    finally:
        await runner.cleanup()
