"""``format("slackwater")`` on a real broker: the rows of Spark's own Kafka source, and what else it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, TopicPartition
from slackwater.kafka.admin import NewTopic
from tests.client.integration.groups.consumer_harness import unique
from tests.pipeline.integration.engines import spark_source_host as host
from tests.pipeline.integration.engines.shared_spark import SharedSpark
from tests.pipeline.integration.engines.spark_process import SparkProcess
from tests.support.kafka import KafkaCluster
from tests.support.waiting import HANG_S, wait_until

pytestmark = pytest.mark.parts("kafka", "spark", "spark-kafka")

PARTITIONS = 3
T0 = 1_700_000_000_000
CLEANING = {
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "group.initial.rebalance.delay.ms": "0",
}
SAME = {"only ours": 0, "only theirs": 0}


@pytest.fixture(scope="module")
def cluster(kafka: KafkaCluster) -> KafkaCluster:
    return kafka


@pytest.fixture
def spark(spark_with_jars: SparkProcess) -> SparkProcess:
    return spark_with_jars


def make_topic(cluster: KafkaCluster, prefix: str, partitions: int = PARTITIONS, **configs: str) -> str:
    topic = unique(prefix)
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    with KafkaAdmin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions, configs=settings)]).unwrap()
        admin.wait_for_topic(topic, partitions)
    return topic


def producer(cluster: KafkaCluster, **more: Any) -> ck.Producer:
    settings = {name.replace("_", "."): value for name, value in more.items()}
    made = ck.Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, **settings})
    if "transactional.id" in settings:
        made.init_transactions(30)
    return made


def write_all_kinds(cluster: KafkaCluster, topic: str) -> None:
    """Headers, tombstones, empty and null keys; transactions that were committed and aborted, in turns."""
    plain = producer(cluster, compression_type="lz4")
    for number in range(300):
        headers: list[tuple[str, str | bytes | None]] = [("h", b"%d" % number), ("h", None), ("grün", b"")]
        plain.produce(
            topic,
            None if number % 7 == 0 else b"" if number % 7 == 1 else b"value-%d" % number,
            key=None if number % 3 == 0 else b"key-%d" % (number % 20),
            partition=number % PARTITIONS,
            timestamp=T0 + 1000 * number,
            headers=headers[: number % 4] or None,
        )
    plain.flush(HANG_S)
    writers = [producer(cluster, transactional_id=unique("tx")) for _ in range(2)]
    for turn in range(6):
        for writer in writers:
            writer.begin_transaction()
        for number in range(40):
            for place, writer in enumerate(writers):
                writer.produce(topic, b"%d %d" % (turn, place), partition=number % PARTITIONS)
        for place, writer in enumerate(writers):
            writer.flush(HANG_S)
            (writer.commit_transaction if (turn + place) % 3 else writer.abort_transaction)(30)


def write_compacted(cluster: KafkaCluster, topic: str) -> int:
    """Writes few keys over and over, each record into a segment of its own, and waits for the cleaner.

    Returns how many records were written.
    """
    writer, written = producer(cluster), 30
    for number in range(written):
        value = None if number % 10 == 5 else b"%d" % number
        writer.produce(topic, value, key=b"k%d" % (number % 3), timestamp=T0 + 60_000 * number)
        writer.flush(HANG_S)
    partition = TopicPartition(topic, 0)

    def is_clean() -> bool:
        with KafkaConsumer(
            bootstrap_servers=cluster.bootstrap, group_id=None, auto_offset_reset="earliest"
        ) as reader:
            reader.assign([partition])
            end, count = reader.end_offsets([partition])[partition], 0
            while reader.position(partition) < end:
                count += sum(map(len, reader.poll(200).values()))
        return count < written

    wait_until(is_clean, "the cleaner's work")
    return written


@pytest.fixture(scope="module")
def topics(cluster: KafkaCluster) -> dict[str, str]:
    """Options that read a topic of all kinds, and one with the broker's times."""
    prefix = unique("all")
    kinds = make_topic(cluster, f"{prefix}-kinds")
    appended = make_topic(cluster, f"{prefix}-appended", message_timestamp_type="LogAppendTime")
    write_all_kinds(cluster, kinds)
    write_all_kinds(cluster, appended)
    return {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribePattern": f"{prefix}-.*",
        "includeHeaders": "true",
    }


