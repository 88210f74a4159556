"""Asks Prometheus for one number: an instant query of its HTTP API, limited in time and bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp

from slackwater.kafka.untrusted import json_object, one_line
from slackwater_operator.policies.rollout.analysis import Measured
from slackwater_operator.workers.bounded_http import Answer, BadAnswer, bounded_session, request

TIMEOUT_S = 10.0
LARGEST_BYTES = 256 * 1024
"""Of an answer. One number makes about a hundred bytes; more is a query that must be aggregated."""
NO_ADDRESS = "the operator has no --prometheus-url"
_LONGEST_ERROR = 300


class Prometheus:
    """One Prometheus. Its methods raise nothing: what is wrong is the answer."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Opens nothing yet.

        Args:
            url: of Prometheus, such as `http://prometheus:9090`; "" without one.
            timeout_s: bounds each query, with connecting.
        """
        self._url, self._timeout_s = url.rstrip("/"), timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def value(self, query: str) -> Measured:
        """The result of a query, or why there is no number."""
        if not self._url:
            return Measured(None, NO_ADDRESS)
        if self._session is None:
            self._session = bounded_session(self._timeout_s)
        url = f"{self._url}/api/v1/query?{urlencode({'query': query})}"
        try:
            answer = await request(self._session, "GET", url, most_bytes=LARGEST_BYTES)
        except (BadAnswer, aiohttp.ClientError, TimeoutError, OSError) as error:
            why = one_line(error, _LONGEST_ERROR) or f"no answer within {self._timeout_s:g} s"
            return Measured(None, f"Prometheus: {why}")
        return _number(answer)

    async def close(self) -> None:
        """Closes its connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _number(answer: Answer) -> Measured:
    """The number of an answer; a vector must have one element."""
    try:
        document: Any = json_object(answer.body)
    except (ValueError, json.JSONDecodeError):
        document = {}
    if answer.status != 200 or document.get("status") != "success":
        why = one_line(str(document.get("error") or f"HTTP status {answer.status}"), _LONGEST_ERROR)
        return Measured(None, f"Prometheus refuses the query: {why}")
    data = document.get("data")
    kind = data.get("resultType") if isinstance(data, Mapping) else None
    result = data.get("result") if isinstance(data, Mapping) else None
    if kind == "vector" and isinstance(result, list):
        if len(result) != 1:
            problem = "no series" if not result else f"{len(result)} series; aggregate them, such as by sum()"
            return Measured(None, f"the query returns {problem}")
        result = result[0].get("value") if isinstance(result[0], Mapping) else None
    elif kind != "scalar":
        return Measured(None, f"the query returns a {one_line(str(kind), 50)}, not one number")
    try:
        value = float(result[1])  # type: ignore[index]
    except (IndexError, TypeError, ValueError, KeyError):
        return Measured(None, "Prometheus' answer has no number")
    if not math.isfinite(value):
        return Measured(None, f"the query returns {value}")
    return Measured(value)
