"""What an operator sees of a thousand groups, without the groups: a broker, a kubelet and workers of straw.

The broker answers what an operator asks, from a model. The kubelet gives each pod an address and says that it
runs; at that address something answers /status as a worker would. All of it in one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.kafka.protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    MemberSubscription,
    encode_assignment,
    encode_subscription,
)
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.frame import decode_request_header, encode_response, skip_request_tags
from slackwater.kafka.wire.primitives import Reader
from slackwater.kafka.wire.schema import Message, Request
from tests.support.controlplane.api import ApiError, path_of
from tests.support.controlplane.async_api import AsyncApi

PORT = 8080
NODE = 1
SUBNET = "127.77"
"""Pods get addresses of their own below this one, which is this machine's loopback."""
EARLIEST = -2
_APIS: dict[int, type[Request[Any]]] = {
    request_type.api_key: request_type
    for request_type in vars(m).values()
    if isinstance(request_type, type) and issubclass(request_type, Request) and request_type.api_key >= 0
}


@dataclass
class HollowGroup:
    """A group: what is produced to its topic, how far it has got, and who is in it.

    Attributes:
        produced_per_s: records a second to each partition, which are consumed as they come.
        backlog: records in each partition that are not.
        members: instance ids of those that have joined, in the order of their names.
    """

    group_id: str
    topic: str
    partitions: int
    produced_per_s: float = 0.0
    backlog: int = 0
    generation: int = 0
    members: list[str] = field(default_factory=list)
    joined_ms: int = 0

    def end(self, began: float) -> int:
        """Each partition's end offset."""
        return int((time.monotonic() - began) * self.produced_per_s) + self.backlog

    def committed(self, began: float) -> int:
        """Each partition's committed offset."""
        return self.end(began) - self.backlog

    def join(self, name: str) -> None:
        """A member joins; a rebalance of no time."""
        self.members = sorted({*self.members, name})
        self._rebalanced()

    def leave(self, names: list[str]) -> None:
        """Members are removed."""
        self.members = [member for member in self.members if member not in names]
        self._rebalanced()

    def _rebalanced(self) -> None:
        self.generation += 1
        self.joined_ms = int(time.time() * 1000)

    def held(self, name: str) -> list[int]:
        """The partitions of a member."""
        at = self.members.index(name)
        return list(range(at, self.partitions, len(self.members)))


