"""What `benchmarks/rollouts` sees from outside, and what its peers are told."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.rollouts import manifests, peer, run, work
from benchmarks.rollouts.brokers import generation_of
from benchmarks.rollouts.measure import Handled
from benchmarks.rollouts.peer import Record, Settings, consumer_properties
from benchmarks.rollouts.sink_watch import IN_MOVED_TO, SinkWatch, events_of
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
    assert generation_of(group_key("g"), None, "g") is None, "a tombstone"
    assert generation_of(b"", b"", "g") is None
    with pytest.raises(ValueError, match="version 4"):
        generation_of(group_key("g"), group_value(7, version=4), "g")


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
    assert static["partition.assignment.strategy"] == "cooperative-sticky"
    assert (static["enable.auto.commit"], static["x"]) == (False, 1)
    with pytest.raises(TypeError):
        Settings.of('{"nonsense": 1}')


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
    assert run.main(["--ways", "xyz"]) == 2
    assert run.main(["--workers", "6", "--partitions", "11"]) == 2
    assert "two partitions a worker" in capsys.readouterr().err
    assert threading.active_count() == before, "nothing was started"
