"""A member that is fenced or thrown out while the application is being told that partitions go."""

from __future__ import annotations

import pytest

from slackwater.kafka.protocol.membership.notices import NoticeKind
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.protocol.membership.test_membership import Bench, tps

THROWN_OUT = [E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION]


def telling(*revoked: int) -> Bench:
    """A member that had 0, 1 and 2, while its listener hears that some of them are revoked."""
    bench = Bench()
    bench.settle(0, 1, 2)
    bench.member.request_rejoin("test", bench.now)
    bench.join(2)
    bench.sync(*(tp for tp in tps(0, 1, 2) if tp.partition not in revoked))
    assert notices(bench)[0] == (NoticeKind.REVOKED, tps(*revoked))
    return bench


def notices(bench: Bench) -> list[tuple[NoticeKind, list[TopicPartition]]]:
    return [(notice.kind, list(notice.partitions)) for notice in bench.member.notices]


def heard(bench: Bench, *revoked: int) -> None:
    """The listener returns; what it was told holds, whatever has become of the notice."""
    bench.owned -= set(tps(*revoked))
    bench.member.already_gone(tps(*revoked), bench.now)


@pytest.mark.parametrize("code", THROWN_OUT)
def test_partitions_reported_as_revoked_are_not_reported_as_lost(code: int) -> None:
    bench = telling(1, 2)
    bench.beat(code)
    assert notices(bench) == [(NoticeKind.LOST, tps(0, 1, 2))]
    heard(bench, 1, 2)
    assert notices(bench) == [(NoticeKind.LOST, tps(0))]
    assert bench.state() is State.PREPARING
    assert bench.tell() == [(NoticeKind.LOST, tps(0))]
    assert bench.state() is State.JOINING


@pytest.mark.parametrize("code", THROWN_OUT)
def test_a_member_joins_as_soon_as_the_listener_has_run(code: int) -> None:
    bench = telling(0, 1, 2)
    bench.beat(code)
    heard(bench, 0, 1, 2)
    assert notices(bench) == []
    assert bench.state() is State.JOINING


def test_a_fenced_member_reports_no_further_partitions() -> None:
    bench = telling(1)
    bench.beat(E.FENCED_INSTANCE_ID)
    heard(bench, 1)
    assert notices(bench) == []
    assert bench.state() is State.DEAD
    assert bench.poll() == []


def test_an_assignment_is_reported_after_the_remaining_revocations() -> None:
    bench = telling(1, 2)
    heard(bench, 1)
    assert notices(bench) == [(NoticeKind.REVOKED, tps(2)), (NoticeKind.ASSIGNED, [])]
    assert bench.state() is State.ASSIGNING
