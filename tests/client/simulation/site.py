"""The whole of a run: brokers, logs, coordinator, pods, and what happens to them."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

from slackwater.devbroker.api.fetch_sessions import FetchSessions
from slackwater.devbroker.group import GroupConfig
from slackwater.kafka.net import Cluster
from slackwater.kafka.net.connection import Connection
from slackwater.kafka.net.connection_settings import ConnectionSettings
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.frame import RequestHeader
from slackwater.kafka.wire.schema import Request
from tests.client.simulation.checks import Checks
from tests.client.simulation.coordination import Coordination
from tests.client.simulation.logs import Log, Logs, id_of
from tests.client.simulation.network import Link, Network, Weather
from tests.client.simulation.pod import Pod
from tests.client.simulation.scenario import Happening, Scenario, Slot
from tests.client.simulation.story import Story
from tests.support.wire.scripted import APIS

_OLD: dict[str, dict[str, int]] = {
    "2.8": {
        "Fetch": 12, "ListOffsets": 6, "Metadata": 11, "OffsetCommit": 8, "OffsetFetch": 7,
        "FindCoordinator": 3, "JoinGroup": 7, "Heartbeat": 4, "LeaveGroup": 4, "SyncGroup": 5,
        "DescribeGroups": 5, "OffsetForLeaderEpoch": 4,
    },
    "3.9": {
        "Fetch": 17, "ListOffsets": 9, "Metadata": 12, "OffsetCommit": 9, "OffsetFetch": 9,
        "DescribeGroups": 5,
    },
    "4.3": {},
}  # fmt: skip
"""The highest versions that differ from those of Apache Kafka 4.3."""
_SERVED = (
    m.FetchRequest, m.ListOffsetsRequest, m.MetadataRequest, m.OffsetCommitRequest, m.OffsetFetchRequest,
    m.FindCoordinatorRequest, m.JoinGroupRequest, m.HeartbeatRequest, m.LeaveGroupRequest,
    m.SyncGroupRequest, m.DescribeGroupsRequest, m.OffsetForLeaderEpochRequest,
    m.ConsumerGroupHeartbeatRequest,
)  # fmt: skip


def versions_of(age: str) -> dict[int, tuple[int, int]]:
    """What a broker of that age speaks."""
    return {
        kind.api_key: (
            kind.min_version,
            _OLD[age].get(kind.__name__.removesuffix("Request"), kind.max_version),
        )
        for kind in _SERVED
    }


class Broker:
    """One broker; see :class:`tests.client.simulation.network.Server`."""

    def __init__(self, site: Site, node: int) -> None:
        self._site, self.node = site, node
        self.accepts = self.working = True
        self.silent = False
        self.sessions = self._no_sessions()

    def _no_sessions(self) -> FetchSessions:
        return FetchSessions(100, self._site.rng)

    @property
    def up(self) -> bool:
        """Whether it is alive, be it in a pause."""
        return self.accepts and not self.silent

    def versions(self) -> dict[int, tuple[int, int]]:
        """What it speaks."""
        return self._site.versions

    def die(self, *, silent: bool) -> None:
        """Stops at once."""
        self.accepts = self.working = False
        self.silent = silent

    def begin(self) -> None:
        """Starts, or ends a pause."""
        if not self.accepts:
            self.sessions = self._no_sessions()
        self.accepts = self.working = True
        self.silent = False

    def handle(self, link: Link, header: RequestHeader, request: Request[Any]) -> None:
        """Answers a request now or later."""
        site = self._site

        def reply(response: Any) -> None:
            link.reply(header, response)

        if isinstance(request, m.MetadataRequest):
            reply(site.metadata(request))
        elif isinstance(request, m.FindCoordinatorRequest):
            reply(site.find_coordinator(request, header.api_version))
        elif isinstance(request, m.FetchRequest):
            site.logs.fetch(self.node, self.sessions, header.api_version, request, reply)
        elif isinstance(request, m.ListOffsetsRequest):
            reply(site.logs.list_offsets(self.node, request))
        elif isinstance(request, m.OffsetForLeaderEpochRequest):
            reply(site.logs.epoch_ends(self.node, request))
        else:
            site.coordination.handle(self.node, link.client, header, request, reply)


class Site:
    """All there is in a run. Lives on one loop of virtual time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, scenario: Scenario, *, tell: bool) -> None:
        self.loop, self.scenario = loop, scenario
        self.rng = random.Random(scenario.seed ^ 0x5EED)
        self.story = Story(loop, on=tell)
        self.over = False
        self._ended: asyncio.Future[None] = loop.create_future()
        self.checks = Checks(self)
        self.versions = versions_of(scenario.age)
        self.logs = Logs(loop)
        config = GroupConfig(
            initial_rebalance_delay_ms=self.rng.choice((0, 500, 3_000)),
            consumer_session_timeout_ms=scenario.session_ms,
            consumer_heartbeat_interval_ms=scenario.heartbeat_ms,
        )
        self.coordination = Coordination(loop, self.story, self.logs, config, self.checks.offset_stored)
        weather = Weather(scenario.base_ms, scenario.jitter_ms, {})
        self.network = Network(loop, self.rng, self.story, weather, self.checks.count_request)
        self.brokers = {node: Broker(self, node) for node in range(1, scenario.brokers + 1)}
        self.network.servers.update(self.brokers)
        for topic, partitions in scenario.topics.items():
            self.logs.topics[topic] = []
            self._grow(topic, partitions)
        self.pods: dict[str, Pod] = {}
        """Pods that live, by name."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = {slot.name: slot for slot in scenario.slots}
        self._numbers = 0
        self._phase = 0
        self._protocols = dict(scenario.protocols)
        """Of the next pod of each slot."""
        self._stopping: dict[str, Pod] = {}
        self._births: dict[str, list[float]] = {}
        self._ended_at: dict[str, float] = {}
        self._published_leaders: dict[TopicPartition, tuple[int, int]] = {}
        self._published_nodes: list[int] = []
        self._published_coordinator: int | None = None

    # -- the run

    def end(self) -> None:
        """Ends the run."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def run(self) -> None:
        """The whole story. Raises :class:`tests.client.simulation.checks.Broken`."""
        self.coordination.begin(self.rng.choice(list(self.brokers)), 0)
        self._publish()
        for happening in self.scenario.happenings:
            self.loop.call_later(happening.at_ms / 1000, self._happen, happening)
        self.loop.call_later(self.scenario.heal_at_ms / 1000, self._heal)
        self._producer = self.loop.call_later(0.1, self._produce)
        work = asyncio.create_task(self._settle())
        await self._ended
        self.over = True
        work.cancel()
        if self.checks.broken is not None:
            raise self.checks.broken

    async def _settle(self) -> None:
        """Waits until all faults are over and the group has settled."""
        await asyncio.sleep(self.scenario.heal_at_ms / 1000 + 0.5)
        records = sum(log.end for log in self.logs.all())
        within_ms = self.scenario.settle_within_ms + self.scenario.work_off_ms(records)
        limit_s = self.loop.time() + within_ms / 1000
        settled = ""
        while self.loop.time() < limit_s:
            await asyncio.sleep(1)
            if all(pod.fenced for pod in self.live_pods()):
                self._do_start(next(iter(self._slots)), 0)
            if not (settled := self.checks.unsettled()):
                self.story.tell("site", "has settled")
                self.end()
                return
        self.checks.fail("does not settle", f"{within_ms:.0f} ms after the faults: {settled}")
        self.end()

    def _produce(self) -> None:
        log = self.rng.choice(self.logs.all())
        log.append(self.rng.randint(1, 5))
        delay = self.scenario.append_every_ms * (0.2 + 1.6 * self.rng.random())
        self._producer = self.loop.call_later(delay / 1000, self._produce)

    def _heal(self) -> None:
        """All faults end; everything that was down comes back; nothing is produced any more."""
        self.story.tell("site", "heals")
        self._producer.cancel()
        self.network.weather.slow.clear()
        self.network.weather.loss = 0.0
        for node in self.brokers:
            self._do_up(node, 0)
        self._phase = len(self.scenario.phases) - 1
        for pod in self.live_pods():
            pod.stall_ms = 0

    # -- pods

    def live_pods(self) -> list[Pod]:
        """All pods that are not dead, those that are fenced among them."""
        return list(self.pods.values())

    def _new_pod(self, slot: Slot) -> None:
        self._numbers += 1
        name = f"{slot.name}.{self._numbers}"
        assignors = self.scenario.phases[self._phase]
        protocol = self._protocols[slot.name]
        pod = self.pods[name] = Pod(self, slot, name, assignors, protocol)
        self._births.setdefault(slot.name, []).append(self.loop.time())
        self.story.tell(name, f"starts, instance {slot.instance}, {protocol}, {','.join(assignors)}")
        self._tasks[name] = self.loop.create_task(pod.run())

    def _pod_of(self, slot: str) -> Pod | None:
        pods = [pod for pod in self.pods.values() if pod.slot.name == slot and not pod.fenced]
        return pods[-1] if pods else None

    def gone(self, pod: Pod) -> None:
        """A pod has ended in good order."""
        pod.dead = True
        self._ended_at[pod.slot.name] = self.loop.time()
        self.pods.pop(pod.name, None)
        self.network.cut_off.add(pod.name)

    def fenced(self, pod: Pod) -> None:
        """A pod was fenced: there must be another one for it, or have been a coordinator that forgot."""
        self.checks.counts["fenced"] += 1
        others = [at for at in self._births[pod.slot.name] if at != pod.born_at]
        later = any(at > pod.born_at for at in others)
        beside = any(other.slot is pod.slot and other is not pod for other in self.live_pods())
        # One that was taken out of the group may have joined again in the moment in which it was stopped.
        before = self.loop.time() - self._ended_at.get(pod.slot.name, -math.inf) < 1
        if not (later or beside or before) and self.coordination.moves < 3:
            self.checks.fail("fence", f"{pod.name} was fenced, and there is no other {pod.slot.instance}")
        # Of two that were both removed, the broker knows neither: either may be the first to join again.
        both_removed = self.coordination.removed_at.get(pod.slot.instance, -math.inf) > pod.born_at
        if not (later or both_removed) and self.coordination.moves < 2:
            group = self.coordination.described() or {"members": []}
            ids = {member["member_id"] for member in group["members"]}
            older = [other for other in self.live_pods() if other.had_place_before(pod)]
            back = [other.name for other in older if other.identity[1] in ids]
            if back:
                self.checks.fail("fence", f"{back[0]} takes its place back from {pod.name}")
        if self._pod_of(pod.slot.name) is None:
            self.loop.call_later(1, self._replace, pod)

    def restart(self, pod: Pod) -> None:
        """A pod has failed: the next one of its slot starts a little later, as a kubelet would have it."""
        self.story.tell(pod.name, "fails")
        self._kill(pod)
        self.loop.call_later(2, self._do_start, pod.slot.name, 0)

    def refused(self, pod: Pod) -> None:
        """Another pod is in the group with the instance id: one that lives, or one that has not left."""
        self.checks.counts["refused"] += 1
        self.restart(pod)

    def _replace(self, pod: Pod) -> None:
        if not self.over and self._pod_of(pod.slot.name) is None:
            self._kill(pod)
            self._new_pod(pod.slot)

    def _kill(self, pod: Pod) -> None:
        pod.dead = True
        self.pods.pop(pod.name, None)
        self.network.cut_off.add(pod.name)
        for link in self.network.links_of(client=pod.name):
            link.cut("its pod is dead", taken=self.rng.random() < 0.5)
        self._tasks[pod.name].cancel()
        self.loop.create_task(self._bury(pod))

    async def _bury(self, pod: Pod) -> None:
        """Ends what a dead pod's client still runs; nothing of it reaches anybody."""
        await asyncio.gather(self._tasks[pod.name], return_exceptions=True)
        await pod.consumer.stop(autocommit=False, leave_group=False)

    # -- what happens

    def _happen(self, happening: Happening) -> None:
        if not self.over:
            self.checks.counts[happening.what] += 1
            getattr(self, f"_do_{happening.what}")(happening.who, happening.value)

    def _do_start(self, slot: str, value: float) -> None:
        if self._pod_of(slot) is None or self._pod_of(slot) in self._stopping.values():
            self._stopping.pop(slot, None)
            self._new_pod(self._slots[slot])

    def _do_twin(self, slot: str, value: float) -> None:
        if self._slots[slot].instance is not None:
            self._new_pod(self._slots[slot])

    def _do_crash(self, slot: str, value: float) -> None:
        pod = self._pod_of(slot)
        if pod is not None:
            self.story.tell(pod.name, "crashes")
            self._kill(pod)

    def _do_stop(self, slot: str, value: float) -> None:
        pod = self._pod_of(slot)
        if pod is not None:
            self._stopping[slot] = pod
            pod.stop()

    def _do_stall(self, slot: str, value: float) -> None:
        pod = self._pod_of(slot)
        if pod is not None:
            pod.stall_ms = value

    def _do_topics(self, slot: str, value: float) -> None:
        pod = self._pod_of(slot)
        if pod is not None:
            pod.wants_topics = tuple(self.rng.sample(list(self.scenario.topics), int(value)))

    def _do_migrate(self, slot: str, value: float) -> None:
        self._protocols[slot] = "consumer" if value else "classic"

    def _do_phase(self, who: str, value: float) -> None:
        self._phase = int(value)

    def _do_remove(self, slot: str, value: float) -> None:
        instance = self._slots[slot].instance
        if instance is not None:
            self.coordination.remove(instance)

    def _do_grow(self, topic: str, value: float) -> None:
        self._grow(topic, 1)
        self.story.tell("site", f"{topic} has {len(self.logs.topics[topic])} partitions")
        self._publish_later()

    def _grow(self, topic: str, count: int) -> None:
        logs = self.logs.topics[topic]
        for _ in range(count):
            logs.append(Log(TopicPartition(topic, len(logs)), self.rng.choice(self._alive() or [-1])))

    def _do_cut(self, node: int, value: float) -> None:
        links = self.network.links_of(node=node)
        if links:
            self.rng.choice(links).cut("by chance", taken=self.rng.random() < 0.5)

    def _do_slow(self, node: int, value: float) -> None:
        self.story.tell(f"b{node}", f"is slower by {value:.0f} ms")
        self.network.weather.slow[node] = value

    def _do_far(self, slot: str, value: float) -> None:
        """A pod whose messages take long: what it sends arrives when others own its partitions."""
        pod = self._pod_of(slot)
        if pod is not None:
            self.story.tell(pod.name, f"is further away by {value:.0f} ms")
            self.network.weather.slow[pod.name] = value

    def _do_loss(self, who: str, value: float) -> None:
        self.story.tell("site", f"loses connections at {value} of requests")
        self.network.weather.loss = value

    # -- brokers

    def _alive(self) -> list[int]:
        return [node for node, broker in self.brokers.items() if broker.up]

    def _do_kill(self, node: int, value: float) -> None:
        self._die(node, value, silent=False)

    def _do_vanish(self, node: int, value: float) -> None:
        self._die(node, value, silent=True)

    def _die(self, node: int, failover_ms: float, *, silent: bool) -> None:
        broker = self.brokers[node]
        if not broker.up:
            return
        self.story.tell(f"b{node}", "vanishes" if silent else "is killed")
        broker.die(silent=silent)
        self.network.died(node)
        for link in self.network.links_of(node=node):
            link.swallow()
            if not silent:
                link.cut("its broker was killed")
        if self.coordination.node == node:
            self.coordination.lose()
        self.loop.call_later(failover_ms / 1000, self._fail_over)

    def _do_shutdown(self, node: int, value: float) -> None:
        broker = self.brokers[node]
        if not broker.up:
            return
        self.story.tell(f"b{node}", "shuts down")
        if self.coordination.node == node:
            self.coordination.resign()
        broker.die(silent=False)
        self.network.died(node)
        for link in self.network.links_of(node=node):
            # Its last answers still arrive.
            self.loop.call_later(0.5, link.cut, "its broker was shut down")
        self._fail_over()

    def _do_hang(self, node: int, value: float) -> None:
        self.story.tell(f"b{node}", "pauses")
        self.brokers[node].working = False

    def _do_up(self, node: int, value: float) -> None:
        broker = self.brokers[node]
        if broker.up and broker.working:
            return
        self.story.tell(f"b{node}", "is there")
        if not broker.up:
            for link in self.network.links_of(node=node):
                link.cut("its broker was started anew")
        broker.begin()
        self.network.resume(node)
        self._fail_over()

    def _fail_over(self) -> None:
        """Gives what dead brokers led to living ones, if there are any."""
        alive = self._alive()
        for log in self.logs.all():
            if log.leader not in alive:
                if alive:
                    log.led_by(self.rng.choice(alive))
                elif log.leader != -1:
                    log.leader = -1
        if alive and self.coordination.node not in alive:
            self.coordination.begin(self.rng.choice(alive), self.rng.choice((20, 300, 1_500)))
        self._publish_later()

    def _do_move(self, node: int, value: float) -> None:
        """The coordinator moves in good order."""
        if self.brokers[node].up and self.coordination.node not in (None, node):
            self.coordination.resign()
            self.coordination.begin(node, self.rng.choice((20, 300, 1_500)))
            self._publish_later()

    def _do_lead(self, node: int, value: float) -> None:
        if self.brokers[node].up:
            log = self.rng.choice(self.logs.all())
            self.story.tell("site", f"b{node} leads {log.tp}")
            log.led_by(node)
            self._publish_later()

    # -- what brokers tell of the cluster, some time after it is so

    def _publish_later(self) -> None:
        self.loop.call_later(self.rng.choice((0.01, 0.1, 0.8)), self._publish)

    def _publish(self) -> None:
        self._published_nodes = self._alive() or list(self.brokers)
        self._published_coordinator = self.coordination.node or self._published_coordinator
        self._published_leaders = {log.tp: (log.leader, log.epoch) for log in self.logs.all()}

    def metadata(self, request: m.MetadataRequest) -> m.MetadataResponse:
        """The cluster as it was told last."""
        names = (
            sorted(self.logs.topics)
            if request.topics is None
            else [topic.name or "" for topic in request.topics]
        )
        topics = []
        for name in names:
            partitions = [
                m.MetadataResponsePartition(
                    partition_index=tp.partition,
                    leader_id=leader,
                    leader_epoch=epoch,
                    error_code=int(ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE),
                    replica_nodes=list(self.brokers),
                    isr_nodes=[leader],
                )
                for tp, (leader, epoch) in self._published_leaders.items()
                if tp.topic == name
            ]
            error = ErrorCode.NONE if partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(
                m.MetadataResponseTopic(
                    error_code=int(error), name=name, topic_id=id_of(name), partitions=partitions
                )
            )
        brokers = [
            m.MetadataResponseBroker(node_id=node, host=f"b{node}", port=node)
            for node in self._published_nodes
        ]
        return m.MetadataResponse(
            brokers=brokers, cluster_id="simulated", controller_id=brokers[0].node_id, topics=topics
        )

    def find_coordinator(self, request: m.FindCoordinatorRequest, version: int) -> m.FindCoordinatorResponse:
        """The coordinator as it was told last."""
        node = self._published_coordinator
        error = int(ErrorCode.NONE if node else ErrorCode.COORDINATOR_NOT_AVAILABLE)
        state: dict[str, Any] = {
            "node_id": node or -1,
            "host": f"b{node}" if node else "",
            "port": node or -1,
            "error_code": error,
        }
        if version >= 4:
            return m.FindCoordinatorResponse(
                coordinators=[
                    m.FindCoordinatorResponseCoordinator(key=key, **state) for key in request.coordinator_keys
                ]
            )
        return m.FindCoordinatorResponse(**state)

    # -- the client's way in

    def cluster(self, *args: Any, client_id: str, **options: Any) -> Cluster:
        """What the consumer's core gets in place of ``Cluster(...)``: the same, over this network."""

        async def connect(host: str, port: int, settings: ConnectionSettings) -> Connection:
            return await self.network.connect(client_id, host, port, settings)

        options["connect"] = connect
        options["rng"] = random.Random(f"{self.scenario.seed}/{client_id}")
        return Cluster(*args, client_id=client_id, **options)


assert set(_SERVED) <= set(APIS.values())
