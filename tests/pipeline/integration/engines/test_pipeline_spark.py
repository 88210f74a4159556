"""The Spark engine on a real local session and on a real Connect server."""

import datetime
import decimal
import itertools
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from slackwater import Batch
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.engines.spark_session import SparkFailure
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.runtime.config.value_config import ValueConfig
from slackwater.runtime.errors import HandlerError, RecordsError, SinkError
from slackwater.runtime.interfaces import Range
from slackwater.runtime.telemetry import processes
from slackwater_operator.demo.source import read_rows, with_poison
from tests.pipeline.integration.engines.pipeline_host import (
    EngineHost,
    deliver_in_test,
    give_up_in_test,
    narrowed_in_test,
    refuse_in_test,
    run_in_test,
    table,
    write_concurrently_in_test,
    write_in_test,
)
from tests.pipeline.integration.engines.shared_spark import SharedSpark
from tests.support.workers.fakes import Bench

pytestmark = pytest.mark.parts("spark")


@pytest.fixture(params=["local", pytest.param("connect", marks=pytest.mark.long)])
def host(request: pytest.FixtureRequest, shared_spark: SharedSpark) -> EngineHost:
    """An engine on a local session; in the long tests on a Connect server, too."""
    return shared_spark.host(request.param)


wherever = pytest.mark.parametrize(
    ("host", "elsewhere"),
    [("local", False), *(pytest.param("connect", away, marks=pytest.mark.long) for away in (False, True))],
    indirect=["host"],
)
"""``elsewhere``: the server is not on this machine."""


def test_records_pass_through_as_they_are(host: EngineHost) -> None:
    host.start("keep")
    host.warm_up()
    records = table(list(range(100)))
    rows = host.transform(records)
    assert rows.to_pylist() == records.to_pylist()


def test_the_jvm_of_a_local_session_is_measured(host: EngineHost) -> None:
    host.start("keep")
    usage = processes.usage()
    assert usage["process_cpu_seconds"]["jvm",] > 0
    assert usage["process_resident_memory_bytes"]["jvm",] > usage["jvm_heap_bytes"]["used",] > 0
    assert usage["jvm_heap_bytes"]["committed",] >= usage["jvm_heap_bytes"]["used",]
    assert usage["jvm_gc_seconds"][()] >= 0


@wherever
def test_a_large_batch_passes_through_as_it_is(host: EngineHost, elsewhere: bool) -> None:
    host.start("keep", elsewhere=elsewhere)
    records = table(list(range(12_000)), [None if n % 7 == 0 else b"%d" % n for n in range(12_000)])
    records = records.set_column(
        records.column_names.index("headers"),
        records.schema.field("headers"),
        pa.array(
            [None if n % 3 == 0 else [{"key": "k", "value": b"v"}] * (n % 4) for n in range(12_000)],
            records.schema.field("headers").type,
        ),
    )
    rows = host.transform(records)
    assert rows.column_names == records.column_names
    assert rows.to_pylist() == records.to_pylist()


