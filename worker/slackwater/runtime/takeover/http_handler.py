"""POST /join, /takeover and /handover, DELETE /handover: who may, what is taken, what is answered. No I/O.

Each request is signed with the group's key (:mod:`slackwater.runtime.takeover.signing`), and so is each
answer to one that was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from slackwater.runtime.takeover.messages import HandoverRequest, encode, read_order, read_withdrawal
from slackwater.runtime.takeover.requests import Refused, TakeoverRequests
from slackwater.runtime.takeover.signing import ANSWER_HEADER, Unauthorized, Verifier, sign_answer
from slackwater.runtime.telemetry.status import Status

GRACE_MS = 1_000
"""How long a request for the handover is kept beyond its deadline: who asked has given up by then."""


class Answer(NamedTuple):
    """A status, a body, and headers beside the usual ones."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class TakeoverHandler:
    """Any thread may call it; a request for the handover keeps its thread until the answer is there."""

    def __init__(self, key: bytes, verifier: Verifier, requests: TakeoverRequests, status: Status) -> None:
        self._key, self._verifier, self._requests, self._status = key, verifier, requests, status
        self._ways: dict[tuple[str, str], Callable[[bytes, str], tuple[int, dict[str, Any]]]] = {
            ("POST", "/join"): self._join,
            ("POST", "/takeover"): self._take_over,
            ("POST", "/handover"): self._hand_over,
            ("DELETE", "/handover"): self._withdraw,
        }

    def knows(self, method: str, path: str) -> bool:
        """Whether it answers such requests."""
        return (method, path) in self._ways

    def answer(self, method: str, path: str, body: bytes, authorization: str | None, peer: str) -> Answer:
        """The answer to a request from the host ``peer``: 401 where it is not signed, 400 where its body is
        wrong, 409 where it is not the time for it.
        """
        try:
            nonce = self._verifier.verify(method, path, body, authorization)
        except Unauthorized as exc:
            # Who has the key, and did not know this process, signs for it once more.
            pod = self._status.pod or self._status.instance
            return Answer(401, encode({"error": str(exc), "pod": pod, "process": self._status.process}), {})
        try:
            code, document = self._ways[method, path](body, peer)
        except Refused as exc:
            code, document = 409, {"error": str(exc)}
        except ValueError as exc:
            code, document = 400, {"error": str(exc)}
        answer = encode(document)
        return Answer(code, answer, {ANSWER_HEADER: sign_answer(self._key, nonce, code, answer)})

    def _join(self, _: bytes, __: str) -> tuple[int, dict[str, Any]]:
        self._status.gate.set()
        return 202, {"phase": self._status.phase}

    def _take_over(self, body: bytes, _: str) -> tuple[int, dict[str, Any]]:
        self._requests.order(*read_order(body))
        return 202, {"phase": self._status.phase}

    def _hand_over(self, body: bytes, peer: str) -> tuple[int, dict[str, Any]]:
        request = HandoverRequest.read(body, peer)
        if request.instance != self._status.instance:
            raise Refused(f"this is {self._status.instance}, not {request.instance}")
        if request.by == self._status.pod:
            raise Refused(f"this is {request.by} itself")
        answer = self._requests.ask(request).wait(request.deadline_ms + GRACE_MS)
        if answer is None:
            return 503, {"error": f"no answer within {request.deadline_ms} ms"}
        return 200, answer.document()

    def _withdraw(self, body: bytes, _: str) -> tuple[int, dict[str, Any]]:
        return 200, self._requests.withdraw(read_withdrawal(body))
