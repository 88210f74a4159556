"""What `benchmarks/rollouts` sees from outside, and what its peers are told."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from benchmarks.rollouts import manifests, peer, run, work
from benchmarks.rollouts.brokers import generation_of
from benchmarks.rollouts.measure import Handled
from benchmarks.rollouts.peer import Record, Settings, consumer_properties
from benchmarks.rollouts.peer_spark import SparkHandling
from benchmarks.rollouts.sink_watch import IN_MOVED_TO, SinkWatch, events_of
from slackwater.handler import NO_BATCH, Batch, OffsetRange
from slackwater.kafka.records import ARROW_SCHEMA
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.runtime.interfaces import Range
from tests.support.controlplane import until


def test_the_watch_sees_each_file_that_is_put_in_place(tmp_path: Path) -> None:
    folder = tmp_path / "sink"
    tps = [TopicPartition("roll-a", 3), TopicPartition("roll-a", 11)]
    rows = pa.table({"topic": ["roll-a"] * 3, "partition": [3, 11, 3], "offset": [43, 7, 42]})
    with SinkWatch(folder) as watch:
        sink = ParquetSink("g", str(folder))
        sink.stage(rows, {tps[0]: Range("", 42, 44, None), tps[1]: Range("", 7, 8, None)}).publish()
        sink.stage(rows.slice(2), {tps[0]: Range("", 44, 45, 44)})  # staged only
        peer.write(rows.slice(1, 1), folder, "roll-a-11-7.parquet")
        (folder / "note.txt").write_text("")
        until(lambda: len(watch.published()) == 3, "two files", 10)
        first, second, third = watch.published()
    assert [(file.partition, file.first) for file in (first, second, third)] == [(3, 42), (11, 7), (11, 7)]
    on_disk = (folder / "roll-a-11-7.parquet").stat().st_ctime_ns / 1e6
    assert first.at_ms == second.at_ms <= third.at_ms == on_disk


def test_a_watch_that_lost_events_says_so(tmp_path: Path) -> None:
    with SinkWatch(tmp_path) as watch:
        watch._take(0x4000, "")
        with pytest.raises(RuntimeError, match="not whole"):
            watch.published()


def test_events_are_read_one_after_the_other() -> None:
    def event(mask: int, name: bytes) -> bytes:
        return struct.pack("iIII", 1, mask, 0, len(name)) + name

    data = event(IN_MOVED_TO, b"a.parquet\0\0\0") + event(0x4000, b"") + event(IN_MOVED_TO, b"b\0\0\0")
    assert events_of(data) == [(IN_MOVED_TO, "a.parquet"), (0x4000, ""), (IN_MOVED_TO, "b")]


def group_key(group: str, version: int = 2) -> bytes:
    return struct.pack(">hh", version, len(group)) + group.encode()


def group_value(generation: int, version: int = 3) -> bytes:
    return struct.pack(">hh", version, 8) + b"consumer" + struct.pack(">i", generation) + b"rest"


def test_the_generation_of_a_group_is_in_the_log() -> None:
    assert generation_of(group_key("g"), group_value(7), "g") == 7
    assert generation_of(group_key("g"), group_value(7), "other") is None
    assert generation_of(group_key("g", version=1), group_value(7), "g") is None, "a committed offset"
    epoch = struct.pack(">hi", 0, 9) + b"\1\0\x08" + bytes(8)
    assert generation_of(group_key("g", version=3), epoch, "g") == 9, "by the consumer protocol"
    assert generation_of(group_key("g"), None, "g") is None, "a tombstone"
    assert generation_of(b"", b"", "g") is None
    with pytest.raises(ValueError, match="version 4"):
        generation_of(group_key("g"), group_value(7, version=4), "g")
    with pytest.raises(ValueError, match="version 1"):
        generation_of(group_key("g", version=3), struct.pack(">hi", 1, 9), "g")


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(work.JOURNAL, str(tmp_path))
    monkeypatch.setenv("HOSTNAME", "roll-c-0")
    made = work._Journal()
    monkeypatch.setattr(work, "_journal", made)
    yield tmp_path
    if made._file is not None:
        os.close(made._file)


def record(partition: int, offset: int) -> Record:
    return Record("t", partition, offset, str(offset).encode().ljust(100))


def test_the_handler_keeps_a_journal_that_the_run_reads(journal: Path) -> None:
    assert work.handle([]) == []
    assert run.journal_of(journal) == [], "a preflight has handled nothing"
    rows = work.handle([record(1, 5), record(1, 6), record(4, 9)])
    work.handle([record(1, 7)])
    assert rows[1] == {"topic": "t", "partition": 1, "offset": 6, "number": 6}
    batches = run.journal_of(journal)
    assert [(batch.partition, batch.first, batch.last) for batch in batches] == [
        (1, 5, 6),
        (4, 9, 9),
        (1, 7, 7),
    ]
    assert {batch.who for batch in batches} == {f"roll-c-0-{os.getpid()}"}
    assert isinstance(batches[0], Handled)
    assert batches[0].at_ms == batches[1].at_ms <= batches[2].at_ms


class Frame:
    """A data frame that keeps what it is asked for."""

    def selectExpr(self, *columns: str) -> tuple[str, ...]:  # noqa: N802 (Spark's name)
        return columns


def test_the_handler_on_spark_keeps_the_same_journal(journal: Path) -> None:
    work.handle_on_spark(cast(Any, Frame()), NO_BATCH)
    assert run.journal_of(journal) == [], "a warm-up has handled nothing"
    ranges = {TopicPartition("t", 1): OffsetRange(5, 7), TopicPartition("t", 4): OffsetRange(9, 10)}
    batch = Batch(ranges, frozenset(ranges), "g", "")
    columns = work.handle_on_spark(cast(Any, Frame()), batch)
    assert [str(column).rpartition(" ")[2].strip("`") for column in cast(Any, columns)] == [
        "topic", "partition", "offset", "number",
    ]  # fmt: skip
    batches = run.journal_of(journal)
    assert [(batch.partition, batch.first, batch.last) for batch in batches] == [(1, 5, 6), (4, 9, 9)]


class Engine:
    """In place of Spark: gives the places back, the last record first."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def start(self) -> None:
        self.calls.append("start")

    def warm_up(self) -> None:
        self.calls.append("warm_up")

    def transform(self, table: pa.Table, batch: Batch = NO_BATCH) -> pa.Table:
        self.calls.append((table, batch))
        return table.take([*range(table.num_rows)][::-1]).select(["topic", "partition", "offset"])

    def close(self) -> None:
        self.calls.append("close")


