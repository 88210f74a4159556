"""A worker from start to stop: the order of join and warm-up, the gate, the stop, the exit codes."""

from __future__ import annotations

import http.client
import io
import json
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from typing import Any

import pytest

from slackwater.clock import SystemClock
from slackwater.kafka.errors import (
    GroupIdNotFoundError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    UnreleasedInstanceIdError,
    for_code,
)
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.runtime.call_threads import ThreadRunner, TimedCalls
from slackwater.runtime.config.environment import instance_of, owner_of, pod_of
from slackwater.runtime.config.worker_config import HealthConfig, WorkerConfig
from slackwater.runtime.delivery.dead_letters import DeadLetters
from slackwater.runtime.errors import (
    ConfigError,
    HandlerError,
    HandlerLoadError,
    HandlerTimeoutError,
    StartError,
)
from slackwater.runtime.interfaces import StandbyConsumer
from slackwater.runtime.shutdown import Stopping
from slackwater.runtime.takeover.group_observer import MemberView
from slackwater.runtime.telemetry.events import EventLog, StderrLog
from slackwater.runtime.telemetry.http_server import HealthServer
from slackwater.runtime.telemetry.messaging_metrics import NO_MESSAGING_METRICS, MessagingMetrics
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.status import LEAVE_WITHIN_MS, Status
from slackwater.runtime.worker import ProcessEnvironment, Worker
from slackwater.tracing.spans import NO_TRACING, Tracing
from tests.support.waiting import HANG_S
from tests.support.workers.fakes import (
    FakeCluster,
    FakeConsumer,
    FakeLetters,
    FakeSink,
    ValueEngine,
    VirtualClock,
    VirtualRunner,
    worker_config,
)


class FakeGroupObserver:
    """Knows the member or not."""

    def __init__(self, parts: FakeParts) -> None:
        self._parts = parts

    def observe(self, *, offsets: bool) -> MemberView:
        assert not offsets, "it is of no use to a worker without a key for takeovers"
        known = self._parts.ask()
        return MemberView("w-0", "Stable", "w-0-id", "w-0") if known else MemberView("w-0", "Empty")

    def close(self) -> None: ...


class FakeStandby(FakeConsumer):
    """Joins by ``take_over``, as a member of generation 4 with ``partition``."""

    def __init__(
        self, cluster: FakeCluster, clock: VirtualClock, order: list[str], partition: TopicPartition
    ) -> None:
        super().__init__(cluster, clock)
        self._order, self._partition = order, partition
        self.error: KafkaError | None = None
        """Why it cannot stand by."""

    def stand_by(
        self, topics: Collection[str] = (), pattern: str | None = None, listener: Any = None
    ) -> None:
        self._order.append("stand by")
        if self.error is not None:
            raise self.error
        self.listener = listener

    def prefetch(self, offsets: Mapping[TopicPartition, int]) -> None:
        raise AssertionError("it does not know where the members read")

    def take_over(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: int | None = None
    ) -> None:
        assert (offsets, generation) == ({}, None), "there is nobody to take over from"
        self._order.append("join")

        def join() -> None:
            self.join(4)
            self.assign(self._partition)

        self.at_poll.append(join)


class FakeParts:
    """Parts that note the order they are asked for in. ``in_warm_up`` and ``in_poll`` are hooks."""

    def __init__(self, clock: VirtualClock, config: WorkerConfig, *, known: bool) -> None:
        self.clock, self.config, self.known = clock, config, known
        self.cluster = FakeCluster()
        self.tp = self.cluster.produce(0, ["v0", "v1"])
        self.order: list[str] = []
        self.fake_sink = FakeSink(self.cluster)
        self.made: FakeConsumer | None = None
        self.standing_by: FakeStandby | None = None
        self.standby_error: KafkaError | None = None
        self.ask: Callable[[], bool] = lambda: self.known
        self.warm_up: Callable[[], None] = lambda: None
        self.topics_error: Exception | None = None
        self.after_join: list[Callable[[], None]] = []

    def group_observer(self) -> FakeGroupObserver:
        return FakeGroupObserver(self)

    def standby(self) -> StandbyConsumer:
        assert self.config.join_gate_ms, "only a worker at the gate stands by here"
        made = self.made = self.standing_by = FakeStandby(self.cluster, self.clock, self.order, self.tp)
        made.error = self.standby_error
        return made

    def check_topics(self) -> None:
        if self.topics_error:
            raise self.topics_error

    def consumer(self) -> FakeConsumer:
        self.order.append("join")
        made = self.made = FakeConsumer(self.cluster, self.clock)

        def join() -> None:
            made.join(4, returned=self.known)
            made.assign(self.tp)

        made.at_poll.extend([join, *self.after_join])
        return made

    def tracing(self) -> Tracing:
        return NO_TRACING

    def messaging_metrics(self, metrics: Metrics) -> MessagingMetrics:
        return NO_MESSAGING_METRICS

    def engine(self) -> ValueEngine:
        self.order.append("engine")
        engine = ValueEngine()
        engine.warm_up = lambda: self.warm_up()  # type: ignore[method-assign]
        engine.close = lambda: self.order.append("engine closed")  # type: ignore[method-assign]
        return engine

    def sink(self) -> FakeSink:
        return self.fake_sink

    def letters(self) -> DeadLetters | None:
        return DeadLetters("flights", FakeLetters(self.cluster, self.clock), self.clock)

    def close(self) -> None:
        self.order.append("closed")


