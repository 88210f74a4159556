"""A topic as the sink, on the dev broker: records of rows, and what the broker refuses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slackwater import Batch
from slackwater.kafka import KafkaAdmin, KafkaProducer
from slackwater.kafka.admin import ConfigEntry, NewTopic, TopicDescription, TopicOperation
from slackwater.kafka.errors import (
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
)
from slackwater.pipeline import make_sink
from slackwater.pipeline.sinks.kafka.limits import Limits
from slackwater.pipeline.sinks.kafka.sink import KafkaSink
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.errors import ConfigError, RecordsError, SinkError, StartError
from slackwater.runtime.interfaces import Range
from tests.support.devbroker import DevBroker
from tests.support.peers.librdkafka import StoredRecord, read_topic
from tests.support.proxies.cutting import CuttingProxy
from tests.support.sinks import OLD, A, B, put, rows
from tests.support.waiting import HANG_S
from tests.support.workers.fakes import Bench

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NAMES = (f"out-{number}" for number in itertools.count())


def test_the_largest_record_that_is_let_through_is_one_that_the_broker_takes(devbroker: DevBroker) -> None:
    topic = created(devbroker, **{"max.message.bytes": "300"})
    limits, size = Limits("none", 10_000, 300, needs_keys=False), 200
    while True:
        try:
            limits.check([(None, b"v" * (size + 1), [])], rows([0]), topic)
            size += 1
        except RecordsError:
            break
    with KafkaProducer(bootstrap_servers=devbroker.bootstrap) as producer:
        producer.send(topic, b"v" * size).get(HANG_S)
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, b"v" * (size + 1)).get(HANG_S)


def created(broker: DevBroker, partitions: int = 2, /, **settings: str) -> str:
    name = next(NAMES)
    with KafkaAdmin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, 1, settings)]).unwrap()
    return name


class Site:
    """Sinks to topics of the dev broker; they are closed at the end."""

    def __init__(self, broker: DevBroker) -> None:
        self.broker, self._made = broker, list[KafkaSink]()

    def sink(self, topic: str, options: dict[str, str] | None = None, **config: Any) -> KafkaSink:
        document = {
            "groupId": "g", "topics": ["flights"], "bootstrapServers": self.broker.bootstrap,
            "handler": "m:f", "sink": {"format": "kafka", "topic": topic, "options": options or {}}, **config,
        }  # fmt: skip
        made = make_sink(parse(document))
        assert isinstance(made, KafkaSink)
        self._made.append(made)
        return made

    def records(self, topic: str) -> list[StoredRecord]:
        return list(read_topic(self.broker.bootstrap, topic))

    def close(self) -> None:
        for sink in self._made:
            sink.close()


@pytest.fixture
def site(devbroker: DevBroker) -> Iterator[Site]:
    site = Site(devbroker)
    yield site
    site.close()


def output(offsets: list[int], partition: int = 0, size: int = 1, **columns: Any) -> pa.Table:
    values = pa.array([f"v{offset}".ljust(size, ".") for offset in offsets], pa.string())
    keys = pa.array([f"k{offset % 3}".encode() for offset in offsets], pa.binary())
    return rows(offsets, partition, **{"key": keys, "value": values, **columns})


def values(records: list[StoredRecord]) -> list[str]:
    return sorted((record.value or b"").decode() for record in records)


def test_rows_are_records_of_the_topic_when_they_are_published(site: Site) -> None:
    """All of them: a producer that is not flushed would keep them for a minute here."""
    topic = created(site.broker)
    sink = site.sink(topic, {"linger.ms": "60000"})
    assert sink.marks([A, B]) == {}
    headers = pa.array([[{"key": "h", "value": b"1"}], None, None], HEADERS)
    staged = sink.stage(output([0, 1, 2], headers=headers), {A: Range(OLD, 0, 3, None)})
    assert site.records(topic) == []
    staged.publish()
    records = {record.value: record for record in site.records(topic)}
    assert records.keys() == {b"v0", b"v1", b"v2"}
    assert (records[b"v0"].key, records[b"v0"].headers) == (b"k0", {"h": b"1"})
    put(sink, rows([]), 3)
    put(sink, output([3, 4]), 3)
    assert len(site.records(topic)) == 5


def test_a_worker_that_stands_by_is_connected_before_its_first_rows(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = created(site.broker)
    sink = site.sink(topic)
    assert sink.marks([]) == {}
    monkeypatch.setattr("slackwater.kafka.KafkaAdmin", None)  # nothing more is opened
    monkeypatch.setattr("slackwater.kafka.KafkaProducer", None)
    put(sink, output([0, 1]), 0)
    assert values(site.records(topic)) == ["v0", "v1"]


def test_a_part_that_was_given_up_is_not_sent(site: Site) -> None:
    topic = created(site.broker)
    both = pa.concat_tables([output([0, 1]), output([5], 1)])
    staged = site.sink(topic).stage(both, {A: Range(OLD, 0, 2, None), B: Range(OLD, 5, 6, None)})
    staged.drop([A])
    staged.publish()
    assert values(site.records(topic)) == ["v5"]


def test_records_of_one_key_stay_in_order_and_come_once_through_lost_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections break before requests and before answers, so batches are sent again."""
    topic = created(site.broker, 3)
    with CuttingProxy(site.broker.bootstrap, random.Random(1), before=0.1, after=0.2) as proxy:
        producer = partial(KafkaProducer, connect=proxy.connect, reconnect_backoff_ms=5)
        monkeypatch.setattr("slackwater.kafka.KafkaProducer", producer)
        sink = site.sink(topic, {"batch.size": "300", "linger.ms": "0", "retry.backoff.ms": "10"})
        for start in range(0, 600, 200):
            put(sink, output(list(range(start, start + 200))), start)
        sink.close()
    assert proxy.cut_before > 0
    assert proxy.cut_after > 0
    stored = [(record.partition, record.key, record.value) for record in site.records(topic)]
    by_key: dict[bytes | None, list[int]] = {}
    for _, key, value in stored:
        by_key.setdefault(key, []).append(int((value or b"")[1:]))
    assert {len({p for p, k, _ in stored if k == key}) for key in by_key} == {1}
    assert by_key == {f"k{n}".encode(): list(range(n, 600, 3)) for n in range(3)}


