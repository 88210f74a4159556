"""A worker in virtual time whose member has another pod: what that pod and the group do is up to the test."""

from __future__ import annotations

import heapq
import io
import itertools
import json
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from slackwater.kafka.errors import IllegalStateError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.delivery.dead_letters import DeadLetters
from slackwater.runtime.delivery.partition import CommitNote
from slackwater.runtime.shutdown import Stopping
from slackwater.runtime.takeover.group_observer import STABLE, MemberView
from slackwater.runtime.takeover.http_client import Reply
from slackwater.runtime.takeover.http_handler import PendingHandover
from slackwater.runtime.takeover.messages import HandoverAnswer, HandoverRequest
from slackwater.runtime.telemetry.events import EventLog, StderrLog
from slackwater.runtime.telemetry.messaging_metrics import NO_MESSAGING_METRICS, MessagingMetrics
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.worker import ProcessEnvironment, Worker
from slackwater.runtime.worker_context import TakeoverContext
from slackwater.tracing.spans import NO_TRACING, Tracing
from tests.support.workers.fakes import (
    FakeCluster,
    FakeConsumer,
    FakeSink,
    ValueEngine,
    VirtualClock,
    VirtualRunner,
    worker_config,
)

KEY = bytes(range(32))
MEMBER, POD, OTHER = "flights-3", "flights-b-3", "flights-a-3"
ADDRESS = "10.1.2.3:8080"
DEADLINE_MS = 5_000


class ScheduledClock(VirtualClock):
    """Makes calls at their times, whatever lets the time pass."""

    def __init__(self) -> None:
        self._now = 0.0
        self._due: list[tuple[float, int, Callable[[], Any]]] = []
        self._numbers = itertools.count()
        super().__init__()

    @property  # type: ignore[override]
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, value: float) -> None:
        while self._due and self._due[0][0] <= value:
            at, _, call = heapq.heappop(self._due)
            self._now = max(self._now, at)
            call()
        self._now = max(self._now, value)

    def at(self, ms: float, call: Callable[[], Any]) -> None:
        heapq.heappush(self._due, (ms, next(self._numbers), call))

    def after(self, ms: float, call: Callable[[], Any]) -> None:
        self.at(self._now + ms, call)


class Lines(io.StringIO):
    """A worker's stdout, that tells of phases."""

    def __init__(self, clock: ScheduledClock) -> None:
        super().__init__()
        self._clock = clock
        self.phase = ""
        self._waiting: list[tuple[str, float, Callable[[], Any]]] = []

    def write(self, text: str) -> int:
        event = json.loads(text)
        if event["event"] == "phase":
            self.phase = event["phase"]
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                self.on(*call)
        return super().write(text)

    def on(self, phase: str, after_ms: float, call: Callable[[], Any]) -> None:
        if self.phase == phase:
            self._clock.after(after_ms, call)
        else:
            self._waiting.append((phase, after_ms, call))


