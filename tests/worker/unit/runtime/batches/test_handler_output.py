"""The check of a handler's output, and the errors where it is not what it must be."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from slackwater.kafka.records import ARROW_SCHEMA
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.dead_letters import letters_of
from slackwater.runtime.errors import HandlerError
from slackwater.runtime.handler_output import checked_output

A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)


def polled(tp: TopicPartition, offsets: list[int]) -> pa.RecordBatch:
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": offset,
            "timestamp": 1000 + offset,
            "key": None,
            "value": b"v%d" % offset,
            "headers": [{"key": "h", "value": b"x"}, {"key": "h", "value": None}],
        }
        for offset in offsets
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ARROW_SCHEMA)


INPUTS = {A: polled(A, [5, 6, 9]), B: polled(B, [0, 1])}


def output(**changes: Any) -> pa.Table:
    table = pa.Table.from_batches(INPUTS.values())
    for name, column in changes.items():
        at = table.schema.get_field_index(name)
        if column is None:
            table = table.drop_columns([name])
        elif at < 0:
            table = table.append_column(name, column)
        else:
            table = table.set_column(at, name, column)
    return table


def offsets(rows: pa.Table, tp: TopicPartition) -> list[int]:
    return [row["offset"] for row in rows.to_pylist() if row["partition"] == tp.partition]


def test_rows_stay_in_the_handlers_order_and_are_counted_by_partition() -> None:
    table = output().take([3, 0, 4, 2, 1])
    made = checked_output(table, INPUTS)
    assert made.rows.column("offset").to_pylist() == [0, 5, 1, 9, 6]
    assert made.counts == {A: 3, B: 2}
    assert made.dead == {}


def test_rows_with_an_error_are_dead_and_the_column_goes() -> None:
    made = checked_output(output(_error=pa.array([None, "bad", None, "worse", None])), INPUTS)
    assert made.dead == {A: [(6, "bad")], B: [(0, "worse")]}
    assert (offsets(made.rows, A), offsets(made.rows, B)) == ([5, 9], [1])
    assert made.counts == {A: 2, B: 1}
    assert "_error" not in made.rows.column_names


def test_a_record_that_became_several_rows_dies_once() -> None:
    table = output(_error=pa.array(["a", None, "c", None, None]))
    table = pa.concat_tables([table, output(_error=pa.array(["b", None, None, None, None]))])
    made = checked_output(table, INPUTS)
    assert made.dead == {A: [(5, "a"), (9, "c")]}
    assert made.counts == {A: 3, B: 4}


def test_a_partition_without_rows_is_counted_too() -> None:
    made = checked_output(output().slice(0, 3), INPUTS)
    assert made.counts == {A: 3, B: 0}
    assert made.rows.column_names == ARROW_SCHEMA.names


def test_other_types_of_the_position_are_taken_and_made_alike() -> None:
    for topic in (
        pa.array(["flights"] * 5, pa.large_string()),
        pa.array(["flights"] * 5).dictionary_encode(),
    ):
        table = output(partition=pa.array([0, 0, 0, 1, 1], pa.int64()), topic=topic)
        made = checked_output(table, INPUTS)
        assert made.counts == {A: 3, B: 2}
        assert made.rows.schema == ARROW_SCHEMA


def test_a_record_may_have_several_rows_in_a_batch_with_gaps() -> None:
    made = checked_output(output().take([0, 0, 2, 2, 2]), INPUTS)
    assert made.counts[A] == 5
    assert offsets(made.rows, A) == [5, 5, 9, 9, 9]


def test_an_error_column_of_nulls_only_is_no_error() -> None:
    made = checked_output(output(_error=pa.nulls(5)), INPUTS)
    assert made.dead == {}
    assert made.counts == {A: 3, B: 2}


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "returned NoneType, not a table"),
        ([1], "returned list, not a table"),
        (output(offset=None), "must have the column offset .it has: topic, partition, timestamp"),
        (output(topic=pa.nulls(5, pa.string())), "has no topic in 5 of 5 rows"),
        (output(offset=pa.array(["5"] * 5)), "offset of the handler's result is string, not int64"),
        (output(offset=pa.array([5.0] * 5)), "offset of the handler's result is double, not int64"),
        (output(partition=pa.array([True] * 5)), "partition of the handler's result is bool, not int32"),
        (output(topic=pa.array([b"flights"] * 5)), "topic of the handler's result is binary, not string"),
        (output(partition=pa.array([2**40] * 5)), "partition .* int64 and has values that are no int32"),
        (output(_error=pa.array([1, 2, 3, 4, 5])), "_error of the handler's result is int64, not string"),
        (
            pa.table([*output().columns, output()["key"]], names=[*output().column_names, "key"]),
            "the column key 2 times",
        ),
        (
            output(offset=pa.array([5, 6, 9, 0, 7])),
            "a row whose position is not among the batch's records: row 4 says flights-1 offset 7; each row "
            "must carry topic, partition, offset of its record",
        ),
        (output(offset=pa.array([5, 7, 8, 0, 1])), "2 rows whose positions are not .* flights-0 offset 7"),
        (output(partition=pa.array([0, 1, 0, 1, 1])), "row 1 says flights-1 offset 6"),
        (
            output(offset=pa.array([5, 8, 9, 0, 1]), _error=pa.array([None, "bad", None, None, None])),
            "row 1 says flights-0 offset 8",
        ),
        (output(topic=pa.array(["other"] * 5)), "5 rows whose positions are not .* other-0 offset 5"),
    ],
)
def test_a_wrong_result_is_reported(result: Any, words: str) -> None:
    with pytest.raises(HandlerError, match=words) as raised:
        checked_output(result, INPUTS)
    assert raised.value.exit_code == 4


def test_letters_are_the_records_as_they_were_polled() -> None:
    first, second = letters_of(INPUTS[A], [(6, "bad"), (9, "worse")])
    assert (first.offset, first.error, first.key, first.value) == (6, "bad", None, b"v6")
    assert first.headers == [("h", b"x"), ("h", None)]
    assert (second.offset, second.timestamp_ms) == (9, 1009)
    assert letters_of(INPUTS[A], []) == []
