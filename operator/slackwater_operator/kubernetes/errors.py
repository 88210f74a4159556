"""The errors of requests to the API server."""

from __future__ import annotations

from typing import Any


class KubeError(Exception):
    """The API server refused a request, or did not answer it.

    Attributes:
        status: the HTTP status; 0 where there was no answer.
        reason: Kubernetes' reason in CamelCase (`Conflict`, `Forbidden`, `Invalid`, ...), or ours
            (`Timeout`).
        message: the request, and what the API server said.
        answer: what the API server said, without the request.
        retry_after_s: how long the API server asks to wait; 0 where it doesn't say.
    """

    exit_code = 1

    def __init__(
        self, status: int, reason: str, message: str, *, retry_after_s: float = 0.0, answer: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.answer = answer or message
        self.retry_after_s = retry_after_s


class KubeConflict(KubeError):
    """409: another client was faster, owns a field, or the object exists already (`AlreadyExists`)."""


class KubeForbidden(KubeError):
    """403 (or 401): the service account may not do that."""


class KubeInvalid(KubeError):
    """422, or 400: the object breaks the schema or one of its rules."""


class KubeUnavailable(KubeError):
    """No connection, no answer in time, 429 or 5xx: worth trying again later."""


class KubeConfigError(KubeError):
    """No usable configuration names the API server. Not a matter of the network."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(0, "Configuration", message)


_BY_STATUS: dict[int, type[KubeError]] = {
    400: KubeInvalid,
    401: KubeForbidden,
    403: KubeForbidden,
    409: KubeConflict,
    422: KubeInvalid,
    429: KubeUnavailable,
}

_INVALID = (
    "failed to create typed patch object",  # a wrong type: `image: 7`
    "failed to convert new object",  # a value that its type does not read: `memory: 1GB`
)
"""What an apply of an invalid object ends in: 500, as of Kubernetes 1.35, though it is a 422."""


def from_answer(status: int, body: Any, what: str, *, retry_after_s: float = 0.0) -> KubeError:
    """The error that an answer stands for.

    Args:
        status: the HTTP status.
        body: the decoded answer: a `Status` of meta/v1, or whatever a proxy in between said.
        what: the request, for the message: `PATCH statefulsets/flights`.
        retry_after_s: from the header `Retry-After`.
    """
    fields = body if isinstance(body, dict) else {}
    reason = str(fields.get("reason") or f"HTTP{status}")
    message = str(fields.get("message") or (body if isinstance(body, str) else "")).strip()
    if status == 500 and any(text in message for text in _INVALID):
        status = 422
    kind = _BY_STATUS.get(status, KubeUnavailable if status >= 500 else KubeError)
    answer = message or reason
    return kind(status, reason, f"{what}: {answer}", retry_after_s=retry_after_s, answer=answer)
