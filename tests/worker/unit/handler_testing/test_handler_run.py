"""``slackwater.testing.run``: a handler in a unit test. One case with Spark is in ``test_pipeline_spark``."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from slackwater import Batch, Retry
from slackwater.kafka import ConsumerRecord
from slackwater.runtime.errors import HandlerError, HandlerLoadError, HandlerTimeoutError, RecordsError
from slackwater.testing import record, run

Rows = Iterator[dict[str, Any]]


def place(given: ConsumerRecord) -> dict[str, Any]:
    return {"topic": given.topic, "partition": given.partition, "offset": given.offset}


def parse(records: list[ConsumerRecord]) -> Rows:
    for given in records:
        try:
            yield {**json.loads(given.value), **place(given), "_error": None}
        except (TypeError, ValueError) as exc:
            yield {**place(given), "_error": f"no JSON: {type(exc).__name__}"}


def count(records: list[ConsumerRecord]) -> Rows:
    for given in records:
        yield {**place(given), "records": len(records)}


def strict(records: list[ConsumerRecord]) -> Rows:
    for given in records:
        yield {**place(given), "n": json.loads(given.value)["n"] + 1}


def upper(table: pa.Table) -> pa.Table:
    text = pc.utf8_upper(table["value"].cast(pa.string()))
    return table.select(["topic", "partition", "offset"]).append_column("text", text)


def test_rows_and_dead_letters_of_values() -> None:
    result = run(parse, [{"n": 1}, b'{"n": 2}', "no", None], "python", topic="t", partition=3, offset=40)
    assert result.to_pylist() == [
        {"topic": "t", "partition": 3, "offset": 40, "n": 1},
        {"topic": "t", "partition": 3, "offset": 41, "n": 2},
    ]
    assert result.rows.schema.field("n").type == pa.int64()
    assert [(letter.partition, letter.offset, letter.reason) for letter in result.dead_letters] == [
        (3, 42, "no JSON: JSONDecodeError"),
        (3, 43, "no JSON: TypeError"),
    ]
    assert [letter.record.value for letter in result.dead_letters] == [b"no", None]


def test_records_have_what_the_test_gives_them() -> None:
    seen: list[ConsumerRecord] = []

    def keep(records: list[ConsumerRecord]) -> Rows:
        seen.extend(records)
        return iter([place(given) for given in records])

    own = ConsumerRecord("mine", 1, -1, 9, 123, 0, b"k", b"v", [("a", b"b")])
    at = datetime(2026, 1, 2, tzinfo=UTC)
    given = [record("x", partition=2, offset=5, key={"id": 1}, headers={"h": "v"}, timestamp=at), "y", own]
    run(keep, given, "python", split=False, timestamp=7)
    assert [(one.topic, one.partition, one.offset) for one in seen] == [
        ("mine", 1, 9),
        ("test", 0, 0),
        ("test", 2, 5),
    ]
    assert seen[0] == own
    assert (seen[1].value, seen[1].timestamp) == (b"y", 7)
    assert (seen[2].key, seen[2].headers) == (b'{"id": 1}', [("h", b"v")])
    assert seen[2].timestamp == 1767312000000


def test_a_table_of_records() -> None:
    table = pa.table({"value": ["a", "b"], "offset": pa.array([3, 9], pa.int32()), "key": [b"k", None]})
    result = run(upper, table, "arrow")
    assert [(row["offset"], row["text"]) for row in result.to_pylist()] == [(3, "A"), (9, "B")]
    with pytest.raises(ValueError, match="records has the columns text: give value"):
        run(upper, pa.table({"text": ["a"]}), "arrow")


def test_a_handler_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "named_handler.py").write_text("def keep(table):\n    return table\n")
    assert run("named_handler:keep", ["a"], "arrow", handler_path=[str(tmp_path)]).rows.num_rows == 1
    with pytest.raises(HandlerLoadError, match="no function kep; did you mean keep"):
        run("named_handler:kep", ["a"], "arrow")


@pytest.mark.parametrize("size", [2, 20])
def test_a_handler_that_depends_on_the_batch_is_named_with_the_record(size: int) -> None:
    values = [{"n": i} for i in range(size)]
    with pytest.raises(AssertionError, match="depends on the batch's bounds") as raised:
        run(count, values, "python")
    text = str(raised.value)
    assert "the record at test-0 offset 0 differs" in text
    assert f"with all {size} records: {{'offset': 0, 'partition': 0, 'records': {size}, " in text
    assert "pass split=False" in text
    assert run(count, values, "python", split=False).rows["records"].to_pylist() == [size] * size


def test_only_a_record_alone_shows_the_first_of_each_batch() -> None:
    """No random split of two pieces ends before the last record, so what is tried alone finds it."""

    def drops_the_last(records: list[ConsumerRecord]) -> Rows:
        yield from (place(given) for given in records if len(records) > 1)

    values = [str(i) for i in range(3)]
    run(drops_the_last, values, "python", splits=0, singles=0)
    with pytest.raises(AssertionError, match=r"1 record, test-0 offset 0 \(alone\): no row"):
        run(drops_the_last, values, "python", splits=0)


def test_splits_are_the_same_for_the_same_seed() -> None:
    def batches(seed: int) -> list[list[int]]:
        calls: list[list[int]] = []

        def keep(records: list[ConsumerRecord]) -> Rows:
            calls.append([given.offset for given in records])
            return iter([place(given) for given in records])

        run(keep, [str(i) for i in range(30)], "python", seed=seed, singles=0)
        return calls

    assert batches(1) == batches(1) != batches(2)
    assert [len(batch) for batch in batches(1)[:2]] == [0, 30], "without records, then all of them"
    assert sum(map(len, batches(1)[2:])) == 3 * 30


def test_a_dead_letter_that_depends_on_the_batch_is_a_difference() -> None:
    def only_first(records: list[ConsumerRecord]) -> Rows:
        for at, given in enumerate(records):
            yield {**place(given), "_error": "not the first" if at else None}

    with pytest.raises(AssertionError, match="a dead letter: not the first"):
        run(only_first, ["a", "b"], "python")


def test_types_that_depend_on_the_batch_are_a_difference() -> None:
    def column(table: pa.Table) -> pa.Table:
        kind = pa.int64() if table.num_rows != 1 else pa.string()
        values = table["value"].cast(pa.string()).cast(kind)
        return table.select(["topic", "partition", "offset"]).append_column("n", values)

    with pytest.raises(AssertionError, match="depends on the batch's bounds"):
        run(column, ["1", "2", "3"], "arrow")


def test_a_handler_that_gives_something_else_each_time() -> None:
    def chance(records: list[ConsumerRecord]) -> Rows:
        yield from ({**place(given), "at": random.random()} for given in records)

    with pytest.raises(AssertionError, match="different rows for the same records: .*offset 0"):
        run(chance, ["a", "b"], "python")
    assert run(chance, ["a", "b"], "python", ignore=["at"]).rows.num_rows == 2


def test_numbers_of_two_types_are_no_difference() -> None:
    """Alone, 1 makes a column of integers; a table's column of floats holds it."""
    result = run(parse, [{"n": 1}, {"n": 2.5}, {"m": float("nan")}], "python")
    assert result.rows["n"].to_pylist() == [1.0, 2.5, None]


