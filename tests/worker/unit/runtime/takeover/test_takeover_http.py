"""The endpoints of a takeover over real sockets, and the client that one pod asks another with."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from slackwater.clock import SystemClock
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.config.worker_config import HealthConfig
from slackwater.runtime.takeover.http_client import HttpPeers, NoAnswer, Unreachable, Unsigned
from slackwater.runtime.takeover.http_handler import TakeoverHandler, TakeoverRequests
from slackwater.runtime.takeover.messages import HandoverAnswer, HandoverRequest
from slackwater.runtime.takeover.signing import (
    ANSWER_HEADER,
    WINDOW_MS,
    Verifier,
    check_answer,
    sign_request,
    target_of,
)
from slackwater.runtime.telemetry.http_server import HealthServer
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.status import Status
from tests.support.processes import reserve_ports
from tests.support.waiting import HANG_S
from tests.support.workers.fakes import VirtualClock

KEY, OTHER_KEY = b"k" * 32, b"j" * 32
CLOCK = SystemClock()
REQUEST = HandoverRequest("flights-3", "flights-b-3", "10.1.2.4:8080", 5_000)
LEFT = HandoverAnswer(7, {TopicPartition("flights", 0): OffsetAndMetadata(5, '{"at":1}')}, 100, 120)


class Pod:
    """A worker's endpoints, its main thread left out."""

    def __init__(self, *, key: bytes | None = KEY) -> None:
        self.status = Status("flights", "flights-3", CLOCK, pod="flights-a-3")
        self.status.turned_ms = CLOCK.mono_ms()
        self.requests = TakeoverRequests(CLOCK)
        takeover_handler = None
        if key:
            verifier = Verifier(key, CLOCK, self.status.target)
            takeover_handler = TakeoverHandler(key, verifier, self.requests, self.status, self.wake)
        metrics = Metrics(group="flights", instance="flights-3")
        self.server = HealthServer(HealthConfig(), self.status, metrics, "", takeover_handler)
        self.server.serve()
        self.address = f"127.0.0.1:{self.server.port}"
        self._nonces = self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1

    def send(
        self, method: str, path: str, body: bytes = b"", *, key: bytes = KEY, target: str = "", **headers: str
    ) -> tuple[int, dict[str, Any], bool]:
        """Status, body, and whether the answer is signed."""
        import http.client

        self._nonces += 1
        nonce = f"{self._nonces:032x}"
        signature = sign_request(
            key, method, path, body, now_ms=CLOCK.wall_ms(), nonce=nonce, target=target or self.status.target
        )
        signed = {"Authorization": signature}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=HANG_S)
        try:
            connection.request(method, path, body, {**signed, **headers})
            answer = connection.getresponse()
            content = answer.read()
            signature = answer.getheader(ANSWER_HEADER, "")
            return (
                answer.status,
                json.loads(content),
                check_answer(KEY, nonce, answer.status, content, signature),
            )
        finally:
            connection.close()


@pytest.fixture
def pod() -> Iterator[Pod]:
    endpoint = Pod()
    yield endpoint
    endpoint.server.close()


@pytest.fixture
def peers() -> HttpPeers:
    return HttpPeers(KEY, CLOCK)


# ---- the endpoints


def test_an_order_is_taken(pod: Pod) -> None:
    pod.requests.accept_orders()
    pod.status.phase = "standby"
    assert pod.send("POST", "/takeover", b'{"predecessor": "10.1.2.3:8080"}') == (
        202,
        {"phase": "standby"},
        True,
    )
    assert pod.requests.next_order() == "10.1.2.3:8080"


def test_a_request_at_the_wrong_time_gets_409_with_the_reason(pod: Pod) -> None:
    code, content, signed = pod.send("POST", "/takeover", b'{"predecessor": ""}')
    assert (code, content, signed) == (409, {"error": "this worker is still starting"}, True)
    assert pod.send("POST", "/handover", REQUEST.encode())[:2] == (409, content)
    said = {"error": "no handover to flights-b-3 is under way"}
    assert pod.send("DELETE", "/handover", b'{"by": "flights-b-3"}')[:2] == (409, said)


