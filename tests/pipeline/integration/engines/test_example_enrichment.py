"""The example `enrichment`: a worker's new rows follow a reference table that changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from slackwater.kafka.records import BatchBuilder, decode
from slackwater.pipeline.engines.arrow import ArrowEngine
from slackwater.pipeline.engines.decoding import DecodingEngine
from slackwater.pipeline.values.ddl import parse
from slackwater.pipeline.values.json import JsonDecoder
from slackwater_operator.api.v1alpha1.consumer_group import load
from slackwater_operator.demo.source import data_folder, flight_record, read_rows
from slackwater_operator.specs.worker_config import worker_config
from tests.support.devbroker import DevBroker
from tests.support.waiting import wait_until
from tests.support.workers.group_site import GroupSite
from tests.support.workers.process import WorkerProcess

EXAMPLE = Path(__file__).parents[4] / "examples" / "enrichment"
PARTITIONS = 2


@pytest.fixture
def site(devbroker: DevBroker, tmp_path: Path) -> Iterator[GroupSite]:
    with GroupSite(devbroker.bootstrap, tmp_path, handler="", partitions=PARTITIONS, dead_letters=1) as made:
        yield made


@pytest.fixture(scope="module")
def flights() -> list[bytes]:
    values = [flight_record(row).value for row in islice(read_rows(), 200)]
    return [value for value in values if value is not None]


def config(site: GroupSite) -> dict[str, Any]:
    """The example's, for the site's topic and files, with a shorter interval."""
    document = worker_config(
        load(EXAMPLE / "airports.yaml"), handler_path=[str(EXAMPLE.parent)], join_gate_ms=0
    )
    kept = {name: document[name] for name in ("handler", "handlerPath", "engine", "value")}
    assert document["refreshEveryMs"] == 600_000
    return site.config(**kept, refreshEveryMs=100)


def refreshed(worker: WorkerProcess, *, ok: bool) -> int:
    return sum(event["ok"] is ok for event in worker.named("refresh"))


def until_refreshed(worker: WorkerProcess, *, ok: bool) -> None:
    """Waits for two more ends: the second call has begun after this was called."""
    before = refreshed(worker, ok=ok)
    wait_until(lambda: refreshed(worker, ok=ok) >= before + 2, lambda: worker.why(""))


def write(file: Path, airports: pa.Table) -> None:
    """Replaces the file as a whole."""
    pa.csv.write_csv(airports, file.with_suffix(".new"))
    file.with_suffix(".new").rename(file)


def test_rows_have_the_values_that_the_table_has_when_they_are_handled(
    site: GroupSite, flights: list[bytes], tmp_path: Path
) -> None:
    airports = pa.csv.read_csv(data_folder() / "airports.csv")
    names = dict(zip(airports["faa"].to_pylist(), airports["name"].to_pylist(), strict=True))
    file = tmp_path / "airports.csv"
    write(file, airports)
    worker = site.start_worker("w-0", config(site), AIRPORTS_FILE=str(file))

    site.write((number % PARTITIONS, value) for number, value in enumerate(flights))
    site.until_committed(why=site.why)
    rows = site.output.rows()
    assert len(rows) == len(flights)
    assert {row["origin"] for row in rows} == {"JFK", "LGA", "EWR"}
    assert all(row["origin_name"] == names[row["origin"]] for row in rows)
    assert all(row["dest_name"] == names.get(row["dest"]) for row in rows)
    assert any(row["dest_name"] is None for row in rows), "an airport that the table does not have"
    first = {(row["partition"], row["offset"]) for row in rows}

    renamed = [f"{name} (new)" if code == "JFK" else name for code, name in names.items()]
    write(file, airports.set_column(airports.column_names.index("name"), "name", pa.array(renamed)))
    until_refreshed(worker, ok=True)
    site.write((number % PARTITIONS, value) for number, value in enumerate(flights))
    site.until_committed(why=site.why)
    later = [row for row in site.output.rows() if (row["partition"], row["offset"]) not in first]
    expected = {**names, "JFK": f"{names['JFK']} (new)"}
    assert len(later) == len(flights)
    assert all(row["origin_name"] == expected[row["origin"]] for row in later)
    assert [row for row in site.output.rows() if (row["partition"], row["offset"]) in first] == rows

    file.write_text("faa,name\nJFK,half of a file\n")
    until_refreshed(worker, ok=False)
    site.write([(0, flights[0])])
    site.until_committed(why=site.why)
    assert len(site.output.rows()) == 2 * len(flights) + 1, "with the table as it was"
    failed = [event for event in worker.named("refresh") if not event["ok"]][-1]
    assert "ArrowKeyError" in failed["message"]
    assert "pipeline.py line" in failed["message"]
    assert worker.terminate() == 0


def test_the_handler_alone_with_a_parquet_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "airports.parquet"
    jfk = pa.table({"faa": ["JFK"], "name": ["Kennedy"], "lat": [40.6], "lon": [-73.8], "more": [1]})
    pa.parquet.write_table(jfk, file)
    monkeypatch.setenv("AIRPORTS_FILE", str(file))
    flight = {"carrier": "B6", "flight": 725, "origin": "JFK", "dest": "BQN", "time_hour": "2013-01-01T05:00"}
    schema = load(EXAMPLE / "airports.yaml").spec.pipeline.value
    assert schema is not None
    handler = ArrowEngine("enrichment.pipeline:transform", [str(EXAMPLE.parent)])
    engine = DecodingEngine(handler, {"value": lambda: JsonDecoder(parse(schema.schema))})
    engine.start()
    try:
        engine.warm_up()
        batch = BatchBuilder("none", 1 << 20)
        for value in (json.dumps(flight).encode(), None):
            assert batch.append(0, None, value, [])
        records = decode(batch.build(base_offset=0), fetch_offset=0).to_arrow("flights", 0)
        result = engine.transform(pa.Table.from_batches([records])).to_pylist()
    finally:
        engine.close()
    assert (result[0]["origin_name"], result[0]["origin_lat"], result[0]["dest_name"]) == (
        "Kennedy",
        40.6,
        None,
    )
    assert [row["_error"] for row in result] == [None, "there is no value"]
