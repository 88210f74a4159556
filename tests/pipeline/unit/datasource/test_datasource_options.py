"""The options of the data source: what is read of them, and errors that name the option."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.options import (
    _KNOWN,
    _VALUE_KEYS,
    EARLIEST,
    LATEST,
    OptionError,
    Position,
    parse,
)
from slackwater.runtime.config.value_config import RegistryConfig, ValueConfig
from tests.pipeline.unit.datasource.fakes import ORDERS, SERVERS, options


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    plain = options()
    assert plain.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert (plain.start, plain.end, plain.fail_on_data_loss, plain.min_partitions) == (None, None, True, 1)
    assert (plain.max_offsets_per_trigger, plain.commit_group, plain.decoded) == (None, None, ())
    assert (plain.min_offsets_per_trigger, plain.max_trigger_delay_ms) == (None, 900_000)
    assert plain.topics.names == ("orders",)


@pytest.mark.parametrize(
    ("given", "ms"),
    [("90", 90), ("250ms", 250), (" 30S ", 30_000), ("2min", 120_000), ("1h", 3_600_000), ("1500us", 1)],
)
def test_a_delay_is_written_as_in_sparks_kafka_source(given: str, ms: int) -> None:
    assert options(minOffsetsPerTrigger="5", maxTriggerDelay=given).max_trigger_delay_ms == ms


def test_names_are_read_in_any_case_as_spark_gives_them() -> None:
    lowered = options(includeheaders="TRUE", startingoffsets="Earliest", failondataloss="false")
    assert lowered.columns[-1] == "headers"
    assert lowered.start == Position("startingOffsets", end=EARLIEST)
    assert not lowered.fail_on_data_loss


def test_topics() -> None:
    assert options(subscribe="a, b,a").topics.names == ("a", "b")
    assigned = options(assign='{"orders": [1, 0], "x": [3]}').topics.assigned
    assert assigned == (*ORDERS, TopicPartition("x", 3))
    assert options(subscribePattern="orders|x").topics.pattern == r"(?:orders|x)\Z"


def test_positions() -> None:
    given = options(
        startingOffsets='{"orders": {"0": 23, "1": -2}}', endingOffsets='{"orders": {"0": -1, "1": 9}}'
    )
    assert given.start == Position("startingOffsets", offsets={ORDERS[0]: 23, ORDERS[1]: EARLIEST})
    assert given.end == Position("endingOffsets", offsets={ORDERS[0]: LATEST, ORDERS[1]: 9})
    times = options(startingOffsetsByTimestamp='{"orders": {"0": 5, "1": 6}}', endingTimestamp="7")
    assert times.start == Position("startingOffsetsByTimestamp", times_ms={ORDERS[0]: 5, ORDERS[1]: 6})
    assert times.end == Position("endingTimestamp", time_ms=7)
    group = options(startingOffsets="group", endingOffsets="latest", groupId="g")
    assert (group.start, group.end) == (
        Position("startingOffsets", group="g"),
        Position("endingOffsets", end=LATEST),
    )


def test_offsets_of_a_checkpoint_are_a_position() -> None:
    given = options(
        startingOffsets='{"orders": {"0": 23}, "#": {"version": 2, "topicIds": {"orders": "id"}}}'
    )
    assert given.start == Position("startingOffsets", offsets={ORDERS[0]: 23}, topic_ids={"orders": "id"})


def test_of_several_starts_the_most_precise_counts_as_in_sparks_kafka_source() -> None:
    both = options(
        startingOffsets="earliest", startingTimestamp="1", startingOffsetsByTimestamp='{"a": {"0": 2}}'
    )
    assert both.start == Position("startingTimestamp", time_ms=1)


def test_columns_in_the_order_that_was_asked_for() -> None:
    assert options(columns="Offset, value,timestamptype").columns == ("offset", "value", "timestampType")


def test_value_options_become_the_workers_configuration() -> None:
    given = parse(
        {
            **SERVERS,
            "subscribe": "orders",
            "value.format": "avro",
            "value.readerschema": "{}",
            "value.registry.url": "https://r:8081,https://s:8081",
            "value.registry.usernamefile": "/u",
            "value.registry.passwordFile": "/p",
            "value.registry.timeoutms": "900",
            "key.format": "json",
            "key.schema": "id INT",
        }
    )
    urls = ("https://r:8081", "https://s:8081")
    registry = RegistryConfig(urls, username_file="/u", password_file="/p", timeout_ms=900)
    assert dict(given.decoded) == {
        "value": ValueConfig("avro", reader_schema="{}", registry=registry),
        "key": ValueConfig("json", schema="id INT"),
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "a", "assign": "{}"}, '"subscribe" cannot be combined with assign'),
        ({"subscribe": " , "}, '"subscribe" names no topic'),
        (
            {"subscribePattern": "("},
            '"subscribePattern" cannot be used: pattern .* is not a regular expression',
        ),
        ({"assign": "[1]"}, '"assign" must be an object'),
        ({"assign": '{"a": [-1]}'}, '"assign" must list partition numbers for topic a'),
        ({"assign": "{}"}, '"assign" names no partition'),
        ({"startingOffset": "x"}, '"startingoffset" does not exist; did you mean startingOffsets'),
        ({"startingOffsets": "first"}, '"startingOffsets" must be earliest, latest, group or JSON'),
        ({"startingOffsets": '{"a": {"0": -3}}'}, '"startingOffsets" must have numbers from -2'),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "partition 'x' has 1"),
        ({"startingOffsets": '{"a": 1}'}, '"startingOffsets" must have partitions for topic a'),
        ({"startingOffsets": '{"a"'}, '"startingOffsets" is not JSON'),
        ({"startingOffsets": '{"a": {"0": 1}, "#": 2}'}, '"startingOffsets" .* not of version 2'),
        ({"endingOffsets": '{"#": {"version": 3, "topicIds": {}}}'}, '"endingOffsets" .* not of version 2'),
        ({"startingOffsets": "group"}, '"groupId" is missing; startingOffsets=group needs it'),
        ({"groupId": "g"}, '"groupId" is for startingOffsets=group'),
        ({"endingOffsets": "earliest"}, '"endingOffsets" must not be earliest'),
        ({"endingOffsets": '{"a": {"0": -2}}'}, '"endingOffsets" must have numbers from -1'),
        ({"startingTimestamp": "yesterday"}, '"startingTimestamp" must be a whole number from 0'),
        (
            {"endingOffsetsByTimestamp": '{"a": {"0": -1}}'},
            '"endingOffsetsByTimestamp" must have numbers from 0',
        ),
        ({"startingOffsetsByTimestampStrategy": "skip"}, "must be error or latest, not 'skip'"),
        ({"failOnDataLoss": "no"}, '"failOnDataLoss" must be true or false'),
        ({"minPartitions": "0"}, '"minPartitions" must be a whole number from 1'),
        ({"maxOffsetsPerTrigger": "1.5"}, '"maxOffsetsPerTrigger" must be a whole number'),
        ({"commitGroup": " "}, '"commitGroup" must not be empty'),
        ({"columns": "value,vaule"}, "\"columns\" must be of key, .*'vaule' is none of them"),
        ({"columns": "value,Value"}, '"columns" names value twice'),
        ({"columns": ","}, '"columns" names no column'),
        (
            {"columns": "value", "includeHeaders": "true"},
            '"includeHeaders" is true, but columns has no headers',
        ),
        (
            {"columns": "key", "value.format": "json", "value.schema": "a INT"},
            '"value.format" is set, but columns',
        ),
        ({"value.schema": "a INT"}, '"value.format" is missing'),
        ({"key.schema": "a INT"}, '"key.format" is missing'),
        (
            {"value.format": "xml"},
            '"value.format" .xml. is not supported; valid values: json, avro, protobuf',
        ),
        ({"value.format": "json"}, '"value.schema" is missing'),
        ({"value.registry.timeoutMs": "x"}, '"value.registry.timeoutMs" must be a whole number'),
        ({"value.fromat": "json"}, '"value.fromat" does not exist; did you mean value.format'),
        ({"kafka.group.id": "g"}, '"kafka.group.id" cannot be used: no group is joined'),
        (
            {"kafka.auto.offset.reset": "latest"},
            '"kafka.auto.offset.reset" cannot be used; set startingOffsets',
        ),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
            r'"minOffsetsPerTrigger" is 9, more than maxOffsetsPerTrigger \(5\)',
        ),
        ({"maxTriggerDelay": "5m"}, '"maxTriggerDelay" needs minOffsetsPerTrigger'),
        (
            {"minOffsetsPerTrigger": "9", "maxTriggerDelay": "5 weeks"},
            "\"maxTriggerDelay\" must be a time such as .*, not '5 weeks'",
        ),
        ({"maxRecordsPerPartition": "5"}, '"maxRecordsPerPartition" is not supported'),
        ({"path": "/x"}, '"path" cannot be used: topics are named by subscribe'),
        ({"kafka.bootstrap.servers": " "}, '"kafka.bootstrap.servers" is missing'),
    ],
)
def test_what_cannot_be_used_is_named(given: dict[str, str], said: str) -> None:
    ways = {"subscribe", "subscribePattern", "assign"}
    topic = {} if ways & set(given) else {"subscribe": "orders"}
    with pytest.raises(OptionError, match=said):
        parse({**SERVERS, **topic, **given})


def test_every_option_is_in_the_docs() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "spark-source.md").read_text()
    registry = page[page.index("Of the registry: ") :].partition("|")[0]
    for name in _KNOWN:
        assert f"`{name}`" in page, name
    for key in _VALUE_KEYS:
        name, where = (key.removeprefix("registry."), registry) if "." in key else (f"value.{key}", page)
        assert f"`{name}`" in where, key


def test_without_topics() -> None:
    with pytest.raises(OptionError, match='"subscribe" is missing; set one of subscribe, subscribePattern'):
        parse(SERVERS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": "latest"}, '"startingOffsets" must not be latest'),
        ({"commitGroup": "g"}, '"commitGroup" is for streams'),
        ({"maxOffsetsPerTrigger": "5"}, '"maxOffsetsPerTrigger" is for streams'),
        ({"minOffsetsPerTrigger": "5"}, '"minOffsetsPerTrigger" is for streams'),
    ],
)
def test_what_is_not_for_batch_queries(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        options(**given).for_batch()
    assert options(**given).for_stream() == options(**given)


@pytest.mark.parametrize("given", [{"endingOffsets": "latest"}, {"endingTimestamp": "5"}])
def test_a_stream_has_no_end(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=f'"{next(iter(given))}" is for batch queries'):
        options(**given).for_stream()
    assert options(**given).for_batch() == options(**given)