def test_an_unsigned_request_gets_401_and_has_no_effect(pod: Pod) -> None:
    pod.requests.accept_orders()
    pod.requests.accept_handovers()
    for code, content, signed in (
        pod.send("POST", "/takeover", b'{"predecessor": ""}', key=OTHER_KEY),
        pod.send("POST", "/handover", REQUEST.encode(), Authorization="none"),
        pod.send("DELETE", "/handover", key=OTHER_KEY),
    ):
        assert (code, signed) == (401, False)
        assert "sign" in content["error"] or "Authorization" in content["error"]
    assert pod.requests.next_order() is None
    assert pod.requests.next_handover() is None


@pytest.mark.parametrize("late_ms", [0, WINDOW_MS - 1, WINDOW_MS + 1, 10 * WINDOW_MS])
@pytest.mark.parametrize(("method", "path"), [("POST", "/takeover"), ("POST", "/join")])
def test_a_captured_request_is_refused_everywhere_else_and_after_a_restart(
    method: str, path: str, late_ms: int
) -> None:
    """The same bytes go to another pod of the group, to the pod after its restart, and to it again."""
    clock, body = VirtualClock(), b'{"predecessor": ""}'

    def start(name: str) -> tuple[Status, TakeoverHandler]:
        status, requests = Status("flights", "flights-3", clock, pod=name), TakeoverRequests(clock)
        requests.accept_orders()
        return status, TakeoverHandler(KEY, Verifier(KEY, clock, status.target), requests, status)

    status, takeover_handler = start("flights-a-3")
    captured = sign_request(
        KEY, method, path, body, now_ms=clock.wall_ms(), nonce="7" * 32, target=status.target
    )
    assert takeover_handler.answer(method, path, body, captured, "").status == 202
    clock.sleep(late_ms)
    assert takeover_handler.answer(method, path, body, captured, "").status == 401
    for name in ("flights-a-3", "flights-b-3"):
        other, elsewhere = start(name)
        answer = elsewhere.answer(method, path, body, captured, "")
        assert (answer.status, dict(answer.headers)) == (401, {})
        assert json.loads(answer.body)["process"] == other.process
        assert not other.gate.is_set()


def answer_next(pod: Pod) -> None:
    """Answers the next request for the handover, as the main thread does."""
    while (asked := pod.requests.next_handover()) is None:
        time.sleep(0.001)
    asked.answer(LEFT)


def test_the_client_asks_once_more_where_the_process_is_another(pod: Pod, peers: HttpPeers) -> None:
    pod.requests.accept_handovers()
    threading.Thread(target=lambda: answer_next(pod), daemon=True).start()
    before = target_of("flights-a-3", "0" * 32)
    assert peers.handover(pod.address, REQUEST, 60_000, before).status == 200
    peers.withdraw(pod.address, REQUEST.by)
    assert pod.requests.withdrawn


def test_the_client_signs_for_the_process_that_the_order_names(pod: Pod) -> None:
    nonces: list[str] = []

    def nonce() -> str:
        nonces.append(f"{len(nonces):032x}")
        return nonces[-1]

    pod.requests.accept_handovers()
    threading.Thread(target=lambda: answer_next(pod), daemon=True).start()
    assert (
        HttpPeers(KEY, CLOCK, nonce).handover(pod.address, REQUEST, 60_000, pod.status.target).status == 200
    )
    assert len(nonces) == 1, "one request, no other before it"


def test_the_client_signs_for_no_other_pod_than_the_one_of_the_order(pod: Pod, peers: HttpPeers) -> None:
    pod.requests.accept_handovers()
    with pytest.raises(Unsigned):
        peers.handover(pod.address, REQUEST, 60_000, target_of("flights-b-3", "0" * 32))
    assert pod.requests.next_handover() is None


def test_who_withdraws_another_pods_handover_is_refused(pod: Pod) -> None:
    pod.requests.accept_handovers()
    pod.requests.request_handover(REQUEST)
    assert pod.send("DELETE", "/handover", b'{"by": "flights-c-3"}')[0] == 409
    assert (pod.requests.withdrawn, pod.wakes) == (False, 0)
    assert pod.send("DELETE", "/handover", b'{"by": "flights-b-3"}')[0] == 200
    assert (pod.requests.withdrawn, pod.wakes) == (True, 1)


