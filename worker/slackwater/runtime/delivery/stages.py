"""The stages of a batch, and the only transitions between them.

Everything that affects which stage may follow which is in this file, as in h11's ``_state.py``. What is done
in a stage is in :mod:`~slackwater.runtime.delivery.in_flight`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Stage(Enum):
    """How far a batch is."""

    POLLED = "polled"
    WAITING = "waiting"
    """The batch before is not committed yet, and this one is not handled beside it. Or the broker has not yet
    stored that it is begun."""
    READING_FIRST = "reading dead letters of an earlier try back"
    HANDLING = "handling"
    HANDLED = "handled"
    """The handler has returned; the batch before is not committed yet."""
    GATHERING = "gathering"
    """The handler has returned; what follows is to be written in the same commit."""
    STAGING = "being staged by the sink"
    BACKING_OFF = "backing off"
    """The handler raised; it is called again later."""
    ISOLATING = "finding the records at fault"
    """The batch fails as a whole; the handler tries parts of it."""
    TRIAL_STAGING = "finding records that the sink refuses"
    READING = "reading dead letters back"
    WRITING = "writing dead letters"
    """At first they are announced in a fence."""
    READY = "ready to be fenced and published"
    PUBLISHING = "publishing"
    """The sink writes rows and marks in one commit."""
    PUBLISHED = "published"
    COMMITTED = "committed"
    JOINED = "joined"
    """It is a part of the batch before."""
    GIVEN_UP = "given up"

    @property
    def phase(self) -> str:
        """What its time is called in metrics and events."""
        return "reading" if self is Stage.READING_FIRST else self.name.lower()


_S = Stage
_BEFORE_HANDLER = {
    _S.READING_FIRST: "an earlier try has announced dead letters for its offsets",
    _S.HANDLING: "nothing is to be done before",
}
_RETURNED = {
    _S.GATHERING: "the handler has returned, and the sink gathers rows (sink.maxAge)",
    _S.STAGING: "the handler has returned",
    _S.BACKING_OFF: "the handler has raised, and is to be called again",
    _S.ISOLATING: "the handler fails for good, or its rows have a fault",
}
_JUDGED = {
    _S.ISOLATING: "the trial has ended, and another one is needed",
    _S.HANDLING: "the records at fault are known: the others are handled",
}
TRANSITIONS: Mapping[Stage, Mapping[Stage, str]] = {
    _S.POLLED: {**_BEFORE_HANDLER, _S.WAITING: "the batch before comes first, or the note that it is begun"},
    _S.WAITING: _BEFORE_HANDLER,
    _S.READING_FIRST: {
        _S.HANDLING: "records that are dead letters already are left out",
        _S.WAITING: "the broker has not yet stored that it is begun",
    },
    _S.READING: {_S.WRITING: "it is known which letters are stored already"},
    _S.HANDLING: {**_RETURNED, _S.HANDLED: "the call has ended, and the batch before is not committed"},
    _S.HANDLED: {**_RETURNED, _S.JOINED: "the batch before gathers, and this one joins it"},
    _S.GATHERING: {_S.STAGING: "its rows are enough, or old enough"},
    _S.BACKING_OFF: {_S.HANDLING: "the wait is over"},
    _S.ISOLATING: {
        **_JUDGED,
        _S.TRIAL_STAGING: "the handler accepts the records of the trial",
        _S.BACKING_OFF: "what the handler needs is away: the search begins anew later",
    },
    _S.TRIAL_STAGING: _JUDGED,
    _S.STAGING: {
        _S.READY: "no record is rejected",
        _S.READING: "records are rejected: which of them are stored already",
        _S.ISOLATING: "the sink refuses a value",
    },
    _S.WRITING: {
        _S.WRITING: "the fence that announces the letters is stored",
        _S.READY: "the letters are stored",
        _S.READING: "it was too late to send them",
    },
    _S.READY: {_S.PUBLISHING: "the fence is stored"},
    _S.PUBLISHING: {_S.PUBLISHED: "the table has the rows", _S.ISOLATING: "the sink refuses a value"},
    _S.PUBLISHED: {_S.COMMITTED: "the broker has stored the end offsets"},
}
"""By stage, which stages may follow, and when. From each of them a batch may be GIVEN_UP, too: its partitions
are another member's, or its records are to be read again."""

HANDLER_RUNS = frozenset({_S.HANDLING, _S.ISOLATING})
SINK_STAGES = frozenset({_S.STAGING, _S.TRIAL_STAGING})
SINK_COMMITS = frozenset({_S.PUBLISHING, _S.PUBLISHED})
"""Stages in which the sink's commit cannot be stopped any more."""
HANDLER_DONE = SINK_COMMITS | {_S.STAGING, _S.READING, _S.WRITING, _S.READY}
"""Stages in which the handler is free, once it has returned."""
IDLE = frozenset({_S.POLLED, _S.WAITING, _S.HANDLED, _S.GATHERING})
"""Stages whose time is no work on the batch."""


def follow(stage: Stage, to: Stage) -> Stage:
    """``to``. A transition that the table does not have is a fault of the worker: RuntimeError."""
    if to in TRANSITIONS.get(stage, ()) or (to is Stage.GIVEN_UP and stage in TRANSITIONS):
        return to
    raise RuntimeError(f"a batch that is {stage.value} cannot become {to.value}")
