"""Answers POST /join, /leave, /takeover and /handover, and DELETE /handover. No I/O.

Each request must be signed with the group's key (:mod:`slackwater.runtime.takeover.signing`); the answers to
signed requests are signed too. The threads of the HTTP server queue requests for the main thread and wait for
its answers. The main thread says which requests it accepts at the moment; others are refused at once, with
the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from slackwater.clock import Clock
from slackwater.runtime.takeover.messages import (
    HandoverAnswer,
    HandoverRequest,
    encode,
    read_order,
    read_withdrawal,
)
from slackwater.runtime.takeover.signing import ANSWER_HEADER, Unauthorized, Verifier, sign_answer
from slackwater.runtime.telemetry.status import Status

STARTS = "this worker is still starting"


class Refused(Exception):
    """The request is refused. The message says why."""


class PendingHandover:
    """A request for the handover, until it is answered or refused."""

    def __init__(self, request: HandoverRequest, received_ms: float) -> None:
        """``received_ms``: when it arrived (monotonic clock)."""
        self.request, self.received_ms = request, received_ms
        self._done = threading.Event()
        self._answer: HandoverAnswer | None = None
        self._refusal = ""

    def answer(self, answer: HandoverAnswer) -> None:
        """Lets the waiting thread answer at once."""
        self._answer = answer
        self._done.set()

    def refuse(self, reason: str) -> None:
        """The handover does not take place. Has no effect after an answer."""
        if not self._done.is_set():
            self._refusal = reason
            self._done.set()

    def wait(self, timeout_ms: float) -> HandoverAnswer | None:
        """The answer; None: there was none in time. Raises :class:`Refused`."""
        if not self._done.wait(timeout_ms / 1000):
            return None
        if self._answer is None:
            raise Refused(self._refusal)
        return self._answer


class TakeoverRequests:
    """At most one order to take over, and one request for the handover."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._orders_refused = self._handovers_refused = STARTS
        self._order: str | None = None
        self._target = ""
        self._trace = ""
        self._asked: PendingHandover | None = None
        self._taken = False
        self._withdrawn = False

    # ---- for the main thread

    def accept_orders(self) -> None:
        """Accepts orders to take over from now on."""
        with self._lock:
            self._orders_refused = ""

    def refuse_orders(self, reason: str) -> None:
        """Refuses orders from now on, with the ``reason``. Drops the order that waits, if there is one."""
        with self._lock:
            self._orders_refused, self._order = reason, None

    def peek_order(self) -> str | None:
        """The order that waits: a predecessor's address, or "" for nobody. None: none waits."""
        return self._order

    def next_order(self) -> str | None:
        """As :meth:`peek_order`; it does not wait any longer."""
        with self._lock:
            order, self._order = self._order, None
            return order

    @property
    def target(self) -> str:
        """Who a request to the predecessor of the last order is signed for; "": not known."""
        return self._target

    @property
    def trace(self) -> str:
        """The trace of the last order, as its header ``traceparent``; "": none."""
        return self._trace

    def accept_handovers(self) -> None:
        """Accepts requests for the handover from now on, and forgets the one before."""
        with self._lock:
            self._handovers_refused, self._asked, self._taken, self._withdrawn = "", None, False, False

    def refuse_handovers(self, reason: str) -> None:
        """Refuses requests for the handover from now on, also one that waits for its answer."""
        with self._lock:
            self._handovers_refused, asked, self._asked = reason, self._asked, None
        if asked is not None:
            asked.refuse(reason)

    def next_handover(self) -> PendingHandover | None:
        """The request for the handover, if there is one. Returns it once."""
        if self._asked is None or self._taken:
            return None
        self._taken = True
        return self._asked

    @property
    def withdrawn(self) -> bool:
        """Whether the successor has withdrawn its request."""
        return self._withdrawn

    # ---- for the server's threads

    def order(self, predecessor: str, target: str = "", trace: str = "") -> None:
        """POST /takeover. ``target``: of the predecessor's process, "" where it is not known. ``trace``: the
        header ``traceparent``.

        One that comes again replaces the one before. Raises :class:`Refused`.
        """
        with self._lock:
            if self._orders_refused:
                raise Refused(self._orders_refused)
            self._order, self._target, self._trace = predecessor, target, trace

    def request_handover(self, request: HandoverRequest) -> PendingHandover:
        """POST /handover. The same pod that asks again (it may have lost the answer) gets the same answer.

        Raises :class:`Refused`.
        """
        with self._lock:
            if self._handovers_refused:
                raise Refused(self._handovers_refused)
            if self._asked is None:
                self._asked = PendingHandover(request, self._clock.mono_ms())
            elif self._asked.request.by != request.by:
                raise Refused(f"the handover to {self._asked.request.by} is under way")
            self._withdrawn = False
            return self._asked

    def withdraw(self, by: str) -> dict[str, Any]:
        """DELETE /handover by a pod. Raises :class:`Refused` where none to it is under way."""
        with self._lock:
            if self._asked is None or self._asked.request.by != by:
                raise Refused(f"no handover to {by} is under way")
            self._withdrawn = True
            return {"withdrawn": self._asked.request.by}


