"""A worker's own HTTP server and handler for takeovers, without the worker: for who tells it to take over."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator

from slackwater.clock import SystemClock
from slackwater.runtime.config.worker_config import HealthConfig
from slackwater.runtime.takeover.http_handler import Answer, TakeoverHandler, TakeoverRequests
from slackwater.runtime.takeover.signing import Verifier, target_of
from slackwater.runtime.telemetry.http_server import HealthServer
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.status import Status


def target_at(port: int) -> str:
    """Whom a request to the worker on a port of this machine must be signed for."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/status")
        told = json.loads(connection.getresponse().read())
        return target_of(told["pod"], told["process"])
    finally:
        connection.close()


class TakeoverWorker(TakeoverHandler):
    """Takes orders that are signed with `key`.

    Attributes:
        key: the worker's key; may be changed.
        signs_with: what answers are signed with; None: with `key`. No worker has two keys.
        takeover_requests: where orders arrive; it takes them.
        status: its /status.
        orders: those that were taken: the predecessors' addresses.
        requests: how many came, taken or not.
        port: where it listens.
    """

    def __init__(self, key: bytes, process: str | None = None) -> None:
        """`process`: the token of its process's start; "": as an older version, None: a random one."""
        self.key = key
        self.signs_with: bytes | None = None
        self.takeover_requests = TakeoverRequests()
        self.status = Status("flights", "flights-3", SystemClock())
        if process is not None:
            self.status.process = process
        self.status.enter("standby")
        self.takeover_requests.accept_orders()
        self.orders: list[str] = []
        self.requests = 0
        self.port = 0
        verifier = Verifier(key, SystemClock(), self.status.target)
        super().__init__(key, verifier, self.takeover_requests, self.status)

    def answer(self, method: str, path: str, body: bytes, authorization: str | None, peer: str) -> Answer:
        """As the worker's own does, with the key of now."""
        self.requests += 1
        verifier = Verifier(self.key, SystemClock(), self.status.target)
        handler = TakeoverHandler(self.signs_with or self.key, verifier, self.takeover_requests, self.status)
        answer = handler.answer(method, path, body, authorization, peer)
        order = self.takeover_requests.next_order()
        if order is not None:
            self.orders.append(order)
        return answer

    @contextlib.contextmanager
    def serve(self, *, keyless: bool = False) -> Iterator[None]:
        """Listens on `port`. `keyless`: as one without a key."""
        metrics = Metrics(group="flights", instance="flights-3")
        server = HealthServer(
            HealthConfig(), self.status, metrics, takeover_handler=None if keyless else self
        )
        self.port = server.port
        server.serve()
        try:
            yield
        finally:
            server.close()
