"""A wakeup ends one blocking call: the one under way, or the next."""

from __future__ import annotations

import pytest

from slackwater.kafka.consumer.wakeups import Wakeups
from slackwater.kafka.errors import WakeupError


def nothing() -> None:
    """Interrupts nothing."""


def test_the_next_call_is_woken_once() -> None:
    wakeups = Wakeups()
    wakeups.wakeup()
    wakeups.wakeup()
    with pytest.raises(WakeupError), wakeups.call(nothing) as waiter:
        waiter.check()
    with wakeups.call(nothing) as waiter:
        waiter.check()


def test_the_last_begun_of_several_is_interrupted() -> None:
    wakeups = Wakeups()
    ended: list[str] = []
    with wakeups.call(lambda: ended.append("outer")) as outer:
        with wakeups.call(lambda: ended.append("inner")) as inner:
            wakeups.wakeup()
            with pytest.raises(WakeupError):
                inner.check()
        outer.check()
    assert ended == ["inner"]


def test_a_wakeup_that_came_too_late_is_kept() -> None:
    wakeups = Wakeups()
    with wakeups.call(nothing):
        wakeups.wakeup()  # and the call returns what it has
    with pytest.raises(WakeupError), wakeups.call(nothing) as waiter:
        waiter.check()
