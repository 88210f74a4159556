"""Dead letters and receipts, read back from records that may come from anybody."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from slackwater.kafka import ConsumerRecord
from slackwater.kafka.structs import TopicPartition
from slackwater.tools.letters import Selection, StoredLetter, letter_of
from slackwater.tools.receipts import BEGIN, END, RECEIPT_HEADER, Ledger, Receipt, receipt_of
from slackwater.tools.record_text import plain, printable, table, text_or_hex
from slackwater.tools.replay import headers_of

WORKERS: list[tuple[str, bytes | None]] = [
    ("slackwater.error", b"is bad"),
    ("slackwater.topic", b"flights"),
    ("slackwater.partition", b"3"),
    ("slackwater.offset", b"42"),
    ("slackwater.timestamp", b"1700000000000"),
    ("slackwater.group", b"g"),
    ("slackwater.attempt", b"3"),
    ("slackwater.stack", b"Traceback ..."),
]


def record(headers: list[tuple[str, bytes | None]], value: bytes | None = b"v") -> ConsumerRecord:
    return ConsumerRecord("dlq", 1, -1, 7, 1_800_000_000_000, 0, b"k", value, headers)


def letter() -> StoredLetter:
    made = letter_of(record([("h", b"x"), *WORKERS]))
    assert made is not None
    return made


def test_a_letter_of_a_worker() -> None:
    made = letter()
    assert (made.tp, made.offset, made.written_ms) == (TopicPartition("dlq", 1), 7, 1_800_000_000_000)
    assert (made.source, made.source_offset, made.timestamp_ms) == (("flights", 3), 42, 1_700_000_000_000)
    assert (made.error, made.attempt, made.stack) == ("is bad", 3, "Traceback ...")
    assert (made.key, made.value, made.headers) == (b"k", b"v", [("h", b"x")])


def test_a_letter_of_an_older_worker_has_no_attempt() -> None:
    made = letter_of(record(WORKERS[:6]))
    assert made is not None
    assert (made.attempt, made.stack, made.headers) == (None, "", [])


def test_headers_of_an_earlier_letter_are_the_records_own() -> None:
    earlier = [("h", b"x"), *WORKERS]
    made = letter_of(record([*earlier, *WORKERS[:2], ("slackwater.partition", b"9"), *WORKERS[3:]]))
    assert made is not None
    assert made.source.partition == 9
    assert made.headers == earlier


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("h", b"x")],
        WORKERS[1:],
        [*WORKERS[:3], ("slackwater.offset", b"many"), *WORKERS[4:]],
        [*WORKERS[:1], ("slackwater.topic", b"\xff"), *WORKERS[2:]],
        [*WORKERS[:1], ("slackwater.topic", None), *WORKERS[2:]],
        [*WORKERS[:1], ("slackwater.topic", b"a\x1b[31m"), *WORKERS[2:]],
        [*WORKERS[:2], ("slackwater.partition", b"-3"), *WORKERS[3:]],
        [*WORKERS[:2], ("slackwater.partition", b"2147483648"), *WORKERS[3:]],
        [*WORKERS[:3], ("slackwater.offset", b"9" * 4000), *WORKERS[4:]],
        [*WORKERS, ("other", b"")],
    ],
)
def test_what_is_no_letter(headers: Any) -> None:
    assert letter_of(record(headers)) is None


@pytest.mark.parametrize(
    ("choice", "selected"),
    [
        ({}, True),
        ({"topic": "flights"}, True),
        ({"topic": "orders"}, False),
        ({"partition": 3}, True),
        ({"partition": 0}, False),
        ({"offsets": frozenset({41, 42})}, True),
        ({"offsets": frozenset({41})}, False),
        ({"error": "bad"}, True),
        ({"error": "good"}, False),
        ({"since_ms": 1_800_000_000_000}, True),
        ({"since_ms": 1_800_000_000_001}, False),
        ({"until_ms": 1_800_000_000_000}, False),
        ({"until_ms": 1_800_000_000_001}, True),
    ],
)
def test_selections(choice: dict[str, Any], selected: bool) -> None:
    assert Selection("g", **choice).has(letter()) is selected
    assert Selection("g", **choice).everything is (not choice)
    assert not Selection("other", **choice).has(letter())


def test_a_record_that_is_sent_again_says_where_it_comes_from_once() -> None:
    own: list[tuple[str, bytes | None]] = [
        ("slackwater.replayed", b"dlq:0:1"),
        ("h", b"x"),
        ("slackwater.replayed.from", b"flights:3:5"),
    ]
    made = letter_of(record([*own, *WORKERS]))
    assert made is not None
    assert list(headers_of(made)) == [
        ("h", b"x"),
        ("slackwater.replayed", b"dlq:1:7"),
        ("slackwater.replayed.from", b"flights:3:42"),
    ]


def stored(receipt: Receipt) -> ConsumerRecord:
    return record([(RECEIPT_HEADER, receipt.kind.encode())], receipt.encode())


def test_receipts() -> None:
    begin = Receipt(BEGIN, "a", (3, 5), "flights", {0: 10, 1: 0})
    other = Receipt(BEGIN, "b", (9,), "flights", {0: 10})
    assert receipt_of(stored(begin)) == begin
    assert Ledger.of(map(stored, [begin, other])) == Ledger(set(), {"a": begin, "b": other})
    ended = [begin, other, Receipt(END, "a", (3, 5), "flights"), Receipt(END, "b", (), "flights")]
    assert Ledger.of(map(stored, ended)) == Ledger({3, 5}, {})
    assert Ledger.of([record(WORKERS), *map(stored, ended)]) == Ledger({3, 5}, {})


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"[]",
        b"{}",
        json.dumps({"replay": "a", "letters": [-1], "topic": "t", "ends": {}}).encode(),
    ],
)
def test_what_is_no_receipt(value: bytes | None) -> None:
    assert receipt_of(record([(RECEIPT_HEADER, b"begin")], value)) is None
    assert receipt_of(record([(RECEIPT_HEADER, b"other")], b"{}")) is None


def test_what_a_terminal_shows_does_not_control_it() -> None:
    assert printable("a\x1b[31m\nb\u202e") == "a\\x1b[31m\\nb\\u202e"
    assert text_or_hex(b"caf\xc3\xa9") == "café"
    assert text_or_hex(b"\xff\x00") == "0xff00"
    assert plain({"a": [b"\xff", float("nan"), None, True]}) == {"a": ["0xff", "nan", None, True]}
    assert table(["name", "n"], [["x\n", None], ["yy" * 40, 12]]) == [
        "name".ljust(40) + "  n",
        "x\\n".ljust(40) + "  null",
        "yy" * 18 + "y..." + "  12",
    ]


def test_letters_of_a_groups_backfills_are_the_groups() -> None:
    of_backfill = replace(letter(), group="g.backfill.january")
    assert Selection("g").has(of_backfill)
    assert not Selection("g.backfill.june").has(of_backfill)
    assert not Selection("g").has(replace(letter(), group="g.other"))