@wherever
def test_a_large_batch_of_typed_values_passes_through_as_it_is(host: EngineHost, elsewhere: bool) -> None:
    """Of several tasks, and in the records' order."""
    count = 12_000
    offsets = table(list(range(count))).select(["topic", "partition", "offset"])
    at = pa.timestamp("us", tz="UTC")

    def of(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([values[n % len(values)] for n in range(count)], kind)

    typed = {
        "flag": of([True, None, False], pa.bool_()),
        "small": of([-128, 127, None], pa.int8()),
        "whole": of([-(2**31), None], pa.int32()),
        "real": of([1.5, float("inf"), None], pa.float64()),
        "price": of(
            [decimal.Decimal("-1.50"), None, decimal.Decimal("99999999999999999.99")], pa.decimal128(19, 2)
        ),
        "day": of([datetime.date(1500, 2, 28), datetime.date(2026, 11, 26), None], pa.date32()),
        "at": of([datetime.datetime(1500, 1, 1, tzinfo=datetime.UTC), None], at),
        "moment": of([1_357_034_400_123, None], pa.timestamp("ms", tz="UTC")),
        "text": of(["x" * 1_000, "", None, "ü\0"], pa.string()),
        "tags": of([["a", None], [], None], pa.list_(pa.string())),
        "in": of([{"x": 1, "at": None}, None], pa.struct({"x": pa.int64(), "at": at})),
        "m": of([[("k", 2)], [], None], pa.map_(pa.string(), pa.int64())),
        "deep": of([[{"k": [1, None]}, None], None], pa.list_(pa.struct({"k": pa.list_(pa.int32())}))),
        "With space, and dot.": of([1, None], pa.int64()),
    }
    records = pa.table({**{name: offsets[name] for name in offsets.column_names}, **typed})
    host.start("keep", elsewhere=elsewhere)
    rows = host.transform(records)
    assert rows.column_names == records.column_names
    for name in records.column_names:
        assert rows[name].to_pylist() == records[name].to_pylist(), name


@pytest.mark.long
def test_the_jobs_of_a_traced_batch_carry_its_trace(host: EngineHost) -> None:
    """A session of its own shows it in the jobs' description, a Connect server as a tag."""
    host.start("keep")
    trace_id, tags, spans, (traced, untraced) = host.traced_rows()
    assert spans == [("spark job", True), ("handle", False)]
    if tags:
        assert tags == f"trace_id={trace_id}"
        return
    assert traced["trace"] == trace_id
    assert traced["description"] == f"slackwater batch, trace_id={trace_id}"
    assert (untraced["trace"], untraced["description"]) == (None, None)


def test_a_batch_without_rows_is_not_optimised_away(host: EngineHost) -> None:
    """The warm-up's: the handler's code would be compiled with the first records only."""
    host.start("keep")
    plan = host.plan(table([]))
    assert "<empty>" not in plan
    assert "length(cast(value" in plan


def test_only_a_small_batch_is_evaluated_by_the_optimizer(host: EngineHost) -> None:
    host.start("keep")
    assert "length(cast(value" not in host.plan(table([1]))
    assert "length(cast(value" in host.plan(table(list(range(6_000)), [b"x" * 400] * 6_000))


@pytest.mark.long
@pytest.mark.parametrize("host", ["connect"], indirect=True)
@pytest.mark.parametrize(("elsewhere", "form"), [(False, ".parquet"), (True, "_slackwater_batch_")])
def test_a_server_keeps_nothing_of_a_batch(host: EngineHost, elsewhere: bool, form: str) -> None:
    host.start("keep", elsewhere=elsewhere)
    inside, after = host.kept()
    (name,) = inside
    assert form in name
    assert after == []


def test_typed_values_are_columns_and_bad_ones_are_rejected(host: EngineHost) -> None:
    schema = "n INT, at TIMESTAMP, tags ARRAY<STRING>, in STRUCT<x: DECIMAL(5,2)>, m MAP<STRING, BIGINT>"
    host.start("typed", value=ValueConfig("json", schema=schema))
    host.warm_up()
    full = b'{"n": 1, "at": "2013-01-01T05:00:00Z", "tags": ["a", null], "in": {"x": 1.5}, "m": {"k": 2}}'
    rows = host.transform(table([0, 1, 2, 3], [full, b"{", None, b'{"n": "x"}'])).to_pylist()
    found = {row["offset"]: row for row in rows}
    assert len(rows) == 4
    assert [found[0][name] for name in ("n", "tags", "in", "m")] == [
        1, ["a", None], {"x": decimal.Decimal("1.50")}, [("k", 2)],
    ]  # fmt: skip
    assert found[0]["at"].timestamp() == datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.UTC).timestamp()
    assert {found[2][name] for name in ("n", "at", "tags", "in", "m")} == {None}
    assert {offset: row["_error"] for offset, row in found.items()} == {
        0: None,
        1: "JSON value: is not JSON at byte 1: Expecting property name enclosed in double quotes",
        2: None,
        3: "JSON value: field n: must be a whole number, not text",
    }


