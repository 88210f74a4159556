"""The status is read back as it was written, and what makes no sense in it is ignored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from slackwater_operator.api.v1alpha1.status.declaration import dump
from slackwater_operator.api.v1alpha1.status.group_status import DecisionRecord, Skip, parse_status, schema
from slackwater_operator.api.v1alpha1.status.rollout import PHASES, TAKEOVER, Moving, UnderWay
from slackwater_operator.policies.conditions import TYPES, ConditionsInput, conditions
from tests.support.operator.full_status import full_status

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@st.composite
def written_over(draw: st.DrawFn) -> Any:
    """A status of which some fields were written over."""
    replaced = draw(st.floats(0, 1))

    def over(value: Any) -> Any:
        if draw(st.floats(0, 1)) < replaced / 4:
            return draw(ANYTHING)
        if isinstance(value, dict):
            return {name: over(held) for name, held in value.items()}
        return [over(item) for item in value] if isinstance(value, list) else value

    return over(full_status())


def test_every_field_of_the_schema_is_written_as_it_was_read() -> None:
    status = full_status()
    assert dump(parse_status(status)) == status


@given(status=written_over() | ANYTHING)
def test_whatever_stands_in_a_status_is_read(status: object) -> None:
    read = parse_status(status)
    assert read.rollout.phase in PHASES
    assert parse_status(dump(read)) == read


def test_what_is_none_or_empty_is_left_out_and_numbers_are_not() -> None:
    assert dump(UnderWay("flights-1", "uid")) == {
        "name": "flights-1",
        "uid": "uid",
        "generation": -1,
        "sinceMs": 0,
    }


@pytest.mark.parametrize(
    "stored",
    ["x", {}, {"phase": "Done"}, {"request": "a", "phase": "Flying"}, {"request": 3, "phase": "Done"}]
    + [{"request": "a", "phase": "Done", "result": result} for result in (3, "Flown")],
)
def test_a_rewind_that_somebody_has_written_over_is_ignored(stored: object) -> None:
    assert parse_status({"rewind": stored}).rewind is None


@pytest.mark.parametrize("moving", [{}, {"ordinal": -1}, {"ordinal": "2"}, {"sinceMs": 4}, 7, None])
def test_a_takeover_that_makes_no_sense_is_none(moving: object) -> None:
    assert parse_status({"rollout": {"moving": moving}}).rollout.moving is None


def test_invalid_values_have_their_defaults() -> None:
    read = parse_status({"rollout": {"moving": {"ordinal": 2, "by": "magic", "toldMs": "x"}}}).rollout.moving
    assert read == Moving(2, 0, -1, None, TAKEOVER)


def test_invalid_items_of_a_list_are_left_out_and_the_last_are_kept() -> None:
    skip = Skip("flights", 0, 100, 150, "retention", 5)
    bad = [{"topic": 5}, {**dump(skip), "to": "x"}, None, {**dump(skip), "at": float("nan")}]
    assert parse_status({"skipped": [*bad, dump(skip)]}).skipped == (skip,)
    assert parse_status({"skipped": "x"}).skipped == ()
    assert parse_status({"restartGapsMs": [-1, True, *range(30)]}).restart_gaps_ms == tuple(range(10, 30))
    assert parse_status({"decisions": [{"at": 1, "kind": ""}, {"at": 1, "kind": "gate"}]}).decisions == (
        DecisionRecord(1, "gate"),
    )


def test_the_conditions_are_in_the_schema() -> None:
    declared = schema()["properties"]["conditions"]
    made = conditions(ConditionsInput(generation=3), [], now_ms=1_000)
    assert all(condition.keys() <= declared["items"]["properties"].keys() for condition in made)
    assert all(name in declared["description"] for name in TYPES)
