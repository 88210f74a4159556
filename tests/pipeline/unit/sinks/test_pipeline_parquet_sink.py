"""A folder of Parquet files: what readers see of it, whoever writes it and wherever a writer is stopped."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks import partition_values
from slackwater.pipeline.sinks.parquet import commit_log
from slackwater.pipeline.sinks.parquet.files import SCHEMA_FILE, writing_options
from slackwater.pipeline.sinks.parquet.folder import Folder
from slackwater.pipeline.sinks.parquet.sink import ParquetSink, file_stem
from slackwater.runtime.errors import BatchTooLargeError, ConfigError, HandlerError, RecordsError, SinkError
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support import sinks
from tests.support.sinks import OLD, A, B, marks, put, rows

RECORDS = 40
"""Of each partition."""


stage, write_all = partial(sinks.stage, records=RECORDS), partial(sinks.write_all, records=RECORDS)


def places(folder: Path) -> Counter[tuple[int, int]]:
    """By an independent reader."""
    table = ds.dataset(folder, format="parquet").to_table()
    if not table.num_rows:
        return Counter()
    return Counter(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.parquet") if ".slackwater" not in path.parts)


def test_a_batch_is_one_file_whatever_its_partitions(tmp_path: Path) -> None:
    stage(ParquetSink("g", str(tmp_path)), {A: 0, B: 0}).publish()
    assert len(visible(tmp_path)) == 1


def test_a_commit_whose_number_is_free_again_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer was stopped before it made commit 2, and goes on when a checkpoint has removed it."""
    monkeypatch.setattr(commit_log, "CHECKPOINT_EVERY", 4)
    late = ParquetSink("g", str(tmp_path))
    stage(late, {A: 0}, 1).publish()
    staged = stage(late, {A: 1}, 1)
    heir = ParquetSink("g", str(tmp_path))
    link = os.link

    def stopped(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        for start in range(1, 10):
            stage(heir, {A: start}, 1).publish()
        assert not Path(target).exists(), "it was removed"
        link(source, target)

    monkeypatch.setattr(os, "link", stopped)
    with pytest.raises(SinkFencedError):
        staged.publish()
    assert places(tmp_path) == Counter({(0, offset): 1 for offset in range(10)})
    assert marks(late) == {A: 10, B: 0}


def test_a_commit_that_another_worker_s_checkpoint_has_overtaken_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers want number 4. The faster one makes a checkpoint at once, and 4 is free for the other."""
    monkeypatch.setattr(commit_log, "CHECKPOINT_EVERY", 4)
    faster, slower = ParquetSink("g", str(tmp_path)), ParquetSink("g", str(tmp_path))
    for start in range(3):
        stage(faster, {A: start}, 1).publish()
    slower.marks([B])
    staged = stage(slower, {B: 0}, 2)
    link = os.link

    def overtaken(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        stage(faster, {A: 3}, 1).publish()
        link(source, target)

    monkeypatch.setattr(os, "link", overtaken)
    staged.publish()
    assert marks(ParquetSink("g", str(tmp_path))) == {A: 4, B: 2}
    assert places(tmp_path) == Counter([*((0, offset) for offset in range(4)), (1, 0), (1, 1)])


def test_a_commit_that_does_not_count_is_not_read_even_if_its_checkpoint_is_seen_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of a folder may show a file that was created meanwhile, and not an earlier one."""
    monkeypatch.setattr(commit_log, "CHECKPOINT_EVERY", 4)
    sink, reader = ParquetSink("g", str(tmp_path)), ParquetSink("g", str(tmp_path))
    for start in range(3):
        stage(sink, {A: start}, 1).publish()
    reader.marks([A])
    stage(sink, {A: 3}, 1).publish()
    stage(sink, {B: 0})
    (left_over,) = (tmp_path / ".slackwater/g/staging").iterdir()
    late = {"files": [[left_over.name, "late.parquet"]], "marks": [["flights", OLD, 1, 5]], "schema": ""}
    (tmp_path / ".slackwater/g/log/00000000000000000004.json").write_text(json.dumps(late))
    listed = commit_log.CommitLog._list
    listings = iter([({4}, 0)])
    monkeypatch.setattr(commit_log.CommitLog, "_list", lambda log: next(listings, None) or listed(log))
    assert marks(reader) == {A: 4, B: 0}
    assert places(tmp_path) == Counter((0, offset) for offset in range(4))


@pytest.mark.parametrize("overtaken", ["commit", "rewind"])
def test_a_commit_counts_that_another_worker_s_checkpoint_has(
    overtaken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was created, and the other worker goes on from it before it is confirmed."""
    monkeypatch.setattr(commit_log, "CHECKPOINT_EVERY", 4)
    slower, faster = ParquetSink("g", str(tmp_path)), ParquetSink("g", str(tmp_path))
    stage(slower, {A: 0}, 5).publish()
    staged = stage(slower, {A: 5}, 1)
    create = slower._files.log.create

    def then_others_commit(name: str, data: bytes) -> bool:
        created = create(name, data)
        for start in range(4):
            stage(faster, {B: start}, 1).publish()
        return created

    monkeypatch.setattr(slower._files.log, "create", then_others_commit)
    if overtaken == "commit":
        staged.publish()
    else:
        assert slower.rewind({A: (OLD, 3)}) == 2
    kept = 6 if overtaken == "commit" else 3
    assert marks(slower) == {A: kept, B: 4}
    expected = [*((0, offset) for offset in range(kept)), *((1, offset) for offset in range(4))]
    assert places(tmp_path) == Counter(expected)


def test_discard_removes_and_forgives(tmp_path: Path) -> None:
    staged = stage(ParquetSink("g", str(tmp_path)), {A: 0})
    staged.discard()
    staged.discard()
    assert left(tmp_path) == []


def test_a_batch_without_rows_moves_the_mark_and_makes_no_file(tmp_path: Path) -> None:
    sink = ParquetSink("g", str(tmp_path))
    put(sink, rows([]), 0)
    assert marks(sink) == {A: 1, B: 0}
    assert visible(tmp_path) == []


# ---- the schema


def test_a_column_keeps_its_type(tmp_path: Path) -> None:
    sink = ParquetSink("g", str(tmp_path))
    put(sink, rows([0], delay=pa.array([1], pa.int64())), 0)
    heir = ParquetSink("g", str(tmp_path))
    put(heir, rows([1], delay=pa.array([2.0], pa.float64())), 1)
    put(heir, rows([2], carrier=pa.array(["UA"])), 2)
    put(sink, rows([3], delay=pa.array([3], pa.int8()), carrier=pa.array(["AA"])), 3)
    for bad in (pa.array([1.5]), pa.array(["1"]), pa.array([b"1"])):
        with pytest.raises(RecordsError, match="the column delay of the table is int64"):
            put(heir, rows([4], delay=bad), 4)
    files = visible(tmp_path)
    assert {pq.read_schema(file).field("delay").type for file in files} == {pa.int64()}
    table = pa.concat_tables([pq.read_table(file) for file in files], promote_options="default")
    assert table.select(["delay", "carrier"]).to_pylist() == [
        {"delay": 1, "carrier": None},
        {"delay": 2, "carrier": None},
        {"delay": None, "carrier": "UA"},
        {"delay": 3, "carrier": "AA"},
    ]


def test_two_workers_that_begin_at_once_make_one_schema(tmp_path: Path) -> None:
    first, second = ParquetSink("g", str(tmp_path)), ParquetSink("g", str(tmp_path))
    staged = second.stage(rows([0], 1, delay=pa.array([2.0])), {B: Range(OLD, 0, 1, None)})
    unfit = second.stage(rows([1], 1, delay=pa.array([1.5])), {B: Range(OLD, 1, 2, 1)})
    put(first, rows([0], delay=pa.array([1])), 0)
    staged.publish()
    with pytest.raises(RecordsError, match="delay"):
        unfit.publish()
    assert {pq.read_schema(file).field("delay").type for file in visible(tmp_path)} == {pa.int64()}
    assert left(tmp_path) == []


def shown(folder: Path) -> list[str]:
    """The columns that readers are told of."""
    names: list[str] = pq.read_schema(folder / SCHEMA_FILE).names
    return names


def test_readers_are_told_of_columns_that_came_later(tmp_path: Path) -> None:
    sink = ParquetSink("g", str(tmp_path), partition_by=["day"])
    put(sink, rows([0], day=pa.array([1])), 0)
    assert shown(tmp_path) == ["topic", "partition", "offset"]
    put(sink, rows([1], day=pa.array([1]), carrier=pa.array(["UA"])), 1)
    schema = pq.read_schema(tmp_path / SCHEMA_FILE)
    assert schema.names == ["topic", "partition", "offset", "carrier"]
    for frame in (
        pd.read_parquet(tmp_path, schema=schema),
        ds.dataset(tmp_path, schema=schema).to_table().to_pandas(),
    ):
        assert dict(zip(frame["offset"], frame["carrier"], strict=True)) == {0: None, 1: "UA"}
    (tmp_path / SCHEMA_FILE).unlink()
    ParquetSink("g", str(tmp_path), partition_by=["day"]).marks([A])
    assert shown(tmp_path) == schema.names, "a worker that starts shows it anew"


def test_a_worker_that_shows_its_columns_late_hides_no_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = ParquetSink("g", str(tmp_path)), ParquetSink("g", str(tmp_path))
    show = Folder.show_schema

    def overtaken(folder: Folder, data: bytes) -> None:
        monkeypatch.setattr(Folder, "show_schema", show)
        put(fast, rows([1], carrier=pa.array(["UA"])), 1)
        show(folder, data)

    monkeypatch.setattr(Folder, "show_schema", overtaken)
    put(slow, rows([0], delay=pa.array([1])), 0)
    assert shown(tmp_path) == ["topic", "partition", "offset", "delay", "carrier"]


def test_new_columns_can_be_refused(tmp_path: Path) -> None:
    put(ParquetSink("g", str(tmp_path)), rows([0]), 0)
    sink = ParquetSink("g", str(tmp_path), new_columns=False)
    with pytest.raises(RecordsError, match="columns delay, which the table lacks"):
        put(sink, rows([1], carrier=pa.array(["UA"]), delay=pa.array([1])), 1)


# ---- partitionBy


@pytest.mark.parametrize("taken", [1 << 30, 0], ids=["small", "too large for Arrow's take"])
def test_rows_lie_in_the_folders_of_their_values(
    tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_values, "_MOST_TAKEN_BYTES", taken)
    sink = ParquetSink("g", str(tmp_path), partition_by=["carrier", "day"])
    carriers = pa.array(["UA", "A/=A", None, "UA", " ", ".", "\u5317 \u00e9%"])
    days = pa.array([1, 2, 3, 1, 1, 1, 1], pa.int32())
    put(sink, rows(range(7), carrier=carriers, day=days), 0)
    assert sorted(str(file.parent.relative_to(tmp_path)) for file in visible(tmp_path)) == [
        "carrier= /day=1",
        "carrier=./day=1",
        "carrier=A%2F%3DA/day=2",
        "carrier=UA/day=1",
        "carrier=__HIVE_DEFAULT_PARTITION__/day=3",
        "carrier=\u5317 \u00e9%25/day=1",
    ]
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table().sort_by("offset")
    assert table["carrier"].to_pylist() == carriers.to_pylist()
    assert table["day"].to_pylist() == days.to_pylist()
    assert sink.rewind({A: (OLD, 2)}) == 5
    assert places(tmp_path) == Counter({(0, 0): 1, (0, 1): 1})


def test_the_first_rows_may_have_no_value_to_partition_by(tmp_path: Path) -> None:
    sink = ParquetSink("g", str(tmp_path), partition_by=["city"])
    put(sink, rows([0], city=pa.nulls(1)), 0)
    put(sink, rows([1, 2], city=pa.array(["UA", None])), 1)
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table().sort_by("offset")
    assert table["city"].to_pylist() == [None, "UA", None]


@pytest.mark.parametrize("column", ["_day", ".day", "a/=day", "gr\u00f6\u00dfe"])
def test_readers_see_the_folders_of_every_column(tmp_path: Path, column: str) -> None:
    put(ParquetSink("g", str(tmp_path), partition_by=[column]), rows([0], **{column: pa.array([1])}), 0)
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    assert table[column].to_pylist() == [1]


@pytest.mark.parametrize(
    "value",
    ["", "__HIVE_DEFAULT_PARTITION__", pa.scalar(3_000_000, pa.date32()), pa.scalar(1, pa.date64())],
    ids=["empty", "null's name", "year 10183", "a date with milliseconds"],
)
def test_a_value_that_readers_would_take_for_another_one_is_refused(tmp_path: Path, value: Any) -> None:
    sink = ParquetSink("g", str(tmp_path), partition_by=["city"])
    kind = value.type if isinstance(value, pa.Scalar) else pa.string()
    with pytest.raises(RecordsError, match="the column city"):
        put(sink, rows([0, 1], city=pa.array([None, value], kind)), 0)
    assert left(tmp_path) == []
    put(sink, rows([0], city=pa.array([None], kind)), 0)
    assert places(tmp_path) == Counter({(0, 0): 1})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"delay": pa.array([1])}, "no column carrier, which sink.partitionBy names"),
        (
            {"carrier": pa.array([1.5])},
            "the column carrier is double; sink.partitionBy takes columns of text",
        ),
    ],
)
def test_what_cannot_be_partitioned_by_is_named(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    sink = ParquetSink("g", str(tmp_path), partition_by=["carrier"])
    with pytest.raises(HandlerError, match=words):
        put(sink, rows([0], **columns), 0)


def test_a_batch_for_too_many_folders_is_too_large(tmp_path: Path) -> None:
    sink = ParquetSink("g", str(tmp_path), partition_by=["number"])
    with pytest.raises(
        BatchTooLargeError, match=r"1001 partitions of the table \(number\); 1000 is the most"
    ):
        put(sink, rows(range(1001), number=pa.array(range(1001))), 0)
    assert left(tmp_path) == []


def test_a_value_that_no_folder_can_be_named_after_is_refused(tmp_path: Path) -> None:
    """Before the commit: no worker could read the log after it."""
    sink = ParquetSink("g", str(tmp_path), partition_by=["city"])
    with pytest.raises(RecordsError, match=r"too long for the name of a folder: city=\u5317.* has 257 bytes"):
        put(sink, rows([0, 1], city=pa.array(["a", "\u5317" * 84])), 0)
    assert left(tmp_path) == []
    put(sink, rows([0, 1], city=pa.array(["a", "\u5317" * 83 + "a"])), 0)
    assert marks(ParquetSink("g", str(tmp_path)))[A] == 2
    assert places(tmp_path) == Counter({(0, 0): 1, (0, 1): 1})


def test_a_folder_that_cannot_be_made_is_an_error_before_the_commit(tmp_path: Path) -> None:
    sink = ParquetSink("g", str(tmp_path), partition_by=["city"])
    (tmp_path / "city=a").write_text("taken")
    with pytest.raises(SinkError, match="File exists"):
        put(sink, rows([0], city=pa.array(["a"])), 0)
    assert marks(ParquetSink("g", str(tmp_path)))[A] == 0


# ---- the log


def left(folder: Path) -> list[str]:
    """What is staged, and what is half made in the log."""
    own = folder / ".slackwater" / "g"
    return [path.name for path in (own / "staging").iterdir()] + [
        path.name for path in (own / "log").iterdir() if path.suffix != ".json"
    ]


def test_the_log_stays_short_and_is_read_by_whoever_comes(tmp_path: Path) -> None:
    sink, watcher = ParquetSink("g", str(tmp_path)), ParquetSink("g", str(tmp_path))
    for offset in range(3 * commit_log.CHECKPOINT_EVERY + 3):
        put(sink, rows([offset]), offset)
    names = sorted(path.name for path in (tmp_path / ".slackwater/g/log").iterdir())
    assert names == [
        *(f"{number:020d}.json" for number in range(97, 100)),
        "checkpoint-00000000000000000096.json",
    ]
    for reader in (watcher, ParquetSink("g", str(tmp_path))):
        assert marks(reader)[A] == 99
    with pytest.raises(RecordsError):
        put(ParquetSink("g", str(tmp_path), new_columns=False), rows([200], x=pa.array([1])), 200)


def test_staged_files_that_cannot_be_committed_any_more_are_removed_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the clocks say, and whether they are written to their end or not."""
    monkeypatch.setattr(commit_log, "CHECKPOINT_EVERY", 2)
    sink = ParquetSink("g", str(tmp_path))
    staging = tmp_path / ".slackwater/g/staging"

    def staged(tp: TopicPartition) -> list[Path]:
        """A file, and one that is half written."""
        before = set(staging.iterdir())
        stage(sink, {tp: 0}), stage(sink, {tp: 0})
        files = sorted(set(staging.iterdir()) - before)
        files[0].write_bytes(b"PAR1")
        os.utime(files[0], (1, 1))
        return files

    staged(A)  # of workers that died
    alive, other = staged(B), staging / "other.parquet"
    other.write_bytes(b"PAR1")
    put(sink, rows([0]), 0)
    put(sink, rows([1]), 1)
    assert set(staging.iterdir()) == {*alive, other}


def test_a_file_that_was_staged_after_a_rewind_is_not_compared_with_the_marks_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is stopped while it makes a checkpoint. Meanwhile the group is rewound, and goes on."""
    monkeypatch.setattr(commit_log, "CHECKPOINT_EVERY", 2)
    sink, listed = ParquetSink("g", str(tmp_path)), Folder.staged
    put(sink, rows([0]), 0)
    going_on: list[Any] = []

    def stopped(folder: Folder) -> list[str]:
        monkeypatch.setattr(Folder, "staged", listed)
        heir = ParquetSink("g", str(tmp_path))
        heir.rewind({A: (OLD, 0)})
        going_on.append(heir.stage(rows([0, 1]), {A: Range(OLD, 0, 2, 0)}))
        return listed(folder)

    monkeypatch.setattr(Folder, "staged", stopped)
    put(sink, rows([1]), 1)
    going_on[0].publish()
    assert places(tmp_path) == Counter({(0, 0): 1, (0, 1): 1})


def lose(folder: Path) -> str:
    """Removes what is staged, as nothing but a person or a disk does. Returns the name of the lost file."""
    (lost,) = (folder / ".slackwater/g/staging").iterdir()
    lost.unlink()
    return lost.name.partition(".")[0]


def test_a_file_of_ones_own_commit_that_is_missing_is_an_error_that_names_it(tmp_path: Path) -> None:
    staged = stage(ParquetSink("g", str(tmp_path)), {A: 0})
    lost = lose(tmp_path)
    with pytest.raises(SinkError, match=rf"{lost}\.parquet is missing: .*flights-0, offsets before 5\)"):
        staged.publish()


def test_a_file_of_another_ones_commit_that_is_missing_is_an_error_until_it_is_rewound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetSink("g", str(tmp_path))
    put(sink, rows([0, 1], 1), 0, B)
    staged = stage(sink, {A: 0})
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "put_in_place", raiser(OSError(errno.EIO, "")))
        with pytest.raises(SinkError, match="cannot commit to"):
            staged.publish()
    lost = lose(tmp_path)
    for call in (ParquetSink("g", str(tmp_path)).refresh, lambda: stage(sink, {B: 2}).publish()):
        with pytest.raises(SinkError, match=rf"{lost}\.parquet is missing: .* rewind"):
            call()
    heir = ParquetSink("g", str(tmp_path))
    assert heir.rewind({B: (OLD, 1)}) == 1
    with pytest.raises(SinkError, match="is missing"):
        heir.refresh()
    heir.rewind({A: (OLD, 0)})
    put(ParquetSink("g", str(tmp_path)), rows(range(5)), 0)
    assert places(tmp_path) == Counter([(1, 0), *((0, offset) for offset in range(5))])


def test_a_file_that_a_rewind_has_removed_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is stopped between its commit and its rename, until the group was rewound."""
    staged, replace = stage(ParquetSink("g", str(tmp_path)), {A: 0}), Path.replace

    def stopped(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        ParquetSink("g", str(tmp_path)).rewind({A: (OLD, 0)})
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", stopped)
    staged.publish()
    assert marks(ParquetSink("g", str(tmp_path))) == {A: 0, B: 0}


def test_a_rewind_names_a_file_that_it_cannot_read(tmp_path: Path) -> None:
    sink = ParquetSink("g", str(tmp_path))
    put(sink, rows([0]), 0)
    (file,) = visible(tmp_path)
    file.write_bytes(b"PAR1")
    with pytest.raises(SinkError, match=rf"cannot read {file} .*: restore it"):
        sink.rewind({A: (OLD, 0)})
    assert marks(sink)[A] == 1


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"marks": [["t", "", "0"]], "schema": ""}', '{"marks": [], "schema": 1}', "[" * 99_999],
)
def test_a_log_that_is_damaged_is_named(tmp_path: Path, text: str) -> None:
    sink = ParquetSink("g", str(tmp_path))
    entry = tmp_path / ".slackwater/g/log/00000000000000000001.json"
    entry.write_text(text)
    with pytest.raises(SinkError, match=rf"{entry} is no commit of Slackwater's .*restore it from a backup"):
        sink.marks([A])


def test_a_file_that_is_too_large_is_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ParquetSink("g", str(tmp_path))
    put(sink, rows([0]), 0)
    monkeypatch.setattr(commit_log, "MOST_BYTES", 10)
    with pytest.raises(SinkError, match="more than 10 bytes"):
        ParquetSink("g", str(tmp_path)).marks([A])


def test_files_that_are_committed_and_not_in_their_place_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch has failed for this worker, which gives it up. Its commit counts."""
    staged = stage(ParquetSink("g", str(tmp_path)), {A: 0})
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "put_in_place", raiser(OSError(errno.EIO, "")))
        with pytest.raises(SinkError, match="cannot commit to"):
            staged.publish()
    staged.discard()
    assert places(tmp_path) == Counter()
    assert marks(ParquetSink("g", str(tmp_path))) == {A: 5, B: 0}
    assert places(tmp_path) == Counter({(0, offset): 1 for offset in range(5)})


def raiser(error: OSError) -> Any:
    def fail(*args: object, **options: object) -> None:
        raise error

    return fail


# ---- rewind


@pytest.mark.parametrize("other", ["g-audit", "g-00000000000000000001", "g-00000000000000000001-0a", "G"])
def test_a_rewind_leaves_the_rows_of_a_group_whose_id_begins_alike(tmp_path: Path, other: str) -> None:
    sink = ParquetSink("g", str(tmp_path))
    put(sink, rows([0, 1]), 0)
    put(ParquetSink(other, str(tmp_path)), rows([0, 1, 2]), 0)
    assert sink.rewind({A: (OLD, 0)}) == 2
    assert places(tmp_path) == Counter({(0, offset): 1 for offset in range(3)})


def test_rows_without_their_position_cannot_be_removed(tmp_path: Path) -> None:
    sink = ParquetSink("g", str(tmp_path), partition_by=["partition"])
    with pytest.raises(SinkError, match="the files lack partition, because sink.partitionBy names it"):
        sink.rewind({A: (OLD, 0)})


# ---- errors


def test_a_folder_that_is_gone_altogether_is_the_sinks_failure(tmp_path: Path) -> None:
    sink = ParquetSink("g", str(tmp_path / "out"))
    staged = stage(sink, {A: 0})
    shutil.rmtree(tmp_path / "out")
    for call in (lambda: stage(sink, {A: 0}), lambda: sink.marks([A]), staged.publish):
        with pytest.raises(SinkError, match="No such file"):
            call()


def test_a_write_that_fails_half_way_leaves_nothing_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sink = ParquetSink("g", str(tmp_path))
    put(sink, rows([0]), 0)
    staged = stage(sink, {A: 1})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SinkError, match=r"write \d+ bytes \(5 rows\) .*No space left.*free some space"):
        stage(sink, {A: 1})
    with pytest.raises(SinkError, match="commit to .*No space left.*free some space"):
        staged.publish()
    assert places(tmp_path) == Counter({(0, 0): 1})
    assert marks(ParquetSink("g", str(tmp_path))) == {A: 1, B: 0}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_arrows_own_error_of_a_full_disk_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetSink("g", str(tmp_path))
    real = Path.open

    def to_full(path: Path, mode: str = "r") -> object:
        return real(Path("/dev/full"), "wb") if mode == "xb" else real(path, mode)

    monkeypatch.setattr(Path, "open", to_full)
    with pytest.raises(SinkError, match="No space left on device; free some space"):
        sink.stage(rows(range(200_000)), {A: Range(OLD, 0, 200_000, None)})


def test_a_file_system_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: Path, target: Path) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    sink = ParquetSink("g", str(tmp_path))
    monkeypatch.setattr(os, "link", refused)
    for call in (sink.probe, stage(sink, {A: 0}).publish):
        with pytest.raises(SinkError, match="give the sink a path on a file system that has hard links"):
            call()


def test_a_path_that_is_a_file_or_below_one(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x")
    for path in ("taken", "taken/below"):
        with pytest.raises(SinkError, match=r"taken.*give the sink a path that is a folder"):
            ParquetSink("g", str(tmp_path / path))


@pytest.mark.parametrize("path", ["ftp://lake/flights", "hdfs://x/y", "file:/x", "s3:///x"])
def test_other_file_systems_are_refused_by_name(path: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"sink.path: {path} cannot hold Parquet files: give a folder.*s3://"
    ):
        ParquetSink("g", path)


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    put(ParquetSink("g", f"file://{tmp_path}/out"), rows([0]), 0)
    assert places(tmp_path / "out") == Counter({(0, 0): 1})


# ---- readers


@pytest.mark.parametrize("group", [".hidden", "_internal", "a/../../b", "ä b", "x" * 300, ".."])
def test_readers_see_the_files_of_every_group(tmp_path: Path, group: str) -> None:
    put(ParquetSink(group, str(tmp_path / "out")), rows([0]), 0)
    assert places(tmp_path / "out") == Counter({(0, 0): 1})
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_groups_have_names_of_their_own() -> None:
    groups: Collection[str] = ["a", "_a", "%5Fa", "a/b", "a%2Fb", "x" * 300, "x" * 301, ".a", "a.b"]
    assert len({file_stem(group) for group in groups}) == len(groups)


def test_pandas_and_arrow_read_the_folder_with_their_defaults(tmp_path: Path) -> None:
    sink = ParquetSink("g", str(tmp_path))
    stage(sink, {A: 0, B: 0}, 2).publish()
    stage(sink, {A: 2}, 1).publish()
    stage(sink, {B: 2}, 1)
    expected = ["topic", "partition", "offset", "carrier"]
    for table in (ds.dataset(tmp_path).to_table(), pq.read_table(tmp_path)):
        assert table.column_names == expected
        assert table.num_rows == 5
    frame = pd.read_parquet(tmp_path)
    assert list(frame.columns) == expected
    assert sorted(zip(frame["partition"], frame["offset"], strict=True)) == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("nested", [False, True])
def test_a_file_with_a_huge_value_takes_little_more_memory_than_its_page(nested: bool) -> None:
    size = 16 << 20
    large = pa.array([b"x" * size])
    column = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), large) if nested else large
    table = pa.table({"offset": [1], "value": column})
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        pq.write_table(table, pa.BufferOutputStream(), **writing_options(table))
    finally:
        pa.set_memory_pool(before)
    assert (pool.max_memory() or 0) < 3 * size
    assert writing_options(table)["write_statistics"] == ["offset"]


def test_usual_rows_are_written_with_dictionary_and_statistics() -> None:
    assert writing_options(pa.table({"value": [b"x" * 32_768] * 300})) == {}