class Stage:
    """A worker on made-up parts."""

    def __init__(self, *, known: bool = False, **changes: Any) -> None:
        self.clock = VirtualClock()
        self.config = worker_config(**changes)
        self.parts = FakeParts(self.clock, self.config, known=known)
        self.runner, self.writer = VirtualRunner(self.clock), VirtualRunner(self.clock)
        self.stopping = Stopping()
        self.stdout, self.stderr = io.StringIO(), io.StringIO()
        events, log = EventLog("w-0", self.clock, self.stdout), StderrLog("w-0", self.clock, self.stderr)
        closer = VirtualRunner(self.clock)
        self.journal_when_loaded: list[list[Any]] = []
        env = ProcessEnvironment(
            self.clock, events, log, self.runner, self.writer, closer, 42, "worker.yaml",
            loaded=lambda: self.journal_when_loaded.append(list(self.parts.cluster.journal)),
        )  # fmt: skip
        self.worker = Worker(self.config, "w-0", self.parts, env, self.stopping)

    def stop_when_committed(self) -> None:
        """Requests the stop as soon as all is committed."""
        turn = self.clock.wall_ms

        def stop_then() -> int:
            committed = self.parts.cluster.committed.get(self.parts.tp)
            if committed is not None and committed.offset == 2 and not self.stopping.count:
                self.stopping.request()
            return turn()

        self.clock.wall_ms = stop_then  # type: ignore[method-assign]

    def events(self, name: str = "") -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stdout.getvalue().splitlines()]
        return [line for line in lines if not name or line["event"] == name]

    def phases(self) -> list[str]:
        return [event["phase"] for event in self.events("phase")]


def test_a_new_member_warms_up_before_it_joins() -> None:
    stage = Stage()
    stage.stop_when_committed()
    assert stage.worker.run() == 0
    assert stage.parts.order == ["engine", "join", "engine closed", "closed"]
    assert stage.phases() == ["starting", "warming", "joining", "running", "draining", "stopped"]
    assert stage.parts.fake_sink.rows(0) == [0, 1]
    assert stage.parts.made is not None
    assert stage.parts.made.closed
    names = [event["event"] for event in stage.events()]
    assert names[0] == "started"
    assert names[-2:] == ["phase", "stopped"]
    assert stage.events("started")[0]["pid"] == 42
    assert stage.events("stopped")[0]["code"] == 0
    assert len(stage.events("drained")) == 1


@pytest.mark.parametrize("since_ms", [None, LEAVE_WITHIN_MS - 10_000, LEAVE_WITHIN_MS])
def test_it_leaves_the_group_if_it_was_told_to_just_now(since_ms: int | None) -> None:
    stage = Stage()
    stage.stop_when_committed()
    if since_ms is not None:
        stage.worker.status.leave()
        stage.clock.sleep(since_ms)
    assert stage.worker.run() == 0
    assert stage.parts.made is not None
    assert stage.parts.made.left == (since_ms not in (None, LEAVE_WITHIN_MS))