@pytest.mark.long
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_the_rows_of_sparks_kafka_source(spark: SparkProcess, topics: dict[str, str], level: str) -> None:
    options = {**topics, "kafka.isolation.level": level, "minPartitions": "9"}
    outcome = spark.run(host.differences, options)
    # 2 topics of 300 records and 6 * 80 in transactions, of which a third was aborted.
    transactional = 2 * 6 * 80 * 2 // 3 if level == "read_committed" else 2 * 6 * 80
    assert outcome.items() >= {"same schema": True, "rows": 600 + transactional, **SAME}.items()


@pytest.mark.long
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_the_rows_of_a_compacted_topic(spark: SparkProcess, level: str) -> None:
    with KafkaCluster(1, CLEANING) as cleaning:
        topic = make_topic(
            cleaning, "compacted", 1,
            cleanup_policy="compact", segment_ms="1000", min_cleanable_dirty_ratio="0.01",
        )  # fmt: skip
        written = write_compacted(cleaning, topic)
        options = {"kafka.bootstrap.servers": cleaning.bootstrap, "subscribe": topic}
        outcome = spark.run(host.differences, {**options, "kafka.isolation.level": level})
    assert outcome.items() >= {"same schema": True, **SAME}.items()
    assert 3 <= outcome["rows"] < written


@pytest.mark.long
def test_filters_give_the_same_rows_and_are_pushed_down(spark: SparkProcess, topics: dict[str, str]) -> None:
    later = f"timestamp > timestamp_millis({T0 + 100_000})"
    where = f"partition IN (0, 2) AND offset >= 20 AND offset < 120 AND {later}"
    outcome = spark.run(host.differences, topics, where)
    assert outcome.items() >= SAME.items()
    assert outcome["rows"] > 50
    analyzed, _, optimized = outcome["plan"].partition("== Optimized Logical Plan ==")
    # Only the condition on the time is left to Spark.
    assert "Filter (timestamp#" in optimized
    for condition in (" IN (0,2)", "(offset#"):
        assert condition in analyzed
        assert condition not in optimized


@pytest.mark.long
@pytest.mark.parametrize(
    "places",
    [
        {"startingTimestamp": str(T0 + 100_500), "endingTimestamp": str(T0 + 200_500)},
        {
            "startingOffsets": '{"T": {"0": 50, "1": -2, "2": 7}}',
            "endingOffsets": '{"T": {"0": 60, "1": 9, "2": -1}}',
        },
    ],
    ids=["timestamps", "offsets"],
)
def test_starts_and_ends_are_those_of_sparks_kafka_source(
    cluster: KafkaCluster, spark: SparkProcess, places: dict[str, str]
) -> None:
    topic = make_topic(cluster, "places")
    write_all_kinds(cluster, topic)
    options = {name: text.replace('"T"', f'"{topic}"') for name, text in places.items()}
    options |= {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    outcome = spark.run(host.differences, options)
    assert outcome.items() >= {"same schema": True, **SAME}.items()
    assert outcome["rows"] > 50


@pytest.mark.long
def test_columns_and_values_that_executors_decode(cluster: KafkaCluster, spark: SparkProcess) -> None:
    topic = make_topic(cluster, "values", 1)
    writer = producer(cluster)
    for number in range(500):
        writer.produce(topic, json.dumps({"n": number, "s": f"s{number}", "l": [number]}).encode())
    writer.flush(HANG_S)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    schema = "n INT, s STRING, l ARRAY<INT>"
    value = {"value.format": "json", "value.schema": schema, "columns": "offset,value"}
    assert spark.run(host.decoded_differences, options, value, schema) == {"rows": 500, **SAME}
    writer.produce(topic, b'{"n": "many"}')
    writer.produce(topic, None)
    writer.flush(HANG_S)
    bad, tombstone = spark.run(host.rows, {**options, **value}, "offset >= 500")
    assert bad == {
        "offset": 500,
        "value": None,
        "_error": "JSON value: field n: must be a whole number, not text",
    }
    assert tombstone == {"offset": 501, "value": None, "_error": None}


@pytest.mark.long
def test_a_stream_goes_on_from_its_checkpoint_and_commits_to_a_group(
    cluster: KafkaCluster, spark: SparkProcess, tmp_path: Path
) -> None:
    """Each run ends at the log's end; one that died before its last commit loses and repeats nothing."""
    topic, group, folder = make_topic(cluster, "stream"), unique("g"), str(tmp_path)
    write_all_kinds(cluster, topic)
    read = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }
    own = {**read, "commitGroup": group, "maxOffsetsPerTrigger": "600"}

    def committed() -> dict[TopicPartition, int]:
        with KafkaAdmin(cluster.bootstrap) as admin:
            return {tp: at.offset for tp, at in admin.committed_offsets(group).items()}

    def ends() -> dict[TopicPartition, int]:
        with KafkaAdmin(cluster.bootstrap) as admin:
            listed = admin.list_offsets({TopicPartition(topic, number): -1 for number in range(PARTITIONS)})
            return {tp: at.offset for tp, at in listed.unwrap().items()}

    batches = spark.run(host.stream, own, folder)
    assert len(batches) >= 2
    assert max(batches) <= 600
    assert committed() == ends()
    whole = spark.run(host.table_differences, folder, read)
    assert whole == {"rows": sum(batches), **SAME}
    write_all_kinds(cluster, topic)
    spark.run(host.forget_last_batch, folder)
    more = spark.run(host.stream, own, folder)
    # The batch that was forgotten comes again, up to where it ended before.
    assert more[0] == batches[-1]
    assert spark.run(host.table_differences, folder, read) == {"rows": 2 * sum(batches), **SAME}
    assert committed() == ends()
    # A batch query from the group's commits has what came since.
    writer = producer(cluster)
    writer.produce(topic, b"last", partition=1)
    writer.flush(HANG_S)
    since = spark.run(host.rows, {**read, "startingOffsets": "group", "groupId": group})
    assert [(row["partition"], row["value"]) for row in since] == [(1, b"last")]


