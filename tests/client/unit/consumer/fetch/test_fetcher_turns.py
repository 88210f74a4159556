"""The fetcher's turns and bounds: leaders, followers, quotas, paused buffers, transactions, epochs."""

from __future__ import annotations

from uuid import UUID

import pytest

from slackwater.kafka.consumer.fetch.targets import DISTRUST_S, FetchTargets
from slackwater.kafka.protocol.metadata import Broker, ClusterMetadata
from slackwater.kafka.protocol.subscription import FetchState
from slackwater.kafka.records import set_base_offset
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.consumer.fetch.fetch_bench import A, B, Bench, C, batch, fetching, part


def order(request: m.FetchRequest) -> list[int]:
    """The partitions in the order of the request, by which a broker fills its answer."""
    return [p.partition for topic in request.topics for p in topic.partitions]


def request_to(bench: Bench, node: int) -> m.FetchRequest:
    return next(request for asked_node, request, _ in bench.asked if asked_node == node)


async def test_leaders_share_the_room_and_requests_under_way_count() -> None:
    bench = Bench(A, B, leaders=(1, 2, 1), fetch_max_bytes=1_000)
    bench.fetcher.wake()
    await bench.next(1)
    await bench.next(2)
    assert [request.max_bytes for _, request, _ in bench.asked] == [500, 500]
    await bench.answer(part(A, batch(0, 2), end=100), node=1)
    # What the other one may still bring is not given away.
    assert request_to(bench, 1).max_bytes == 1_000 - 500 - bench.buffer.total_bytes


async def test_leaders_take_turns_at_what_room_there_is() -> None:
    bench = Bench(A, B, leaders=(1, 2, 1), fetch_max_bytes=1_000, max_partition_fetch_bytes=10_000)
    bench.fetcher.wake()
    await bench.next(1)
    await bench.next(2)
    await bench.answer(part(A, batch(0, 5), end=1_000), node=1)
    room = 1_000 - bench.buffer.total_bytes
    assert 0 < room < 500
    asked = []
    for _ in range(4):
        await bench.answer(node=bench.asked[0][0])
        [(node, request, _)] = bench.asked
        assert request.max_bytes == room
        asked.append(node)
    assert asked == [1, 2, 1, 2]


async def test_partitions_take_turns_at_the_front_of_a_request() -> None:
    """Also where the broker keeps no session, in which it would see to that itself."""
    bench = await fetching(A, B, C, enable_incremental_fetch_sessions=False)
    assert order(bench.asked[0][1]) == [0, 1, 2]
    await bench.answer(part(A, batch(0, 2), end=100))
    assert order(bench.asked[0][1]) == [1, 2, 0]
    await bench.answer(part(B, batch(0, 2), end=100))
    assert order(bench.asked[0][1]) == [2, 0, 1]


async def test_a_broker_that_asks_for_it_is_left_alone() -> None:
    """KIP-219: the broker answers at once, with the time for which it wants to hear nothing."""
    bench = Bench(A, B, leaders=(1, 2, 1))
    bench.fetcher.wake()
    await bench.next(1)
    await bench.next(2)
    loop, before = bench.fetcher._loop, bench.fetcher._loop.time()
    await bench.answer(part(A, batch(0, 1), end=100), node=1, throttle_ms=300)
    bench.fetcher.wake()
    assert [node for node, _, _ in bench.asked] == [2]
    # The other broker goes on, and the first one when its time is over.
    await bench.answer(part(B, batch(0, 1), end=100), node=2)
    assert [node for node, _, _ in bench.asked] == [2]
    await bench.next(1)
    assert loop.time() - before >= 0.3


async def referred(replica: int, retry_backoff_ms: int = 1) -> Bench:
    """A bench whose leader has named a closer replica."""
    bench = Bench(A, client_rack="r", retry_backoff_ms=retry_backoff_ms)
    bench.fetcher.wake()
    await bench.next(1)
    assert request_to(bench, 1).rack_id == "r"
    closer = part(A, end=100)
    closer.preferred_read_replica = replica
    await bench.answer(closer, node=1)
    return bench