def test_a_record_that_breaks_the_batch_is_a_dead_letter_as_in_a_worker() -> None:
    values = [{"n": i} if i != 4 else {"n": "four"} for i in range(12)]
    result = run(strict, values, "python")
    assert result.rows["offset"].to_pylist() == [i for i in range(12) if i != 4]
    (letter,) = result.dead_letters
    assert (letter.offset, letter.record.value) == (4, b'{"n": "four"}')
    assert letter.reason.startswith("the batch fails with this record: RowFailed: TypeError: can only conc")
    assert letter.stack.startswith("Traceback")
    assert letter.stack.rstrip().endswith('TypeError: can only concatenate str (not "int") to str')
    with pytest.raises(TypeError, match="can only concatenate"):
        run(strict, values, "python", isolate=False)


def test_too_many_records_at_fault_are_the_handlers_fault() -> None:
    with pytest.raises(HandlerError, match="More than 10 of its 20 records fail"):
        run(strict, [{"n": "x"}] * 20, "python")


@pytest.mark.parametrize(
    ("handler", "error", "words"),
    [
        (
            lambda table: table if table.num_rows else dict[str, Any]()["nothing"],
            HandlerError,
            "a table without rows",
        ),
        (lambda table: table.drop_columns(["offset"]), HandlerError, "must have the column offset"),
        (lambda table: 3, HandlerError, "returned int, not a table"),
    ],
)
def test_what_a_worker_refuses_at_its_warm_up(handler: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run(handler, ["a"], "arrow")


def test_a_row_of_no_record_is_refused() -> None:
    def moves(table: pa.Table) -> pa.Table:
        return table.set_column(2, "offset", pc.add(table["offset"], 100))

    with pytest.raises(RecordsError, match="row 0 says test-0 offset 100"):
        run(moves, ["a"], "arrow", isolate=False)


def test_a_handler_that_hangs_ends_at_its_time_limit() -> None:
    import threading

    release = threading.Event()

    def hangs(table: pa.Table) -> pa.Table:
        if table.num_rows:
            release.wait()
        return table

    with pytest.raises(HandlerTimeoutError, match="did not end within 50 ms"):
        run(hangs, ["a"], "arrow", timeout_ms=50)
    release.set()


@pytest.mark.parametrize(
    ("records", "engine", "error", "words"),
    [
        (["a"], "duckdb", ValueError, "engine is 'duckdb': give one of arrow, python, spark"),
        ("a", "arrow", TypeError, "records is one str: give a list"),
        ([3], "arrow", TypeError, r"records\[0\] is int: give bytes, text"),
        ([record("a", offset=1), record("b", offset=1)], "arrow", ValueError, "test-0 offset 1 already"),
        ([record("a", offset=-1)], "arrow", ValueError, "must not be negative"),
    ],
)
def test_arguments_that_cannot_be_used(records: Any, engine: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run(upper, records, engine)


def test_without_records_the_handler_is_tried_without_records() -> None:
    assert run(upper, [], "arrow").rows.num_rows == 0


def test_setup_of_the_module_is_called_before_the_handler(tmp_path: Path) -> None:
    (tmp_path / "hr_names.py").write_text(
        "names = {}\n"
        "def setup(spark):\n    names['JFK'] = f'Kennedy {spark}'\n"
        "def transform(records):\n"
        "    for r in records:\n"
        "        place = {'topic': r.topic, 'partition': r.partition, 'offset': r.offset}\n"
        "        yield {'name': names[r.value.decode()], **place}\n"
    )
    result = run("hr_names:transform", [b"JFK"], "python", handler_path=[str(tmp_path)])
    assert [row["name"] for row in result.to_pylist()] == ["Kennedy None"]
    module = sys.modules.pop("hr_names")
    module.names.clear()
    sys.modules["hr_names"] = module
    again = run(module.transform, [b"JFK"], "python")
    assert [row["name"] for row in again.to_pylist()] == ["Kennedy None"], "of the function's module"


def test_a_handler_that_asks_is_told_its_batch() -> None:
    def ends(records: list[ConsumerRecord], batch: Batch) -> Rows:
        for given in records:
            assert batch.ranges[given.topic, given.partition].start <= given.offset  # type: ignore[index]
            yield {**place(given), "of": f"{batch.group_id} {batch.instance} {batch.attempt}"}

    assert run(ends, [b"a", b"b"], "python").to_pylist()[1]["of"] == "test test 1"


@pytest.mark.parametrize("isolate", [True, False])
def test_a_handler_that_asks_to_be_tried_again_blames_no_record(isolate: bool) -> None:
    def away(records: list[ConsumerRecord]) -> Rows:
        yield from (place(given) for given in records)
        if records:
            raise Retry("the rates are away")

    with pytest.raises(HandlerError if isolate else Retry, match="the rates are away"):
        run(away, [b"a"], "python", isolate=isolate)


def test_what_is_away_while_records_at_fault_are_looked_for_is_an_error_of_the_handler() -> None:
    def away(records: list[ConsumerRecord]) -> Rows:
        if len(records) == 1:
            raise Retry("the rates are away")
        if records:
            raise ValueError("bad")
        return iter(())

    with pytest.raises(HandlerError, match="the rates are away"):
        run(away, [b"a", b"b"], "python")


ORDER = {"format": "json", "schema": "order BIGINT NOT NULL, amount DOUBLE"}


def price(table: pa.Table) -> pa.Table:
    orders = table["value"].combine_chunks()
    return table.select(["topic", "partition", "offset"]).append_column(
        "amount", pc.multiply(pc.struct_field(orders, "amount"), 2.0)
    )


def price_each(records: list[ConsumerRecord]) -> Rows:
    for given in records:
        value: Any = given.value
        yield {**place(given), "amount": value["amount"] * 2}


@pytest.mark.parametrize(("handler", "engine"), [(price, "arrow"), (price_each, "python")])
def test_the_handler_gets_decoded_values(handler: Any, engine: str) -> None:
    result = run(
        handler, [{"order": 1, "amount": 1.5}, "no json", {"order": 2, "amount": 4}], engine, value=ORDER
    )
    assert result.rows["amount"].to_pylist() == [3.0, 8.0]
    (letter,) = result.dead_letters
    assert (letter.offset, letter.record.value) == (1, b"no json")


def test_a_value_section_that_cannot_be_used_is_named() -> None:
    with pytest.raises(ValueError, match="value.schema is missing; set it, or registry"):
        run(price, ["{}"], "arrow", value={"format": "json"})
    with pytest.raises(ValueError, match=r"value\.formt"):
        run(price, ["{}"], "arrow", value={"formt": "json"})
