"""The data folder: topics and ids that outlive the process, and one broker at a time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from slackwater.devbroker.api.topic_configs import defaults, problem_with
from slackwater.devbroker.options import BrokerOptionError, BrokerOptions, parse_settings
from slackwater.devbroker.storage.topics import DataFolderError, TopicStore, is_legal_topic_name


def uuids() -> Callable[[], UUID]:
    numbers = itertools.count(1)
    return lambda: UUID(int=next(numbers))


def open_store(data: Path, make_uuid: Callable[[], UUID] | None = None) -> TopicStore:
    store = TopicStore(data, BrokerOptions(), make_uuid or uuids())
    store.open()
    return store


def test_topics_outlive_the_process(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    made = first.create("t", 3, {"retention.ms": "5"})
    cluster_id = first.cluster_id
    first.close()
    second = open_store(tmp_path, lambda: UUID(int=99))
    topic = second.by_name("t")
    assert topic is not None
    assert (topic.topic_id, topic.configs, len(topic.partitions)) == (made.topic_id, {"retention.ms": "5"}, 3)
    assert second.by_id(made.topic_id) is topic
    assert second.cluster_id == cluster_id
    assert len(cluster_id) == 22
    second.close()


def test_the_coordinator_finds_topics_by_name_and_id(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    topic = store.create("t", 2, {})
    assert (store.topic_id("t"), store.topic_name(topic.topic_id), store.partition_count("t")) == (
        topic.topic_id,
        "t",
        2,
    )
    assert (store.topic_id("u"), store.topic_name(UUID(int=77)), store.partition_count("u")) == (
        None,
        None,
        None,
    )
    store.close()


def test_deletion_removes_the_data_and_calls_the_listener(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    deleted_topics: list[str] = []
    store.on_delete = deleted_topics.append
    topic = store.create("t", 2, {})
    store.delete(topic)
    assert deleted_topics == ["t"]
    assert list((tmp_path / "topics").iterdir()) == []
    assert (store.by_name("t"), store.by_id(topic.topic_id)) == (None, None)
    assert json.loads((tmp_path / "topics.json").read_text()) == {"topics": []}
    store.close()


def test_one_broker_at_a_time(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    with pytest.raises(DataFolderError, match="in use by another broker"):
        open_store(tmp_path)
    first.close()
    open_store(tmp_path).close()


def test_a_damaged_list_of_topics_is_named_and_nothing_is_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.create("t", 1, {})
    store.close()
    (tmp_path / "topics.json").write_text("{")
    with pytest.raises(DataFolderError, match=r"topics\.json"):
        open_store(tmp_path)
    assert (tmp_path / "topics" / "t-0").exists()


def test_a_topic_that_cannot_be_recorded_was_not_made(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    in_the_way = tmp_path / "topics.json.tmp"
    in_the_way.mkdir()
    with pytest.raises(IsADirectoryError):
        store.create("t", 2, {})
    assert store.by_name("t") is None
    assert list((tmp_path / "topics").iterdir()) == []
    in_the_way.rmdir()
    assert store.create("t", 2, {}).name == "t"
    store.close()


def test_folders_of_deleted_topics_are_removed_and_others_left_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.create("t", 1, {})
    store.close()
    (tmp_path / "topics.json").write_text('{"topics": []}')
    (tmp_path / "topics" / "notes-1").mkdir()
    open_store(tmp_path).close()
    assert [path.name for path in (tmp_path / "topics").iterdir()] == ["notes-1"]


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    given = [first.next_producer_id() for _ in range(1500)]
    first.close()
    second = open_store(tmp_path)
    given += [second.next_producer_id() for _ in range(10)]
    second.close()
    assert len(set(given)) == len(given)
    assert given == sorted(given)


@pytest.mark.parametrize("name", ["t", "a.b_c-D9", "x" * 249])
def test_legal_names(name: str) -> None:
    assert is_legal_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 250, "é", "a\n", "../a"])
def test_illegal_names(name: str) -> None:
    assert not is_legal_topic_name(name)


def test_options_by_kafkas_names() -> None:
    options = BrokerOptions.from_settings(
        parse_settings(["num.partitions=6", "auto.create.topics.enable=FALSE", "log.segment.bytes = 1000"])
    )
    assert (options.num_partitions, options.auto_create_topics_enable, options.log_segment_bytes) == (
        6,
        False,
        1000,
    )
    assert options.settings()["auto.create.topics.enable"] == "false"
    assert BrokerOptions.from_settings(options.settings()) == options


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num.partition": "1"}, "num.partition"),
        ({"num_partitions": "1"}, "num_partitions"),
        ({"num.partitions": "0"}, "between 1 and"),
        ({"num.partitions": "x"}, "whole number"),
        ({"auto.create.topics.enable": "yes"}, "true or false"),
    ],
)
def test_bad_options_are_named(settings: dict[str, str], named: str) -> None:
    with pytest.raises(BrokerOptionError, match=named):
        BrokerOptions.from_settings(settings)


def test_an_option_without_a_value_is_named() -> None:
    with pytest.raises(BrokerOptionError, match="num.partitions"):
        parse_settings(["num.partitions"])


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("retention.ms", "-1", ""),
        ("cleanup.policy", "compact,delete", ""),
        ("cleanup.policy", "shred", "cleanup.policy"),
        ("no.such.thing", "1", "Unknown topic config name: no.such.thing"),
        ("segment.bytes", "13", "between 14"),
        ("segment.bytes", "many", "Not a number"),
        ("max.message.bytes", None, "Null value"),
        ("compression.type", "gzip", "not supported"),
        ("message.timestamp.type", "LogAppendTime", ""),
        ("message.timestamp.type", "Never", "must be CreateTime or LogAppendTime"),
        ("preallocate", "maybe", "true or false"),
    ],
)
def test_topic_settings(name: str, value: str | None, problem: str) -> None:
    message = problem_with(name, value)
    assert problem in message if problem else message == ""


def test_every_default_is_a_value_that_may_be_given() -> None:
    assert [name for name, (_, value) in defaults(BrokerOptions()).items() if problem_with(name, value)] == []
