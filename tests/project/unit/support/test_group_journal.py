"""The verdict on what a group's members said: each rule is broken once, and must be seen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.peers.group_journal import Event, check

PRODUCED = {0: {offset: 100 + offset for offset in range(6)}}


def read(member: str, at_ms: int, *offsets: int, number: int = 100) -> Event:
    return Event(member, at_ms, "read", {"records": {"0": [[o, number + o] for o in offsets]}})


def committed(member: str, at_ms: int, offset: int) -> Event:
    return Event(member, at_ms, "committed", {"offsets": {"0": offset}})


def assigned(member: str, at_ms: int) -> Event:
    return Event(member, at_ms, "assigned", {"partitions": [0]})


A_THEN_B = [
    assigned("a", 1), read("a", 2, 0, 1), committed("a", 3, 2), read("a", 4, 2, 3),
    assigned("b", 5), read("b", 6, 2, 3), committed("b", 7, 4), read("b", 8, 4, 5), committed("b", 9, 6),
]  # fmt: skip


def test_uncommitted_poll_is_read_again_and_nothing_is_wrong() -> None:
    """What the last owner had read and not committed is no fault, and is counted."""
    verdict = check(A_THEN_B, PRODUCED)
    assert verdict.problems == []
    assert (verdict.again, verdict.commits, len(verdict.read)) == (2, 3, 6)


def test_events_are_taken_by_time() -> None:
    """Members' lines come in any order."""
    assert check(reversed(A_THEN_B), PRODUCED).problems == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({8: None}, None),
        ({7: None, 8: None}, "2 of 6 records were never read, from 4 to 5"),
        ({7: read("b", 8, 4, 6), 8: None}, "one poll has [4, 6]"),
        ({5: read("b", 6, 1, 2, 3)}, "though 2 was committed before it was assigned"),
        ({3: None, 5: read("b", 6, 3)}, "nobody has read 2 to 2"),
        ({6: committed("b", 7, 1)}, "the committed offset goes back to 1 from 2"),
        ({7: read("b", 8, 4, 5, number=7)}, "other records than were produced at [4, 5]"),
    ],
    ids=["last-commit-missing", "lost", "gap-in-a-poll", "committed-read-again", "skipped", "back", "other"],
)
def test_each_rule(change: dict[int, Any], problem: str | None) -> None:
    """One event is left out or replaced."""
    events = [change.get(number, event) for number, event in enumerate(A_THEN_B)]
    problems = check([event for event in events if event is not None], PRODUCED).problems
    if problem is None:
        assert problems == []
    else:
        assert any(problem in reported for reported in problems), problems


def test_a_member_that_stood_still_may_be_late_once() -> None:
    """Where members are paused: one poll of what others have committed meanwhile, and no second one."""
    late = [*A_THEN_B, read("a", 10, 4)]
    assert check(late, PRODUCED, paused={"a"}).problems == []
    [problem] = check([*late, read("a", 11, 5)], PRODUCED, paused={"a"}).problems
    assert "second poll of what was committed" in problem
