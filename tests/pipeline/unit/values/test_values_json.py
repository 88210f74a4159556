"""The format json: what is accepted, and that blocks are read exactly as values one by one are."""

import datetime
import decimal
import json
import math
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from slackwater.pipeline.values import ddl
from slackwater.pipeline.values.json import BLOCKS, JsonDecoder
from slackwater.pipeline.values.json_blocks import BlockReader, NotCertainError
from slackwater.pipeline.values.json_rows import MAX_DEPTH

UTC = datetime.UTC
NAMES = ["b", "i", "l", "f", "d", "s", "m", "t", "n", "y", "a", "o"]
SCHEMA = (
    "b BOOLEAN, i INT, l BIGINT, f FLOAT, d DOUBLE, s STRING, m DECIMAL(7,2), t TIMESTAMP, n TIMESTAMP_NTZ, "
    "y DATE, a ARRAY<INT>, o STRUCT<x: INT NOT NULL, z: ARRAY<STRUCT<u: STRING>>>"
)


def decoder(schema: str) -> JsonDecoder:
    return JsonDecoder(ddl.parse(schema))


def decode(schema: str, *values: bytes | None) -> tuple[list[object], dict[int, str]]:
    array, rejected = decoder(schema).decode(pa.array(values, pa.binary()))
    array.validate(full=True)
    return array.to_pylist(), dict(rejected)


# -- one value -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ("a INT", b'{"a": 1, "more": {"x": [1]}}', 1),
        ("a INT", b'\n {\r\n"a":\t1\n}\n ', 1),
        ("a INT", b'{"\\u0061": 1}', 1),
        ("a INT", b"{}", None),
        ("a INT", b'{"a": null}', None),
        ("a INT", b'{"a": 1.0}', 1),
        ("a INT", b'{"a": 2e3}', 2000),
        ("a INT", b'{"a": -0}', 0),
        ("a BIGINT", b'{"a": -9223372036854775808}', -(1 << 63)),
        # The last of a type, in a form that Arrow's parser leaves to ours.
        ("a TINYINT", b'{"a": 127.0}', 127),
        ("a BIGINT", b'{"a": 9223372036854775807.0}', (1 << 63) - 1),
        ("a DOUBLE", b'{"a": 12345678901234567890123}', 1.2345678901234568e22),
        ("a DOUBLE", b'{"a": 1e-400}', 0.0),
        ("a STRING", '{"a": "Æ\\ud83d\\ude00\\u0000"}'.encode(), "Æ😀\0"),
        ("a STRING", b'{"a": "NaN, Inf"}', "NaN, Inf"),
        ("a DECIMAL(5,2)", b'{"a": 12.5}', decimal.Decimal("12.50")),
        ("a DECIMAL(5,2)", b'{"a": "-999.99"}', decimal.Decimal("-999.99")),
        ("a DECIMAL(5,2)", b'{"a": 1.500}', decimal.Decimal("1.50")),
        ("a DECIMAL(5,2)", b'{"a": 1.5' + b"0" * 60 + b"}", decimal.Decimal("1.50")),
        ("a DECIMAL(5,2)", b'{"a": 0e-999999999}', decimal.Decimal(0)),
        (
            "a TIMESTAMP",
            b'{"a": "2013-01-01T05:00:00.5+01:30"}',
            datetime.datetime(2013, 1, 1, 3, 30, 0, 500000, UTC),
        ),
        ("a TIMESTAMP", b'{"a": "2013-01-01 05:00:00"}', datetime.datetime(2013, 1, 1, 5, tzinfo=UTC)),
        ("a TIMESTAMP", b'{"a": "2013-01-01T03:17Z"}', datetime.datetime(2013, 1, 1, 3, 17, tzinfo=UTC)),
        ("a TIMESTAMP", b'{"a": "2013-01-01T03:17+0130"}', datetime.datetime(2013, 1, 1, 1, 47, tzinfo=UTC)),
        (
            "a TIMESTAMP",
            b'{"a": "1913-01-01T05:00:00.123456789-05"}',
            datetime.datetime(1913, 1, 1, 10, 0, 0, 123456, UTC),
        ),
        ("a TIMESTAMP_NTZ", b'{"a": "2013-01-01T05:00:00"}', datetime.datetime(2013, 1, 1, 5)),
        ("a DATE", b'{"a": "2012-02-29"}', datetime.date(2012, 2, 29)),
        ("a BINARY", b'{"a": "AQI="}', b"\1\2"),
        ("a MAP<STRING, INT>", b'{"a": {"x": 1, "y": null}}', [("x", 1), ("y", None)]),
        ("a ARRAY<STRUCT<b: INT>>", b'{"a": [{"b": 1}, null, {}]}', [{"b": 1}, None, {"b": None}]),
        ("a INT NOT NULL", b'{"a": 0}', 0),
        ("a STRUCT<b: INT NOT NULL>", b'{"a": null}', None),
        ("a INT", b'{"a": 1, "z": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}", 1),
        ("a INT", b'{"a": 1, "z": "' + b"[" * 500 + b'"}', 1),
    ],
)
def test_a_value_is_read(schema: str, text: bytes, value: object) -> None:
    assert decode(schema, text) == ([{"a": value}], {})


