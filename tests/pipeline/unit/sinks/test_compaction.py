"""`slackwater maintain`: tables are compacted, and their history expires, while a group writes to them."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from slackwater.cli import main
from slackwater.pipeline import make_sink
from slackwater.pipeline.maintenance import maintenance_of
from slackwater.pipeline.sinks.compaction import LEAST_FILES, Maintained, groups_of
from slackwater.runtime.config.worker_config import WorkerConfig, parse
from slackwater.runtime.errors import SinkError
from slackwater.runtime.interfaces import Sink, SinkFencedError
from slackwater.runtime.telemetry.events import PATH_VARIABLE
from tests.support import sinks
from tests.support.delta import DeltaFolder
from tests.support.iceberg.reader import IcebergFiles
from tests.support.sinks import A, B, marks, put, rows

HALF, RECORDS = 20, 40
"""Of each partition."""
LARGE = 128 * 1024 * 1024
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
stage = partial(sinks.stage, records=RECORDS)


class Place:
    """A table in a folder of its own."""

    def __init__(self, folder: Path, format_: str) -> None:
        self.folder, self._delta = folder, format_ == "delta"
        options = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
        self.settings: dict[str, Any] = {"format": "iceberg", "table": "lake.flights", "options": options}
        if self._delta:
            self.settings = {"format": "delta", "path": str(folder / "table")}

    def config(self, **more: Any) -> WorkerConfig:
        document = {
            "groupId": "g",
            "bootstrapServers": "localhost:1",
            "topics": ["flights"],
            "handler": "m:f",
        }
        return parse({**document, "engine": "arrow", "sink": {**self.settings, **more}})

    def sink(self, **more: Any) -> Sink:
        return make_sink(self.config(**more))

    def maintain(self, expire_after_ms: int = DAY_MS, cluster_by: Sequence[str] = ()) -> Maintained:
        (maintenance,) = maintenance_of(self.config()).values()
        assert not isinstance(maintenance, str)
        return maintenance.run(LARGE, expire_after_ms, cluster_by)

    def places(self) -> Counter[tuple[int, int]]:
        """Of all rows, by a reader that knows nothing of the sink."""
        if self._delta:
            return DeltaFolder(self.folder / "table").places()
        return IcebergFiles(self.folder / "catalog.db", "lake.flights").places()

    def tables(self) -> list[pa.Table]:
        """The rows of each data file in the storage, of whichever version."""
        paths = [path for path in self.folder.rglob("*.parquet") if "_delta_log" not in path.parts]
        return [pq.ParquetFile(path).read() for path in paths]

    def files(self, ends: str = ".parquet") -> int:
        """How many files there are in the storage, of whichever version."""
        return sum(
            path.name.endswith(ends) and "checkpoint" not in path.name for path in self.folder.rglob("*")
        )


@pytest.fixture(params=["delta", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


def test_a_table_that_is_maintained_has_its_marks_and_each_record_once(place: Place) -> None:
    """The worker that has written it goes on, and so does one that starts; one that is late is refused."""
    assert place.maintain().compacted == 0, "there is no table"
    worker, late = place.sink(), place.sink()
    sinks.write_all(worker, random.Random(1), records=HALF)
    before = place.files()
    assert before >= LEAST_FILES
    late.marks([A, B])
    refused = stage(late, {A: HALF - 1, B: HALF - 1})

    done = place.maintain()
    assert (done.compacted, done.written, done.removed) == (before, 1, 0)
    assert place.files() == before + 1, "readers of the version before have its files"
    done = place.maintain(expire_after_ms=0)
    assert (done.compacted, done.written) == (0, 0), "there is nothing more to compact"
    assert done.removed >= before
    assert place.files() == 1
    assert marks(place.sink()) == {A: HALF, B: HALF}

    stage(worker, {A: HALF, B: HALF}).publish()
    with pytest.raises(SinkFencedError):
        refused.publish()
    place.maintain(expire_after_ms=0)
    sinks.write_all(place.sink(), random.Random(2), records=RECORDS)
    places = place.places()
    assert set(places.values()) == {1}
    assert sorted(places) == [(partition, at) for partition in (0, 1) for at in range(RECORDS)]


def day(number: int) -> pa.Array:
    return pa.array([number])


def test_an_iceberg_table_is_compacted_by_partition_and_only_what_is_expired_goes(tmp_path: Path) -> None:
    place = Place(tmp_path, "iceberg")
    sink = place.sink(partitionBy=["day"])
    for at in range(2 * LEAST_FILES):
        put(sink, rows([at], day=day(at % 2)), at)
    put(sink, rows([2 * LEAST_FILES], day=day(7)), 2 * LEAST_FILES)
    done = place.maintain()
    assert (done.compacted, done.written, done.expired) == (2 * LEAST_FILES, 2, 0)
    lists = place.files(".avro")
    done = place.maintain(expire_after_ms=0)
    assert done.expired == 2 * LEAST_FILES + 1 + 1 - 1, "the latest snapshot stays"
    assert place.files() == 3
    assert place.files(".avro") == lists - (done.removed - 2 * LEAST_FILES)
    assert place.places() == Counter({(0, at): 1 for at in range(2 * LEAST_FILES + 1)})


def test_what_is_put_together_is_clustered_and_other_partitions_are_left_alone(place: Place) -> None:
    worker, few = place.sink(partitionBy=["day"]), LEAST_FILES - 1
    delays = random.Random(1).sample(range(100), LEAST_FILES)
    for at, delay in enumerate(delays):
        put(worker, rows([at], day=pa.array([None], pa.int64()), delay=pa.array([delay])), at)
    for at in range(LEAST_FILES, LEAST_FILES + few):
        put(worker, rows([at], day=day(7), delay=pa.array([at])), at)
    done = place.maintain(cluster_by=["delay"])
    assert (done.compacted, done.written) == (LEAST_FILES, 1)
    (made,) = [table for table in place.tables() if table.num_rows > 1]
    assert made["delay"].to_pylist() == sorted(delays)
    put(worker, rows([LEAST_FILES + few], day=day(7), delay=pa.array([3])), LEAST_FILES + few)
    assert place.maintain(cluster_by=["delay"]).compacted == LEAST_FILES, "by now they are enough"
    assert place.places() == Counter({(0, at): 1 for at in range(LEAST_FILES + few + 1)})
    for at in range(LEAST_FILES + few + 1, 2 * LEAST_FILES + few + 1):
        put(worker, rows([at], day=day(8), delay=pa.array([at])), at)
    with pytest.raises(SinkError, match="nope"):
        place.maintain(cluster_by=["nope"])


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_snapshots_expire_by_their_age_wherever_the_machine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        place = Place(tmp_path, "iceberg")
        sink = place.sink()
        for at in range(2):
            put(sink, rows([at]), at)
        assert place.maintain(expire_after_ms=HOUR_MS).expired == 0
        assert place.maintain(expire_after_ms=0).expired == 1
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("lost", [False, True], ids=["another commit first", "the answer is lost"])
def test_a_compaction_that_others_disturb_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """A catalog may refuse what it has committed, where a proxy sends it twice."""
    from pyiceberg.exceptions import CommitFailedException

    place = Place(tmp_path, "iceberg")
    sink = place.sink()
    for at in range(LEAST_FILES):
        put(sink, rows([at]), at)
    commit, calls = SqlCatalog.commit_table, []

    def disturbed(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            if not lost:
                monkeypatch.undo()
                put(sink, rows([LEAST_FILES]), LEAST_FILES)
                monkeypatch.setattr(SqlCatalog, "commit_table", disturbed)
            else:
                commit(*arguments)
                raise CommitFailedException("sent twice")
        return commit(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", disturbed)
    done = place.maintain()
    assert (done.compacted, done.written) == (LEAST_FILES, 1)
    records = LEAST_FILES + (not lost)
    assert place.places() == Counter({(0, at): 1 for at in range(records)})


def test_files_that_a_worker_has_replaced_meanwhile_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, "iceberg")
    keyed = {"mode": "upsert", "key": ["offset"]}
    sink = place.sink(**keyed)
    for at in range(LEAST_FILES):
        put(sink, rows([at]), at)
    commit = SqlCatalog.commit_table

    def disturbed(*arguments: Any) -> Any:
        monkeypatch.undo()
        put(sink, rows([0]), LEAST_FILES)
        return commit(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", disturbed)
    before = place.files()
    assert place.maintain().compacted == 0
    assert place.files() == before + 1, "the worker's; what was written in vain is removed"
    assert place.places() == Counter({(0, at): 1 for at in range(LEAST_FILES)})


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([1] * 4, []),
        ([1] * 5, [[0, 1, 2, 3, 4]]),
        ([80, 100, 1, 1], []),
        ([40, 40], [[0, 1]]),
        ([60, 60, 1, 30], [[1, 2, 3]]),
        ([50, 40, 50, 50], [[0, 1], [2, 3]]),
    ],
)
def test_small_files_are_put_together(sizes: list[int], groups: list[list[int]]) -> None:
    assert groups_of(list(enumerate(sizes)), 100) == groups


def test_the_command_maintains_what_it_can_and_names_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, "delta")
    sinks.write_all(place.sink(), random.Random(1), records=HALF)
    others: list[Mapping[str, Any]] = [
        {"format": "parquet", "path": "/data/a"},
        {"format": "delta", "path": "/data/{kind}", "tables": {}},
        {"format": "iceberg", "table": "lake.a", "options": {"uri": f"sqlite:///{tmp_path}/none/catalog.db"}},
    ]
    file = tmp_path / "worker.json"
    file.write_text(
        json.dumps(
            {
                "groupId": "g", "bootstrapServers": "localhost:1", "topics": ["t"], "handler": "m:f",
                "engine": "arrow", "sink": place.settings,
                "routes": [{"when": "a = 1", "sink": other} for other in others],
            }
        )
    )  # fmt: skip
    assert main(["maintain", "--config", str(file), "--output", "json"]) == 4
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["table"] for line in lines] == [place.settings["path"], "/data/a", "/data/{kind}", "lake.a"]
    assert lines[0]["written"] == 1
    assert ["nothing" in line for line in lines] == [False, True, True, False]
    assert "cannot connect to the catalog" in lines[3]["error"]
    assert main(["maintain", "--config", str(file)]) == 4
    assert f"{place.settings['path']}: 0 files have become 0, " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["maintain", "--config", str(file), "--expire-after", "1m"])


def test_a_run_for_one_table_reports_it_where_the_operator_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, file, said = Place(tmp_path, "delta"), tmp_path / "worker.yaml", tmp_path / "termination-log"
    monkeypatch.setenv(PATH_VARIABLE, str(said))
    away = {
        "format": "iceberg",
        "table": "lake.a",
        "options": {"uri": "sqlite:////no/folder", "warehouse": "/no"},
    }
    routes = [{"when": "kind = 'a'", "sink": away}]
    document = {"groupId": "g", "bootstrapServers": "localhost:1", "topics": ["flights"], "handler": "m:f"}
    file.write_text(yaml.dump({**document, "engine": "arrow", "sink": place.settings, "routes": routes}))
    sinks.write_all(place.sink(), random.Random(1), records=HALF)

    def run(table: str) -> int:
        return main(["maintain", "--config", str(file), f"--table={table}"])

    assert run(place.settings["path"]) == 0
    report = json.loads(said.read_text())
    assert (report["written"], report["expired"]) == (1, 0)
    assert "lake.a" not in capsys.readouterr().out
    assert run("lake.a") == 4
    assert said.read_text().startswith("the sink cannot connect to the catalog")
    assert run("lake.b") == 2
    assert f"its tables: {place.settings['path']}, lake.a" in capsys.readouterr().err
