"""Which of two ConsumerGroups gives way whose workers are in one Kafka group."""

from __future__ import annotations

import pytest

from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.policies.membership.group_id import (
    EXCLUSIVE_AFTER_MS,
    FREE_AFTER_MS,
    Contest,
    ContestWatch,
    gives_way,
)


def member(owner: str, name: str = "flights-0") -> MemberView:
    return MemberView(f"{name}/{owner}", name, frozenset(), synced=True, owner=owner)


def group(*owners: str, state: str = "Stable") -> GroupView:
    return GroupView(state, tuple(member(owner, f"flights-{n}") for n, owner in enumerate(owners)))


@pytest.mark.parametrize(
    ("own", "other", "exclusive", "joined", "lasted_ms", "way"),
    [
        ("uid-b", "uid-a", False, True, 0, True),
        ("uid-a", "uid-b", False, True, 59_999, False),
        ("uid-a", "uid-b", False, True, 60_000, True),  # the other one came first, and knows it
        ("uid-a", "uid-b", False, False, 0, True),
        ("uid-b", "uid-a", True, True, 10**9, False),
    ],
)
def test_who_gives_way(
    own: str, other: str, exclusive: bool, joined: bool, lasted_ms: int, way: bool
) -> None:
    contest = Contest((member(other),), lasted_ms, joined)
    assert bool(gives_way(contest, own, exclusive=exclusive, patience_ms=60_000)) is way


def test_nobody_gives_way_to_one_that_is_known_to_come_second() -> None:
    contest = Contest((member("uid-a"),), 10**9, joined=False)
    assert not gives_way(contest, "uid-b", exclusive=False, behind={"uid-a"}, patience_ms=0)
    assert not gives_way(None, "uid-b", exclusive=False, patience_ms=0)


def watch_of(*looks: tuple[int, GroupView | None]) -> ContestWatch:
    watch = ContestWatch()
    for now_ms, observed in looks:
        watch.observe(observed, "uid-b", has_pods=True, may_have_joined=False, now_ms=now_ms)
    return watch


def test_a_contest_lasts_until_the_others_have_not_been_seen_for_long() -> None:
    watch = watch_of((1_000, group("uid-a", "uid-b")), (3_000, group("uid-a")), (9_000, group("uid-b")))
    contest = watch.contest()
    assert contest is not None
    assert [rival.owner for rival in contest.rivals] == ["uid-a"]
    assert contest.lasted_ms == 2_000
    assert watch.alone_ms(9_000) == 0
    watch.observe(group("uid-b"), "uid-b", has_pods=True, may_have_joined=True, now_ms=3_000 + FREE_AFTER_MS)
    assert watch.contest() is None


def test_alone_counts_from_the_last_look_that_showed_anything_else() -> None:
    alone = group("uid-b", "")  # a member without a mark is no ConsumerGroup that decides
    assert watch_of((0, alone)).alone_ms(EXCLUSIVE_AFTER_MS) == EXCLUSIVE_AFTER_MS
    for between in (None, group("uid-b", state="PreparingRebalance"), group(""), group("uid-a", "uid-b")):
        assert watch_of((0, alone), (1_000, between)).alone_ms(1_000) == 0


def test_others_are_no_contest_where_there_are_no_pods() -> None:
    watch = ContestWatch()
    watch.observe(group("uid-a"), "uid-b", has_pods=False, may_have_joined=False, now_ms=0)
    assert watch.contest() is None