@pytest.mark.long
def test_a_shuffle_gives_every_row_back(host: EngineHost) -> None:
    host.start("counts")
    host.warm_up()
    rows = host.transform(table(list(range(1_000))))
    assert sorted(rows["offset"].to_pylist()) == list(range(1_000))
    assert set(rows["records"].to_pylist()) == {1_000}


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("unknown_column", r"Spark rejects: .*nothing"),
        pytest.param("no_offset", "column offset", marks=pytest.mark.long),
        pytest.param("number_as_error", "_error .* is int", marks=pytest.mark.long),
        pytest.param("no_frame", "returned int, not a Spark DataFrame", marks=pytest.mark.long),
        ("raises", "a batch without rows.*KeyError: 'mine'"),
    ],
)
def test_warm_up_shows_a_bad_handler_before_any_record(host: EngineHost, handler: str, said: str) -> None:
    host.start(handler)
    with pytest.raises(HandlerError, match=said) as raised:
        host.warm_up()
    assert "\n" not in str(raised.value)


def test_a_function_of_the_handlers_module_runs_in_sparks_processes(host: EngineHost) -> None:
    """They have no handlerPath, and those of a Connect server not even the file."""
    host.start("function_of_the_module")
    rows = host.transform(table([0], [b"3"]))
    assert rows.column("n").to_pylist() == [30]


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("fails_in_java", "bad record 5"),
        ("fails_in_python", r"ValueError: offset 5 is unlucky \(.*sh_handlers\.py line \d+\)"),
    ],
)
def test_a_query_that_fails_says_why_in_one_line(host: EngineHost, handler: str, said: str) -> None:
    host.start(handler)
    with pytest.raises(SparkFailure, match=said) as raised:
        host.transform(table([5]))
    assert "\n" not in str(raised.value)


@pytest.mark.long
def test_a_query_that_hangs_is_cancelled_and_the_engine_goes_on(host: EngineHost) -> None:
    host.start("hangs", timeout_ms=15_000)
    host.warm_up()
    began = time.monotonic()
    with pytest.raises(HandlerError, match=r"15000 ms \(handlerTimeoutMs\) on 1 records"):
        host.transform(table([13]))
    assert time.monotonic() - began < 45
    assert host.transform(table([14]))["x"].to_pylist() == [1]