@pytest.mark.parametrize(
    ("schema", "text", "reason"),
    [
        ("a INT", b"", "is not JSON at byte 0"),
        ("a INT", b"  ", "is not JSON at byte"),
        ("a INT", '{"ü": 1, "a": x}'.encode(), "is not JSON at byte 15"),
        ("a INT", b'{"a": 1}{"a": 2}', "is not JSON at byte 8: Extra data"),
        ("a INT", b'{"a": 1}\nnull', "is not JSON at byte 9: Extra data"),
        ("a INT", b'{"a": 1},"b": {}', "is not JSON at byte 8"),
        ("a INT", b'{"a": 1', "is not JSON at byte 7"),
        ("a INT", b'{"a": 1}\0', "is not JSON at byte 8"),
        ("a INT", b'\xef\xbb\xbf{"a": 1}', "is not JSON"),
        ("a INT", b"null", "must be an object, not null"),
        ("a INT", b"[1]", "must be an object, not an array"),
        ("a INT", b"17", "must be an object, not a number"),
        ("a INT", b'{"a": 1, "b": "\xff"}', "is not UTF-8 at byte 15"),
        ("a INT", b'{"a": 1, "b": NaN}', "NaN is no number"),
        ("a DOUBLE", b'{"a": -Infinity}', "-Infinity is no number"),
        ("a DOUBLE", b'{"a": Inf}', "is not JSON at byte 6"),
        ("a DOUBLE", b'{"a": 1e999}', "field a: 1e999 is too large"),
        ("a DOUBLE", b'{"a": ' + b"9" * 400 + b"}", "field a: 9+ is too large"),
        ("a DOUBLE", b'{"a": 1.7976931348623159e308}', "field a: .* is too large"),
        ("a INT", b'{"a": 1, "a": 2}', "field a: is there twice"),
        ("a STRUCT<b: INT>", b'{"a": {"b": 1, "b": 1}}', "field a.b: is there twice"),
        ("a INT", b'{"a": 2147483648}', "field a: 2147483648 is not between -2147483648 and 2147483647"),
        ("a BIGINT", b'{"a": 9223372036854775808.0}', "field a: 9223372036854775808.0 is not between"),
        ("a BIGINT", b'{"a": 1e999999999}', "field a: 1e999999999 is no number that the field can hold"),
        ("a INT", b'{"a": 1.5}', "field a: 1.5 has a fraction"),
        ("a INT", b'{"a": 1e-999999999}', "field a: 1e-999999999 "),
        ("a INT", b'{"a": "1"}', "field a: must be a whole number, not text"),
        ("a INT", b'{"a": true}', "field a: must be a whole number, not true or false"),
        ("a STRING", b'{"a": 1}', "field a: must be text, not a number"),
        ("a STRING", b'{"a": "\\ud800"}', "field a: has half of a surrogate pair"),
        ("a BOOLEAN", b'{"a": "true"}', "field a: must be true or false, not text"),
        ("a ARRAY<INT>", b'{"a": [1, {}]}', r"field a\[1\]: must be a whole number, not an object"),
        ("a ARRAY<INT>", b'{"a": 1}', "field a: must be an array, not a number"),
        ("a STRUCT<b: INT>", b'{"a": []}', "field a: must be an object, not an array"),
        ("a MAP<STRING, INT>", b'{"a": {"x": "y"}}', "field a.x: must be a whole number"),
        ("a DECIMAL(5,2)", b'{"a": 1.005}', r"field a: 1.005 does not fit DECIMAL\(5, 2\)"),
        ("a DECIMAL(5,2)", b'{"a": 1000}', r"field a: 1000 does not fit DECIMAL\(5, 2\)"),
        ("a DECIMAL(5,2)", b'{"a": "x"}', "field a: 'x' is no number"),
        # Arrow makes 0.00 of these, and ends the process at a smaller one.
        ("a DECIMAL(10,2)", b'{"a": 1e-41}', r"field a: 1e-41 does not fit DECIMAL\(10, 2\)"),
        ("a DECIMAL(10,2)", b'{"a": "-.1E-040", "b": "e-"}', r"field a: -.1E-040 does not fit"),
        ("a DECIMAL(10,2)", b'{"a": "1\\u0065-41"}', "field a: 1e-41 does not fit"),
        ("a DECIMAL(10,2)", b'{"a": ' + b"0" + b"." + b"0" * 40 + b"1}", "field a: 0.0+ does not fit"),
        ("a ARRAY<DECIMAL(10,2)>", b'{"a": [1,\t1e-41]}', r"field a\[1\]: 1e-41 does not fit"),
        # An overflow that Arrow does not see.
        ("a DECIMAL(38,18)", b'{"a": 1e30}', r"field a: 1e30 does not fit DECIMAL\(38, 18\)"),
        ("a DECIMAL(38,18)", b'{"a":"' + b"0123456789" * 3 + b'"}', "field a: 0123456789.* does not fit"),
        ("a DECIMAL(10,2)", b'{"a": 1e-999999999}', "field a: 1e-999999999 is no number that the field"),
        ("a TIMESTAMP", b'{"a": 1357020000}', "field a: must be text, not a number"),
        (
            "a TIMESTAMP",
            b'{"a": "2013-02-30T00:00:00Z"}',
            "field a: '2013-02-30T00:00:00Z': day is out of range",
        ),
        ("a TIMESTAMP", b'{"a": "0001-01-01T00:00:00+01:00"}', "field a: .* not in the years 1 to 9999"),
        ("a TIMESTAMP", b'{"a": "9999-12-31T23:59:59-00:01"}', "field a: .* not in the years 1 to 9999"),
        ("a TIMESTAMP_NTZ", b'{"a": "2013-01-01T05:00:00Z"}', "field a: .* is no time such as"),
        ("a TIMESTAMP", b'{"a": "2013-01-01T05:00:00.1234567890Z"}', "field a: .* is no time such as"),
        ("a TIMESTAMP", b'{"a": "2013-01-01T05Z"}', "field a: .* is no time such as"),
        ("a DATE", b'{"a": "2013-02-30"}', "field a: '2013-02-30' is no date"),
        ("a BINARY", b'{"a": "?"}', "field a: is not base64"),
        ("a INT NOT NULL", b"{}", "field a: is missing, and it is NOT NULL"),
        ("a INT NOT NULL", b'{"a": null}', "field a: is null, and it is NOT NULL"),
        ("a STRUCT<b: INT NOT NULL>", b'{"a": {}}', "field a.b: is missing"),
        ("a INT", b'{"z": ' + b"[" * MAX_DEPTH, f"is nested more than {MAX_DEPTH} deep at byte"),
        (
            "a INT",
            b'{"z": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
            f"nested more than {MAX_DEPTH} deep",
        ),
        ("a INT", b'{"z": ' + b"[" * 2_000_000, f"is nested more than {MAX_DEPTH} deep at byte"),
        # What is quadratic takes hours for these, beyond the time limit of a test.
        pytest.param(
            "a INT",
            b'{"z":[' + b"[]," * MAX_DEPTH + b'"' + b'\\"' * 2_000_000,
            "is not JSON at byte",
            id="open",
        ),
        pytest.param("a DECIMAL(5,2)", b'{"a":"' + b"1" * 1_000_000 + b'x"}', "'1+' is no number", id="text"),
        pytest.param("a INT", b'{"a": ' + b"1" * 1_000_000 + b"}", "1+ is no number that the", id="digits"),
    ],
)
def test_a_value_is_rejected_alone(schema: str, text: bytes, reason: str) -> None:
    rows, rejected = decode(schema, b'{"other": 1, "a": null}' if "NOT" not in schema else None, text, None)
    assert rows[1] is None
    assert rows[2] is None
    assert list(rejected) == [1]
    assert re.match(f"JSON value: .*{reason}", rejected[1]), rejected[1]