def test_the_gate_opens_for_who_has_the_key_alone(pod: Pod) -> None:
    assert pod.send("POST", "/join", key=OTHER_KEY)[0] == 401
    assert pod.send("POST", "/join", Authorization="none")[0] == 401
    assert (pod.status.gate.is_set(), pod.wakes) == (False, 0)
    assert pod.send("POST", "/join")[0] == 202
    assert (pod.status.gate.is_set(), pod.wakes) == (True, 1)


def test_who_has_the_key_alone_has_it_leave(pod: Pod) -> None:
    assert pod.send("POST", "/leave", key=OTHER_KEY)[0] == 401
    assert not pod.status.leaves
    assert pod.send("POST", "/leave")[0] == 202
    assert pod.status.leaves


def test_a_request_that_is_sent_again_is_401(pod: Pod) -> None:
    pod.requests.accept_orders()
    body = b'{"predecessor": ""}'
    assert pod.send("POST", "/takeover", body)[0] == 202
    pod._nonces -= 1
    code, content, _ = pod.send("POST", "/takeover", body)
    assert code == 401
    assert "made before" in content["error"]


def test_without_a_key_there_is_nothing_to_ask() -> None:
    pod = Pod(key=None)
    try:
        for method, path in (("POST", "/takeover"), ("POST", "/handover"), ("DELETE", "/handover")):
            code, content, signed = pod.send(method, path, b"{}")
            assert (code, signed) == (404, False)
            assert "no key for takeovers" in content["error"]
    finally:
        pod.server.close()


def test_other_paths_and_bodies_are_refused(pod: Pod) -> None:
    assert pod.send("POST", "/handovers")[0] == 404
    assert pod.send("DELETE", "/takeover")[0] == 404
    assert pod.send("POST", "/join") == (202, {"phase": "starting"}, True)
    assert pod.status.gate.is_set()
    assert pod.send("POST", "/takeover", b"{}")[0] == 400
    assert pod.send("POST", "/handover", b"{}")[0] == 400
    assert pod.send("POST", "/takeover", b"x" * 70_000)[0] == 413


def test_a_handover_is_answered_when_the_main_thread_is_done(pod: Pod) -> None:
    pod.requests.accept_handovers()
    answered = []

    def drain() -> None:
        while (asked := pod.requests.next_handover()) is None:
            time.sleep(0.001)
        time.sleep(0.05)
        answered.append(time.monotonic())
        asked.answer(LEFT)

    thread = threading.Thread(target=drain)
    thread.start()
    code, content, signed = pod.send("POST", "/handover", REQUEST.encode())
    thread.join()
    assert (code, content, signed) == (200, LEFT.document(), True)
    assert HandoverAnswer.parse(content) == LEFT
    assert pod.wakes == 1


def test_a_handover_of_another_member_or_to_itself_is_refused(pod: Pod) -> None:
    pod.requests.accept_handovers()
    other = HandoverRequest("flights-4", "flights-b-4", "10.1.2.4:8080", 5_000)
    assert pod.send("POST", "/handover", other.encode())[:2] == (
        409,
        {"error": "this is flights-3, not flights-4"},
    )
    itself = HandoverRequest("flights-3", "flights-a-3", "10.1.2.4:8080", 5_000)
    assert pod.send("POST", "/handover", itself.encode())[:2] == (
        409,
        {"error": "this is flights-a-3 itself"},
    )
    assert pod.requests.next_handover() is None


def test_a_main_thread_that_hangs_is_503(pod: Pod) -> None:
    pod.requests.accept_handovers()
    short = HandoverRequest("flights-3", "flights-b-3", "10.1.2.4:8080", 1)
    code, content, signed = pod.send("POST", "/handover", short.encode())
    assert (code, signed) == (503, True)
    assert "within 1 ms" in content["error"]


