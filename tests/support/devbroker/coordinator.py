"""The dev broker's group coordinator in virtual time, for tests.

Every request and every answer goes through its encoded form, so a test also shows that the answer
can be sent at that version.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID, uuid5

from slackwater.devbroker.group import (
    GroupConfig,
    GroupCoordinator,
    GroupStore,
    GroupStoreError,
    MemoryGroupStore,
)
from slackwater.devbroker.group.store import Record
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.primitives import ZERO_UUID
from slackwater.kafka.wire.schema import Request, Response

R = TypeVar("R", bound=Response)

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
_TOPIC_IDS = UUID("6f0b5a52-3c1f-4c7e-9a51-0d2b8d3f4a11")


class FlakyStore(MemoryGroupStore):
    """Takes nothing while ``full``."""

    full = False

    def append(self, records: Sequence[Record]) -> None:
        if self.full:
            raise GroupStoreError("No space left on device")
        super().append(records)


class Topics:
    """Topics by name with a partition count each; a test may change the dict."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)

    def names(self) -> list[str]:
        return sorted(self.counts)

    def topic_id(self, name: str) -> UUID | None:
        return uuid5(_TOPIC_IDS, name) if name in self.counts else None

    def topic_name(self, topic_id: UUID) -> str | None:
        return next((name for name in self.counts if self.topic_id(name) == topic_id), None)

    def partition_count(self, name: str) -> int | None:
        return self.counts.get(name)


class Call:
    """A request that was sent; ``answers`` gets what comes back, at most one."""

    def __init__(self, request: Request[Any], version: int) -> None:
        self.request = request
        self.version = version
        self.answers: list[Any] = []

    def take(self, response: Response) -> None:
        kind = type(self.request).response_type
        self.answers.append(kind.decode(response.encode(self.version), self.version))
        assert len(self.answers) == 1, f"{len(self.answers)} answers to {self.request}"

    @property
    def parked(self) -> bool:
        return not self.answers

    @property
    def answer(self) -> Any:
        assert self.answers, f"no answer yet to {self.request}"
        return self.answers[0]

    @property
    def error(self) -> ErrorCode:
        return ErrorCode(self.answer.error_code)


