"""Which of two StatefulSets is the target and which the source, and which ordinals each has."""

from __future__ import annotations

from itertools import permutations

import pytest

from slackwater_operator.model import names
from slackwater_operator.model.statefulsets import (
    Ordinals,
    StatefulSetSnapshot,
    arrange,
    members,
    next_suffix,
    scaled,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flights", {"flights-a", "flights-b"}),
        ("flights-a", {"flights-a-a", "flights-a-b", "flights"}),
        ("flights-c", {"flights-c-a", "flights-c-b"}),
        ("-a", {"-a-a", "-a-b"}),
    ],
)
def test_rivals_are_those_that_may_have_a_set_of_the_same_name(name: str, expected: set[str]) -> None:
    assert set(names.rivals(name)) == expected
    own = set(names.set_names(name))
    assert all(own & set(names.set_names(rival)) for rival in expected)
    assert all(name in names.rivals(rival) for rival in expected)


def statefulset(
    suffix: str,
    template: str,
    *,
    start: int = 0,
    replicas: int = 3,
    created_ms: int = 0,
    deleting: bool = False,
) -> StatefulSetSnapshot:
    name = f"flights-{suffix}" if suffix else "flights"
    return StatefulSetSnapshot(
        name, suffix, f"uid-{suffix}", start, replicas, replicas, template, "r", deleting, created_ms, {}
    )


OLD, NEW = (
    statefulset("a", "v1", created_ms=1_000),
    statefulset("b", "v2", start=2, replicas=1, created_ms=2_000),
)


def arranged(
    *sets: StatefulSetSnapshot, wanted: str, failed: str = "", taking_over: str = ""
) -> tuple[str, str]:
    """(target, source), whatever order the sets come in."""
    result = set()
    for order in permutations(sets):
        got = arrange(
            {snapshot.suffix: snapshot for snapshot in order},
            wanted=wanted,
            failed=failed,
            taking_over=taking_over,
        )
        result.add((got.target.name if got.target else "", got.source.name if got.source else ""))
    assert len(result) == 1
    return result.pop()


def test_a_single_set_is_the_target_and_has_no_source() -> None:
    assert arranged(wanted="v1") == ("", "")
    assert arranged(OLD, wanted="v2") == ("flights-a", "")
    assert arranged(statefulset("", "v1"), wanted="v1") == ("flights", "")


def test_the_set_with_the_wanted_template_is_the_target() -> None:
    assert arranged(OLD, NEW, wanted="v2") == ("flights-b", "flights-a")
    assert arranged(OLD, NEW, wanted="v1") == ("flights-a", "flights-b")


def test_what_failed_is_left_whatever_is_wanted_by_now() -> None:
    for wanted in ("v1", "v2", "v3"):
        assert arranged(OLD, NEW, wanted=wanted, failed="v2") == ("flights-a", "flights-b")
        assert arranged(OLD, NEW, wanted=wanted, failed="v1") == ("flights-b", "flights-a")


def test_a_third_revision_goes_into_the_younger_set() -> None:
    assert arranged(OLD, NEW, wanted="v3") == ("flights-b", "flights-a")
    # One that failed in its preflight has no set: what goes on is the roll before.
    assert arranged(OLD, NEW, wanted="v3", failed="v3") == ("flights-b", "flights-a")


def test_of_two_with_the_same_template_the_younger_is_the_target() -> None:
    again = statefulset("b", "v1", start=2, replicas=1, created_ms=2_000)
    assert arranged(OLD, again, wanted="v1") == ("flights-b", "flights-a")
    assert arranged(OLD, again, wanted="v1", failed="v1") == ("flights-a", "flights-b")


def test_a_takeover_that_was_told_is_ended_first() -> None:
    assert arranged(OLD, NEW, wanted="v1", taking_over="flights-b") == ("flights-b", "flights-a")
    assert arranged(OLD, NEW, wanted="v2", failed="v2", taking_over="flights-b") == ("flights-b", "flights-a")
    assert arranged(OLD, NEW, wanted="v2", taking_over="flights-x") == ("flights-b", "flights-a")


def test_a_set_that_is_being_deleted_is_not_the_target() -> None:
    ends = statefulset("b", "v2", created_ms=2_000, deleting=True)
    assert arranged(OLD, ends, wanted="v2") == ("flights-a", "flights-b")
    assert arranged(ends, wanted="v2") == ("flights-b", "")


def test_members_are_counted_over_all_sets() -> None:
    assert members({}) == 0
    assert members({"a": OLD, "b": NEW}) == 3
    assert (
        members({"a": statefulset("a", "v1", replicas=2), "b": statefulset("b", "v2", start=2, replicas=2)})
        == 4
    )
    assert members({"a": statefulset("a", "v1", start=7, replicas=0)}) == 0, "an empty set has no ordinals"


def test_the_ordinals_of_a_set_are_a_range() -> None:
    assert Ordinals(0, 0).with_(2) == Ordinals(2, 1)
    assert Ordinals(2, 1).with_(1) == Ordinals(1, 2)
    assert Ordinals(0, 2).with_(2) == Ordinals(0, 3)
    assert Ordinals(2, 1).with_(0) == Ordinals(0, 3), "what is in between comes, too"
    assert Ordinals(0, 2).with_(1) == Ordinals(0, 2)
    assert Ordinals(0, 3).without(2) == Ordinals(0, 2)
    assert Ordinals(1, 2).without(1) == Ordinals(2, 1)
    assert Ordinals(0, 3).without(1) == Ordinals(0, 3), "those above would go, too"
    assert Ordinals(2, 1).without(2) == Ordinals(2, 0)
    assert Ordinals(0, 3).without(3) == Ordinals(0, 3)
    assert [ordinal in Ordinals(1, 2) for ordinal in (0, 1, 2, 3)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("spans", "count", "expected"),
    [
        ({"a": (0, 2), "b": (2, 1)}, 5, {"a": (0, 2), "b": (2, 3)}),
        ({"a": (0, 2), "b": (2, 1)}, 2, {"a": (0, 2), "b": (2, 0)}),
        ({"a": (0, 2), "b": (2, 1)}, 1, {"a": (0, 1), "b": (2, 0)}),
        ({"a": (0, 2), "b": (2, 1)}, 0, {"a": (0, 0), "b": (2, 0)}),
        ({"a": (2, 1), "b": (0, 2)}, 4, {"a": (2, 2), "b": (0, 2)}),  # on the way back the old one is on top
        ({"a": (0, 3), "b": (2, 0)}, 5, {"a": (0, 5), "b": (2, 0)}),
        ({"a": (0, 3), "b": (2, 1)}, 2, {"a": (0, 2), "b": (2, 0)}),  # one in both
        ({"a": (0, 0), "b": (2, 0)}, 3, {"a": (0, 0), "b": (0, 3)}),
    ],
)
def test_the_set_with_the_highest_ordinals_grows_and_shrinks(
    spans: dict[str, tuple[int, int]], count: int, expected: dict[str, tuple[int, int]]
) -> None:
    got = scaled({name: Ordinals(*span) for name, span in spans.items()}, count, target="b")
    assert got == {name: Ordinals(*span) for name, span in expected.items()}
    assert max(ordinals.end for ordinals in got.values()) == count


def test_the_suffix_of_the_next_set_alternates() -> None:
    assert [next_suffix(suffix) for suffix in ("", "a", "b")] == ["a", "b", "a"]
