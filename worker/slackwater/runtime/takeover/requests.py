"""Where the threads of the HTTP server leave what the main thread has to do, and wait for what comes of it.

The main thread says what is taken at the moment; what is not is refused at once, with the reason.
"""

from __future__ import annotations

import threading
from typing import Any

from slackwater.runtime.takeover.messages import HandoverAnswer, HandoverRequest

STARTS = "this worker is still starting"


class Refused(Exception):
    """What is asked for is not done. The message says why."""


class Asked:
    """A request for the handover, which waits for its answer."""

    def __init__(self, request: HandoverRequest) -> None:
        self.request = request
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

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders_refused = self._handovers_refused = STARTS
        self._order: str | None = None
        self._target = ""
        self._asked: Asked | None = None
        self._taken = False
        self._withdrawn = False

    # ---- for the main thread

    def take_orders(self) -> None:
        """Orders to take over are taken from now on."""
        with self._lock:
            self._orders_refused = ""

    def refuse_orders(self, reason: str) -> None:
        """No orders any more; one that waits is forgotten."""
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

    def hand_over(self) -> None:
        """Requests for the handover are taken from now on; what came of one before is forgotten."""
        with self._lock:
            self._handovers_refused, self._asked, self._taken, self._withdrawn = "", None, False, False

    def keep(self, reason: str) -> None:
        """No handover any more; one that waits for its answer is refused."""
        with self._lock:
            self._handovers_refused, asked, self._asked = reason, self._asked, None
        if asked is not None:
            asked.refuse(reason)

    def next_asked(self) -> Asked | None:
        """The request for the handover, if one has come; given once."""
        if self._asked is None or self._taken:
            return None
        self._taken = True
        return self._asked

    @property
    def withdrawn(self) -> bool:
        """Whether the successor has said that it does not come."""
        return self._withdrawn

    # ---- for the server's threads

    def order(self, predecessor: str, target: str = "") -> None:
        """POST /takeover. ``target``: of the predecessor's process, "" where it is not known.

        One that comes again replaces the one before. Raises :class:`Refused`.
        """
        with self._lock:
            if self._orders_refused:
                raise Refused(self._orders_refused)
            self._order, self._target = predecessor, target

    def ask(self, request: HandoverRequest) -> Asked:
        """POST /handover. The same pod that asks again (it may have lost the answer) gets the same answer.

        Raises :class:`Refused`.
        """
        with self._lock:
            if self._handovers_refused:
                raise Refused(self._handovers_refused)
            if self._asked is None:
                self._asked = Asked(request)
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
