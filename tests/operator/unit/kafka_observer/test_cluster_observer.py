"""What rounds that run at the same time see of the topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from slackwater.kafka.errors import KafkaConnectionError
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater_operator.kafka import cluster_observer
from slackwater_operator.kafka.cluster_observer import TOPICS_RETRY_MS, ClusterObserver, GroupWanted
from slackwater_operator.model.group import GroupView
from tests.support.waiting import HANG_S

THERE = ("flights", "late")
NAMED = GroupWanted("named", "g1", ("flights", "gone"))
PATTERN = GroupWanted("pattern", "g2", topic_pattern="fl.*")


class FakeCluster:
    """A cluster that has `THERE`. Asked for all topics it does not mention the others; asked for those by
    name it says that they do not exist, once `by_name` is set."""

    def __init__(self) -> None:
        self.metadata = ClusterMetadata()
        self.on_metadata: list[Callable[[ClusterMetadata], None]] = []
        self.by_name = asyncio.Event()
        self.by_name.set()
        self.asked_by_name = asyncio.Event()
        self.fails = False
        self._topics: set[str] = set()
        self._all = False

    def track(self, topics: Iterable[str], *, all_topics: bool = False) -> None:
        self._topics, self._all = set(topics), all_topics

    async def refresh(self) -> None:
        whole, names = self._all, THERE if self._all else sorted(self._topics)
        await asyncio.sleep(0)
        if not whole:
            self.asked_by_name.set()
            await self.by_name.wait()
            if self.fails:
                raise KafkaConnectionError("no answer")
        partition = m.MetadataResponsePartition(partition_index=0, leader_id=1)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topics = [
            m.MetadataResponseTopic(name=name, partitions=[partition])
            if name in THERE
            else m.MetadataResponseTopic(name=name, error_code=missing)
            for name in names
        ]
        self.metadata.update(m.MetadataResponse(topics=topics), 0, complete=whole)
        for listener in self.on_metadata:
            listener(self.metadata)


class Rig:
    """An observer of such a cluster, and its clock."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.cluster = FakeCluster()
        self.observer = ClusterObserver(self.cluster, clock=self)  # type: ignore[arg-type]

    def wall_ms(self) -> int:
        return int(self.now_ms)

    def mono_ms(self) -> float:
        return self.now_ms

    def sleep(self, ms: float) -> None:
        raise AssertionError("the observer waits on its loop only")

    async def look(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of the group that names its topics: those that are missing, and what could not be observed."""
        snapshot = (await self.observer.observe([NAMED, PATTERN]))["named"]
        assert TopicPartition("flights", 0) in snapshot.partitions
        return snapshot.missing, tuple(problem for problem in snapshot.problems if "topic" in problem)


MISSING = (("gone",), ("topic gone does not exist; create it",))


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    async def ask(self: Any, asking: Any, wanted: Any, partitions: Any) -> Any:
        asking.answers += 1
        groups = {group.group_id: GroupView("Empty") for group in wanted}
        committed: dict[str, Any] = {
            group.group_id: dict.fromkeys(partitions[group.key], 0) for group in wanted
        }
        ends = {False: {tp: 0 for some in partitions.values() for tp in some}}
        return cluster_observer._Facts(groups, committed, ends, {})

    monkeypatch.setattr(ClusterObserver, "_ask", ask)
    return Rig()


async def test_a_missing_topic_stays_missing_in_a_round_that_runs_while_the_topics_are_asked_for(
    rig: Rig,
) -> None:
    assert await rig.look() == MISSING
    rig.cluster.by_name.clear()
    rig.cluster.asked_by_name.clear()
    rig.now_ms += TOPICS_RETRY_MS
    slow = asyncio.create_task(rig.look())
    await rig.cluster.asked_by_name.wait()
    rig.now_ms -= 1  # a round that finds the topics new enough, and asks for nothing
    assert await asyncio.wait_for(rig.look(), HANG_S) == MISSING
    rig.cluster.by_name.set()
    assert await slow == MISSING


async def test_a_missing_topic_stays_missing_where_its_name_could_not_be_asked_for(rig: Rig) -> None:
    assert await rig.look() == MISSING
    rig.now_ms += TOPICS_RETRY_MS
    rig.cluster.fails = True
    assert await rig.look() == MISSING
    rig.cluster.fails = False
    assert await rig.look() == MISSING


async def test_a_missing_topic_stays_missing_when_the_client_asks_for_all_topics_by_itself(rig: Rig) -> None:
    assert await rig.look() == MISSING
    await rig.cluster.refresh()  # metadata.max.age, or a leader that has moved
    assert await rig.look() == MISSING


async def test_a_topic_that_was_created_is_not_missing_any_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await rig.look() == MISSING
    monkeypatch.setitem(globals(), "THERE", (*THERE, "gone"))
    rig.now_ms += TOPICS_RETRY_MS
    assert await rig.look() == ((), ())


@pytest.mark.parametrize(
    ("state", "position"), [("Stable", 700), ("PreparingRebalance", 700), ("Empty", 400)]
)
async def test_what_members_have_handled_and_not_written_is_no_lag(
    monkeypatch: pytest.MonkeyPatch, state: str, position: int
) -> None:
    """Without members nobody has it any more."""
    tp = TopicPartition("flights", 0)

    async def ask(self: Any, asking: Any, wanted: Any, partitions: Any) -> Any:
        asking.answers += 1
        groups, ends = {"g1": GroupView(state)}, {False: {tp: 1_000}}
        return cluster_observer._Facts(groups, {"g1": {tp: 400}}, ends, {}, {"g1": {tp: 700}})

    monkeypatch.setattr(ClusterObserver, "_ask", ask)
    snapshot = (await Rig().observer.observe([GroupWanted("named", "g1", ("flights",))]))["named"]
    assert snapshot.positions == {tp: position}
    assert snapshot.lag == {tp: 1_000 - position}