@pytest.mark.parametrize(
    ("unit", "number", "micros"),
    [
        ("seconds", "1356998400", 1_356_998_400_000_000),
        ("seconds", "1356998400.1234567", 1_356_998_400_123_456),
        ("seconds", "-0.0000001", -1),
        ("milliseconds", "1356998400123", 1_356_998_400_123_000),
        ("milliseconds", "-1", -1_000),
        ("milliseconds", "1.3569984e12", 1_356_998_400_000_000),
        ("microseconds", "1356998400123456", 1_356_998_400_123_456),
        ("nanoseconds", "1356998400123456789", 1_356_998_400_123_456),
        ("nanoseconds", "-1", -1),
        ("seconds", '"1970-01-01T00:00:01"', 1_000_000),
        ("seconds", "253402300800", None),
        ("milliseconds", "9223372036854775807", None),
        ("nanoseconds", "1e999999", None),
        ("microseconds", "1e40", None),
        ("seconds", "true", None),
    ],
)
def test_a_number_counts_units_since_1970(unit: str, number: str, micros: int | None) -> None:
    """Alone, and beside others, of which Arrow reads whole numbers."""
    made = JsonDecoder(ddl.parse("a TIMESTAMP, b ARRAY<TIMESTAMP_NTZ>"), None, unit)
    text = f'{{"a": {number}, "b": [{number}]}}'.encode()
    array, rejected = made.decode(pa.array([text, b'{"a": 0}', b"{}"], pa.binary()))
    at, inner = array.field("a").cast(pa.int64()), array.field("b").flatten().cast(pa.int64())
    assert at.to_pylist() == [micros, 0, None]
    assert inner.to_pylist() == ([] if micros is None else [micros])
    assert list(rejected) == ([0] if micros is None else [])