class HostedEngine:
    """The engine of a host as a worker has it."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    def start(self) -> None: ...

    def warm_up(self) -> None: ...

    def refresh(self) -> None: ...

    def transform(self, table: pa.Table, batch: Batch) -> pa.Table:
        return self._host.transform(table)

    def close(self) -> None: ...


@pytest.mark.parametrize("handler", ["amounts", pytest.param("unlucky", marks=pytest.mark.long)])
def test_a_record_that_a_query_fails_with_becomes_a_dead_letter(
    host: EngineHost, handler: str, tmp_path: Path
) -> None:
    host.start(handler)
    bench = Bench(retries=0)
    bench.sink = ParquetSink("flights", str(tmp_path))
    bench.restart(engine=HostedEngine(host))
    produced = [str(number) for number in range(4)]
    produced[2] = "12,50"
    bench.assign(bench.produce(0, *produced))
    bench.until_idle()
    rows = ds.dataset(tmp_path, format="parquet").to_table().sort_by("offset")
    assert rows["offset"].to_pylist() == [offset for offset in range(4) if offset != 2]
    assert rows["n"].to_pylist() == rows["offset"].to_pylist()
    assert bench.letters.origins() == ["flights-0@2"]
    (letter,) = [letter for partition in bench.letters.partitions for letter in partition]
    assert b"12,50" in (dict(letter[3])["slackwater.error"] or b"")


def flights_and_poison() -> tuple[list[bytes | None], list[str | None]]:
    records = list(itertools.islice(with_poison(read_rows(), total=1_500, poison=50, seed=11), 1_550))
    return [record.value for record in records], [record.poison for record in records]


REASONS = {
    "cut_json": "value is not a JSON object, or is cut short",
    "bad_utf8": "value is not valid UTF-8",
    "null_value": "value is null",
    "wrong_type": "distance must be a whole number, not 'far'",
    "oversized_field": "tailnum has 65536 characters, at most 10 fit",
}


@pytest.mark.long
def test_flights_are_transformed_and_poison_gets_its_reason(host: EngineHost) -> None:
    values, kinds = flights_and_poison()
    host.start("flights.pipeline:transform")
    host.warm_up()
    rows = host.transform(table(list(range(len(values))), values)).sort_by("offset").to_pylist()
    assert [row["offset"] for row in rows] == list(range(len(values)))
    reasons = defaultdict(set)
    for value, kind, row in zip(values, kinds, rows, strict=True):
        if kind is not None:
            reasons[kind].add(row["_error"])
            continue
        assert row["_error"] is None
        for name, expected in json.loads(value or b"").items():
            actual = row[name]
            assert (actual.strftime("%Y-%m-%dT%H:%M:%SZ") if name == "time_hour" else actual) == expected
    assert reasons == {kind: {reason} for kind, reason in REASONS.items()}


GOOD = {
    **dict.fromkeys(("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "tailnum")),
    "year": 2013,
    "month": 2,
    "day": 9,
    "sched_dep_time": 600,
    "sched_arr_time": 811,
    "carrier": "UA",
    "flight": 1,
    "origin": "EWR",
    "dest": "IAH",
    "distance": 1400,
    "hour": 6,
    "minute": 0,
    "time_hour": "2013-02-09T11:00:00Z",
}


@pytest.mark.long
def test_flights_are_joined_classified_and_checked(host: EngineHost) -> None:
    changes = [
        {"dep_time": 555, "dep_delay": -5, "tailnum": "N14228"},
        *({"dep_time": 600, "dep_delay": delay, "tailnum": "unknown"} for delay in (0, 14, 15, 59, 60)),
        {},
        *({"carrier": None}, {"time_hour": "soon"}, {"dep_time": True}, {"distance": "1400"}),
    ]
    values = [json.dumps({**GOOD, **change}).encode() for change in changes] + [b"{}", b"[]", b""]
    host.start("flights.pipeline:transform")
    rows = host.transform(table(list(range(len(values))), values)).sort_by("offset").to_pylist()
    assert [row["delay_class"] for row in rows[:7]] == [
        *("early", "on time", "on time", "late", "late", "very late", "cancelled")
    ]
    first = rows[0]
    names = ("airline", "plane_manufacturer", "origin_name", "dest_name", "plane_year")
    assert [first[name] for name in names] == [
        *("United Air Lines Inc.", "BOEING", "Newark Liberty Intl", "George Bush Intercontinental", 1999)
    ]
    assert rows[1]["plane_model"] is None
    assert [row["_error"] for row in rows[:7]] == [None] * 7
    assert [row["_error"] for row in rows[7:]] == [
        "carrier is missing",
        "time_hour must be a time, not 'soon'",
        "dep_time must be a whole number, not 'true'",
        "a field is of another type than its column",
        "year is missing",
        "value is not a JSON object, or is cut short",
        "value is not a JSON object",
    ]
    # The same in a unit test, on a session of the user's, which stays as it was.
    accepted, reasons = host.run(run_in_test, "flights.pipeline:transform", values)
    assert {row["offset"]: row["delay_class"] for row in accepted} == {
        row["offset"]: row["delay_class"] for row in rows[:7]
    }
    assert reasons == {row["offset"]: row["_error"] for row in rows[7:]}
    with pytest.raises(AssertionError, match="depends on the batch's bounds: the record at test-0 offset"):
        host.run(run_in_test, "sh_handlers:counts", values)
    assert host.transform(table([0], values[:1])).num_rows == 1


def test_spark_reads_the_sinks_folder_with_its_defaults(host: EngineHost, tmp_path: Path) -> None:
    host.start("keep")
    sink, tp = ParquetSink("flights", str(tmp_path)), TopicPartition("t", 0)
    for start in (0, 7):
        mark = sink.marks([tp]).get(tp, {}).get("")
        sink.stage(table([start, start + 1]), {tp: Range("", start, start + 2, mark)}).publish()
    sink.stage(table([9]), {tp: Range("", 9, 10, 9)})
    columns = host.read_with_spark(tmp_path)
    assert list(columns) == table([]).column_names
    assert sorted(columns["offset"]) == [0, 1, 7, 8]


def written(out: Path, spark_format: str, **sink: Any) -> dict[str, Any]:
    """A worker's configuration whose sink is a format of Spark."""
    options = {"path": str(out), "compression": "gzip"}
    return {
        "groupId": "g", "topics": ["t"], "bootstrapServers": "h:1", "handler": "m:f",
        "sink": {"format": "spark", "sparkFormat": spark_format, "options": options, **sink},
    }  # fmt: skip