def test_a_peer_on_spark_is_warm_before_it_joins() -> None:
    engine = Engine()
    handling = SparkHandling(cast(Any, engine), "g", "roll-b-0")
    handling.start()
    started, warm, (table, batch) = engine.calls
    assert (started, warm, batch) == ("start", "warm_up", NO_BATCH)
    assert table.num_rows > 0
    assert table.schema == ARROW_SCHEMA, "the columns that our worker's engine gives"


def test_a_peer_on_spark_has_the_rows_of_each_partition() -> None:
    engine = Engine()
    handling = SparkHandling(cast(Any, engine), "g", "roll-b-0")
    parts = {("t", 1): [record(1, 5), record(1, 6)], ("t", 4): [record(4, 9)]}
    first, second = handling.tables(parts)
    assert (first["partition"].to_pylist(), sorted(first["offset"].to_pylist())) == ([1, 1], [5, 6])
    assert (second["partition"].to_pylist(), second["offset"].to_pylist()) == ([4], [9])
    [(table, batch)] = engine.calls
    assert table["value"].to_pylist() == [r.value for part in parts.values() for r in part]
    assert batch.ranges == {
        TopicPartition("t", 1): OffsetRange(5, 7),
        TopicPartition("t", 4): OffsetRange(9, 10),
    }
    assert (batch.group_id, batch.instance) == ("g", "roll-b-0")


def test_a_peer_in_python_has_the_rows_of_each_partition(journal: Path) -> None:
    parts = {("t", 1): [record(1, 5), record(1, 6)], ("t", 4): [record(4, 9)]}
    first, second = peer.PythonHandling().tables(parts)
    assert (first["offset"].to_pylist(), second["offset"].to_pylist()) == ([5, 6], [9])
    assert second["number"].to_pylist() == [9]
    assert len(run.journal_of(journal)) == 2


class Watched:
    """A handling and a consumer in one. It notes what is called, and stops the peer at ``stop``, or at its
    first poll."""

    def __init__(self, stop: str) -> None:
        self.calls: list[str] = []
        self.peer: peer.Peer
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> None:
            self.calls.append(name)
            if name in (self._stop, "poll"):
                self.peer._stopping.set()

        return call


@pytest.mark.parametrize(
    ("stop", "calls"),
    [
        ("poll", ["start", "subscribe", "poll", "close", "close"]),
        ("start", ["start", "close"]),
    ],
)
def test_a_peer_joins_when_it_is_warm(
    stop: str, calls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watched = Watched(stop)
    monkeypatch.setattr(peer.confluent_kafka, "Consumer", lambda _: watched)
    monkeypatch.setattr(peer.signal, "signal", lambda *_: None)
    watched.peer = peer.Peer(Settings("b:1", "t", "g", str(tmp_path), {}), "pod", cast(Any, watched))
    watched.peer.run()
    assert watched.calls == calls
    assert not watched.peer.ready


def test_peers_differ_in_their_membership_only() -> None:
    text = (
        '{"bootstrap": "b:1", "topic": "t", "group": "g", "sink": "/s", "properties": {"x": 1}, "static": %s}'
    )
    dynamic = consumer_properties(Settings.of(text % "false"), "roll-a-x")
    static = consumer_properties(Settings.of(text % "true"), "roll-b-0")
    assert static.pop("group.instance.id") == "roll-b-0"
    assert dynamic.pop("client.id") == "roll-a-x"
    assert static.pop("client.id") == "roll-b-0"
    assert dynamic == static
    assert (static["enable.auto.commit"], static["x"]) == (False, 1)
    with pytest.raises(TypeError):
        Settings.of('{"nonsense": 1}')
    assert isinstance(peer.handling_of(Settings.of(text % "true"), "roll-b-0"), peer.PythonHandling)
    on_spark = replace(Settings.of(text % "true"), spark_handler="m:f", spark_conf={"spark.x": "1"})
    assert isinstance(peer.handling_of(on_spark, "roll-b-0"), SparkHandling)


def test_a_deployment_rolls_by_numbers_or_percentages() -> None:
    template = manifests.peer_template("roll-a", "image:v1", {"topic": "t"})
    made = manifests.deployment(template, "roll-a", 6, "25%", "0")
    assert made["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": 0}
    assert made["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    other = manifests.statefulset(template, "roll-a", 6)
    assert other["spec"]["template"] == made["spec"]["template"]
    assert other["spec"]["updateStrategy"] == {"type": "RollingUpdate"}


def test_bad_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    assert run.main(["--workers", "6", "--partitions", "11"]) == 2
    assert run.main(["--handler", "jvm", "--partitions", "5"]) == 2
    assert "two partitions a worker" in capsys.readouterr().err
    assert threading.active_count() == before, "nothing was started"