GRACE_MS = 1_000
"""How long a request for the handover is kept beyond its deadline: who asked has given up by then."""


class HttpResponse(NamedTuple):
    """A status, a body, and headers beside the usual ones."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class TakeoverHandler:
    """Any thread may call it; a request for the handover keeps its thread until the answer is there."""

    def __init__(
        self,
        key: bytes,
        verifier: Verifier,
        requests: TakeoverRequests,
        status: Status,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        """``wake``: called when there is something for the main thread."""
        self._key, self._verifier, self._requests, self._status = key, verifier, requests, status
        self._wake = wake
        self._routes: dict[tuple[str, str], Callable[[bytes, str, str], tuple[int, dict[str, Any]]]] = {
            ("POST", "/join"): self._join,
            ("POST", "/leave"): self._leave,
            ("POST", "/takeover"): self._take_over,
            ("POST", "/handover"): self._hand_over,
            ("DELETE", "/handover"): self._withdraw,
        }

    def knows(self, method: str, path: str) -> bool:
        """Whether it answers such requests."""
        return (method, path) in self._routes

    def answer(
        self, method: str, path: str, body: bytes, authorization: str | None, peer: str, trace: str = ""
    ) -> HttpResponse:
        """The answer to a request from the host ``peer`` with ``trace`` as its header ``traceparent``: 401
        where it is not signed, 400 where its body is wrong, 409 where it is not the time for it.
        """
        try:
            nonce = self._verifier.verify(method, path, body, authorization)
        except Unauthorized as exc:
            # Who has the key, and did not know this process, signs for it once more.
            pod = self._status.pod or self._status.instance
            return HttpResponse(
                401, encode({"error": str(exc), "pod": pod, "process": self._status.process}), {}
            )
        try:
            code, document = self._routes[method, path](body, peer, trace)
        except Refused as exc:
            code, document = 409, {"error": str(exc)}
        except ValueError as exc:
            code, document = 400, {"error": str(exc)}
        answer = encode(document)
        return HttpResponse(code, answer, {ANSWER_HEADER: sign_answer(self._key, nonce, code, answer)})

    def _join(self, _: bytes, __: str, ___: str) -> tuple[int, dict[str, Any]]:
        self._status.gate.set()
        self._wake()
        return 202, {"phase": self._status.phase}

    def _leave(self, _: bytes, __: str, ___: str) -> tuple[int, dict[str, Any]]:
        self._status.leave()
        return 202, {"phase": self._status.phase}

    def _take_over(self, body: bytes, _: str, trace: str) -> tuple[int, dict[str, Any]]:
        self._requests.order(*read_order(body), trace)
        return 202, {"phase": self._status.phase}

    def _hand_over(self, body: bytes, peer: str, trace: str) -> tuple[int, dict[str, Any]]:
        request = HandoverRequest.read(body, peer, trace)
        if request.instance != self._status.instance:
            raise Refused(f"this is {self._status.instance}, not {request.instance}")
        if request.by == self._status.pod:
            raise Refused(f"this is {request.by} itself")
        pending = self._requests.request_handover(request)
        self._wake()
        answer = pending.wait(request.deadline_ms + GRACE_MS)
        if answer is None:
            return 503, {"error": f"no answer within {request.deadline_ms} ms"}
        return 200, answer.document()

    def _withdraw(self, body: bytes, _: str, __: str) -> tuple[int, dict[str, Any]]:
        withdrawn = self._requests.withdraw(read_withdrawal(body))
        self._wake()
        return 200, withdrawn