def test_a_returning_member_joins_before_it_warms_up_and_polls_meanwhile() -> None:
    stage = Stage(known=True)
    stage.stop_when_committed()
    stage.runner.durations.extend([0, 5000])  # the question, then the warm-up
    stage.parts.warm_up = lambda: stage.parts.order.append("warm")
    assert stage.worker.run() == 0
    assert stage.parts.order[:3] == ["join", "engine", "warm"]
    assert stage.phases() == ["starting", "joining", "warming", "running", "draining", "stopped"]
    assert stage.parts.made is not None
    assert stage.parts.made.polls >= 5000 / 50
    assert stage.events("joined")[0]["returned"] is True
    assert stage.parts.cluster.journal[0] == ("marks", [0])
    assert stage.clock.now >= 5000


@pytest.mark.parametrize("known", [True, False])
def test_what_runs_once_all_is_loaded_runs_once_and_before_the_first_batch(known: bool) -> None:
    stage = Stage(known=known)
    stage.stop_when_committed()
    assert stage.worker.run() == 0
    assert stage.parts.fake_sink.rows(0) == [0, 1]
    assert stage.journal_when_loaded == [[]]


def test_a_returning_member_whose_join_is_held_up_warms_up_meanwhile() -> None:
    stage = Stage(known=True)
    stage.stop_when_committed()
    consumer = stage.parts.consumer

    def slow() -> FakeConsumer:
        made = consumer()
        made.at_poll.extendleft([lambda: None] * 100)
        return made

    stage.parts.consumer = slow  # type: ignore[method-assign]
    assert stage.worker.run() == 0
    assert stage.phases() == [
        "starting", "joining", "warming", "joining", "running", "draining", "stopped",
    ]  # fmt: skip


def test_a_new_member_waits_at_the_gate_until_it_is_opened() -> None:
    stage = Stage(joinGateMs=60_000)
    stage.stop_when_committed()
    sleep = stage.clock.sleep

    def open_later(ms: float) -> None:
        sleep(ms)
        if stage.clock.now > 1000:
            stage.worker.status.gate.set()

    stage.clock.sleep = open_later  # type: ignore[method-assign]
    assert stage.worker.run() == 0
    assert stage.phases()[:4] == ["starting", "warming", "warm", "joining"]
    assert 1000 < stage.clock.now < 2000
    assert stage.parts.order == ["engine", "stand by", "join", "engine closed", "closed"]
    assert stage.parts.fake_sink.rows(0) == [0, 1]
    assert stage.parts.made is not None
    assert stage.parts.made.closed


def test_a_member_that_runs_expects_others_once_a_request() -> None:
    stage = Stage()
    turn, requests = stage.clock.wall_ms, [1_000, 2_000]

    def ask_then() -> int:
        if requests and stage.clock.now >= requests[0]:
            requests.pop(0)
            stage.worker.status.gate.set()
        elif stage.clock.now >= 3_000 and not stage.stopping.count:
            stage.stopping.request()
        return turn()

    stage.clock.wall_ms = ask_then  # type: ignore[method-assign]
    assert stage.worker.run() == 0
    assert stage.parts.made is not None
    assert stage.parts.made.expects == 2
    assert stage.parts.made.ended_polls == 1, "the stop's: it does not wait for the poll's end"


def test_it_waits_at_the_gate_when_it_has_connected() -> None:
    stage = Stage(joinGateMs=3000)
    stage.runner.durations.extend([0, 0, 0, 500])  # the question, the topics, the warm-up, the connection
    stage.stop_when_committed()
    assert stage.worker.run() == 0
    (warm,) = (event["ts_ms"] for event in stage.events("phase") if event["phase"] == "warm")
    (joining,) = (event["ts_ms"] for event in stage.events("phase") if event["phase"] == "joining")
    assert warm - stage.events("started")[0]["ts_ms"] >= 500
    assert 3000 <= joining - warm < 3100


def test_what_cannot_connect_before_the_gate_connects_with_its_join() -> None:
    stage = Stage(joinGateMs=3000)
    stage.parts.standby_error = KafkaTimeoutError("stand_by(): not ready within 60000 ms")
    stage.stop_when_committed()
    assert stage.worker.run() == 0
    assert stage.parts.order == ["engine", "stand by", "join", "engine closed", "closed"]
    assert stage.parts.fake_sink.rows(0) == [0, 1]
    assert "cannot connect before the join: stand_by(): not ready within 60000 ms" in stage.stderr.getvalue()
    assert stage.parts.standing_by is not None
    assert stage.parts.standing_by.closed
    assert stage.parts.made is not stage.parts.standing_by


