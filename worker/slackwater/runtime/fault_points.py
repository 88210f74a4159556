"""Steps between an assignment and a commit at which a test can stop a worker, as a node that hangs would.

Off unless ``SLACKWATER_STOP_AT`` names a step when the worker starts: ``fenced``, or ``fenced:3`` for the
third time that the worker reaches it. The worker sends itself SIGSTOP there, once; SIGCONT lets it go on. A
step is reached once a batch or partition, never once a record.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from enum import StrEnum

from slackwater.runtime.errors import ConfigError

VARIABLE = "SLACKWATER_STOP_AT"


class Step(StrEnum):
    """In the order in which a worker reaches them."""

    ASSIGNED = "assigned"
    """Partitions are assigned; their marks are not read yet."""
    POLLED = "polled"
    """There are records for a batch."""
    BEGUN = "begun"
    """The broker has taken the note that the batch is begun, where one is needed. The handler is called
    next."""
    HANDLED = "handled"
    """The handler has returned; nothing is staged."""
    STAGED = "staged"
    """The rows are staged."""
    LETTERS_READ = "letters-read"
    """Earlier dead letters are read back; this batch's are not announced."""
    LETTERS_ANNOUNCED = "letters-announced"
    """The broker has taken the fence that announces dead letters; none is written."""
    LETTERS_WRITTEN = "letters-written"
    READY = "ready"
    """Before the fence of the publish."""
    FENCED = "fenced"
    """The broker has taken the fence; nothing is published."""
    PUBLISHED = "published"
    """The table has rows and marks."""
    COMMITTING = "committing"
    """Before the commit of the batch's end."""
    COMMITTED = "committed"
    """The broker has taken that commit; the worker has not noted it yet."""


Reached = Callable[[Step], None]


def no_faults(step: Step) -> None:
    """Does nothing: fault points are off."""


class StopAt:
    """Calls ``stop`` the ``turn``-th time (from 1) that it is called with ``step``."""

    def __init__(self, step: Step, turn: int, stop: Callable[[], None]) -> None:
        self._step, self._left, self._stop = step, turn, stop

    def __call__(self, step: Step) -> None:
        if step is self._step:
            self._left -= 1
            if not self._left:
                self._stop()


def stop_process() -> None:
    """SIGSTOP to this process: returns when it was continued."""
    os.kill(os.getpid(), signal.SIGSTOP)


def from_environment(environment: Mapping[str, str], stop: Callable[[], None] = stop_process) -> Reached:
    """What a worker is to call at each step. Raises ConfigError for a step that does not exist."""
    value = environment.get(VARIABLE, "")
    if not value:
        return no_faults
    name, _, turn = value.partition(":")
    try:
        return StopAt(Step(name), _count(turn or "1"), stop)
    except ValueError:
        raise ConfigError(
            f"{VARIABLE} is {value!r}: give one of {', '.join(Step)}, or NAME:N for the Nth time"
        ) from None


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count
