"""The same random requests to a real broker and to the coordinator: the answers must be the same.

The coordinator runs in virtual time beside the broker, so this looks at states and answers, not at
timers: only the initial rebalance delay passes, and the test waits for the broker there. What may
differ is told apart: member ids, the order of lists, and which member takes the lead when the
leader has gone (Kafka takes one from a hash map).
"""

from __future__ import annotations

import random
import select
import time
from typing import Any

import pytest

from slackwater.devbroker.group import GroupConfig
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.schema import Request, Struct
from tests.support.devbroker.coordinator import Bench, Call
from tests.support.devbroker.group_requests import GroupRequests
from tests.support.kafka import KafkaCluster
from tests.support.wire.rawclient import RawClient

STEPS = 150
WAIT_S = 20.0
QUIET_S, QUIET_AFTER_PARKING_S = 0.003, 0.05
"""How long nothing may come; longer after a request that is parked, which Kafka has taken in by then."""
_IDS = {"member_id", "leader"}


class Pair:
    """The broker and the coordinator, and which member id of the one is which of the other."""

    def __init__(self, bootstrap: str, group: str) -> None:
        topics = {f"{group}-t": 8, f"{group}-u": 4}
        self.bench = Bench(GroupConfig(initial_rebalance_delay_ms=0), group=group, topics=topics)
        self.mine_of: dict[str, str] = {}
        self.real_of: dict[str, str] = {}
        self._bootstrap = bootstrap
        self._idle: list[RawClient] = []
        self._open: list[tuple[Call, RawClient]] = []
        self._leader_is_free = False
        self._copy_topics()

    def close(self) -> None:
        for client in [*self._idle, *(client for _, client in self._open)]:
            client.close()

    def _copy_topics(self) -> None:
        """Makes the bench's topics on the broker, and takes the broker's ids over."""
        topics = self.bench.topics
        with RawClient.to(self._bootstrap) as client:
            wanted = [
                m.CreateTopicsRequestTopic(name=name, num_partitions=count, replication_factor=1)
                for name, count in topics.counts.items()
            ]
            client.request(m.CreateTopicsRequest(topics=wanted, timeout_ms=10_000))
            deadline = time.monotonic() + WAIT_S
            names = [m.MetadataRequestTopic(name=name) for name in topics.counts]
            answer = client.request(m.MetadataRequest(topics=names))
            while any(topic.error_code for topic in answer.topics):
                assert time.monotonic() < deadline, "the topics do not appear"
                answer = client.request(m.MetadataRequest(topics=names))
        ids = {topic.name: topic.topic_id for topic in answer.topics}
        topics.topic_id = ids.get  # type: ignore[method-assign, assignment]
        names_by_id = {topic_id: name for name, topic_id in ids.items()}
        topics.topic_name = names_by_id.get  # type: ignore[method-assign, assignment]

    # -- one step

    def step(self, request: Request[Any], version: int) -> None:
        """Sends to both, and compares every answer that has come since."""
        before = self._leader()
        call = self.bench.send(request, version)
        self.bench.coordinator.poll(self.bench.now_ms)
        client = self._idle.pop() if self._idle else RawClient.to(self._bootstrap, client_id="c")
        client.send(self._translated(request, version), version)
        self._open.append((call, client))
        self._note_a_free_choice(request, before)
        self._compare_answers(call)

    def _leader(self) -> str | None:
        group = self.bench.coordinator._groups.get(self.bench.group)
        return group.leader if group else None

    def _note_a_free_choice(self, request: Request[Any], before: str | None) -> None:
        group = self.bench.coordinator._groups.get(self.bench.group)
        if group is None or not group.members:
            self._leader_is_free = False
        elif before is not None and before not in group.members:
            # A static member's return hands the lead on to its own new id.
            returned = isinstance(request, m.JoinGroupRequest) and request.group_instance_id is not None
            self._leader_is_free |= not returned

    def _translated(self, request: Request[Any], version: int) -> Request[Any]:
        copy = type(request).decode(request.encode(version), version)

        def walk(value: Any) -> None:
            for name, inner in vars(value).items():
                if name == "member_id":
                    value.member_id = self.real_of.get(inner, inner)
                elif isinstance(inner, list):
                    for item in inner:
                        if isinstance(item, Struct):
                            walk(item)

        walk(copy)
        return copy

    def _compare_answers(self, last: Call) -> None:
        pairs = []
        for call, client in [exchange for exchange in self._open if not exchange[0].parked]:
            try:
                pairs.append((call, client.receive(WAIT_S)))
            except TimeoutError:
                pytest.fail(f"Kafka does not answer {call.request}; the coordinator: {call.answer}")
            self._open.remove((call, client))
            self._idle.append(client)
        for call, real in pairs:
            self._learn(call.answer, real)
        self._adopt_leader([(call.answer, real) for call, real in pairs])
        for call, real in pairs:
            if self._comparable(call.answer, real):
                assert self._plain(call.answer) == self._plain(real), f"v{call.version} {call.request}"
        if last.parked:
            next(client for call, client in self._open if call is last).let_it_arrive()
        self._expect_silence(QUIET_AFTER_PARKING_S if last.parked else QUIET_S)

    def _expect_silence(self, seconds: float) -> None:
        ready = select.select([client._socket for _, client in self._open], [], [], seconds)[0]
        for call, client in self._open:
            if client._socket in ready:
                pytest.fail(f"Kafka answers what the coordinator parks: {call.request}: {client.receive(1)}")

    # -- what may differ

    def _learn(self, mine: Any, real: Any) -> None:
        mine_id, real_id = getattr(mine, "member_id", ""), getattr(real, "member_id", "")
        if mine_id and real_id and mine_id not in self.real_of and real_id not in self.mine_of:
            self.real_of[mine_id], self.mine_of[real_id] = real_id, mine_id

    def _adopt_leader(self, answers: list[tuple[Any, Any]]) -> None:
        joins = [
            (mine, real)
            for mine, real in answers
            if isinstance(real, m.JoinGroupResponse) and not real.error_code
        ]
        if not joins:
            return
        leader = self.mine_of[joins[0][1].leader]
        if self._leader_is_free and leader != joins[0][0].leader:
            group = self.bench.coordinator._groups[self.bench.group]
            assert leader in group.members
            group.leader = leader
            listed = [
                sorted(member.member_id for pair in joins for member in pair[side].members) for side in (0, 1)
            ]
            assert listed[0] == sorted(self.mine_of[i] for i in listed[1])
            for mine, real in joins:
                mine.leader, mine.members = leader, real.members
        self._leader_is_free = False

    def _comparable(self, mine: Any, real: Any) -> bool:
        """A member whose first join is parked has an id on each side that nobody has told yet."""
        if isinstance(real, m.ListGroupsResponse):
            for answer in (mine, real):
                answer.groups = [g for g in answer.groups if g.group_id == self.bench.group]
        if not isinstance(real, m.DescribeGroupsResponse):
            return True
        untold = [{x.member_id for g in mine.groups for x in g.members} - self.real_of.keys()]
        untold.append({x.member_id for g in real.groups for x in g.members} - self.mine_of.keys())
        assert len(untold[0]) == len(untold[1])
        return not untold[0]

    def _plain(self, value: Any) -> Any:
        if isinstance(value, list):
            return sorted((self._plain(item) for item in value), key=repr)
        if not isinstance(value, Struct):
            return int(value) if isinstance(value, int) else value
        return {
            name: self.mine_of.get(inner, inner) if name in _IDS else self._plain(inner)
            for name, inner in vars(value).items()
        }


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.long)])
def test_random_requests_get_the_same_answers(kafka: KafkaCluster, seed: int) -> None:
    pair = Pair(kafka.bootstrap, f"differential-{seed}")
    requests = GroupRequests(random.Random(seed), pair.bench, usable=pair.real_of.__contains__)
    try:
        for _ in range(STEPS):
            pair.step(*requests.next())
    finally:
        pair.close()