def test_a_format_of_spark_appends_the_rows_of_each_batch(host: EngineHost, tmp_path: Path) -> None:
    """In the session of the engine, also where values are decoded."""
    out = tmp_path / "out"
    host.start("keep", value=ValueConfig("json", schema="n INT"))
    batches = [table([0, 1]), table([]), table([2])]
    host.run(write_in_test, written(out, "parquet", partitionBy=["partition"]), batches)
    host.start("keep")
    host.run(write_in_test, written(out, "parquet", partitionBy=["partition"]), [table([3])])
    columns = ds.dataset(out, format="parquet", partitioning="hive").to_table().to_pydict()
    assert sorted(columns["offset"]) == [0, 1, 2, 3]
    assert sorted(columns["value"]) == [b"v0", b"v0", b"v0", b"v1"]
    assert len(list(out.glob("partition=0/*.gz.parquet"))) == 3, "a file for each batch with rows"
    with pytest.raises(SinkError, match=r"^the sink cannot write with Spark's format nothing: .*nothing"):
        host.run(write_in_test, written(out, "nothing"), [table([4])])


@pytest.mark.long
@pytest.mark.parametrize("spark_format", ["orc", "parquet"])
def test_workers_that_write_concurrently_into_one_folder_lose_and_repeat_no_row(
    host: EngineHost, tmp_path: Path, spark_format: str
) -> None:
    """By Spark's defaults, some of their jobs fail, and the rows of others are lost."""
    host.start("keep")
    out = tmp_path / "out"
    document = written(out, spark_format, options={"path": str(out)}, partitionBy=["partition"])
    host.run(write_concurrently_in_test, document, 3, 8)
    rows = ds.dataset(out, format=spark_format, partitioning="hive").to_table()
    assert sorted(rows["offset"].to_pylist()) == list(range(24))
    left = list((out / "_temporary").rglob("*"))
    assert not [path for path in left if path.is_file()]
    assert not (host.is_local and left)


def test_rows_are_written_where_they_are_and_only_rejected_ones_come_back(
    host: EngineHost, tmp_path: Path
) -> None:
    """The handler's plan runs once: which records it rejects is another lot with each run."""
    host.start("dice", keeps_rows=True)
    out, records = tmp_path / "out", table(list(range(10_000)))
    first = host.run(deliver_in_test, written(out, "parquet"), records)
    columns = ds.dataset(out, format="parquet", partitioning="hive").to_table().to_pydict()
    assert list(columns) == ["topic", "partition", "offset", "id"]
    assert 1_000 < len(first["dead"]) < 9_000
    assert sorted([*columns["offset"], *first["dead"]]) == list(range(10_000))
    assert first["rows"] == len(columns["offset"])
    assert first["checked"] == len(first["dead"])
    assert set(first["dead"].values()) == {"unlucky"}
    assert len(first["held"]) == 1
    assert (first["kept"], first["stored"]) == ([], 0)
    assert len(list(out.glob("*.gz.parquet"))) == 1