def test_a_record_that_is_too_large_for_the_topic_becomes_a_dead_letter(site: Site) -> None:
    topic = created(site.broker, **{"max.message.bytes": "5000"})
    bench = Bench()
    bench.sink = site.sink(topic)
    bench.restart(engine=Wide())
    tp = bench.produce(0, *(f"v{n}" for n in range(12)))
    bench.assign(tp)
    bench.until_idle()
    bench.produce(0, *("wide" if n == 5 else f"v{n}" for n in range(12, 24)))
    bench.produce(0, "wide", *(f"v{n}" for n in range(25, 36)))
    bench.until_idle()
    assert bench.letters.origins() == ["flights-0@24"]
    assert values(site.records(topic)) == sorted(f"v{n}" for n in range(36) if n != 24)


class Wide:
    """Makes the value ``wide`` too large for the topic."""

    def start(self) -> None: ...

    def warm_up(self) -> None: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...

    def transform(self, table: pa.Table, batch: Batch) -> pa.Table:
        wide = [b"w" * 6000 if value == b"wide" else value for value in table["value"].to_pylist()]
        place = table.select(["topic", "partition", "offset", "key"])
        return place.append_column("value", pa.array(wide, pa.binary()))


def test_a_topic_whose_limit_is_lowered_refuses_and_the_record_is_found(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = created(site.broker, **{"max.message.bytes": "5000"})
    sink = site.sink(topic)
    monkeypatch.setattr(sink, "_settings", lambda admin: {})  # as a client that may not read them
    span = {A: Range(OLD, 0, 2, None)}
    large = output([0, 1], size=6000)
    staged = sink.stage(large, span)
    with pytest.raises(RecordsError, match=f"cannot write to the topic {topic} at .*larger than"):
        staged.publish()
    sink.stage(large, span).discard()
    monkeypatch.undo()
    sink._limits = None
    with pytest.raises(
        RecordsError, match=r"row of flights-0 offset 0 .* more than its max.message.bytes \(5000\)"
    ):
        sink.stage(large, span)


def test_a_client_that_may_not_read_settings_takes_kafkas_default_after_a_refusal(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = created(site.broker)
    sink = site.sink(topic)
    monkeypatch.setattr(sink, "_settings", lambda admin: {})
    large, span = output([0], size=1_100_000), {A: Range(OLD, 0, 1, None)}
    with pytest.raises(RecordsError):
        sink.stage(large, span).publish()
    with pytest.raises(RecordsError, match=r"more than its max.message.bytes \(1048588\)"):
        sink.stage(large, span)


def test_a_limit_that_was_raised_counts_before_a_record_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = created(site.broker, **{"max.message.bytes": "5000"})
    sink = site.sink(topic)
    read, asked = sink._settings, []

    def settings(admin: KafkaAdmin) -> Any:
        asked.append(1)
        entries = dict(read(admin))
        entry = entries["max.message.bytes"]
        if len(asked) == 1:
            entries["max.message.bytes"] = ConfigEntry(entry.name, "1000", 1, False, False)
        return entries

    monkeypatch.setattr(sink, "_settings", settings)
    put(sink, output([0]), 0)
    put(sink, output([1], size=3000), 1)
    put(sink, output([2]), 2)
    assert len(asked) == 2
    assert len(site.records(topic)) == 3


def test_batches_are_no_larger_than_the_topic_takes(site: Site) -> None:
    """The producer's own batch size is 64 KiB."""
    topic = created(site.broker, 1, **{"max.message.bytes": "1000"})
    put(site.sink(topic), output(list(range(300))), 0)
    assert len(site.records(topic)) == 300


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            KafkaTimeoutError("not acknowledged"),
            "^the sink cannot write to the topic .* not acknowledged. The batch",
        ),
        (
            TopicAuthorizationFailedError("no"),
            "; grant this client WRITE on the topic. The batch is not committed",
        ),
    ],
)
def test_what_the_producer_says_names_the_topic(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    topic = created(site.broker)
    sink = site.sink(topic)

    def send(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(KafkaProducer, "send", send)
    with pytest.raises(SinkError, match=message):
        sink.stage(output([0]), {A: Range(OLD, 0, 1, None)}).publish()


def test_a_topic_that_is_missing_is_named(site: Site) -> None:
    sink = site.sink("not-there")
    message = f"^no topic not-there at {site.broker.bootstrap}: create it, or correct sink.topic"
    with pytest.raises(SinkError, match=message):
        sink.stage(output([0]), {A: Range(OLD, 0, 1, None)})
    with pytest.raises(StartError, match=message):
        sink.probe()


def test_records_cannot_be_removed(site: Site) -> None:
    with pytest.raises(
        SinkError, match="^the sink cannot remove records from the topic out: Kafka can only append"
    ):
        site.sink("out").rewind({A: (OLD, 0)})


def test_the_probe_writes_nothing(site: Site) -> None:
    topic = created(site.broker, 3)
    assert site.sink(topic).probe() == f"the topic {topic} at {site.broker.bootstrap} (3 partitions)"
    assert site.records(topic) == []


@pytest.mark.parametrize(
    ("operations", "may_write"),
    [(None, True), ({TopicOperation.WRITE}, True), ({TopicOperation.READ, TopicOperation.DESCRIBE}, False)],
)
def test_the_probe_says_whether_the_client_may_write(
    site: Site, monkeypatch: pytest.MonkeyPatch, operations: set[TopicOperation] | None, may_write: bool
) -> None:
    topic = created(site.broker)
    describe = KafkaAdmin.describe_topics

    def described(admin: KafkaAdmin, names: list[str], **options: Any) -> Any:
        outcomes = describe(admin, names, **options)
        it = outcomes.values_ok[topic]
        outcomes[topic] = TopicDescription(
            it.name, it.topic_id, False, it.partitions, None if operations is None else frozenset(operations)
        )
        return outcomes

    monkeypatch.setattr(KafkaAdmin, "describe_topics", described)
    if may_write:
        site.sink(topic).probe()
        return
    with pytest.raises(
        StartError, match=f"cannot write to the topic {topic} at .*: grant this client WRITE on"
    ):
        site.sink(topic).probe()


def test_a_topic_that_is_read_is_refused_by_another_address_too(site: Site) -> None:
    """The options name the same cluster by another address; the names alone do not tell."""
    topic = created(site.broker)
    port = site.broker.bootstrap.rpartition(":")[2]
    sink = site.sink(topic, {"bootstrap.servers": f"localhost:{port}"}, topics=[topic])
    message = rf"^sink\.topic: {topic} is also a topic that the group reads .*bootstrap\.servers leads to the"
    with pytest.raises(ConfigError, match=message):
        sink.probe()
    with pytest.raises(ConfigError, match=message):
        sink.stage(output([0]), {A: Range(OLD, 0, 1, None)})


def test_a_topic_of_that_name_in_another_cluster_is_written(site: Site, tmp_path: Path) -> None:
    with DevBroker({}) as other:
        topic = created(site.broker)
        with KafkaAdmin(other.bootstrap) as admin:
            admin.create_topics([NewTopic(topic, 1, 1)]).unwrap()
        sink = site.sink(topic, {"bootstrap.servers": other.bootstrap}, topics=[topic])
        sink.probe()
        put(sink, output([0]), 0)
        assert values(list(read_topic(other.bootstrap, topic))) == ["v0"]
        assert site.records(topic) == []
        sink.close()