class Group(FakeCluster):
    """The member as a broker has it: who is the member, and what is committed."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.member_id, self.client_id = STABLE, "", ""
        self.generation = 7
        self.partitions: tuple[TopicPartition, ...] = ()
        self.error: Exception | None = None
        self.looks = 0

    def member(self, *, offsets: bool) -> MemberView:
        self.looks += 1
        if self.error is not None:
            raise self.error
        if not self.member_id:
            return MemberView(MEMBER, "Empty")
        committed = (
            {tp: self.committed[tp] for tp in self.partitions if tp in self.committed} if offsets else {}
        )
        return MemberView(MEMBER, self.state, self.member_id, self.client_id, self.partitions, committed)

    def note(self, tp: TopicPartition) -> CommitNote:
        note = CommitNote.decode(self.committed[tp].metadata)
        assert note is not None
        return note

    def commit_as(self, pod: str, tp: TopicPartition, offset: int, at_ms: int, since_ms: int = 1) -> None:
        """What another pod commits."""
        note = CommitNote(at_ms, MEMBER, None, None, pod, since_ms)
        self.committed[tp] = OffsetAndMetadata(offset, note.encode())


class Member(FakeConsumer):
    """Joins with its first poll, or stands by before."""

    def __init__(self, group: Group, clock: VirtualClock, pod: str) -> None:
        owner = group.instance_owner
        super().__init__(group, clock)
        group.instance_owner = owner
        self.group, self.pod = group, pod
        self.standby = False
        self.stood_by = 0
        self.prefetched: list[dict[TopicPartition, int]] = []
        self.taken_over: tuple[dict[TopicPartition, OffsetAndMetadata], int | None] | None = None
        self.held_up = 0
        """So many polls pass before the join is answered."""
        self.stand_by_errors: deque[Exception] = deque()

    def subscribe(self, topics: Collection[str] = (), pattern: str | None = None, *, listener: Any) -> None:
        super().subscribe(topics, pattern, listener=listener)
        self._join_soon()

    def stand_by(
        self, topics: Collection[str] = (), pattern: str | None = None, listener: Any = None
    ) -> None:
        if self.stand_by_errors:
            raise self.stand_by_errors.popleft()
        self.standby, self.listener = True, listener
        self.stood_by += 1

    def prefetch(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert self.standby
        self.prefetched.append(dict(offsets))

    def take_over(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: int | None = None
    ) -> None:
        assert self.standby
        self.standby = False
        self.taken_over = dict(offsets), generation
        self._join_soon()

    def _join_soon(self) -> None:
        self.at_poll.extend([lambda: None] * self.held_up)
        self.at_poll.append(self._join)

    def _join(self) -> None:
        group = self.group
        assert self.replaced == group.member_id, "by the consumer protocol the broker would refuse the join"
        group.instance_owner = self
        returned = bool(group.member_id)
        group.member_id = f"{MEMBER}-by-{self.pod}-{id(self)}"
        group.client_id = group.client_id or self.pod
        self.join(group.generation, returned=returned)
        self.assign(*group.partitions)

    def assign(self, *partitions: TopicPartition) -> None:
        super_left = self.taken_over
        for tp in partitions:
            stored = self._cluster.committed.get(tp)
            self.positions[tp] = stored.offset if stored else 0
            if super_left is not None and super_left[1] == self.group.generation and tp in super_left[0]:
                self.positions[tp] = super_left[0][tp].offset
        self.listener.on_partitions_assigned(list(partitions))

    def poll_columns(self, timeout_ms: float = 0, max_records: int | None = None) -> Any:
        if self.standby:
            raise IllegalStateError("poll(): this consumer is in standby")
        return super().poll_columns(timeout_ms, max_records)

    def _check_fenced(self) -> None:
        if self.group.instance_owner is not self and self.positions:
            super()._check_fenced()

    def committed(self, partition: Any, metadata: bool = False, timeout_ms: int | None = None) -> Any:
        self._cluster.journal.append(("looked up",))
        return super().committed(partition, metadata, timeout_ms)

    def fence(self) -> None:
        """Another pod joins."""
        self.group.instance_owner = "another pod"
        self.group.member_id = f"{MEMBER}-by-another"


class Neighbour:
    """The other pod."""

    def __init__(self, clock: ScheduledClock) -> None:
        self._clock = clock
        self.answers: deque[Callable[[HandoverRequest], Reply]] = deque()
        """What it does with each question; the last one stays."""
        self.asked: list[tuple[float, str, HandoverRequest, float]] = []
        self.withdrawn: list[str] = []
        self.alive_until = float("inf")
        self.probes: list[float] = []
        self.addresses: list[str] = []

    def handover(self, address: str, request: HandoverRequest, timeout_ms: float, target: str = "") -> Reply:
        self.asked.append((self._clock.now, address, request, timeout_ms))
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        return answer(request)

    def withdraw(self, address: str, by: str) -> None:
        self.withdrawn.append(address)

    def alive(self, address: str) -> bool:
        self.probes.append(self._clock.now)
        self.addresses.append(address)
        return self._clock.now < self.alive_until


class Parts:
    """A worker's parts, which note what they are asked for."""

    def __init__(self, group: Group, clock: ScheduledClock, pod: str) -> None:
        self.group, self.clock, self.pod = group, clock, pod
        self.fake_sink = FakeSink(group)
        self.made: list[Member] = []
        self.engines = 0
        self.engine_closed = False
        self.looks_closed = 0
        self.on_made: Callable[[Member], None] = lambda _: None
        self.traces: Tracing = NO_TRACING

    @property
    def last(self) -> Member:
        return self.made[-1]

    def group_observer(self) -> Parts:
        return self

    def observe(self, *, offsets: bool) -> MemberView:
        return self.group.member(offsets=offsets)

    def check_topics(self) -> None: ...

    def consumer(self) -> Member:
        self.made.append(Member(self.group, self.clock, self.pod))
        self.on_made(self.last)
        return self.last

    def standby(self) -> Member:
        return self.consumer()

    def tracing(self) -> Tracing:
        return self.traces

    def messaging_metrics(self, metrics: Metrics) -> MessagingMetrics:
        return NO_MESSAGING_METRICS

    def engine(self) -> ValueEngine:
        self.engines += 1
        engine = ValueEngine()
        engine.close = lambda: setattr(self, "engine_closed", True)  # type: ignore[method-assign]
        transform = engine.transform

        def journaled(table: Any, batch: Any) -> Any:
            self.group.journal.append(("handled", table.num_rows))
            return transform(table, batch)

        engine.transform = journaled  # type: ignore[method-assign]
        return engine

    def sink(self) -> FakeSink:
        return self.fake_sink

    def letters(self) -> DeadLetters | None:
        return None

    def close(self) -> None:
        self.looks_closed += 1


