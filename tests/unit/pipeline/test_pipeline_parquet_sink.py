import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks import parquet
from slackwater.pipeline.sinks.parquet import ParquetSink, file_name
from slackwater.runtime.errors import ConfigError, SinkError
from slackwater.runtime.interfaces import StagedGoneError

FLIGHTS_3 = TopicPartition("flights", 3)


def rows(offsets: list[int], topic: str = "flights", partition: int = 3) -> pa.Table:
    n = len(offsets)
    return pa.table(
        {
            "topic": pa.array([topic] * n, pa.string()),
            "partition": pa.array([partition] * n, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "carrier": pa.array(["UA"] * n, pa.string()),
        }
    )


def files(folder: Path) -> list[str]:
    """Everything below ``folder`` that is a file, published or not."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def offsets(folder: Path) -> list[int]:
    stored = ds.dataset(folder, format="parquet").to_table()
    return sorted(stored["offset"].to_pylist()) if stored.num_rows else []


def put(sink: ParquetSink, start: int, table: pa.Table, topic: str = "flights", partition: int = 3) -> None:
    sink.stage(topic, partition, start, table).publish()


def test_staged_rows_are_invisible_until_published(tmp_path: Path) -> None:
    staged = ParquetSink(str(tmp_path)).stage("flights", 3, 42, rows([42, 43]))
    assert offsets(tmp_path) == []
    staged.publish()
    assert files(tmp_path) == ["flights-3-00000000000000000042.parquet"]
    assert offsets(tmp_path) == [42, 43]


@pytest.mark.parametrize("replayed", [[42], [42, 43, 44], [42, 43]])
def test_a_replay_replaces_the_file_wherever_it_ends(tmp_path: Path, replayed: list[int]) -> None:
    put(ParquetSink(str(tmp_path)), 42, rows([42, 43]))
    put(ParquetSink(str(tmp_path)), 42, rows(replayed))
    assert offsets(tmp_path) == replayed


def test_a_replay_without_rows_takes_the_earlier_ones_away(tmp_path: Path) -> None:
    sink = ParquetSink(str(tmp_path))
    put(sink, 40, rows([40]))
    put(sink, 42, rows([42, 43]))
    staged = sink.stage("flights", 3, 42, rows([]))
    assert offsets(tmp_path) == [40, 42, 43]
    staged.publish()
    assert offsets(tmp_path) == [40]
    put(sink, 99, rows([]))
    assert offsets(tmp_path) == [40]


def test_discard_removes_and_forgives(tmp_path: Path) -> None:
    staged = ParquetSink(str(tmp_path)).stage("flights", 3, 42, rows([42]))
    staged.discard()
    staged.discard()
    assert files(tmp_path) == []


def test_a_claim_takes_all_that_is_staged_of_its_partitions_and_of_no_others(tmp_path: Path) -> None:
    former = ParquetSink(str(tmp_path))
    staged = former.stage("flights", 3, 42, rows([42]))
    other = former.stage("flights", 33, 1, rows([1]))
    sink = ParquetSink(str(tmp_path))
    sink.claim([FLIGHTS_3])
    assert [name for name in files(tmp_path) if "flights-3@" in name] == []
    with pytest.raises(StagedGoneError, match=r"flights-3-0+42\.parquet.*another process has claimed"):
        staged.publish()
    staged.discard()
    other.publish()
    first, second = sink.stage("flights", 3, 42, rows([42])), sink.stage("flights", 3, 43, rows([43]))
    first.publish()
    second.publish()
    assert offsets(tmp_path) == [1, 42, 43]


def test_a_claim_takes_away_what_the_same_process_has_staged_as_a_former_owner(tmp_path: Path) -> None:
    first, second = ParquetSink(str(tmp_path)), ParquetSink(str(tmp_path))
    for owner, former in ((first, second), (second, first), (first, second), (first, first)):
        late = former.stage("flights", 3, 42, rows([42, 43, 44]))
        owner.claim([FLIGHTS_3])
        put(owner, 42, rows([42, 43]))
        with pytest.raises(StagedGoneError):
            late.publish()
        assert offsets(tmp_path) == [42, 43]
        assert files(tmp_path) == ["flights-3-00000000000000000042.parquet"]


def test_a_former_owner_without_rows_does_not_remove_its_heirs_file(tmp_path: Path) -> None:
    put(ParquetSink(str(tmp_path)), 42, rows([42]))
    former, successor = ParquetSink(str(tmp_path)), ParquetSink(str(tmp_path))
    former.claim([FLIGHTS_3])
    late = former.stage("flights", 3, 42, rows([]))
    successor.claim([FLIGHTS_3])
    put(successor, 42, rows([42, 43]))
    with pytest.raises(StagedGoneError):
        late.publish()
    assert offsets(tmp_path) == [42, 43]


def test_what_a_former_owner_stages_after_a_claim_hurts_nobody_and_goes_with_the_next(tmp_path: Path) -> None:
    """The broker refuses its fence; that it gets so far is no error of the disk."""
    former, successor = ParquetSink(str(tmp_path)), ParquetSink(str(tmp_path))
    former.claim([FLIGHTS_3])
    former.stage("flights", 3, 42, rows([42])).discard()
    successor.claim([FLIGHTS_3])
    former.stage("flights", 3, 42, rows([42]))
    put(successor, 42, rows([42, 43]))
    assert offsets(tmp_path) == [42, 43]
    successor.claim([FLIGHTS_3])
    assert files(tmp_path) == ["flights-3-00000000000000000042.parquet"]


def test_a_claim_while_a_former_owner_writes_ends_its_batch_and_not_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, successor = ParquetSink(str(tmp_path)), ParquetSink(str(tmp_path))
    write = parquet._write

    def claimed_before(table: pa.Table, path: Path) -> None:
        successor.claim([FLIGHTS_3])
        write(table, path)

    monkeypatch.setattr(parquet, "_write", claimed_before)
    with pytest.raises(StagedGoneError):
        former.stage("flights", 3, 42, rows([42]))
    assert files(tmp_path) == []


def test_a_folder_that_is_gone_altogether_is_the_sinks_failure(tmp_path: Path) -> None:
    sink = ParquetSink(str(tmp_path / "out"))
    sink.claim([FLIGHTS_3])
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(SinkError, match="No such file"):
        sink.stage("flights", 3, 42, rows([42]))
    with pytest.raises(SinkError, match="No such file"):
        sink.claim([FLIGHTS_3])


def test_what_an_older_release_left_is_removed(tmp_path: Path) -> None:
    old = tmp_path / ".staging" / "flights-3"
    old.mkdir(parents=True)
    (old / "00000000000000000042-abc").write_bytes(b"x")
    ParquetSink(str(tmp_path)).claim([FLIGHTS_3])
    assert files(tmp_path) == []
    assert not old.exists()


def test_files_that_cannot_be_removed_do_not_keep_a_claim_from_taking_them_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS keeps a file that a process has open, under another name."""

    def busy(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    former, successor = ParquetSink(str(tmp_path)), ParquetSink(str(tmp_path))
    late = former.stage("flights", 3, 42, rows([42]))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", busy)
        successor.claim([FLIGHTS_3])
    with pytest.raises(StagedGoneError):
        late.publish()
    assert len(files(tmp_path)) == 1
    successor.claim([FLIGHTS_3])
    assert files(tmp_path) == []


def test_a_write_that_fails_half_way_leaves_nothing_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sink = ParquetSink(str(tmp_path))
    put(sink, 40, rows([40]))
    monkeypatch.setattr(parquet.os, "fsync", full)
    table = rows([42, 43])
    with pytest.raises(SinkError) as raised:
        sink.stage("flights", 3, 42, table)
    for part in (f"{table.nbytes} bytes", "flights-3-", "No space left", "free some space"):
        assert part in str(raised.value)
    assert files(tmp_path) == ["flights-3-00000000000000000040.parquet"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_arrows_own_error_of_a_full_disk_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetSink(str(tmp_path))
    real = Path.open

    def to_full(path: Path, mode: str = "r") -> object:
        return real(Path("/dev/full"), "wb") if mode == "xb" else real(path, mode)

    monkeypatch.setattr(Path, "open", to_full)
    with pytest.raises(SinkError, match="No space left on device; free some space"):
        sink.stage("flights", 3, 42, rows(list(range(200_000))))


def test_a_path_that_is_a_file_or_below_one(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x")
    for path in ("taken", "taken/below"):
        with pytest.raises(SinkError, match=r"taken.*give the sink a path that is a folder"):
            ParquetSink(str(tmp_path / path))


@pytest.mark.parametrize("path", ["s3a://lake/flights", "hdfs://x/y", "file:/x"])
def test_other_file_systems_are_refused_by_name(path: str) -> None:
    with pytest.raises(ConfigError, match=f"sink.path: {path} is not on a local file system"):
        ParquetSink(path)


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    put(ParquetSink(f"file://{tmp_path}/out"), 0, rows([0]))
    assert offsets(tmp_path / "out") == [0]


@pytest.mark.parametrize("topic", [".hidden", "_internal", "a.b_c-9"])
def test_readers_see_every_topic(tmp_path: Path, topic: str) -> None:
    put(ParquetSink(str(tmp_path)), 0, rows([0], topic), topic)
    assert ds.dataset(tmp_path, format="parquet").to_table()["topic"].to_pylist() == [topic]


def test_file_names_differ_where_topics_and_partitions_do() -> None:
    places = [(topic, p) for topic in ("a", "a-1", "a-1-1", "_a", ".a", "a.") for p in (0, 1, 11)]
    assert len({file_name(topic, p, 1) for topic, p in places}) == len(places)
    assert file_name("a", 1, 5) < file_name("a", 1, 10)


def test_pandas_and_arrow_read_the_folder_with_their_defaults(tmp_path: Path) -> None:
    sink = ParquetSink(str(tmp_path))
    put(sink, 0, rows([0, 1], partition=0), partition=0)
    put(sink, 0, rows([0], partition=1), partition=1)
    sink.stage("flights", 1, 1, rows([1], partition=1))
    expected = ["topic", "partition", "offset", "carrier"]
    for table in (ds.dataset(tmp_path).to_table(), pq.read_table(tmp_path)):
        assert table.column_names == expected
        assert table.num_rows == 3
    frame = pd.read_parquet(tmp_path)
    assert list(frame.columns) == expected
    assert sorted(zip(frame["partition"], frame["offset"], strict=True)) == [(0, 0), (0, 1), (1, 0)]


def test_what_writes_is_loaded_before_the_first_batch(tmp_path: Path) -> None:
    """A standby has its sink before it takes over; what it loads later would lengthen its first batch."""
    program = (
        "import sys\n"
        "from slackwater.pipeline.sinks.parquet import ParquetSink\n"
        "before = set(sys.modules)\n"
        "sink = ParquetSink(sys.argv[1])\n"
        "assert 'pyarrow.parquet' in set(sys.modules) - before\n"
        "import pyarrow as pa\n"
        "loaded = set(sys.modules)\n"
        "sink.stage('flights', 3, 0, pa.table({'offset': [0]})).publish()\n"
        "assert set(sys.modules) == loaded, set(sys.modules) - loaded\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


# -- topics made anew


OLD, NEW = "nxyNPlt6TCGPAAEjRWeJqw", "-_xyNPlt6TCGPAAEjRWeJq"


def sink_of(folder: Path, topic_id: str, *, continues: bool = False) -> ParquetSink:
    sink = ParquetSink(str(folder))
    sink.claim([FLIGHTS_3])
    sink.identify(FLIGHTS_3, topic_id, continues=continues)
    return sink


def published(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.parquet"))


PLAIN = "flights-3-00000000000000000000.parquet"


def test_a_later_topic_of_the_name_overwrites_nothing(tmp_path: Path) -> None:
    put(sink_of(tmp_path, OLD), 0, rows([0, 1]))
    assert published(tmp_path) == [PLAIN]
    put(sink_of(tmp_path, NEW), 0, rows([0]))
    named = f"flights-3-00000000000000000000.{NEW}.parquet"
    assert published(tmp_path) == sorted([PLAIN, named])
    assert offsets(tmp_path) == [0, 0, 1]
    # Replays of either replace their own, in whichever order and process.
    put(sink_of(tmp_path, NEW, continues=True), 0, rows([0, 1, 2]))
    put(sink_of(tmp_path, OLD, continues=True), 0, rows([0]))
    assert offsets(tmp_path) == [0, 0, 1, 2]
    # Also one that comes to nothing.
    put(sink_of(tmp_path, NEW, continues=True), 0, rows([]))
    assert published(tmp_path) == [PLAIN]
    assert set(ParquetSink(str(tmp_path)).topic_ids("flights")) == {OLD, NEW}


def test_a_topic_made_anew_while_the_old_ones_rows_are_staged_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread gets the partition back with another topic while the handler's thread stages."""
    sink = sink_of(tmp_path, OLD)
    is_first = sink._topics.is_first

    def interrupted(topic: str, topic_id: str, may_become: Callable[[], bool]) -> bool:
        stored = is_first(topic, topic_id, may_become)
        if topic_id == OLD:
            sink.identify(FLIGHTS_3, NEW, continues=False)
        return stored

    monkeypatch.setattr(sink._topics, "is_first", interrupted)
    put(sink, 0, rows([0, 1]))
    put(sink, 0, rows([0]))
    assert published(tmp_path) == sorted([PLAIN, f"flights-3-00000000000000000000.{NEW}.parquet"])
    assert offsets(tmp_path) == [0, 0, 1]


def test_a_folder_knows_no_topic_at_first(tmp_path: Path) -> None:
    assert not ParquetSink(str(tmp_path)).topic_ids("flights")
    put(sink_of(tmp_path, ""), 0, rows([0]))
    assert not ParquetSink(str(tmp_path)).topic_ids("flights")


def test_a_group_of_an_older_release_keeps_its_names(tmp_path: Path) -> None:
    """Its replay of a batch that was published and not committed replaces the file."""
    put(ParquetSink(str(tmp_path)), 0, rows([0, 1]))
    put(sink_of(tmp_path, OLD, continues=True), 0, rows([0, 1, 2]))
    assert published(tmp_path) == [PLAIN]
    assert offsets(tmp_path) == [0, 1, 2]


def test_files_of_an_older_release_that_no_commit_speaks_of_are_not_overwritten(tmp_path: Path) -> None:
    """The topic was made anew before the update: the broker has dropped the offsets."""
    put(ParquetSink(str(tmp_path)), 0, rows([0, 1]))
    put(sink_of(tmp_path, NEW), 0, rows([0]))
    assert offsets(tmp_path) == [0, 0, 1]
    put(sink_of(tmp_path, NEW, continues=True), 0, rows([0]))
    assert offsets(tmp_path) == [0, 0, 1]


def test_names_with_ids_are_kept_where_the_record_was_lost(tmp_path: Path) -> None:
    put(sink_of(tmp_path, OLD), 0, rows([0, 1]))
    put(sink_of(tmp_path, NEW), 0, rows([0]))
    shutil.rmtree(tmp_path / ".topics")
    put(sink_of(tmp_path, NEW, continues=True), 0, rows([0]))
    assert offsets(tmp_path) == [0, 0, 1]


def test_another_partitions_files_are_no_reason_for_names_with_ids(tmp_path: Path) -> None:
    sink = ParquetSink(str(tmp_path))
    put(sink, 0, rows([0], partition=33), partition=33)
    put(sink, 0, rows([0], topic="flights-3"), topic="flights-3")
    put(sink_of(tmp_path, OLD), 0, rows([0]))
    assert PLAIN in published(tmp_path)


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    put(sink_of(tmp_path, OLD), 0, rows([0]))
    put(sink_of(tmp_path, NEW), 0, rows([0]))
    assert offsets(tmp_path) == [0, 0]
    assert set(ParquetSink(str(tmp_path)).topic_ids("flights")) == {OLD, NEW}


def test_a_record_of_topics_that_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, OLD)
    assert not sink.topic_ids("flights"), "nothing was staged yet"
    (tmp_path / ".topics").write_text("in the way")
    with pytest.raises(SinkError, match=r"\.topics"):
        sink.stage("flights", 3, 0, rows([0]))
    with pytest.raises(SinkError, match=r"\.topics"):
        sink.topic_ids("flights")