async def test_a_follower_is_read_from_and_left_for_the_leader_when_it_fails() -> None:
    bench = await referred(2)
    assert await bench.next(2) == {0: 0}
    assert all(node == 2 for node, _, _ in bench.asked)
    await bench.fail()
    # Back at the leader, which might not know yet: without the rack it gives records, and no name.
    assert await bench.next(1) == {0: 0}
    assert request_to(bench, 1).rack_id == ""
    await bench.answer(part(A, batch(0, 2), end=100), node=1)
    assert await bench.next(1) == {0: 2}


async def test_a_follower_whose_address_is_not_known_is_looked_up_and_not_asked_for_again_and_again() -> None:
    bench = await referred(9, retry_backoff_ms=50)
    assert (bench.asked, bench.refreshes) == ([], 1)
    bench.metadata.learn_broker(Broker(9, "h", 9))
    assert await bench.next(9) == {0: 0}


async def test_an_offset_out_of_a_followers_range_is_asked_of_the_leader() -> None:
    bench = await referred(2)
    await bench.next(2)
    await bench.answer(part(A, code=E.OFFSET_OUT_OF_RANGE), node=2)
    assert await bench.next(1) == {0: 0}
    assert bench.out_of_range == []


def test_a_follower_is_read_from_for_a_while_only() -> None:
    metadata = ClusterMetadata()
    parts = [m.MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=1)]
    topics = [m.MetadataResponseTopic(name="t", partitions=parts)]
    brokers = [m.MetadataResponseBroker(node_id=n) for n in (1, 2)]
    metadata.update(m.MetadataResponse(brokers=brokers, topics=topics), 0)
    targets = FetchTargets(metadata, replica_age_s=300)
    targets.prefer(A, 2, now=0)
    assert [targets.node(A, now) for now in (0, 299, 300, 301)] == [2, 2, 1, 1]
    targets.prefer(A, 2, now=400)
    metadata.update(m.MetadataResponse(brokers=brokers[:1], topics=topics), 0)
    assert targets.node(A, 401) == 1
    targets.prefer(A, 2, now=500)
    targets.failed(2, [A], now=500)
    assert not targets.may_tell_rack([A], 500 + DISTRUST_S - 1)
    assert targets.may_tell_rack([B], 500)
    assert targets.may_tell_rack([A], 500 + DISTRUST_S)


async def test_what_paused_partitions_hold_gives_way_when_nothing_else_could_be_fetched() -> None:
    bench = await fetching(A, B, fetch_max_bytes=1_000, max_partition_fetch_bytes=2_000)
    await bench.answer(part(A, batch(0, 9), end=100))
    held = bench.buffer.held_bytes(A)
    assert bench.asked == []
    bench.subscription.get(A).paused = True
    bench.fetcher.wake()
    assert await bench.next() == {1: 0}
    assert (held > 1_000, bench.buffer.held_bytes(A), bench.buffer.total_bytes) == (True, 0, 0)
    await bench.answer(part(B, batch(0, 1), end=1))
    # The position is where it was, and what was dropped is fetched again.
    assert bench.subscription.get(A).position == 0
    bench.subscription.get(A).paused = False
    await bench.answer(part(B, end=1))
    assert (await bench.next())[0] == 0


async def test_paused_buffers_stay_while_there_is_room() -> None:
    bench = await fetching(A, B, fetch_max_bytes=10_000, max_partition_fetch_bytes=2_000)
    await bench.answer(part(A, batch(0, 9), end=100))
    bench.subscription.get(A).paused = True
    held = bench.buffer.held_bytes(A)
    await bench.answer(part(B, batch(0, 9), end=100))
    await bench.settle()
    assert bench.buffer.held_bytes(A) == held > 0