def test_values_that_complete_each_other_are_all_rejected() -> None:
    """Joined by line feeds they would be as many objects as values."""
    values = (b'{"a": 1', b', "b": 2}{"a": 3}', b'{"a": 4}{"a": 5}', b"", b'{"a": 6}')
    rows, rejected = decode("a INT", *values)
    assert rows == [None, None, None, None, {"a": 6}]
    assert sorted(rejected) == [0, 1, 2, 3]
    rows, rejected = decode("a INT", b'{"a": 1}{"a": 2}', b'{"a": 3}\0}', b'{"a": 4}')
    assert (rows, sorted(rejected)) == ([None, None, {"a": 4}], [0, 1])


# -- blocks ------------------------------------------------------------------------------------------


def test_good_blocks_are_read_by_arrow_and_bad_values_cost_only_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_by_one = []
    plain = JsonDecoder._one_by_one

    def counted(self: JsonDecoder, values: pa.BinaryArray, *rest: object) -> pa.StructArray:
        one_by_one.append(len(values))
        return plain(self, values, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(JsonDecoder, "_one_by_one", counted)
    values: list[bytes | None] = [b'{"s": "x", "t": "2013-01-01T05:00:00Z"}'] * (2 * BLOCKS[0])
    rows, rejected = decode(SCHEMA, *values)
    assert (rejected, one_by_one, len(rows)) == ({}, [], 2 * BLOCKS[0])
    values[10_000], values[5] = b'{"s": 1}', None
    rows, rejected = decode(SCHEMA, *values)
    assert list(rejected) == [10_000]
    assert [at for at, row in enumerate(rows) if row is None] == [5, 10_000]
    assert sum(one_by_one) == BLOCKS[1]  # the block with the bad value, and no other


def test_bad_values_everywhere_cost_a_bounded_number_of_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    plain = BlockReader.read

    def counted(self: BlockReader, values: pa.BinaryArray) -> pa.StructArray:
        read.append(len(values))
        return plain(self, values)

    monkeypatch.setattr(BlockReader, "read", counted)
    count = BLOCKS[0] + 100
    _, rejected = decode("a INT", *[b'{"a": "x"}'] * count)
    assert len(rejected) == count
    assert sum(read) == count * len(BLOCKS)


# -- as a plain reading of each value ------------------------------------------------------------------


def plain(value: bytes) -> dict[str, object]:
    """What ``json.loads`` gives, by the schema ``SCHEMA``; ValueError for what is to be rejected."""

    class Float(str):
        pass

    def constant(text: str) -> object:
        raise ValueError(text)

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(items)
        made["\0twice"] = {name for name, _ in items if sum(name == other for other, _ in items) > 1}
        return made

    document = json.loads(
        value.decode(), parse_int=Float, parse_float=Float, parse_constant=constant, object_pairs_hook=pairs
    )

    def check(ok: bool) -> None:
        if not ok:
            raise ValueError

    def field(kind: str, item: object) -> object:
        if item is None:
            return None
        if kind == "b":
            check(isinstance(item, bool))
            return item
        if kind in "il":
            check(isinstance(item, Float))
            number = decimal.Decimal(item)
            check(number == number.to_integral_value() and -(1 << 63) <= number < 1 << 63)
            check(kind == "l" or -(1 << 31) <= number < 1 << 31)
            return int(number)
        if kind in "fd":
            check(isinstance(item, Float))
            number = float(item)
            check(math.isfinite(number))
            return (
                pa.array([number], pa.float64()).cast(pa.float32(), safe=False)[0].as_py()
                if kind == "f"
                else number
            )
        if kind == "m":
            check(isinstance(item, str))
            return pa.array([decimal.Decimal(item)]).cast(pa.decimal128(7, 2))[0].as_py()
        if kind in "ia":
            check(isinstance(item, list))
            return [field("i", one) for one in item]
        if kind == "o":
            check(isinstance(item, dict) and not item["\0twice"] & {"x", "z"} and item.get("x") is not None)
            z = item.get("z")
            check(z is None or isinstance(z, list))
            return {"x": field("i", item["x"]), "z": z and [inner(one) for one in z] if z else z}
        check(type(item) is str)
        item.encode()
        if kind == "y":
            check(len(item) == 10)
            return datetime.date.fromisoformat(item)
        if kind in "tn":
            match = re.fullmatch(
                r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?)(\.\d{1,9})?(Z|[+-]\d\d(?::?\d\d)?)?", item
            )
            check(match is not None)
            local, fraction, zone = match.groups("")
            check(not fraction or len(local) == 19)
            made = datetime.datetime.fromisoformat(local + fraction[:7])
            check(kind == "t" or not zone)
            if kind == "n":
                return made
            made = made.replace(tzinfo=UTC)
            if zone in ("", "Z"):
                return made
            offset = datetime.timedelta(hours=int(zone[1:3]), minutes=int(zone[3:].strip(":") or 0))
            return made - offset if zone[0] == "+" else made + offset
        return item

    def inner(one: object) -> object:
        if one is None:
            return None
        check(isinstance(one, dict) and "u" not in one["\0twice"])
        return {"u": field("s", one.get("u"))}

    names = NAMES
    check(isinstance(document, dict) and not document["\0twice"] & set(names))
    return {name: field(name, document.get(name)) for name in names}


