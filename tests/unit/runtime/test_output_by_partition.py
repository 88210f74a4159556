"""The handler's output taken apart, and what is said where it is not what it must be."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from slackwater.kafka.records import ARROW_SCHEMA
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.batch import split_output
from slackwater.runtime.delivery.dead_letters import letters_of
from slackwater.runtime.errors import HandlerError

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


def test_rows_go_to_their_partition_in_order() -> None:
    table = output().take([3, 0, 4, 2, 1])
    parts = split_output(table, INPUTS)
    assert parts[A].rows.column("offset").to_pylist() == [5, 9, 6]
    assert parts[B].rows.column("offset").to_pylist() == [0, 1]
    assert parts[A].dead == parts[B].dead == []


def test_rows_with_an_error_are_dead_and_the_column_goes() -> None:
    parts = split_output(output(_error=pa.array([None, "bad", None, "worse", None])), INPUTS)
    assert parts[A].dead == [(6, "bad")]
    assert parts[A].rows.column("offset").to_pylist() == [5, 9]
    assert parts[B].dead == [(0, "worse")]
    assert "_error" not in parts[A].rows.column_names


def test_a_record_that_became_several_rows_dies_once() -> None:
    table = output(_error=pa.array(["a", None, "c", None, None]))
    table = pa.concat_tables([table, output(_error=pa.array(["b", None, None, None, None]))])
    assert split_output(table, INPUTS)[A].dead == [(5, "a"), (9, "c")]


def test_no_rows_for_a_partition_is_a_part_without_rows() -> None:
    parts = split_output(output().slice(0, 3), INPUTS)
    assert parts[B].rows.num_rows == 0
    assert parts[B].rows.column_names == ARROW_SCHEMA.names


def test_other_number_types_of_the_place_are_taken() -> None:
    for topic in (
        pa.array(["flights"] * 5, pa.large_string()),
        pa.array(["flights"] * 5).dictionary_encode(),
    ):
        table = output(partition=pa.array([0, 0, 0, 1, 1], pa.int64()), topic=topic)
        assert split_output(table, INPUTS)[B].rows.num_rows == 2


def test_a_record_may_have_several_rows_in_a_batch_with_gaps() -> None:
    parts = split_output(output().take([0, 0, 2, 2, 2]), INPUTS)
    assert parts[A].rows.column("offset").to_pylist() == [5, 5, 9, 9, 9]


def test_an_error_column_of_nulls_only_is_no_error() -> None:
    assert split_output(output(_error=pa.nulls(5)), INPUTS)[A].dead == []


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
        split_output(result, INPUTS)
    assert raised.value.exit_code == 4


def test_letters_are_the_records_as_they_were_polled() -> None:
    first, second = letters_of(INPUTS[A], [(6, "bad"), (9, "worse")])
    assert (first.offset, first.error, first.key, first.value) == (6, "bad", None, b"v6")
    assert first.headers == [("h", b"x"), ("h", None)]
    assert (second.offset, second.timestamp_ms) == (9, 1009)
    assert letters_of(INPUTS[A], []) == []