@pytest.mark.long
def test_a_stream_waits_for_enough_records_as_sparks_kafka_source_does(
    cluster: KafkaCluster, spark: SparkProcess, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "least", 1)
    writer = producer(cluster, linger_ms=10_000)  # flush() sends all as a single batch
    read = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    ways = {
        "both": {
            **read,
            "minOffsetsPerTrigger": "60",
            "maxTriggerDelay": "1h",
            "maxOffsetsPerTrigger": "90",
        },
        "soon": {**read, "minOffsetsPerTrigger": "1000", "maxTriggerDelay": "2s"},
    }

    def write(count: int) -> None:
        for number in range(count):
            writer.produce(topic, b"%d" % number)
        writer.flush(HANG_S)

    def reached(way: str, batches: list[int], waiting: int = 0) -> None:
        for source in (host.OURS, host.PEER):
            name = f"{way} {source}"
            wait_until(
                lambda: spark.run(host.progress, name) == (batches, waiting),  # noqa: B023
                lambda: f"{name}: {spark.run(host.progress, name)}, not {(batches, waiting)}",  # noqa: B023
            )

    write(6)
    try:
        for way, options in ways.items():
            for source in (host.OURS, host.PEER):
                spark.run(host.start_stream, f"{way} {source}", source, options, str(tmp_path))
            reached(way, [6])  # the first batch does not wait
        write(30)
        reached("both", [6], 30)
        reached("soon", [6, 30])
        write(90)
        reached("both", [6, 90], 30)
        reached("soon", [6, 30, 90])
    finally:
        spark.run(host.stop_streams)


@pytest.mark.long
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_except_all_both_ways(spark: SparkProcess, topics: dict[str, str], level: str) -> None:
    assert spark.run(host.exceptions, {**topics, "kafka.isolation.level": level}) == SAME


@pytest.mark.long
def test_a_server_of_spark_connect(shared_spark: SharedSpark, topics: dict[str, str], tmp_path: Path) -> None:
    read = {**topics, "kafka.isolation.level": "read_committed"}
    rows = shared_spark.client.run(host.rows, read, "partition = 0")
    assert len(rows) > 300
    assert {row["partition"] for row in rows} == {0}
    earliest = {**read, "startingOffsets": "earliest"}
    assert sum(shared_spark.client.run(host.stream, earliest, str(tmp_path))) > len(rows)