class HollowBroker:
    """One broker with all the groups. `requests` counts what it was asked, by API."""

    def __init__(self, groups: Mapping[str, HollowGroup]) -> None:
        self.groups = groups
        self.requests: Counter[str] = Counter()
        self.began = time.monotonic()
        self.port = 0
        self._by_topic = {group.topic: group for group in groups.values()}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens on a free port of loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = Reader(await reader.readexactly(size))
                header = decode_request_header(frame)
                api = _APIS[header.api_key]
                skip_request_tags(frame, header, api)
                request = api.read_from(frame, header.api_version)
                name = api.__name__.removesuffix("Request")
                self.requests[name] += 1
                answer: Message = getattr(self, f"_{name}")(request)
                writer.write(b"".join(encode_response(header, answer)))
                await writer.drain()
        writer.close()

    def _ApiVersions(self, _: Any) -> Message:  # noqa: N802  (the API's name)
        served = [
            _APIS[key] for key in _APIS if hasattr(self, f"_{_APIS[key].__name__.removesuffix('Request')}")
        ]
        return m.ApiVersionsResponse(
            api_keys=[
                m.ApiVersionsResponseApiVersion(
                    api_key=api.api_key,
                    min_version=api.min_version,
                    max_version=9 if api is m.OffsetFetchRequest else api.max_version,
                )
                for api in served
            ]
        )

    def _Metadata(self, request: Any) -> Message:  # noqa: N802
        asked = self._by_topic if request.topics is None else [topic.name for topic in request.topics]
        return m.MetadataResponse(
            brokers=[m.MetadataResponseBroker(node_id=NODE, host="127.0.0.1", port=self.port)],
            controller_id=NODE,
            topics=[self._topic(name) for name in asked],
        )

    def _topic(self, name: str) -> m.MetadataResponseTopic:
        group = self._by_topic.get(name)
        if group is None:
            return m.MetadataResponseTopic(name=name, error_code=3)
        return m.MetadataResponseTopic(
            name=name,
            partitions=[
                m.MetadataResponsePartition(
                    partition_index=n, leader_id=NODE, leader_epoch=0, replica_nodes=[NODE], isr_nodes=[NODE]
                )
                for n in range(group.partitions)
            ],
        )

    def _FindCoordinator(self, request: Any) -> Message:  # noqa: N802
        return m.FindCoordinatorResponse(
            coordinators=[
                m.FindCoordinatorResponseCoordinator(key=key, node_id=NODE, host="127.0.0.1", port=self.port)
                for key in request.coordinator_keys
            ]
        )

    def _DescribeGroups(self, request: Any) -> Message:  # noqa: N802
        return m.DescribeGroupsResponse(groups=[self._group(self.groups[group]) for group in request.groups])

    def _group(self, group: HollowGroup) -> m.DescribeGroupsResponseGroup:
        subscription = encode_subscription(MemberSubscription((group.topic,)))
        return m.DescribeGroupsResponseGroup(
            group_id=group.group_id,
            group_state="Stable" if group.members else "Empty",
            protocol_type=PROTOCOL_TYPE,
            protocol_data="cooperative-sticky",
            members=[
                m.DescribeGroupsResponseMember(
                    member_id=f"{name}-{group.generation}",
                    group_instance_id=name,
                    client_id=name,
                    client_host="/127.0.0.1",
                    member_metadata=subscription,
                    member_assignment=encode_assignment(
                        TopicPartition(group.topic, n) for n in group.held(name)
                    ),
                )
                for name in group.members
            ],
        )

    def _OffsetFetch(self, request: Any) -> Message:  # noqa: N802
        return m.OffsetFetchResponse(
            groups=[self._committed(self.groups[group.group_id]) for group in request.groups]
        )

    def _committed(self, group: HollowGroup) -> m.OffsetFetchResponseGroup:
        offset, note = group.committed(self.began), json.dumps({"at": 1, "instance": "flights-0"})
        topic = m.OffsetFetchResponseTopics(
            name=group.topic,
            partitions=[
                m.OffsetFetchResponsePartitions(partition_index=n, committed_offset=offset, metadata=note)
                for n in range(group.partitions)
            ],
        )
        return m.OffsetFetchResponseGroup(group_id=group.group_id, topics=[topic])

    def _ListOffsets(self, request: Any) -> Message:  # noqa: N802
        topics = []
        for asked in request.topics:
            end = self._by_topic[asked.name].end(self.began)
            partitions = [
                m.ListOffsetsResponsePartitionResponse(
                    partition_index=partition.partition_index,
                    offset=0 if partition.timestamp == EARLIEST else end,
                )
                for partition in asked.partitions
            ]
            topics.append(m.ListOffsetsResponseTopicResponse(name=asked.name, partitions=partitions))
        return m.ListOffsetsResponse(topics=topics)

    def _LeaveGroup(self, request: Any) -> Message:  # noqa: N802
        names = [member.group_instance_id for member in request.members]
        self.groups[request.group_id].leave(names)
        return m.LeaveGroupResponse(
            members=[m.LeaveGroupResponseMember(group_instance_id=name) for name in names]
        )


