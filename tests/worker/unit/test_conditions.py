"""Conditions on rows: what they mean, and what is refused with where it is."""

from __future__ import annotations

import datetime
import decimal

import pyarrow as pa
import pytest

from slackwater.conditions import MAX_CHARACTERS, MAX_DEPTH, Condition, ConditionTextError, ConditionTypeError

ROWS = pa.table(
    {
        "kind": ["order", "refund", None, "it's"],
        "coded": pa.array(["order", "refund", None, "order"]).dictionary_encode(),
        "n": [1, 2, 3, None],
        "price": pa.array([decimal.Decimal("1.50"), None, None, decimal.Decimal(-2)], pa.decimal128(5, 2)),
        "source": [{"table": "a"}, None, {"table": None}, {"table": "b"}],
        "at": pa.array(
            [datetime.datetime(2026, 1, 1), None, None, datetime.datetime(2027, 1, 1)],
            pa.timestamp("us", "UTC"),
        ),
        "day": [datetime.date(2026, 1, 2)] * 4,
        "paid": [True, False, None, True],
        "AND": [1, 2, 3, 4],
        "tags": [["a"]] * 4,
    }
)


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("kind = 'order'", [0]),
        ("kind <> 'order'", [1, 3]),
        ("NOT kind = 'order'", [1, 3]),
        ("kind != 'order' OR n == 1", [0, 1, 3]),
        ("kind = 'order' OR kind = 'refund' AND n > 5", [0]),
        ("(kind = 'order' OR kind = 'refund') AND n < 2", [0]),
        ("kind in ('order', 'refund') and n >= 2", [1]),
        ("kind not in ('order')", [1, 3]),
        ("kind = 'it''s'", [3]),
        ("kind IS NULL OR n IS NULL", [2, 3]),
        ("kind is not null", [0, 1, 3]),
        ("kind LIKE 'r_fu%'", [1]),
        ("kind NOT LIKE 'r%'", [0, 3]),
        ("coded = 'order'", [0, 3]),
        ("coded like 'ord%'", [0, 3]),
        ("n > 1.5", [1, 2]),
        ("n = '2'", [1]),
        ("price = 1.5 OR price < -1e0", [0, 3]),
        ("source.table = 'b'", [3]),
        ("source.other = 'b' OR missing = 3 OR missing LIKE 'x' OR missing.deep = 1", []),
        ("missing IS NULL", [0, 1, 2, 3]),
        ("at > '2026-06-01T00:00:00Z'", [3]),
        ("day <= '2026-01-02'", [0, 1, 2, 3]),
        ("paid = TRUE", [0, 3]),
        ("`AND` = 4", [3]),
    ],
)
def test_a_condition_is_met_by(text: str, met: list[int]) -> None:
    given = Condition(text).of(ROWS).to_pylist()
    assert [row for row, meets in enumerate(given) if meets] == met
    assert Condition(text).of(ROWS.slice(0, 0)).to_pylist() == []


@pytest.mark.parametrize(
    "text",
    [
        "kind > 3",
        "n = 'abc'",
        "paid = 1",
        "tags = 'a'",
        "source = 'a'",
        "n LIKE '1'",
        "n.x = 1",
        "n = " + "9" * 30,
    ],
)
def test_a_type_that_cannot_be_compared_is_named(text: str) -> None:
    column = text.split(" ")[0].split(".")[0]
    with pytest.raises(ConditionTypeError, match=f"the column {column} is .*, which cannot be"):
        Condition(text).of(ROWS)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "ends where"),
        ("kind =", "ends where"),
        ("kind 'x'", "at position 6"),
        ("(kind = 'x'", "ends where"),
        ("kind = 'x", "at position 8: the text is not closed"),
        ("kind = x", "at position 8"),
        ("kind = 'x' kind", "at position 12"),
        ("kind NOT = 3", "at position 10"),
        ("kind LIKE 3", "at position 11"),
        ("and = 3", "at position 1"),
        ("a;b = 3", "at position 2"),
        ("NOT " * (MAX_DEPTH + 1) + "a = 1", f"more than {MAX_DEPTH} deep"),
        ("a = '" + "x" * MAX_CHARACTERS + "'", f"the limit is {MAX_CHARACTERS}"),
    ],
)
def test_a_text_that_is_no_condition_is_refused(text: str, where: str) -> None:
    with pytest.raises(ConditionTextError, match=where):
        Condition(text)
