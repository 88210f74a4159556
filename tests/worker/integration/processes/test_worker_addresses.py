"""Where the endpoints of a worker answer."""

from __future__ import annotations

import socket

import pytest

from tests.worker.unit.runtime.worker.test_runtime_worker import Endpoint


@pytest.mark.parametrize("dual_stack", [True, False], ids=["IPv4 and IPv6", "a node without IPv6"])
def test_a_worker_in_a_pod_answers_on_loopback_where_port_forward_connects(
    dual_stack: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not dual_stack:
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    everywhere = Endpoint("::")
    hosts = ["127.0.0.1", "127.0.0.7", *(["::1"] if socket.has_dualstack_ipv6() else [])]
    try:
        assert [everywhere.ask("GET", "/healthz", host)[0] for host in hosts] == [200] * len(hosts)
    finally:
        everywhere.server.close()
