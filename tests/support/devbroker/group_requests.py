"""Random requests to one group: most of them sensible, some stale, some wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from slackwater.devbroker.group.group import Group
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.primitives import ZERO_UUID
from slackwater.kafka.wire.schema import Request
from tests.support.devbroker.coordinator import Bench

LONG_MS = 300_000
Made = tuple[Request[Any], int]


def subscription(*topics: str) -> bytes:
    """The encoded subscription of a consumer. (Kafka parses it, so it must be one.)"""
    return b"\0\0" + m.ConsumerProtocolSubscription(topics=list(topics)).encode(0)


_T, _TU, _U, _NONE = subscription("t"), subscription("t", "u"), subscription("u"), subscription()
_OFFERS: list[tuple[int, list[tuple[str, bytes]]]] = [
    (30, [("range", _T)]),
    (6, [("range", _T), ("cooperative-sticky", _TU)]),
    (6, [("cooperative-sticky", _TU), ("range", _T)]),
    (6, [("range", _U)]),
    (4, [("roundrobin", _NONE), ("range", _T)]),
    (1, [("other", _T)]),
    (1, []),
]


class GroupRequests:
    """Makes requests that fit the state of ``bench``'s group, with the ids that ``usable`` allows.

    ``bench`` is only looked at. ``timeout_ms`` is both the session and the rebalance timeout.
    """

    def __init__(
        self,
        rng: random.Random,
        bench: Bench,
        *,
        usable: Callable[[str], bool] = lambda member_id: True,
        timeout_ms: int = LONG_MS,
    ) -> None:
        self._rng = rng
        self._bench = bench
        self._usable = usable
        self._timeout_ms = timeout_ms
        self._seen: list[str] = []
        self._topics = [*bench.topics.counts, "gone"]
        self._kinds: dict[Callable[[], Made], int] = {
            self._drive: 30,
            self._sync: 14,
            self._join_new: 12,
            self._join_known: 12,
            self._heartbeat: 8,
            self._commit: 8,
            self._leave: 5,
            self._describe: 4,
            self._list: 2,
            self._fetch: 2,
            self._delete: 1,
        }

    @property
    def _group(self) -> Group | None:
        return self._bench.coordinator._groups.get(self._bench.group)

    def next(self) -> Made:
        """A request and the version to send it at."""
        group = self._group
        if group is not None:
            self._seen.extend(i for i in group.members if i not in self._seen and self._usable(i))
        return self._rng.choices(list(self._kinds), list(self._kinds.values()))[0]()

    # -- parts of requests

    def _members(self) -> list[str]:
        return [i for i in self._group.members if self._usable(i)] if self._group else []

    def _who(self) -> tuple[str, str | None]:
        """A member id and an instance id: mostly right, else stale, pending or never heard of."""
        rng, group = self._rng, self._group
        members, roll = self._members(), rng.random()
        if group is not None and members and roll < 0.8:
            member = group.members[rng.choice(members)]
            return member.member_id, member.instance_id if rng.random() < 0.85 else None
        if roll < 0.88:
            return rng.choice(self._seen or ["who"]), rng.choice([None, "a", "b", "c"])
        pending = sorted(i for i in group.pending_joins if self._usable(i)) if group else []
        if pending and roll < 0.96:
            return rng.choice(pending), None
        return "who", rng.choice([None, "a", "zz"])

    def _generation(self) -> int:
        current = self._group.generation if self._group else 1
        return current if self._rng.random() < 0.85 else self._rng.choice([current - 1, current + 1, -1, 0])

    def _offer(self) -> list[tuple[str, bytes]]:
        return self._rng.choices([offer for _, offer in _OFFERS], [weight for weight, _ in _OFFERS])[0]

    def _join(
        self, version: int, member_id: str, instance: str | None, offer: list[tuple[str, bytes]], **other: Any
    ) -> Made:
        values: dict[str, Any] = {
            "group_id": self._bench.group,
            "session_timeout_ms": self._timeout_ms,
            "rebalance_timeout_ms": self._timeout_ms,
            "member_id": member_id,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocols": [m.JoinGroupRequestProtocol(name=n, metadata=d) for n, d in offer],
        }
        return m.JoinGroupRequest(**{**values, **other}), version

    # -- requests

    def _drive(self) -> Made:
        """What a well-behaved member would send next."""
        group = self._group
        if group is None or group.state.value == "Empty":
            return self._join_new()
        usable = self._members()
        away = [i for i in usable if group.members[i].join_reply is None]
        if group.state.value == "PreparingRebalance" and away:
            member = group.members[self._rng.choice(away)]
            offer = [(name, data) for name, data in member.protocols]
            return self._join(self._rng.choice([5, 7, 9]), member.member_id, member.instance_id, offer)
        pending = sorted(i for i in group.pending_joins if self._usable(i))
        if group.state.value == "PreparingRebalance" and pending:
            return self._join(self._rng.choice([5, 7, 9]), pending[0], None, self._offer())
        owing = [i for i in group.pending_syncs if i in usable]
        if group.state.value == "CompletingRebalance" and owing:
            return self._sync_of(group, self._rng.choice(owing))
        return self._heartbeat()

    def _sync_of(self, group: Group, member_id: str) -> Made:
        version = self._rng.choice([3, 5])
        assignments = []
        if group.leader == member_id:
            assignments = [
                m.SyncGroupRequestAssignment(
                    member_id=i, assignment=(group.members[i].instance_id or "x").encode()
                )
                for i in group.members
            ]
        request = m.SyncGroupRequest(
            group_id=self._bench.group,
            generation_id=group.generation,
            member_id=member_id,
            group_instance_id=group.members[member_id].instance_id,
            protocol_type="consumer" if version == 5 else None,
            protocol_name=group.protocol if version == 5 else None,
            assignments=assignments,
        )
        return request, version

    def _join_new(self) -> Made:
        rng = self._rng
        instance = rng.choice([None, "a", "b", "c", "d"])
        version = rng.choice([5, 6, 7, 8, 9] if instance else [0, 1, 3, 4, 6, 9])
        session_ms = rng.choices([self._timeout_ms, 1], [30, 1])[0]
        kind = rng.choices(["consumer", "connect", ""], [40, 1, 1])[0]
        return self._join(
            version, "", instance, self._offer(), session_timeout_ms=session_ms, protocol_type=kind
        )

    def _join_known(self) -> Made:
        member_id, instance = self._who()
        version = self._rng.choice([5, 7, 8, 9] if instance else [0, 3, 4, 9])
        return self._join(version, member_id, instance, self._offer())

    def _sync(self) -> Made:
        rng, group = self._rng, self._group
        member_id, instance = self._who()
        version = rng.choice([3, 4, 5] if instance else [0, 2, 3, 5])
        name: str | None = (group.protocol if group else None) or "range"
        if rng.random() < 0.05:
            name = rng.choice([None, "x"])
        members = list(group.members) if group and rng.random() < 0.5 else []
        request = m.SyncGroupRequest(
            group_id=self._bench.group,
            generation_id=self._generation(),
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer" if version == 5 else None,
            protocol_name=name if version == 5 else None,
            assignments=[m.SyncGroupRequestAssignment(member_id=i, assignment=b"s") for i in members],
        )
        return request, version

    def _heartbeat(self) -> Made:
        member_id, instance = self._who()
        request = m.HeartbeatRequest(
            group_id=self._bench.group,
            generation_id=self._generation(),
            member_id=member_id,
            group_instance_id=instance,
        )
        return request, self._rng.choice([3, 4] if instance else [0, 4])

    def _commit(self) -> Made:
        rng = self._rng
        member_id, instance = self._who() if rng.random() < 0.85 else ("", None)
        version = rng.choice([7, 8, 9, 10] if instance else [2, 5, 8, 9, 10])
        request = m.OffsetCommitRequest(
            group_id=self._bench.group,
            generation_id_or_member_epoch=self._generation() if member_id else rng.choice([-1, -1, 1]),
            member_id=member_id,
            group_instance_id=instance,
            topics=[
                m.OffsetCommitRequestTopic(
                    **self._topic(name, version),
                    partitions=[self._commit_partition(i, version) for i in rng.sample(range(9), 2)],
                )
                for name in rng.sample(self._topics, rng.choice([1, 1, 2]))
            ],
        )
        return request, version

    def _commit_partition(self, index: int, version: int) -> m.OffsetCommitRequestPartition:
        return m.OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=self._rng.randrange(100),
            committed_leader_epoch=self._rng.choice([-1, 0]) if version >= 6 else -1,
            committed_metadata=self._rng.choices([None, "x", "y" * 4_097], [3, 3, 1])[0],
        )

    def _topic(self, name: str, version: int) -> dict[str, Any]:
        topic_id = self._bench.topics.topic_id(name) or UUID(int=7)
        return {"name": name if version < 10 else "", "topic_id": topic_id if version >= 10 else ZERO_UUID}

    def _leave(self) -> Made:
        rng = self._rng
        who = []
        for _ in range(rng.choice([1, 1, 2])):
            member_id, instance = self._who()
            if instance and rng.random() < 0.5:
                member_id = ""
            who.append(m.LeaveGroupRequestMember(member_id=member_id, group_instance_id=instance))
        if len(who) == 1 and who[0].group_instance_id is None and rng.random() < 0.4:
            old = m.LeaveGroupRequest(group_id=self._bench.group, member_id=who[0].member_id)
            return old, rng.choice([0, 1, 2])
        return m.LeaveGroupRequest(group_id=self._bench.group, members=who), rng.choice([3, 4, 5])

    def _describe(self) -> Made:
        version = self._rng.randrange(7)
        request = m.DescribeGroupsRequest(
            groups=[self._bench.group, "no-such"],
            include_authorized_operations=version >= 3 and self._rng.random() < 0.5,
        )
        return request, version

    def _list(self) -> Made:
        rng, version = self._rng, self._rng.randrange(6)
        states = rng.choice([[], ["stable"], ["Empty", " PREPARINGREBALANCE"]]) if version >= 4 else []
        types = rng.choice([[], ["Classic"], ["consumer"], ["bogus"]]) if version >= 5 else []
        return m.ListGroupsRequest(states_filter=states, types_filter=types), version

    def _delete(self) -> Made:
        group = self._bench.group
        return m.DeleteGroupsRequest(groups_names=[group, "no-such", group]), self._rng.randrange(3)

    def _fetch(self) -> Made:
        rng, version = self._rng, self._rng.randrange(1, 11)
        everything = version >= 2 and rng.random() < 0.5
        if version < 8:
            old = [m.OffsetFetchRequestTopic(name=n, partition_indexes=[0, 1, 9]) for n in self._topics]
            topics = None if everything else old
            group = self._bench.group
            return m.OffsetFetchRequest(group_id=group, topics=topics, require_stable=version == 7), version
        new = [
            m.OffsetFetchRequestTopics(**self._topic(n, version), partition_indexes=[0, 1, 9])
            for n in self._topics
        ]
        groups = [
            m.OffsetFetchRequestGroup(group_id=g, topics=None if everything else new)
            for g in (self._bench.group, "no-such")
        ]
        return m.OffsetFetchRequest(groups=groups, require_stable=rng.random() < 0.5), version