TEXTS = st.text(max_size=6) | st.sampled_from(["NaN", " Inf", "{", "}\n{", "null"])
NUMBERS = st.sampled_from(
    [
        "0",
        "-0",
        "1",
        "-7",
        "1.0",
        "1.5",
        "1e2",
        "1E-2",
        "2147483648",
        "9223372036854775808",
        "1e400",
        "1e-41",
        "0.1",
        "12345.67",
        "123456.7",
    ]
)
TIMES = st.builds(
    lambda at, cut, more, zone: (at.isoformat() + more)[:cut] + zone,
    st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30)),
    st.sampled_from([16, 19, 26, 99]),
    st.sampled_from(["", "", "7", "789"]),
    st.sampled_from(["", "", "Z", "+02:00", "-0530", "+02"]),
) | st.sampled_from(["2013-01-01 05:00:00", "2013-02-30T00:00:00", "2013-01-01T24:00:00", "2013-01-01"])
LEAVES = {
    "b": st.sampled_from(["true", "false"]),
    "s": TEXTS.map(json.dumps) | TEXTS.map(lambda text: json.dumps(text, ensure_ascii=False)),
    "t": TIMES.map(json.dumps),
    "n": TIMES.map(json.dumps),
    "y": st.dates().map(lambda day: json.dumps(day.isoformat())) | st.just('"2013-02-30"'),
    "a": st.lists(NUMBERS | st.just("null"), max_size=3).map(lambda items: f"[{','.join(items)}]"),
    "o": st.sampled_from(
        [
            '{"x":1}',
            '{"x":1,"z":[]}',
            '{"x":2,"z":[{"u":"v"},null,{}]}',
            '{"z":[]}',
            '{"x":null}',
            "[]",
            '{"x":1,"x":1}',
        ]
    ),
}
ANY = st.sampled_from(["null", "1", '"x"', "true", "[]", "{}", "NaN", "-Infinity", "[[{}]]", '"\\ud800"'])