class HollowPods:
    """A kubelet that runs nothing: it says that pods run, and answers for the workers in them."""

    def __init__(self, api: AsyncApi, namespace: str, groups: Mapping[str, HollowGroup]) -> None:
        """`groups` by the ConsumerGroups' names."""
        self._api, self._namespace, self._groups = api, namespace, groups
        self._servers: dict[str, asyncio.Server] = {}
        self._uids: dict[str, str] = {}
        self._next = 256
        self._tasks: set[asyncio.Task[None]] = set()
        self._started_ms = int(time.time() * 1000)

    async def run(self) -> None:
        """Follows the pods until it is cancelled."""
        pods = path_of("v1", "pods", self._namespace)
        async for change in self._api.watch(pods):
            for pod in change.items or ([change.object] if change.object else []):
                metadata = pod["metadata"]
                if change.type == "DELETED":
                    self._gone(metadata["name"], metadata["uid"])
                elif self._uids.get(metadata["name"]) != metadata["uid"]:
                    self._uids[metadata["name"]] = metadata["uid"]
                    task = asyncio.create_task(self._start(pod))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Closes the workers' ports."""
        for server in self._servers.values():
            server.close()

    def _gone(self, name: str, uid: str) -> None:
        if self._uids.get(name) == uid:
            del self._uids[name]
            server = self._servers.pop(name, None)
            if server is not None:
                server.close()

    async def _start(self, pod: Mapping[str, Any]) -> None:
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        if labels.get("app.kubernetes.io/name") == "slackwater-preflight":
            await self._tell(
                name, _status("Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}})
            )
            return
        self._next += 1
        ip = f"{SUBNET}.{self._next // 256}.{self._next % 256}"
        worker = HollowWorker(name, self._groups[labels["slackwater.dev/group"]], self._started_ms)
        self._servers[name] = await asyncio.start_server(worker.serve, ip, PORT)
        await self._tell(name, _status("Running", {"running": {}}, ip))

    async def _tell(self, name: str, status: Mapping[str, Any]) -> None:
        path = f"{path_of('v1', 'pods', self._namespace, name)}/status"
        with contextlib.suppress(ApiError):  # it is gone by now
            await self._api.insist(
                "PATCH", path, {"status": status}, content_type="application/merge-patch+json"
            )


def _status(phase: str, state: Mapping[str, Any], ip: str = "") -> dict[str, Any]:
    running = "running" in state
    ready = {"type": "Ready", "status": str(running), "lastTransitionTime": "2026-01-01T00:00:00Z"}
    container = {"name": "worker", "image": "hollow", "imageID": "", "ready": running, "restartCount": 0}
    addresses = {"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}
    return {
        "phase": phase,
        "conditions": [ready],
        "containerStatuses": [{**container, "state": state}],
        **addresses,
    }


class HollowWorker:
    """What answers at a pod's address."""

    def __init__(self, name: str, group: HollowGroup, started_ms: int) -> None:
        self._name, self._group, self._started_ms = name, group, started_ms
        self._joined = name in group.members  # a restarted one returns

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST /join"):
                if not self._joined:
                    self._joined = True
                    self._group.join(self._name)
                body = b"{}"
                writer.write(b"HTTP/1.0 202 Accepted\r\nContent-Length: 2\r\n\r\n" + body)
            else:
                body = json.dumps(self._document()).encode()
                kind = b"Content-Type: application/json\r\n"
                writer.write(b"HTTP/1.0 200 OK\r\n" + kind + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        writer.close()

    def _document(self) -> dict[str, Any]:
        group, inside = self._group, self._name in self._group.members
        held = group.held(self._name) if inside else []
        at_ms = group.joined_ms if inside else None
        return {
            "group": group.group_id,
            "instance": self._name,
            "phase": "running" if inside else "warm",
            "generation": group.generation if inside else -1,
            "member_id": f"{self._name}-{group.generation}",
            "is_leader": inside and group.members[0] == self._name,
            "assignment": [[group.topic, n] for n in held],
            "lag": {f"{group.topic}-{n}": group.backlog for n in held},
            "error": "",
            "started_ms": self._started_ms,
            "joined_ms": at_ms,
            "waiting_since_ms": None if inside else self._started_ms,
            "running_since_ms": at_ms,
            "returned": False,
            "joins": [{"generation": group.generation, "at_ms": at_ms, "kind": "joined"}] if inside else [],
            "rebalance": None,
            "restart": None,
            "last_gap": None,
        }