async def test_read_committed_asks_for_it_and_stops_at_the_last_stable_offset() -> None:
    bench = await fetching(A, B, isolation_level="read_committed", max_partition_fetch_bytes=300)
    assert bench.asked[0][1].isolation_level == 1
    full = part(A, batch(0, 5), end=100)
    full.last_stable_offset = 100
    full.aborted_transactions = [m.FetchResponseAbortedTransaction(producer_id=7, first_offset=3)]
    behind = part(B, end=50)
    behind.last_stable_offset = 0
    await bench.answer(full, behind)
    # B has 50 records, and none that is decided: while A is held back, there is nothing to ask for.
    assert bench.asked == []
    assert [chunk.aborted for chunk in bench.buffer._chunks] == [[(7, 3)]]
    bench.subscription.get(B).last_stable_offset = 10
    bench.fetcher.wake()
    assert await bench.next() == {1: 0}


async def test_the_position_carries_the_epoch_of_the_record_before_it() -> None:
    bench = await fetching(A)
    data = bytearray(batch(0, 3) + batch(3, 3))
    set_base_offset(data, 0, 0, 4)
    set_base_offset(data, len(batch(0, 3)), 3, 6)
    await bench.answer(part(A, bytes(data), end=6))
    positions = []
    for _ in range(3):
        bench.buffer.collect(2)
        positions.append(bench.subscription.consumed()[A])
    assert positions == [(2, 4), (4, 6), (6, 6)]


async def test_a_new_leader_in_an_answer_is_told_and_its_address_taken() -> None:
    """KIP-951: NOT_LEADER_OR_FOLLOWER names the leader, and where it is."""
    bench = await fetching(A)
    answer = part(A, code=E.NOT_LEADER_OR_FOLLOWER)
    answer.current_leader = m.FetchResponseLeaderIdAndEpoch(leader_id=9, leader_epoch=2)
    endpoint = m.FetchResponseNodeEndpoint(node_id=9, host="h", port=9)
    await bench.answer(answer, endpoints=[endpoint])
    assert (bench.leader_news, bench.refreshes) == (1, 0)
    assert bench.metadata.brokers[9].port == 9
    assert await bench.next(9) == {0: 0}


async def test_what_is_kept_of_an_answer_does_not_keep_the_rest_of_it() -> None:
    bench = await fetching(A, B)
    frame = memoryview(bytearray(batch(0, 2) + bytes(100_000)))
    size = len(batch(0, 2))
    await bench.answer(part(A, frame[:size], end=2))
    [chunk] = bench.buffer._chunks
    assert isinstance(chunk.data, bytes)
    whole = memoryview(bytearray(batch(0, 2)))
    await bench.answer(part(B, whole, end=2))
    assert bench.buffer._chunks[1].data is whole


@pytest.mark.parametrize("state", [FetchState.AWAIT_VALIDATION, FetchState.AWAIT_RESET])
async def test_only_what_has_a_good_position_is_fetched_or_handed_over(state: FetchState) -> None:
    bench = await fetching(A)
    await bench.answer(part(A, batch(0, 5), end=100))
    await bench.next()
    partition_state = bench.subscription.get(A)
    if state is FetchState.AWAIT_VALIDATION:
        bench.subscription.suspend(partition_state)
    else:
        bench.subscription.reset(A, -2)
    await bench.answer(part(A, batch(5, 5), end=100))
    bench.fetcher.wake()
    assert bench.asked == []
    assert bench.buffer.collect(100) == {}
    assert partition_state.position == 0


async def test_the_topic_that_is_read_is_remembered_by_its_id() -> None:
    bench = Bench(A)
    bench.metadata.topics["t"].topic_id = UUID(int=5)
    bench.fetcher.wake()
    await bench.next()
    assert bench.asked[0][1].topics[0].topic_id == UUID(int=5)
    assert bench.subscription.is_other_topic(bench.subscription.get(A), UUID(int=6))