def test_an_answer_comes_in_one_packet(pod: Pod) -> None:
    """In two, the second may wait 40 ms for the acknowledgement of the first."""
    with socket.create_connection(("127.0.0.1", pod.server.port), 5) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        first = connection.recv(65536)
    head, _, body = first.partition(b"\r\n\r\n")
    assert b"Content-Length" in head
    assert json.loads(body)["alive"] is True


# ---- the client


def test_the_client_gets_the_answer(pod: Pod, peers: HttpPeers) -> None:
    pod.requests.accept_handovers()
    thread = threading.Thread(target=answer_next, args=(pod,))
    thread.start()
    reply = peers.handover(pod.address, REQUEST, 5_000)
    thread.join()
    assert reply.status == 200
    assert HandoverAnswer.parse(reply.document) == LEFT
    peers.withdraw(pod.address, "flights-b-3")
    assert pod.requests.withdrawn


def test_the_client_gets_a_refusal(pod: Pod, peers: HttpPeers) -> None:
    reply = peers.handover(pod.address, REQUEST, 5_000)
    assert (reply.status, reply.document) == (409, {"error": "this worker is still starting"})


def test_the_client_takes_no_answer_that_is_not_signed() -> None:
    for pod in (Pod(key=OTHER_KEY), Pod(key=None)):
        try:
            with pytest.raises(Unsigned, match="not signed with this group's key: "):
                HttpPeers(KEY, CLOCK).handover(pod.address, REQUEST, 5_000)
        finally:
            pod.server.close()


def forge(*answers: bytes, hangs: bool = False) -> tuple[str, threading.Thread, socket.socket]:
    """A server that answers what it likes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for answer in answers:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                while hangs and connection.recv(65536):
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return f"127.0.0.1:{listening.getsockname()[1]}", thread, listening


@pytest.mark.parametrize("signature", [b"", b"Slackwater-Signature: " + b"0" * 64 + b"\r\n"])
def test_the_client_takes_no_answer_that_is_forged(peers: HttpPeers, signature: bytes) -> None:
    body = json.dumps(LEFT.document()).encode()
    head = b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n%s\r\n" % (len(body), signature)
    address, _, listening = forge(head + body)
    with listening, pytest.raises(Unsigned):
        peers.handover(address, REQUEST, 5_000)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: 50\r\n\r\n{"])
def test_an_invalid_answer_counts_as_no_answer(peers: HttpPeers, answer: bytes) -> None:
    address, _, listening = forge(answer)
    with listening, pytest.raises((Unreachable, Unsigned)):
        peers.handover(address, REQUEST, 5_000)


def test_a_peer_that_hangs_has_not_answered(peers: HttpPeers) -> None:
    address, _, listening = forge(b"HTTP/1.0 200 OK\r\n", hangs=True)
    with listening, pytest.raises(NoAnswer, match="within 200 ms"):
        peers.handover(address, REQUEST, 200)


def test_a_peer_that_answers_byte_by_byte_has_not_answered(peers: HttpPeers) -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.0 200 OK\r\nX: ")
            while True:
                connection.sendall(b"x")
                time.sleep(0.02)

    threading.Thread(target=drip, daemon=True).start()
    with listening, pytest.raises(NoAnswer, match="within 300 ms"):
        peers.handover(f"127.0.0.1:{listening.getsockname()[1]}", REQUEST, 300)


def test_a_missing_peer_accepts_no_connection(peers: HttpPeers) -> None:
    (port,) = reserve_ports(1)
    with pytest.raises(Unreachable, match="refused the connection"):
        peers.handover(f"127.0.0.1:{port}", REQUEST, 5_000)
    with pytest.raises(Unreachable, match="not host:port"):
        peers.handover("nonsense", REQUEST, 5_000)
    assert not peers.alive(f"127.0.0.1:{port}")
    peers.withdraw(f"127.0.0.1:{port}", "flights-b-3")


def test_a_peer_that_hangs_is_not_alive(pod: Pod, peers: HttpPeers) -> None:
    assert peers.alive(pod.address)
    pod.status.turned_ms = CLOCK.mono_ms() - pod.status.patience_ms - 1
    assert not peers.alive(pod.address)