class Bench:
    """One coordinator with its clock. ``group`` is the group that the shortcuts mean."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        store: GroupStore | None = None,
        group: str = "g",
        topics: Mapping[str, int] | None = None,
    ) -> None:
        self.store: GroupStore = store or MemoryGroupStore()
        self.topics = Topics({"t": 8, "u": 4} if topics is None else topics)
        self.group = group
        self.now_ms = 1_000.0
        ids = itertools.count(1)
        self.coordinator = GroupCoordinator(
            config or GroupConfig(), self.store, lambda prefix: f"{prefix}-{next(ids)}", self.topics
        )
        self.coordinator.load(self.now_ms)

    # -- time

    def advance(self, ms: float) -> None:
        """Lets ``ms`` pass, stopping at every deadline on the way."""
        end = self.now_ms + ms
        while (due := self.coordinator.poll(self.now_ms)) is not None and due <= end:
            assert due > self.now_ms, "a deadline that does not move"
            self.now_ms = due
        self.now_ms = end
        self.coordinator.poll(end)

    # -- requests

    def send(self, request: Request[Any], version: int | None = None, client_id: str = "c") -> Call:
        """Sends at ``version`` (None: the highest); the answer may come later."""
        version = type(request).max_version if version is None else version
        call = Call(request, version)
        self.coordinator.handle(
            type(request).decode(request.encode(version), version),
            version=version,
            client_id=client_id,
            client_host="127.0.0.1",
            now_ms=self.now_ms,
            reply=call.take,
        )
        return call

    def ask(self, request: Request[R], version: int | None = None) -> R:
        """Sends; the answer must come at once."""
        answer: R = self.send(request, version).answer
        return answer

    def join(
        self,
        member_id: str = "",
        instance: str | None = None,
        *,
        version: int = 9,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"m"),),
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        protocol_type: str = "consumer",
    ) -> Call:
        request = m.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[m.JoinGroupRequestProtocol(name=n, metadata=d) for n, d in protocols],
        )
        return self.send(request, version)

    def sync(
        self,
        member_id: str,
        generation: int,
        instance: str | None = None,
        assignment: Mapping[str, bytes] | None = None,
        *,
        version: int = 5,
        protocol: str | None = "range",
    ) -> Call:
        request = m.SyncGroupRequest(
            group_id=self.group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocol_name=protocol,
            assignments=[
                m.SyncGroupRequestAssignment(member_id=i, assignment=d) for i, d in (assignment or {}).items()
            ],
        )
        return self.send(request, version)

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        request = m.HeartbeatRequest(
            group_id=self.group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return self.send(request).error

    def commit(
        self,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        *,
        offset: int = 1,
        metadata: str | None = "",
        partition: int = 0,
        version: int = 9,
    ) -> ErrorCode:
        """Commits one partition of ``t``."""
        topic = m.OffsetCommitRequestTopic(
            name="t" if version < 10 else "",
            topic_id=self.topics.topic_id("t") or ZERO_UUID if version >= 10 else ZERO_UUID,
            partitions=[
                m.OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            ],
        )
        request = m.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            topics=[topic],
        )
        return ErrorCode(self.ask(request, version).topics[0].partitions[0].error_code)

    def committed(self, partition: int = 0) -> int:
        """The committed offset of a partition of ``t``, -1 when there is none."""
        wanted = m.OffsetFetchRequestTopics(name="t", partition_indexes=[partition])
        request = m.OffsetFetchRequest(
            groups=[m.OffsetFetchRequestGroup(group_id=self.group, topics=[wanted])]
        )
        return int(self.ask(request, 9).groups[0].topics[0].partitions[0].committed_offset)

    def leave(self, *who: tuple[str, str | None]) -> list[ErrorCode]:
        """LeaveGroup of pairs of member id and instance id; the error of each."""
        members = [m.LeaveGroupRequestMember(member_id=i, group_instance_id=s) for i, s in who]
        answer = self.ask(m.LeaveGroupRequest(group_id=self.group, members=members))
        assert answer.error_code == ErrorCode.NONE
        assert [(a.member_id, a.group_instance_id) for a in answer.members] == list(who)
        return [ErrorCode(a.error_code) for a in answer.members]

    # -- looking at it

    def described(self) -> dict[str, Any]:
        """The group of :meth:`GroupCoordinator.describe`."""
        return next(group for group in self.coordinator.describe() if group["group"] == self.group)

    @property
    def state(self) -> str:
        return str(self.described()["state"])

    @property
    def generation(self) -> int:
        return int(self.described()["generation"])

    @property
    def member_ids(self) -> list[str]:
        return [member["member_id"] for member in self.described()["members"]]

    # -- ready-made groups

    def form_static(self, *instances: str, **options: Any) -> dict[str, str]:
        """A Stable group of static members; the first leads. Gives member id by instance id.

        Each is assigned ``a-`` and its instance id.
        """
        calls = {name: self.join(instance=name, **options) for name in instances}
        self.advance(DELAY_MS * 2 if len(instances) > 1 else DELAY_MS)
        ids = {name: call.answer.member_id for name, call in calls.items()}
        self.sync_all(ids)
        return ids

    def sync_all(self, ids: Mapping[str, str]) -> None:
        """All sync, the leader last; the group becomes Stable."""
        leader = self.described()["leader"]
        protocol = self.described()["protocol"]
        assignment = {member_id: b"a-" + name.encode() for name, member_id in ids.items()}
        order = sorted(ids.items(), key=lambda pair: pair[1] == leader)
        calls = []
        for name, member_id in order:
            mine = assignment if member_id == leader else {}
            calls.append(self.sync(member_id, self.generation, name, mine, protocol=protocol))
        for (name, _), call in zip(order, calls, strict=True):
            assert call.error is ErrorCode.NONE
            assert call.answer.assignment == b"a-" + name.encode()
        assert self.state == "Stable"
