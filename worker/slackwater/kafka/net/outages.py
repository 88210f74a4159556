"""Folds the equal log lines of an outage: the first at once, then a count, and a line at the end.

What fails during an outage is tried again many times a minute. A count is logged when the outage has lasted
10 s, and each time that it has lasted twice as long, at least every ten minutes. Times are the event loop's.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

_FIRST_S = 10.0
_MOST_S = 600.0
_CAUSES = 20
"""How many causes of one failure are told apart. More of them do not repeat."""


@dataclass(slots=True)
class _Repeated:
    level: int
    since_s: float
    last_s: float
    next_s: float
    count: int = 1


class Outages:
    """What fails now, of one client. False while nothing does. Used on the client's loop."""

    def __init__(self) -> None:
        self._failing: dict[str, dict[str, _Repeated]] = {}

    def __bool__(self) -> bool:
        return bool(self._failing)

    def failed(
        self,
        log: logging.Logger,
        what: str,
        message: str,
        level: int = logging.INFO,
        *,
        cause: str | None = None,
    ) -> None:
        """Logs ``message`` about ``what``, or counts it. ``cause``: what is equal in messages that differ."""
        now = asyncio.get_running_loop().time()
        causes = self._failing.setdefault(what, {})
        line = causes.get(cause or message)
        if line is None or now - line.last_s >= _MOST_S:
            if len(causes) >= _CAUSES:
                causes.pop(next(iter(causes)))
            causes[cause or message] = _Repeated(level, now, now, now + _FIRST_S)
            log.log(level, "%s", message)
            return
        line.count, line.last_s = line.count + 1, now
        if now >= line.next_s:
            lasts_s = now - line.since_s
            log.log(level, "%s (%d times in %.0f s)", message, line.count, lasts_s)
            line.next_s = now + min(lasts_s, _MOST_S)

    def worked(self, log: logging.Logger, what: str) -> None:
        """Ends the outage of ``what``, if there is one, and says so if it was more than one failure."""
        causes = self._failing.pop(what, {}).values()
        count = sum(line.count for line in causes)
        if count > 1:
            lasted_s = asyncio.get_running_loop().time() - min(line.since_s for line in causes)
            level = max(line.level for line in causes)
            log.log(level, "%s works again, after %d failures in %.0f s", what, count, lasted_s)