@st.composite
def values(draw: st.DrawFn) -> bytes:
    names = draw(st.lists(st.sampled_from([*NAMES, "other"]), max_size=5))
    if draw(st.integers(0, 9)):
        names = list(dict.fromkeys(names))
    members = []
    for name in names:
        good = LEAVES.get(name, NUMBERS)
        members.append(f'"{name}":{draw(good if draw(st.integers(0, 14)) else ANY)}')
    text = "{" + draw(st.sampled_from([",", ", ", ",\n"])).join(members) + "}"
    data = text.encode(errors="surrogatepass")
    damage = draw(st.integers(0, 30))
    if damage == 0:
        data = data[: draw(st.integers(0, len(data)))]
    elif damage == 1:
        at = draw(st.integers(0, len(data)))
        data = (
            data[:at]
            + draw(st.sampled_from([b"{", b"}", b"\0", b"\xff", b"null", b"\n", b",", b'"']))
            + data[at:]
        )
    elif damage == 2:
        data = draw(
            st.sampled_from([data + data, b"null" + data, data + b"null" + data, b"\n" + data + b"\n", b""])
        )
    return data


@settings(deadline=None)
@given(st.lists(values() | st.none(), min_size=1, max_size=12))
def test_a_batch_is_what_a_plain_reading_of_each_value_gives(batch: list[bytes | None]) -> None:
    rows, rejected = decode(SCHEMA, *batch)
    for at, value in enumerate(batch):
        if value is None:
            assert rows[at] is None
            assert at not in rejected
            continue
        try:
            wanted = plain(value)
        except (ValueError, ArithmeticError, TypeError, KeyError):
            assert at in rejected, (value, rows[at])
            assert rows[at] is None
            continue
        assert at not in rejected, (value, rejected[at])
        assert repr(rows[at]) == repr(_order(wanted)), value  # repr: -0.0 is not 0.0


def _order(row: dict[str, object]) -> dict[str, object]:
    at = row["t"]
    if isinstance(at, datetime.datetime):
        row["t"] = pa.array([at], pa.timestamp("us", "UTC"))[0].as_py()
    return row


@settings(deadline=None)
@given(st.lists(values(), min_size=1, max_size=6))
def test_arrows_parser_never_gives_another_result(batch: list[bytes]) -> None:
    """Where a block is read at once it is what the values give alone."""
    made = decoder(SCHEMA)
    array = pa.array(batch, pa.binary())
    try:
        block = made._blocks.read(array)
    except NotCertainError:
        return
    rejected: dict[int, str] = {}
    assert repr(made._one_by_one(array, 0, rejected).to_pylist()) == repr(block.to_pylist())
    assert not rejected
