"""A blocking client for tests: it sends what it is told, and keeps no state but the connection.

It speaks through :mod:`slackwater.kafka.wire` alone, so that a test decides every byte that goes
out and sees every answer that comes back, without a consumer's retries in between.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.frame import (
    RequestHeader,
    decode_response,
    encode_request,
    frame_size,
)
from slackwater.kafka.wire.schema import Request, Response
from tests.support.waiting import wait_until

R = TypeVar("R", bound=Response)

CEILINGS: dict[int, Mapping[int, int]] = {}
"""Port of a broker -> the highest version of each API that requests to it may have; above it, that one is
taken. For tests that run against old brokers too, and are not about a version.
"""
MAX_FRAME_BYTES = 256 * 1024 * 1024
DEFAULT_TIMEOUT_S = 25.0
"""Less than the sessions and rebalance timeouts of the members here, which must not be what ends a wait."""


class ConnectionClosed(ConnectionError):
    """The broker closed the connection."""


def parse_address(bootstrap: str) -> tuple[str, int]:
    """``host:port`` (the first one, if it is a list) as a pair."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    return host, int(port)


class RawClient:
    """One connection. Answers come back in the order of the requests (Kafka's rule per connection)."""

    def __init__(self, host: str, port: int, *, client_id: str = "raw", timeout_s: float = 20.0) -> None:
        self.host, self.port = host, port
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._ids = itertools.count(1)
        self._sent: deque[tuple[int, type[Request[Any]], int]] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._client_id = client_id

    @classmethod
    def to(cls, bootstrap: str, **options: Any) -> Self:
        """Connects to the first address of ``bootstrap``."""
        host, port = parse_address(bootstrap)
        return cls(host, port, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket at once; what is on its way is lost."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def version_of(self, message: type[Request[Any]]) -> int:
        """The highest version of ``message`` that both sides speak (asked for once per connection)."""
        if not self._versions:
            answer = self.request(m.ApiVersionsRequest(), 0)
            self._versions = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}
        low, high = self._versions[message.api_key]
        version = min(high, message.max_version)
        assert version >= max(low, message.min_version), f"no common version of {message.__name__}"
        return version

    def send(self, request: Request[Any], version: int | None = None) -> int:
        """Sends without waiting; returns the correlation id. ``version`` None: the highest common one.

        :data:`CEILINGS` may lower it.
        """
        if version is None:
            version = self.version_of(type(request))
        version = min(version, CEILINGS.get(self.port, {}).get(request.api_key, version))
        correlation_id = next(self._ids)
        header = RequestHeader(request.api_key, version, correlation_id, self._client_id)
        parts = encode_request(header, request)
        self._sent.append((correlation_id, type(request), version))
        self._socket.settimeout(DEFAULT_TIMEOUT_S)
        self._socket.sendall(b"".join(parts))
        return correlation_id

    def send_bytes(self, data: bytes) -> None:
        """Sends bytes as they are, for frames that no declaration would make."""
        self._socket.settimeout(DEFAULT_TIMEOUT_S)
        self._socket.sendall(data)

    def receive(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        """The answer to the oldest request not answered yet.

        Raises :class:`TimeoutError` (the answer can still be received later) and
        :class:`ConnectionClosed`.
        """
        payload = self.receive_frame(timeout_s)
        correlation_id, message, version = self._sent.popleft()
        got, body = decode_response(payload, message.api_key, version, message.response_type)
        assert got == correlation_id, f"answer {got} to request {correlation_id}"
        return body

    def receive_frame(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """The next frame without its length. Raises as :meth:`receive`."""
        deadline = time.monotonic() + timeout_s
        self._fill(4, deadline)
        size = frame_size(self._buffer[:4], MAX_FRAME_BYTES)
        self._fill(4 + size, deadline)
        frame = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        return frame

    def _fill(self, size: int, deadline: float) -> None:
        while len(self._buffer) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no answer; {len(self._buffer)} bytes so far")
            self._socket.settimeout(left)
            try:
                chunk = self._socket.recv(1 << 20)
            except TimeoutError:
                raise TimeoutError(f"no answer; {len(self._buffer)} bytes so far") from None
            except ConnectionResetError as exc:
                raise ConnectionClosed("reset by the broker") from exc
            if not chunk:
                raise ConnectionClosed("closed by the broker")
            self._buffer += chunk

    def request(
        self, request: Request[R], version: int | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> R:
        """Sends and waits for the answer. Nothing may be outstanding on this connection."""
        self.send(request, version)
        assert len(self._sent) == 1, "another request is still unanswered on this connection"
        answer: R = self.receive(timeout_s)
        return answer

    def let_it_arrive(self) -> None:
        """Returns when the broker has had time to take in what was sent here, however busy the machine is.

        Others' requests come after it and are answered: over more connections than a broker has threads that
        read, twice each, and by the groups' coordinator, behind what that has to do.
        """
        for _ in range(4):
            with RawClient(self.host, self.port) as other:
                for _ in range(2):
                    other.request(m.ListGroupsRequest(), 3)

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing arrives for ``seconds`` (what would have arrived stays receivable).

        They begin when the broker has taken in what was sent: a request that is not answered is parked then.
        """
        self.let_it_arrive()
        try:
            self._fill(len(self._buffer) + 1, time.monotonic() + seconds)
        except TimeoutError:
            return True
        return False

    def closed_by_broker(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Whether the broker closes the connection within ``timeout_s`` without an answer."""
        try:
            self.receive_frame(timeout_s)
        except ConnectionClosed:
            return True
        except TimeoutError:
            pass
        return False


def subscription(*topics: str, version: int = 3, **fields: Any) -> bytes:
    """A member's metadata in the consumer protocol.

    Apache Kafka 4.3 reads it when a join completes, and some bytes that are no subscription at all
    leave the whole group without an answer: so the tests send real ones.
    """
    body = m.ConsumerProtocolSubscription(topics=list(topics), **fields)
    return version.to_bytes(2, "big") + body.encode(version)


class Member:
    """A group member by hand (classic protocol): each call is one request.

    A Join or Sync that is parked blocks its connection, so heartbeats, commits and leaves go
    through a second one, as in Java's client.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        instance: str | None = None,
        *,
        protocols: Mapping[str, bytes] | None = None,
        session_ms: int = 30_000,
        rebalance_ms: int = 30_000,
        join_version: int = 9,
    ) -> None:
        self.bootstrap, self.group, self.instance = bootstrap, group, instance
        self.protocols = dict(protocols if protocols is not None else {"range": subscription("topic")})
        self.session_ms, self.rebalance_ms = session_ms, rebalance_ms
        self.join_version = join_version
        self.member_id = ""
        self.generation = -1
        self.leader = ""
        self.joined = m.JoinGroupResponse()
        self.main = RawClient.to(bootstrap)
        self.side = RawClient.to(bootstrap)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes both connections and says nothing to the group, like a crash."""
        self.main.close()
        self.side.close()

    @property
    def is_leader(self) -> bool:
        """Whether the last join named this member the leader."""
        return self.leader == self.member_id != ""

    def join_request(self, member_id: str | None = None) -> m.JoinGroupRequest:
        """The JoinGroup that :meth:`send_join` sends."""
        return m.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id if member_id is None else member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[m.JoinGroupRequestProtocol(name=n, metadata=b) for n, b in self.protocols.items()],
        )

    def send_join(self, member_id: str | None = None) -> None:
        """Sends JoinGroup; ``member_id`` None: the one this member has."""
        self.main.send(self.join_request(member_id), self.join_version)

    def receive_join(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> m.JoinGroupResponse:
        """Awaits the answer and, if it is good, keeps member id, generation and leader."""
        answer: m.JoinGroupResponse = self.main.receive(timeout_s)
        if answer.error_code == 0:
            self.joined = answer
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.leader = answer.leader
        return answer

    def join(self, member_id: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> m.JoinGroupResponse:
        """One JoinGroup; a dynamic member's MEMBER_ID_REQUIRED (79, KIP-394) is obeyed once."""
        self.send_join(member_id)
        answer = self.receive_join(timeout_s)
        if answer.error_code == 79 and self.instance is None and not member_id:
            self.member_id = answer.member_id
            self.send_join()
            answer = self.receive_join(timeout_s)
        return answer

    def sync_request(
        self, assignments: Mapping[str, bytes] | None = None, **changes: Any
    ) -> m.SyncGroupRequest:
        """The SyncGroup of this generation, with ``changes`` to its fields."""
        values: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocol_name": self.joined.protocol_name,
            "assignments": [
                m.SyncGroupRequestAssignment(member_id=k, assignment=v)
                for k, v in (assignments or {}).items()
            ],
        }
        return m.SyncGroupRequest(**{**values, **changes})

    def send_sync(self, assignments: Mapping[str, bytes] | None = None, **changes: Any) -> None:
        """Sends SyncGroup on the main connection."""
        self.main.send(self.sync_request(assignments, **changes), 5)

    def receive_sync(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> m.SyncGroupResponse:
        """Awaits the answer to :meth:`send_sync`."""
        answer: m.SyncGroupResponse = self.main.receive(timeout_s)
        return answer

    def sync(self, assignments: Mapping[str, bytes] | None = None, **changes: Any) -> m.SyncGroupResponse:
        """One SyncGroup."""
        self.send_sync(assignments, **changes)
        return self.receive_sync()

    def heartbeat(self, **changes: Any) -> int:
        """One Heartbeat (v4), by its error code."""
        values: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }
        return self.side.request(m.HeartbeatRequest(**{**values, **changes}), 4).error_code

    def commit(
        self, topic: str, partition: int, offset: int, metadata: str | None = "", **changes: Any
    ) -> int:
        """One OffsetCommit (v9, by topic name) of one partition, by its error code."""
        committed = m.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        wanted = m.OffsetCommitRequestTopic(name=topic, partitions=[committed])
        return self.commit_topic(wanted, **changes).partitions[0].error_code

    def commit_topic(
        self, topic: m.OffsetCommitRequestTopic, version: int = 9, **changes: Any
    ) -> m.OffsetCommitResponseTopic:
        """One OffsetCommit of one topic; ``changes``: other fields of the request."""
        values: dict[str, Any] = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "topics": [topic],
        }
        return self.side.request(m.OffsetCommitRequest(**{**values, **changes}), version).topics[0]

    def leave(self) -> int:
        """Leaves the group by member id and instance id; the error code of this member."""
        me = m.LeaveGroupRequestMember(member_id=self.member_id, group_instance_id=self.instance)
        return leave(self.side, self.group, [me])[0]


def leave(client: RawClient, group: str, members: Sequence[m.LeaveGroupRequestMember]) -> list[int]:
    """One LeaveGroup (v5): the error code of each member, or the top one if there are none."""
    answer = client.request(m.LeaveGroupRequest(group_id=group, members=list(members)), 5)
    return [member.error_code for member in answer.members] or [answer.error_code]


def remove(client: RawClient, group: str, *instances: str) -> list[int]:
    """Admin removal by instance id (KIP-345): the error code of each."""
    members = [m.LeaveGroupRequestMember(member_id="", group_instance_id=name) for name in instances]
    return leave(client, group, members)


def describe(client: RawClient, group: str) -> m.DescribeGroupsResponseGroup:
    """The group as DescribeGroups v5 shows it (v5: a group that is not there is ``Dead``)."""
    return client.request(m.DescribeGroupsRequest(groups=[group]), 5).groups[0]


def form(members: Sequence[Member], assignments: Mapping[str, bytes] | None = None) -> Member:
    """Lets all members into one generation and syncs them; returns the leader.

    ``assignments`` is by instance id (or member id for dynamic members); a member that is not
    named gets its own id as bytes.
    """
    leader = join_all(members)
    plan = {
        x.member_id: (assignments or {}).get(x.instance or x.member_id, (x.instance or x.member_id).encode())
        for x in members
    }
    sync_all(members, plan)
    return leader


def join_all(members: Sequence[Member], timeout_s: float = 60.0) -> Member:
    """Joins until one generation holds all members; returns its leader. Nobody has synced yet."""
    for member in members:
        if member.instance is None and not member.member_id:
            member.send_join()
            member.member_id = member.receive_join().member_id
        member.send_join()
    waiting = list(members)
    deadline = time.monotonic() + timeout_s
    while waiting or any(x.heartbeat() for x in members):
        assert time.monotonic() < deadline, "the members did not come together in one generation"
        for member in list(waiting):
            with contextlib.suppress(TimeoutError):
                answer = member.receive_join(0.05)
                assert answer.error_code == 0, f"join of {member.instance}: error {answer.error_code}"
                waiting.remove(member)
        for member in [x for x in members if x not in waiting and x.heartbeat() != 0]:
            member.send_join()
            waiting.append(member)
    return next(x for x in members if x.is_leader)


def sync_all(members: Sequence[Member], plan: Mapping[str, bytes]) -> None:
    """Syncs all members of a generation; ``plan`` is by member id and sent by the leader."""
    for member in members:
        member.send_sync(plan if member.is_leader else None)
    for member in members:
        synced = member.receive_sync()
        assert synced.error_code == 0, f"sync of {member.instance}: error {synced.error_code}"
        assert synced.assignment == plan.get(member.member_id, b"")


@contextlib.contextmanager
def members(bootstrap: str, group: str, *instances: str | None, **options: Any) -> Iterator[list[Member]]:
    """Members that have not joined yet, one per instance id (None: a dynamic member)."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Member(bootstrap, group, name, **options)) for name in instances]


def successor(member: Member, **options: Any) -> Member:
    """The pod after its restart: the same instance id, no member id, connections of its own."""
    values: dict[str, Any] = {
        "protocols": member.protocols,
        "session_ms": member.session_ms,
        "rebalance_ms": member.rebalance_ms,
        "join_version": member.join_version,
    }
    return Member(member.bootstrap, member.group, member.instance, **{**values, **options})


def until_rebalance(member: Member) -> None:
    """Heartbeats until the broker says REBALANCE_IN_PROGRESS."""

    def is_rebalancing() -> bool:
        error = member.heartbeat()
        assert error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
        return error != ErrorCode.NONE

    wait_until(is_rebalancing)


def create_topic(client: RawClient, name: str, partitions: int = 1, **configs: str) -> None:
    """Creates a topic and waits until every partition has a leader that serves.

    A real broker shows a partition in its metadata shortly before it answers for it, with
    NOT_LEADER_OR_FOLLOWER in between.
    """
    topic = m.CreateTopicsRequestTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            m.CreateTopicsRequestTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    request = m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    answer = client.request(request, 5)
    if answer.topics[0].error_code == ErrorCode.NOT_CONTROLLER:
        # Brokers with ZooKeeper don't hand it on.
        with controller(client) as there:
            answer = there.request(request, 5)
    assert answer.topics[0].error_code == 0, answer
    wait_until(lambda: _is_served(client, name, partitions))


def controller(client: RawClient) -> RawClient:
    """A connection to the broker that is the controller."""
    metadata = client.request(m.MetadataRequest(topics=[]), 9)
    [controlling] = [broker for broker in metadata.brokers if broker.node_id == metadata.controller_id]
    return RawClient(controlling.host, controlling.port)


def _is_served(client: RawClient, name: str, partitions: int) -> bool:
    """Whether all partitions have leaders, and those that this broker leads are served."""
    request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    metadata = client.request(request, 9)
    described = metadata.topics[0].partitions
    if [p.error_code for p in described] != [0] * partitions:
        return False
    here = {broker.node_id for broker in metadata.brokers if broker.port == client.port}
    asked = [
        m.ListOffsetsRequestPartition(partition_index=p.partition_index, timestamp=-1)
        for p in described
        if p.leader_id in here
    ]
    topic = m.ListOffsetsRequestTopic(name=name, partitions=asked)
    answer = client.request(m.ListOffsetsRequest(replica_id=-1, topics=[topic]), 5)
    return all(p.error_code == 0 for t in answer.topics for p in t.partitions)


def topic_metadata(client: RawClient, name: str) -> m.MetadataResponseTopic:
    """Metadata v12 of one topic, not creating it."""
    request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return client.request(request, 12).topics[0]
