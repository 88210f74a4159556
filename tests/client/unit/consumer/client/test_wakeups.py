"""A wakeup ends one blocking call: the one under way, or the next. The end of a poll is for polls alone."""

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


def test_the_end_of_a_poll_is_kept_for_the_next_poll_and_used_once() -> None:
    wakeups = Wakeups()
    wakeups.end_poll()
    with wakeups.call(nothing) as commit:
        commit.check()
        assert not commit.poll_ended
    with wakeups.call(nothing, polls=True) as poll:
        assert poll.poll_ended
    with wakeups.call(nothing, polls=True) as poll:
        assert not poll.poll_ended


def test_the_end_of_a_poll_interrupts_no_call_within_it() -> None:
    wakeups = Wakeups()
    interrupted: list[str] = []
    with wakeups.call(lambda: interrupted.append("poll"), polls=True) as poll:
        with wakeups.call(lambda: interrupted.append("commit")) as commit:
            wakeups.end_poll()
            commit.check()
        assert poll.poll_ended
    assert interrupted == ["poll"]
