"""Values of statuses that anybody may have written."""

from __future__ import annotations

import math

import pytest

from slackwater_operator.api.v1alpha1.status.values import mapping, number, objects, text, two_digits, whole


@pytest.mark.parametrize("value", [None, 3, "a", [], [("a", 1)], True])
def test_what_is_no_object_is_an_empty_one(value: object) -> None:
    assert mapping(value) == {}
    assert mapping({"a": value}) == {"a": value}


@pytest.mark.parametrize("value", [None, 3, "a", [1, "a"]])
def test_only_objects_of_a_list_are_read(value: object) -> None:
    assert objects(value) == []
    assert objects([{"a": 1}, value, {"b": 2}]) == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("value", [None, 3, [], {}, b"a"])
def test_what_is_no_text_is_an_empty_one(value: object) -> None:
    assert text(value) == ""
    assert text("a") == "a"


@pytest.mark.parametrize("value", [None, "1", True, [], math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_unknown(value: object) -> None:
    assert number(value) is None
    assert whole(value) is None


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (2.9, 2), (-1, -1), (10**15, 10**15)])
def test_whole_numbers_have_no_fraction(value: float, expected: int) -> None:
    assert number(value) == value
    assert whole(value) == expected


def test_less_than_the_least_is_unknown() -> None:
    assert number(-0.5, 0) is None
    assert whole(-1, 0) is None
    assert (number(0, 0), whole(0, 0)) == (0, 0)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (0, 0),
        (7, 7),
        (7.26, 7.3),
        (12.4, 12),
        (4137, 4100),
        (99_600, 100_000),
        (0.1234, 0.12),
        (10**12 + 1, 10**12),
    ],
)
def test_figures_are_rounded_to_two_digits(value: float, rounded: float) -> None:
    assert two_digits(value) == pytest.approx(rounded)