def test_the_gate_opens_by_itself_when_the_time_is_up() -> None:
    stage = Stage(joinGateMs=3000)
    stage.stop_when_committed()
    assert stage.worker.run() == 0
    assert 3000 <= stage.clock.now < 4000


def test_a_returning_member_does_not_wait_at_the_gate() -> None:
    stage = Stage(known=True, joinGateMs=60_000)
    stage.stop_when_committed()
    assert stage.worker.run() == 0
    assert "warm" not in stage.phases()
    assert stage.clock.now < 5000


@pytest.mark.parametrize("known", [False, True])
def test_a_stop_during_the_warm_up_works_at_once(known: bool) -> None:
    stage = Stage(known=known)
    stage.runner.durations.extend([0, 60_000] if known else [0, 0, 60_000])
    stage.parts.warm_up = stage.stopping.request
    assert stage.worker.run() == 0
    assert stage.clock.now < 1000
    assert "engine closed" not in stage.parts.order, "it is not closed while it starts"
    assert stage.phases()[-1] == "stopped"
    assert stage.parts.cluster.committed == {}
    if known:
        assert stage.parts.made is not None
        assert stage.parts.made.closed


def test_a_stop_before_the_gate_joins_nothing() -> None:
    stage = Stage(joinGateMs=60_000)
    stage.parts.warm_up = stage.stopping.request
    assert stage.worker.run() == 0
    assert "join" not in stage.parts.order


def test_a_stop_at_the_gate_joins_nothing_and_closes_what_stands_by() -> None:
    stage = Stage(joinGateMs=60_000)
    sleep = stage.clock.sleep

    def stop_at_the_gate(ms: float) -> None:
        sleep(ms)
        if stage.phases()[-1] == "warm":
            stage.stopping.request()

    stage.clock.sleep = stop_at_the_gate  # type: ignore[method-assign]
    assert stage.worker.run() == 0
    assert stage.phases() == ["starting", "warming", "warm", "stopped"]
    assert stage.parts.order == ["engine", "stand by", "engine closed", "closed"]
    assert stage.parts.standing_by is not None
    assert stage.parts.standing_by.closed


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HandlerLoadError("no module"), 2),
        (StartError("no Java"), 1),
        (ConfigError("bad"), 2),
        (HandlerError("the output lacks the column offset"), 2),
        (HandlerTimeoutError("did not end within 1000 ms"), 4),
        (OSError("x"), 1),
    ],
)
def test_what_fails_in_the_warm_up_is_told_in_one_line(error: Exception, code: int) -> None:
    stage = Stage()

    def fail() -> None:
        raise error

    stage.parts.warm_up = fail
    assert stage.worker.run() == code
    assert stage.phases()[-1] == "failed"
    (event,) = stage.events("error")
    assert str(error) in event["message"]
    assert type(error) is not HandlerError or "(handler handlers.flights:transform)" in event["message"]
    assert "\n" not in event["message"]
    assert stage.stderr.getvalue().count("\n") == 1
    assert stage.events("stopped")[0]["code"] == code
    assert stage.parts.order == ["engine", "engine closed", "closed"]


def test_a_missing_topic_ends_the_start() -> None:
    stage = Stage()
    stage.parts.topics_error = StartError("topic flights does not exist")
    assert stage.worker.run() == 1
    assert "topic flights" in stage.events("error")[0]["message"]


def test_a_broker_that_is_away_is_waited_for_and_then_named() -> None:
    stage = Stage(startTimeoutMs=5000)

    def away() -> bool:
        raise KafkaConnectionError("connection refused")

    stage.parts.ask = away
    assert stage.worker.run() == 1
    assert stage.clock.now >= 5000
    message = stage.events("error")[0]["message"]
    assert "127.0.0.1:9092" in message
    assert "connection refused" in message
    assert "bootstrapServers" in message


def test_a_group_that_the_worker_may_not_describe_is_no_broker_that_is_away() -> None:
    stage = Stage(startTimeoutMs=5000)

    def refused() -> bool:
        raise for_code(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "group g", api="ConsumerGroupDescribe")

    stage.parts.ask = refused
    assert stage.worker.run() == 1
    assert stage.clock.now < 5000
    message = stage.events("error")[0]["message"]
    assert "Describe on every Topic" in message
    assert "bootstrapServers" not in message


