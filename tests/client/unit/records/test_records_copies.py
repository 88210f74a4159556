"""Records and columns copy and pickle like plain objects, before and after their bytes were read."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import kafka.consumer.fetcher
import pytest

from slackwater.kafka import records
from tests.support.records.fetched import EXPECTED, ROWS, contents, fetched
from tests.support.records.parsing import PARSERS, batch, message, use_parser

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)
Copy = Callable[[Any], Any]


def _pickled(protocol: int) -> Copy:
    return lambda given: pickle.loads(pickle.dumps(given, protocol))


COPIES: dict[str, Copy] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {protocol}": _pickled(protocol) for protocol in PROTOCOLS},
}


pytestmark = pytest.mark.usefixtures("parser")


@pytest.mark.parametrize("read", ["not read", "key read", "all read"])
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_holds_what_the_record_holds(how: str, read: str) -> None:
    columns = fetched()
    made = columns.records("t", 7)
    for record in made:
        if read == "key read":
            assert record.key is None or isinstance(record.key, bytes)
        elif read == "all read":
            contents(record)
    copies = [COPIES[how](record) for record in made]
    del columns, made, record
    gc.collect(1)  # they are young
    bytearray(b"\xff" * 100_000)  # where the fetch may have been
    assert [contents(record)[: len(EXPECTED[0])] for record in copies] == EXPECTED
    assert [record.serialized_key_size for record in copies] == [3, -1, 0] * 2
    assert [record.serialized_value_size for record in copies] == [100, -1, 9] * 2


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_equals_its_record_and_shares_nothing_that_changes(how: str) -> None:
    record = fetched().record(0, "t", 7)
    made = COPIES[how](record)
    assert made == record
    assert hash(made) == hash(record)
    assert repr(made) == repr(record)
    assert type(made) is type(record)
    made.value = {"a": 1}
    assert record.value == ROWS[0][1]
    assert made != record


@pytest.mark.parametrize("how", COPIES)
def test_deserialized_values_are_copied_as_in_any_object(how: str) -> None:
    record = fetched().record(0, "t", 7)
    record.key, record.value = "k", {"list": [1, 2], "self": record}
    made = COPIES[how](record)
    assert (made.key, made.value["list"]) == ("k", [1, 2])
    if how == "copy":
        assert made.value is record.value
    else:
        assert made.value["list"] is not record.value["list"]
        assert made.value["self"] is made


@pytest.mark.parametrize("how", COPIES)
def test_records_of_message_sets_are_copied(how: str) -> None:
    data = message(3, 0, b"old", key=b"k") + message(4, 0, None)
    made = [COPIES[how](record) for record in records.decode(data, fetch_offset=3).records("t", 0)]
    assert [(r.offset, r.key, r.value, r.headers, r.timestamp_type) for r in made] == [
        (3, b"k", b"old", [], -1),
        (4, None, None, [], -1),
    ]


@pytest.mark.parts("parser")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_one_parser_pickled_the_other_reads(protocol: int, parser: Any) -> None:
    packed = pickle.dumps(fetched().records("t", 7), protocol)
    other = "pure" if parser is PARSERS["compiled"] else "compiled"
    use_parser(other)
    made = pickle.loads(packed)
    assert {type(record) for record in made} == {PARSERS[other].ConsumerRecord}
    assert [contents(record)[: len(EXPECTED[0])] for record in made] == EXPECTED


def _subclass(base: type) -> Any:
    class Traced(base):  # type: ignore[misc]
        __slots__ = ("__dict__", "span")

    Traced.__qualname__ = "Traced"
    globals()["Traced"] = Traced
    return Traced


@pytest.mark.parametrize("how", COPIES)
def test_a_subclass_stays_one_with_its_attributes(how: str, parser: Any) -> None:
    traced = _subclass(parser.ConsumerRecord)("t", 1, -1, 9, -1, 0, b"k", b"v", [("h", None)])
    traced.span, traced.note = "abc", ["n"]
    made = COPIES[how](traced)
    assert type(made) is type(traced)
    assert (made.span, made.note, made.key, made.headers) == ("abc", ["n"], b"k", [("h", None)])
    assert made == traced


def test_records_compare_by_all_their_fields(parser: Any) -> None:
    record, other = fetched().record(0, "t", 7), fetched().record(0, "t", 7)
    assert record == other
    assert len({record, other}) == 1
    assert record != fetched().record(0, "t", 8)
    assert record != fetched().record(1, "t", 7)
    assert record != "record"
    other.headers.append(("more", b""))
    assert record != other


def test_a_record_offers_what_kafka_pythons_named_tuple_does() -> None:
    theirs = kafka.consumer.fetcher.ConsumerRecord
    record = fetched().record(0, "t", 7)
    assert record._fields == theirs._fields
    assert record._asdict() == theirs(*contents(record))._asdict()
    changed = record._replace(value=7, topic="u")
    assert (changed.topic, changed.value, changed.key) == ("u", 7, b"key")
    assert (record.topic, record.value) == ("t", ROWS[0][1])
    for name in ("size", "checksum"):
        with pytest.raises(ValueError, match=name):
            record._replace(**{name: 1})


def test_a_record_is_made_by_its_fields(parser: Any) -> None:
    record = parser.ConsumerRecord(
        "t", 1, leader_epoch=-1, offset=9, timestamp=5, timestamp_type=0, key=b"k", value={"a": 1}
    )
    assert (record.topic, record.partition, record.offset, record.key) == ("t", 1, 9, b"k")
    assert (record.value, record.headers, record.serialized_header_size) == ({"a": 1}, [], -1)


@pytest.mark.parametrize("how", COPIES)
def test_columns_are_copied_with_their_rows(how: str) -> None:
    columns = fetched()
    for part in (columns, columns.slice(1, 5), columns.slice(2, 2), columns.slice(4, 6)):
        made = COPIES[how](part)
        assert made.records("t", 7) == part.records("t", 7)
        assert made.to_arrow("t", 7) == part.to_arrow("t", 7)
        assert (made.first_offset, made.next_offset) == (part.first_offset, part.next_offset)
        assert [r.offset for r in made.slice(0, 1).records("t", 7)] == [part.first_offset][: len(part)]


def test_a_pickled_slice_leaves_the_rest_of_the_fetch_behind() -> None:
    columns = fetched(2000)
    assert len(pickle.dumps(columns.slice(10, 13))) < 2_000 < len(pickle.dumps(columns))


def test_columns_of_message_sets_are_pickled() -> None:
    data = message(3, 1, b"old", key=b"k") + message(4, 1, None)
    columns = records.decode(data, fetch_offset=3)
    assert pickle.loads(pickle.dumps(columns)).records("t", 0) == columns.records("t", 0)


def test_what_holds_memory_of_its_own_refuses_to_be_copied(parser: Any) -> None:
    encoder = parser.RecordEncoder()
    encoder.append(0, 0, b"k", b"v", [])
    for how, make in COPIES.items():
        with pytest.raises(TypeError, match="cannot pickle"):
            make(encoder)
        assert encoder.getvalue(), how


@pytest.mark.parts("parser")
def test_no_compiled_class_is_copied_without_saying_how() -> None:
    """Cython would copy a pointer as if it were a string."""
    classes = [value for _, value in inspect.getmembers(PARSERS["compiled"], inspect.isclass)]
    compiled = [each for each in classes if each.__module__ == PARSERS["compiled"].__name__]
    assert {each.__name__ for each in compiled} == {"ConsumerRecord", "RecordEncoder"}
    for each in compiled:
        assert not hasattr(each, "__setstate_cython__")


def test_headers_of_batches_are_copied() -> None:
    header = next(records.iter_batches(batch(b"", 0, base_offset=9)))
    for make in COPIES.values():
        assert make(header) == header
