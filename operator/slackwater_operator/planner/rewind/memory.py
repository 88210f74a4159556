"""status.rewind: what was asked for, how far it is, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slackwater_operator.model.names import short_hash

PHASES = ("Checking", "Stopping", "Rewinding", "Starting", "Done")
CHECKING, STOPPING, REWINDING, STARTING, DONE = PHASES

RESULTS = ("Rewound", "Refused", "Failed", "Withdrawn")
REWOUND, REFUSED, FAILED, WITHDRAWN = RESULTS

LONGEST_REQUEST = 4_000
"""The longest request, in characters. The status and the Job's arguments hold it."""


@dataclass(frozen=True)
class RewindMemory:
    """The last rewind. It is noted before its first step, so that no request is carried out twice.

    Attributes:
        request: the annotation's value (`stored`).
        phase: one of `PHASES`.
        accepted_ms: when it was accepted or refused (wall clock, ms); the names of its Jobs depend on it.
        since_ms: when its phase began.
        result: one of `RESULTS`; "" while it is not known.
        message: for the result: what was done, or why not; for a Job that is given up, why.
    """

    request: str
    phase: str
    accepted_ms: int
    since_ms: int
    result: str = ""
    message: str = ""

    @property
    def stops(self) -> bool:
        """Whether no worker may run."""
        return self.phase in (STOPPING, REWINDING)

    @property
    def has_stopped(self) -> bool:
        """Whether the workers are, or were, stopped for it and are not all asked for again."""
        return self.phase in (STOPPING, REWINDING, STARTING)

    def dump(self) -> dict[str, Any]:
        """The form in the status."""
        made = {
            "request": self.request,
            "phase": self.phase,
            "acceptedMs": self.accepted_ms,
            "sinceMs": self.since_ms,
            "result": self.result or None,
            "message": self.message or None,
        }
        return {name: value for name, value in made.items() if value is not None}


def stored(request: str) -> str:
    """A request as the status holds it: a long one is cut, and stays distinct by its hash."""
    if len(request) <= LONGEST_REQUEST:
        return request
    return f"{request[:100]}... ({len(request)} characters, {short_hash(request)})"


def parse_rewind(saved: object) -> RewindMemory | None:
    """Reads status.rewind. None without one, and where it is not valid."""
    if not isinstance(saved, Mapping):
        return None
    texts = {name: saved.get(name) or "" for name in ("request", "phase", "result", "message")}
    times = [saved.get("acceptedMs"), saved.get("sinceMs")]
    if not all(isinstance(text, str) for text in texts.values()) or not texts["request"]:
        return None
    if texts["phase"] not in PHASES or texts["result"] not in ("", *RESULTS):
        return None
    accepted_ms, since_ms = (
        int(at) if isinstance(at, int) and not isinstance(at, bool) else 0 for at in times
    )
    return RewindMemory(
        texts["request"], texts["phase"], accepted_ms, since_ms, texts["result"], texts["message"]
    )
