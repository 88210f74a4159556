"""A commit that is refused for a rebalance: the heartbeat says whether there is a new one to join."""

from __future__ import annotations

from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.protocol.membership.test_membership import Bench


def test_while_the_own_sync_is_parked_it_begins_no_other_rebalance() -> None:
    bench = Bench()
    bench.subscribe()
    bench.join(1)
    bench.take(m.SyncGroupRequest)
    bench.member.beat_at_once(bench.now)
    assert bench.state() is State.SYNCING
    beat = bench.take(m.HeartbeatRequest)  # at once
    bench.answer(beat, m.HeartbeatResponse())  # what a broker answers in CompletingRebalance
    assert bench.state() is State.SYNCING


def test_a_heartbeat_at_once_tells_of_a_real_one() -> None:
    bench = Bench()
    bench.settle(0, 1)
    bench.member.beat_at_once(bench.now)
    assert bench.state() is State.STABLE
    beat = bench.take(m.HeartbeatRequest)
    bench.answer(beat, m.HeartbeatResponse(error_code=E.REBALANCE_IN_PROGRESS))
    assert bench.state() is State.JOINING
