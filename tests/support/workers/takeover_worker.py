"""Both ends of an order to take over: a group's key that signs orders, and a worker that only takes them."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slackwater.clock import SystemClock
from slackwater.runtime.config.worker_config import HealthConfig
from slackwater.runtime.takeover.http_handler import HttpResponse, TakeoverHandler, TakeoverRequests
from slackwater.runtime.takeover.signing import (
    ANSWER_HEADER,
    Verifier,
    check_answer,
    sign_request,
    target_of,
)
from slackwater.runtime.telemetry.http_server import HealthServer
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.status import Status
from tests.support.waiting import WAIT_S
from tests.support.workers.process import WorkerProcess


def target_at(port: int) -> str:
    """The target that a request to the worker on a port of this machine must be signed for."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", "/status")
        status = json.loads(connection.getresponse().read())
        return target_of(status["pod"], status["process"])
    finally:
        connection.close()


class TakeoverKey:
    """The key of a group's takeovers, in a file as a pod has it.

    Attributes:
        file: for ``takeover.keyFile`` of a worker's configuration.
    """

    def __init__(self, folder: Path) -> None:
        self._key = secrets.token_bytes(32)
        self.file = folder / "key"
        self.file.write_text(self._key.hex() + "\n")

    def order(
        self,
        worker: WorkerProcess,
        predecessor: WorkerProcess | None,
        *,
        key: bytes | None = None,
        trace: str = "",
    ) -> tuple[int, dict[str, Any]]:
        """POST /takeover to ``worker``: the answer's status and document.

        ``predecessor``: None: the order names none. ``key``: another key to sign with; then the signature of
        the answer is not checked. ``trace``: its header ``traceparent``.
        """
        address = predecessor.address if predecessor is not None else ""
        body = json.dumps({"predecessor": address}).encode()
        nonce, now_ms = secrets.token_hex(16), int(time.time() * 1000)
        signed = sign_request(
            key or self._key, "POST", "/takeover", body,
            now_ms=now_ms, nonce=nonce, target=target_at(worker.port),
        )  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=WAIT_S)
        try:
            headers = {"Authorization": signed} | ({"traceparent": trace} if trace else {})
            connection.request("POST", "/takeover", body, headers)
            answer = connection.getresponse()
            document = answer.read()
            if key is None:
                signature = answer.getheader(ANSWER_HEADER, "")
                assert check_answer(self._key, nonce, answer.status, document, signature)
            return answer.status, json.loads(document)
        finally:
            connection.close()


class TakeoverWorker(TakeoverHandler):
    """A worker's HTTP server and handler for takeovers, without the worker.

    It takes orders that are signed with `key`.

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
        self.takeover_requests = TakeoverRequests(SystemClock())
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
        self.trace = ""
        """What the header of the last order says."""

    def answer(
        self, method: str, path: str, body: bytes, authorization: str | None, peer: str, trace: str = ""
    ) -> HttpResponse:
        """As the worker's own does, with the key of now."""
        self.requests += 1
        verifier = Verifier(self.key, SystemClock(), self.status.target)
        handler = TakeoverHandler(self.signs_with or self.key, verifier, self.takeover_requests, self.status)
        answer = handler.answer(method, path, body, authorization, peer, trace)
        order = self.takeover_requests.next_order()
        self.trace = self.takeover_requests.trace
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