def test_a_broker_that_comes_late_is_joined() -> None:
    stage = Stage()
    stage.stop_when_committed()
    answers = iter([KafkaConnectionError("refused")] * 5)

    def late() -> bool:
        error = next(answers, None)
        if error:
            raise error
        return False

    stage.parts.ask = late
    assert stage.worker.run() == 0


def test_a_fenced_worker_exits_with_3_and_says_so() -> None:
    stage = Stage()
    stage.parts.after_join = [lambda: setattr(stage.parts.cluster, "instance_owner", "another")]
    assert stage.worker.run() == 3
    assert len(stage.events("fenced")) == 1
    assert stage.parts.fake_sink.published == {}
    assert stage.phases()[-1] == "failed"


@pytest.mark.parametrize(
    ("error", "code"),
    [(UnreleasedInstanceIdError("w-0"), 3), (GroupIdNotFoundError("classic again"), 3), (KafkaError("x"), 1)],
)
def test_a_worker_whose_place_another_has_or_may_have_is_fenced(error: Exception, code: int) -> None:
    stage = Stage()
    stage.parts.after_join = [lambda: stage.parts.made.poll_errors.append(error)]  # type: ignore[union-attr]
    assert stage.worker.run() == code
    assert len(stage.events("fenced")) == (code == 3)


@pytest.mark.parametrize(("error", "noted"), [(OSError(28, "No space left"), False), (MemoryError(), True)])
def test_an_error_of_the_surroundings_takes_back_that_the_batch_is_begun(
    error: Exception, noted: bool
) -> None:
    stage = Stage()
    stage.parts.fake_sink.stage_error = error
    assert stage.worker.run() == 4
    (committed,) = stage.parts.cluster.committed.values()
    assert ('"begun"' in committed.metadata) is noted


def test_a_failed_batch_leaves_nothing_staged() -> None:
    stage = Stage()
    stage.parts.fake_sink.publish_error = OSError(28, "No space left on device")
    assert stage.worker.run() == 4
    assert stage.parts.fake_sink.staged == 0
    assert "No space left" in stage.events("error")[0]["message"]


def test_an_unexpected_error_shows_its_traceback_in_the_log_only() -> None:
    stage = Stage()
    stage.parts.ask = lambda: 1 / 0 > 1
    assert stage.worker.run() == 1
    assert stage.events("error")[0]["message"] == "unexpected ZeroDivisionError: division by zero"
    assert "Traceback" in stage.stderr.getvalue()


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stage = Stage(health={"port": port})
        assert stage.worker.run() == 2
    message = stage.events("error")[0]["message"]
    assert message.startswith(
        f"worker.yaml: health.port: cannot listen on 127.0.0.1:{port}: Address already in use"
    )


@pytest.mark.parametrize("name", ["", "a b", "x" * 250, "ü", ".."])
def test_a_bad_instance_id_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match="SLACKWATER_INSTANCE_ID"):
        instance_of({"SLACKWATER_INSTANCE_ID": name})
    assert instance_of({"SLACKWATER_INSTANCE_ID": "flights-0"}) == "flights-0"


def test_a_pods_name_is_the_instance_unless_it_is_set() -> None:
    assert pod_of({}, "flights-3") == "flights-3"
    assert pod_of({"SLACKWATER_POD_NAME": ""}, "flights-3") == "flights-3"
    assert pod_of({"SLACKWATER_POD_NAME": "flights-b-3"}, "flights-3") == "flights-b-3"
    with pytest.raises(ConfigError, match="SLACKWATER_POD_NAME"):
        pod_of({"SLACKWATER_POD_NAME": "a b"}, "flights-3")


def test_a_worker_knows_its_consumer_group_by_its_uid() -> None:
    assert owner_of({}) == ""
    assert owner_of({"SLACKWATER_GROUP_UID": "0b5ad2a2-4f0e"}) == "0b5ad2a2-4f0e"
    with pytest.raises(ConfigError, match="SLACKWATER_GROUP_UID"):
        owner_of({"SLACKWATER_GROUP_UID": "a b"})


# ---- the endpoints


class Endpoint:
    def __init__(self, host: str = "127.0.0.1") -> None:
        self.clock = VirtualClock()
        self.status = Status("flights", "w-0", self.clock)
        self.metrics = Metrics(group="flights", instance="w-0")
        self.server = HealthServer(HealthConfig(host=host), self.status, self.metrics)
        self.server.serve()

    def ask(self, method: str, path: str, host: str = "127.0.0.1") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(host, self.server.port, timeout=HANG_S)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture
def endpoint() -> Any:
    served = Endpoint()
    yield served
    served.server.close()


def test_ready_is_running_in_the_group(endpoint: Endpoint) -> None:
    endpoint.status.phase, endpoint.status.generation = "running", -1
    assert endpoint.ask("GET", "/readyz")[0] == 503
    endpoint.status.generation = 3
    assert endpoint.ask("GET", "/readyz")[0] == 200
    endpoint.status.phase = "draining"
    assert endpoint.ask("GET", "/readyz")[0] == 503


def test_alive_is_a_main_thread_that_turns(endpoint: Endpoint) -> None:
    assert endpoint.ask("GET", "/healthz")[0] == 200
    endpoint.clock.sleep(endpoint.status.patience_ms + 1)
    assert endpoint.ask("GET", "/healthz")[0] == 503


def test_status_and_join(endpoint: Endpoint) -> None:
    endpoint.status.phase = "warm"
    code, body = endpoint.ask("GET", "/status")
    assert (code, json.loads(body)["phase"]) == (200, "warm")
    assert not endpoint.status.gate.is_set()
    assert endpoint.ask("POST", "/join")[0] == 202
    assert endpoint.status.gate.is_set()
    assert endpoint.ask("GET", "/nothing")[0] == 404
    assert endpoint.ask("POST", "/status")[0] == 404


def test_metrics_are_prometheus_text(endpoint: Endpoint) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    endpoint.metrics.count("records_in", ("flights", "3"), 7)
    endpoint.metrics.set("generation", 4)
    endpoint.metrics.observe("batch_phase_seconds", 0.2, ("transform",))
    endpoint.metrics.observe("batch_phase_seconds", 100, ("transform",))
    code, body = endpoint.ask("GET", "/metrics")
    assert code == 200
    samples = {
        (sample.name, sample.labels.get("partition"), sample.labels.get("le")): sample
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    records = samples["slackwater_records_in_total", "3", None]
    assert records.value == 7
    assert records.labels == {"group": "flights", "instance": "w-0", "topic": "flights", "partition": "3"}
    assert samples["slackwater_generation", None, None].value == 4
    assert samples["slackwater_batch_phase_seconds_bucket", None, "0.1"].value == 0
    assert samples["slackwater_batch_phase_seconds_bucket", None, "0.25"].value == 1
    assert samples["slackwater_batch_phase_seconds_count", None, None].value == 2
    assert samples["slackwater_batch_phase_seconds_sum", None, None].value == pytest.approx(100.2)


def test_the_port_is_free_after_close() -> None:
    endpoint = Endpoint()
    endpoint.ask("GET", "/healthz")
    endpoint.server.close()
    with socket.create_server(("127.0.0.1", endpoint.server.port)):
        pass


# ---- the handler's thread and the events


def test_the_runner_runs_in_order_and_keeps_what_was_raised() -> None:
    runner = ThreadRunner()
    order: list[int] = []
    first = runner.submit(lambda: (time.sleep(0.05), order.append(1)))
    second = runner.submit(lambda: order.append(2))
    third = runner.submit(sys.exit)
    assert third.wait(5000)
    assert order == [1, 2]
    first.result()
    second.result()
    with pytest.raises(SystemExit):
        third.result()
    assert runner.close(5000)


def test_a_reader_of_the_events_that_has_gone_away_ends_nothing() -> None:
    class Broken(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    log = EventLog("w-0", SystemClock(), Broken())
    log.emit("started")
    log.emit("stopped")


def test_events_are_one_json_object_a_line() -> None:
    stream = io.StringIO()
    EventLog("w-0", VirtualClock(), stream).emit("error", message="two\nlines")
    assert stream.getvalue().count("\n") == 1
    assert json.loads(stream.getvalue())["message"] == "two\nlines"
    assert TopicPartition("a", 1) in {("a", 1)}


def test_a_close_is_no_revocation() -> None:
    stage = Stage()
    stage.stop_when_committed()
    assert stage.worker.run() == 0
    assert stage.events("revoked") == []
    assert stage.worker.status.assignment == [["flights", 0]]


def test_a_timed_call_has_the_callers_context_variables() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="none")
    calls = TimedCalls("timed")
    variable.set("mine")
    assert calls.call(variable.get, 10_000, lambda: None) == "mine"
    calls.close()