class Scene:
    """The worker of the pod ``flights-b-3``, member ``flights-3``; ``flights-a-3`` may be there before it."""

    def __init__(
        self, *, holder: str = OTHER, records: int = 4, taken: bool = True, keyed: bool = True, **changes: Any
    ) -> None:
        self.clock = ScheduledClock()
        self.group = Group()
        self.tps = [self.group.produce(0, self.values(records)), self.group.produce(1, self.values(records))]
        self.group.partitions = tuple(self.tps)
        if taken:
            self.group.member_id, self.group.client_id = f"{MEMBER}-by-{holder}", holder
            self.group.instance_owner = "another pod"
        takeover = {"keyFile": "key", "deadlineMs": DEADLINE_MS} if keyed else None
        self.config = worker_config(**{"takeover": takeover, "deadLetterTopic": None, **changes})
        self.runner, self.writer, self.watcher, self.caller = (VirtualRunner(self.clock) for _ in range(4))
        self.neighbour = Neighbour(self.clock)
        self.parts = Parts(self.group, self.clock, POD)
        self.stopping = Stopping()
        self.stdout, self.stderr = Lines(self.clock), io.StringIO()
        self.events_log = EventLog(MEMBER, self.clock, self.stdout)
        env = ProcessEnvironment(
            self.clock,
            self.events_log,
            StderrLog(POD, self.clock, self.stderr),
            self.runner,
            self.writer,
            VirtualRunner(self.clock),
            42,
            "worker.yaml",
            False,
            POD,
            TakeoverContext(KEY, self.neighbour, self.watcher, self.caller) if keyed else None,
        )
        self.worker = Worker(self.config, MEMBER, self.parts, env, self.stopping)
        self.neighbour.answers.append(self.hand_over)

    @staticmethod
    def values(count: int) -> list[str]:
        return [f"v{i}" for i in range(count)]

    # ---- the other pod

    def serve_before(self, offset: int = 2, at_ms: int = -100) -> None:
        """The other pod has committed ``offset`` of all partitions."""
        for tp in self.tps:
            self.group.commit_as(OTHER, tp, offset, self.clock.wall_ms() + at_ms)

    def left(
        self,
        unserved_ms: Mapping[TopicPartition, int] | None = None,
        took_ms: int = 0,
        clock: str = "another machine's",
        sent_ms: int = 0,
    ) -> HandoverAnswer:
        """What the other pod leaves, when it hands over now. The rest: of the answer."""
        now = self.clock.wall_ms()
        left = {tp: self.group.committed[tp] for tp in self.tps if tp in self.group.committed}
        return HandoverAnswer(
            self.group.generation, left, now - 5, now, unserved_ms or {}, took_ms, clock, sent_ms
        )

    def hand_over(self, request: HandoverRequest) -> Reply:
        """It answers at once."""
        return Reply(200, self.left().document())

    # ---- what the test does

    @property
    def requests(self) -> Any:
        assert self.worker._coordinator is not None
        return self.worker._coordinator._requests

    def order(self, predecessor: str = ADDRESS, trace: str = "") -> None:
        self.requests.order(predecessor, trace=trace)

    def ask(self, by: str = OTHER, deadline_ms: int = DEADLINE_MS, trace: str = "") -> PendingHandover:
        """The other pod asks this one."""
        asked: PendingHandover = self.requests.request_handover(
            HandoverRequest(MEMBER, by, ADDRESS, deadline_ms, trace)
        )
        return asked

    def when(self, condition: Callable[[], bool], call: Callable[[], Any], every_ms: float = 1.0) -> None:
        """Makes a call as soon as ``condition`` holds."""

        def look() -> None:
            if condition():
                call()
            else:
                self.clock.after(every_ms, look)

        self.clock.after(0, look)

    def in_phase(self, phase: str, call: Callable[[], Any], after_ms: float = 0.0) -> None:
        """Makes a call ``after_ms`` after the worker is in a phase, for the first time from now."""
        self.stdout.on(phase, after_ms, call)

    def stop_in(self, phase: str, after_ms: float = 0.0) -> None:
        self.in_phase(phase, self.stopping.request, after_ms)

    def stop_when_done(self) -> None:
        """Stops when all is committed."""
        self.when(
            lambda: all(
                tp in self.group.committed and self.group.committed[tp].offset == len(self.group.logs[tp])
                for tp in self.tps
            ),
            self.stopping.request,
        )

    def run(self, *, most_ms: float = 600_000) -> int:
        self.clock.at(most_ms, self._too_long)
        return self.worker.run()

    def _too_long(self) -> None:
        self.stopping.request()
        self.events_log.emit("too long")

    # ---- what came of it

    def events(self, name: str = "") -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stdout.getvalue().splitlines()]
        assert not [line for line in lines if line["event"] == "too long"], self.stdout.getvalue()
        return [line for line in lines if not name or line["event"] == name]

    def phases(self) -> list[str]:
        return [event["phase"] for event in self.events("phase")]

    def at(self, phase: str) -> float:
        """When (ms since the start) it came to a phase first."""
        first = next(event for event in self.events("phase") if event["phase"] == phase)
        return float(first["ts_ms"] - 1_700_000_000_000)

    def outcomes(self) -> dict[str, float]:
        kinds = ("asked", "forced", "taken_back", "refused")
        counted = {kind: self.worker.metrics.value("takeovers", (kind,)) for kind in kinds}
        return {kind: count for kind, count in counted.items() if count}