@pytest.mark.long
def test_rows_of_a_batch_with_gaps_and_of_values_that_are_rejected_are_checked(
    host: EngineHost, tmp_path: Path
) -> None:
    host.start("typed", keeps_rows=True, value=ValueConfig("json", schema="n INT"))
    records = table([0, 1, 5, 7], [b'{"n": 1}', b"no json", b'{"n": 2}', None])
    end = host.run(deliver_in_test, written(tmp_path / "out", "parquet"), records)
    assert list(end["dead"]) == [1]
    assert end["dead"][1].startswith("JSON value: ")
    assert (end["rows"], end["checked"]) == (3, 4), "because of the gaps all positions are looked at"
    columns = host.read_with_spark(tmp_path / "out")
    assert sorted(zip(columns["offset"], columns["n"], strict=True), key=str) == [(0, 1), (5, 2), (7, None)]


@pytest.mark.long
@pytest.mark.parametrize("host", ["local"], indirect=True)
def test_a_row_that_a_table_behind_jdbc_refuses_is_found_and_the_others_are_stored_once(
    host: EngineHost, tmp_path: Path
) -> None:
    host.start("keep", keeps_rows=True)
    errors, stored = host.run(refuse_in_test, f"jdbc:derby:{tmp_path / 'db'}")
    assert len(errors) == 2
    assert stored == [0, 1, 2, 4, 5]


@pytest.mark.long
def test_rows_that_are_kept_must_carry_positions_of_the_batch(host: EngineHost, tmp_path: Path) -> None:
    host.start("from_elsewhere", keeps_rows=True)
    with pytest.raises(RecordsError, match=r"2 rows whose positions are not among .* t-0 offset 4;"):
        host.run(deliver_in_test, written(tmp_path / "out", "parquet"), table([0, 1, 2, 3]))
    for handler, said in (
        ("no_offset", "must have the column offset"),
        ("number_as_error", "_error .* int32"),
    ):
        host.start(handler, keeps_rows=True)
        with pytest.raises(HandlerError, match=said):
            host.transform(table([0]))


def test_the_rows_of_a_partition_that_was_given_up_are_not_written(host: EngineHost) -> None:
    host.start("keep", keeps_rows=True)
    first, second = table([0, 1]), table([5, 6, 7])
    second = second.set_column(1, second.schema.field("partition"), pa.array([1] * 3, pa.int32()))
    assert host.run(narrowed_in_test, pa.concat_tables([first, second])) == [(3, [5, 6, 7]), (0, [])]


@pytest.mark.long
def test_rows_of_batches_that_are_given_up_do_not_pile_up(host: EngineHost) -> None:
    """The thread that handles batches may hold the last one's until it has the next."""
    host.start("keep", keeps_rows=True)
    views = host.run(give_up_in_test, table([0, 1]))
    assert views[0] == 1
    assert max(views) <= 2


@pytest.mark.long
@pytest.mark.parametrize("host", ["connect"], indirect=True)  # only a server can drop a session
def test_a_lost_session_is_replaced(host: EngineHost) -> None:
    host.start("flights.pipeline:transform")
    host.forget_session()
    rows = host.transform(table([0], [json.dumps(GOOD).encode()]))
    assert rows["_error"].to_pylist() == [None]


def test_a_reference_table_is_set_up_refreshed_and_set_up_again(
    host: EngineHost, request: pytest.FixtureRequest
) -> None:
    def versions() -> list[int]:
        rows = host.transform(table([0, 1]))
        assert rows["attempt"].to_pylist() == [1, 1]
        given: list[int] = rows["version"].to_pylist()
        return given

    host.start("sh_reference:joined", refreshes=True)
    host.warm_up()
    assert versions() == [1, 1]
    host.refresh()
    assert versions() == [2, 2]
    if request.node.callspec.params["host"] == "connect":  # only a server can drop a session
        host.forget_session()
        assert versions() == [3, 3], "the view of the old session is gone"
        host.forget_session()
        host.refresh()
        assert versions() == [4, 4]


def test_the_spark_configuration_reaches_the_session(host: EngineHost) -> None:
    host.start("zone")
    assert host.transform(table([1]))["zone"].to_pylist() == ["UTC"]
    host.start("zone", conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
    assert host.transform(table([1]))["zone"].to_pylist() == ["Asia/Tokyo"]
    host.close_engine()
