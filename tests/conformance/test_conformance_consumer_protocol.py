"""Groups of the consumer protocol (KIP-848): heartbeats, epochs, the way to a target, static members."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.conformance.brokers import needs
from tests.support.waiting import wait_until
from tests.support.wire.beater import Beater
from tests.support.wire.rawclient import (
    Member,
    RawClient,
    create_topic,
    describe,
    form,
    members,
    remove,
)

pytestmark = needs(m.ConsumerGroupHeartbeatRequest, 1)


@contextlib.contextmanager
def beaters(bootstrap: str, name: str, *instances: str | None, partitions: int = 4) -> Iterator[list[Beater]]:
    """Members that have not joined yet, of a topic of their own."""
    with RawClient.to(bootstrap) as client:
        create_topic(client, name, partitions)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Beater(bootstrap, name, name, instance)) for instance in instances]


def settle(group: list[Beater], partitions: int = 4) -> None:
    """Has all members beat until the partitions are shared, and everybody has acknowledged."""

    def settled() -> bool:
        for member in group:
            member.settle()
        held = sorted(number for member in group for number in member.held)
        return held == list(range(partitions)) and group[0].described().group_state == "Stable"

    wait_until(settled, lambda: [(member.epoch, member.held) for member in group])


def joined(group: list[Beater]) -> None:
    """Lets all members in and settles them."""
    for member in group:
        member.take(member.join())
    settle(group)


# -- the join --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"subscribed_topic_names": None},
        {"topic_partitions": None},
        {"member_epoch": -2},
        {"member_epoch": -3},
    ],
    ids=str,
)
def test_a_join_that_lacks_something_is_an_invalid_request(
    bootstrap: str, name: str, fields: dict[str, Any]
) -> None:
    """Empty texts, no rebalance timeout, no names, no list of partitions; -2 without an instance id."""
    with beaters(bootstrap, name, None) as [a]:
        assert a.join(**fields).error_code == E.INVALID_REQUEST


def test_a_join_that_owns_something_is_an_invalid_request(bootstrap: str, name: str) -> None:
    """Who joins owns nothing."""
    with beaters(bootstrap, name, None) as [a]:
        assert a.join(topic_partitions=a.parts({0})).error_code == E.INVALID_REQUEST


def test_the_first_member_is_assigned_all_at_once(bootstrap: str, name: str) -> None:
    """The assignment comes with the join, with a full beat, and else only where it has changed."""
    with beaters(bootstrap, name, None) as [a]:
        answer = a.join()
        assert a.take(answer) == {0, 1, 2, 3}
        assert answer.heartbeat_interval_ms > 0
        assert a.take(a.send()) is None
        assert a.take(a.send(topic_partitions=a.parts(a.held))) is None
        assert a.take(a.send(**a.full(a.held))) == {0, 1, 2, 3}


def test_no_topics_are_a_valid_subscription(bootstrap: str, name: str) -> None:
    """A member without partitions."""
    with beaters(bootstrap, name, None) as [a]:
        assert a.take(a.join(subscribed_topic_names=[])) == set()


def test_an_assignor_that_the_broker_lacks_is_refused(bootstrap: str, name: str) -> None:
    """UNSUPPORTED_ASSIGNOR; ``range`` is one that it has."""
    with beaters(bootstrap, name, None) as [a]:
        assert a.join(server_assignor="cooperative-sticky").error_code == E.UNSUPPORTED_ASSIGNOR
        a.take(a.join(server_assignor="range"))
        assert a.described().assignor_name == "range"


def test_a_regular_expression_matches_whole_names(bootstrap: str, name: str) -> None:
    """RE2/J's; resolved a moment after the join; beside names; "" ends it, and null leaves it as it is."""
    with beaters(bootstrap, name, None, partitions=2) as [a]:
        create_topic(a.client, f"{name}.x", 1)

        def topics(**fields: Any) -> int:
            """How many topics it is assigned, after a full beat with these fields."""
            full = {**a.full(set()), "subscribed_topic_names": [], **fields}
            answer = a.send(**full)
            a.take(answer)
            return len(answer.assignment.topic_partitions) if answer.assignment else 0

        a.take(a.join(subscribed_topic_names=[], subscribed_topic_regex=f"{name}.*"))
        wait_until(lambda: topics() == 2)
        topics(subscribed_topic_regex=f"(?i){name.upper()}")
        wait_until(lambda: topics() == 1)
        assert a.described().members[0].subscribed_topic_regex == f"(?i){name.upper()}"
        wait_until(lambda: topics(subscribed_topic_names=[f"{name}.x"]) == 2)
        wait_until(lambda: topics(subscribed_topic_regex="") == 0)
        for regex in ("(?=x)", r"(x)\1", "x{1,2000}", "(", "x++"):
            assert a.send(subscribed_topic_regex=regex).error_code == E.INVALID_REGULAR_EXPRESSION, regex


# -- epochs ----------------------------------------------------------------------------------------


def test_a_lost_answer_is_repeated_at_the_epoch_before(bootstrap: str, name: str) -> None:
    """The epoch before is good with a subset of what is assigned; any other old one, and a later one, not."""
    with beaters(bootstrap, name, None, None) as [a, b]:
        joined([a])
        before = a.epoch
        b.take(b.join())
        settle([a, b])
        assert a.epoch == before + 1
        assert a.send(member_epoch=before, topic_partitions=a.parts(a.held)).error_code == E.NONE
        assert a.send(member_epoch=before).error_code == E.FENCED_MEMBER_EPOCH
        other = a.send(member_epoch=before, topic_partitions=a.parts({0, 1, 2, 3}))
        assert other.error_code == E.FENCED_MEMBER_EPOCH
        assert a.send(member_epoch=a.epoch + 1).error_code == E.FENCED_MEMBER_EPOCH


def test_a_dynamic_member_may_join_again_with_its_id(bootstrap: str, name: str) -> None:
    """The same epoch, and the assignment once more."""
    with beaters(bootstrap, name, None) as [a]:
        joined([a])
        answer = a.join()
        assert (answer.member_epoch, a.assigned_in(answer)) == (a.epoch, {0, 1, 2, 3})


def test_a_static_member_may_not_join_again_even_with_its_own_id(bootstrap: str, name: str) -> None:
    """UNRELEASED_INSTANCE_ID, as to another member with the instance id."""
    with beaters(bootstrap, name, "i", "i") as [a, twin]:
        joined([a])
        assert a.join().error_code == E.UNRELEASED_INSTANCE_ID
        assert twin.join().error_code == E.UNRELEASED_INSTANCE_ID
        assert a.send().error_code == E.NONE


def test_who_is_not_known_is_told_so(bootstrap: str, name: str) -> None:
    """Another member id, another instance id, another group."""
    with beaters(bootstrap, name, "i", None) as [a, b]:
        joined([a])
        assert b.send(member_epoch=1).error_code == E.UNKNOWN_MEMBER_ID
        assert b.send(member_epoch=1, instance_id="i").error_code == E.FENCED_INSTANCE_ID
        assert a.send(instance_id="other").error_code == E.UNKNOWN_MEMBER_ID
        assert a.send(group_id=f"{name}-other").error_code == E.GROUP_ID_NOT_FOUND
        assert a.send(group_id=f"{name}-other", member_epoch=-1).error_code == E.GROUP_ID_NOT_FOUND


# -- the way to the target ---------------------------------------------------------------------------


def test_what_moves_is_given_up_before_another_gets_it(bootstrap: str, name: str) -> None:
    """Told at the old epoch; no list and too long a list acknowledge nothing; then the new epoch, and only
    now the other member's next beat has the partitions."""
    with beaters(bootstrap, name, None, None) as [a, b]:
        joined([a])
        before = a.epoch
        assert b.take(b.join()) == set()
        kept = wait_until(lambda: a.assigned_in(a.send()) or (b.take(b.send()) and None))
        assert len(kept) == 2
        for owned in (None, {0, 1, 2, 3}):
            answer = a.send(topic_partitions=a.parts(owned))
            assert (answer.error_code, answer.member_epoch) == (E.NONE, before)
            assert a.assigned_in(answer) is None
            assert not b.take(b.send())
        answer = a.send(topic_partitions=a.parts(kept))
        assert (answer.error_code, answer.member_epoch) == (E.NONE, before + 1)
        assert b.take(b.send()) == {0, 1, 2, 3} - kept


def test_who_has_more_to_give_up_stays_in_its_epoch(bootstrap: str, name: str) -> None:
    """A newer target takes more from it, while it gives up what the one before took."""
    with beaters(bootstrap, name, None, None, None, None) as [a, b, c, d]:
        joined([a])
        before = a.epoch
        b.take(b.join())
        kept = wait_until(lambda: a.assigned_in(a.send()) or (b.take(b.send()) and None))
        c.take(c.join())
        d.take(d.join())
        wait_until(lambda: d.take(d.send()) is None and d.described().assignment_epoch == before + 3)
        answer = a.send(topic_partitions=a.parts(kept))
        assert (answer.member_epoch, len(a.assigned_in(answer) or ())) == (before, 1)


def test_who_does_not_give_up_in_time_is_removed(bootstrap: str, name: str) -> None:
    """Its rebalance timeout counts; others get what it had."""
    with beaters(bootstrap, name, None, None) as [a, b]:
        a.take(a.join(rebalance_timeout_ms=500))
        b.take(b.join())
        wait_until(lambda: a.send().error_code == E.UNKNOWN_MEMBER_ID or (b.settle() and None))
        settle([b])


def test_partitions_of_who_leaves_go_to_the_others(bootstrap: str, name: str) -> None:
    """-1; a second time it is not known."""
    with beaters(bootstrap, name, None, None) as [a, b]:
        joined([a, b])
        answer = b.send(member_epoch=-1)
        assert (answer.error_code, answer.member_epoch) == (E.NONE, -1)
        assert b.send(member_epoch=-1).error_code == E.UNKNOWN_MEMBER_ID
        settle([a])


def test_a_topic_that_is_made_later_is_assigned(bootstrap: str, name: str) -> None:
    """The broker notices; a changed subscription is another reason."""
    with beaters(bootstrap, name, None) as [a]:
        joined([a])
        later = f"{name}-later"
        a.take(a.send(**{**a.full(a.held), "subscribed_topic_names": [name, later]}))
        create_topic(a.client, later, 2)
        answer = wait_until(lambda: (got := a.send()).assignment is not None and got)
        assert len(answer.assignment.topic_partitions) == 2


# -- static members ----------------------------------------------------------------------------------


def test_a_static_member_returns_under_a_new_id_with_what_it_had(bootstrap: str, name: str) -> None:
    """-2, and a join by another member id: no epoch moves, and nobody else hears of it."""
    with beaters(bootstrap, name, "i", None, "i") as [a, b, back]:
        joined([a, b])
        assert a.send(member_epoch=-2).error_code == E.NONE
        assert {each.member_epoch for each in a.described().members} == {-2, b.epoch}
        assert back.take(back.join()) == a.held
        assert back.epoch == b.epoch
        assert b.take(b.send()) is None
        assert b.described().group_epoch == b.epoch


def test_who_is_replaced_by_hand_is_fenced_from_then_on(bootstrap: str, name: str) -> None:
    """Whoever knows the member id may send -2 for it. Then its beats get FENCED_MEMBER_EPOCH and its commits
    STALE_MEMBER_EPOCH; once the successor is there FENCED_INSTANCE_ID and UNKNOWN_MEMBER_ID, and its leaving
    does no harm."""
    with beaters(bootstrap, name, "i", "i") as [a, successor]:
        joined([a])
        assert successor.send(member_id=a.member_id, member_epoch=-2).error_code == E.NONE
        assert a.send().error_code == E.FENCED_MEMBER_EPOCH
        assert a.commit(a.epoch) == E.STALE_MEMBER_EPOCH
        assert a.commit(-2) == E.NONE
        assert successor.send(member_epoch=1).error_code == E.FENCED_INSTANCE_ID
        successor.take(successor.join())
        assert a.send().error_code == E.FENCED_INSTANCE_ID
        assert a.commit(a.epoch) == E.UNKNOWN_MEMBER_ID
        assert a.join().error_code == E.UNRELEASED_INSTANCE_ID
        assert {a.send(member_epoch=epoch).error_code for epoch in (-1, -2)} == {E.FENCED_INSTANCE_ID}
        assert successor.send().error_code == E.NONE


def test_an_administrator_removes_by_the_instance_id(bootstrap: str, name: str) -> None:
    """LeaveGroup serves these groups, too."""
    with beaters(bootstrap, name, "i", None) as [a, b]:
        joined([a, b])
        assert remove(b.client, name, "i", "nobody") == [E.NONE, E.UNKNOWN_MEMBER_ID]
        assert a.send().error_code == E.UNKNOWN_MEMBER_ID
        settle([b])


# -- offsets -----------------------------------------------------------------------------------------


def test_commits_are_held_to_the_epoch(bootstrap: str, name: str) -> None:
    """An older epoch is good for partitions that the member has had since then; it need not own any."""
    with beaters(bootstrap, name, None, None) as [a, b]:
        joined([a])
        before = a.epoch
        b.take(b.join())
        settle([a, b])
        kept, gone, come = min(a.held), min({0, 1, 2, 3} - a.held), min(b.held)
        assert [a.commit(a.epoch, kept), a.commit(a.epoch, gone)] == [E.NONE, E.NONE]
        assert [a.commit(before, kept), a.commit(before, gone)] == [E.NONE, E.STALE_MEMBER_EPOCH]
        assert b.commit(b.epoch - 1, come) == E.STALE_MEMBER_EPOCH
        assert a.commit(a.epoch + 1, kept) == E.STALE_MEMBER_EPOCH
        assert a.commit(a.epoch, kept, member_id="other") == E.UNKNOWN_MEMBER_ID
        assert a.commit(-1, kept, member_id="") == E.UNKNOWN_MEMBER_ID
        assert a.commit(a.epoch, kept, version=8) == E.UNSUPPORTED_VERSION


def test_committed_offsets_are_told_to_members_of_the_epoch(bootstrap: str, name: str) -> None:
    """And to who says no member id."""
    with beaters(bootstrap, name, None) as [a]:
        joined([a])
        assert a.fetch(a.member_id, a.epoch) == E.NONE
        assert a.fetch(a.member_id, a.epoch + 1) == E.STALE_MEMBER_EPOCH
        assert a.fetch("other", a.epoch) == E.UNKNOWN_MEMBER_ID
        assert a.fetch(None, -1) == E.NONE


# -- what others see ---------------------------------------------------------------------------------


def listed(client: RawClient, group: str, **filters: Any) -> list[tuple[str, str, str]]:
    answer = client.request(m.ListGroupsRequest(**filters), 5)
    return [(g.protocol_type, g.group_state, g.group_type) for g in answer.groups if g.group_id == group]


def test_a_group_is_shown_by_its_own_description(bootstrap: str, name: str) -> None:
    """ListGroups has its type, ConsumerGroupDescribe all of it; DescribeGroups calls it Dead."""
    with beaters(bootstrap, name, "i", None) as [a, b]:
        joined([a, b])
        assert listed(a.client, name) == [("consumer", "Stable", "consumer")]
        assert listed(a.client, name, types_filter=["classic"]) == []
        assert listed(a.client, name, types_filter=["consumer"], states_filter=["stable"])
        shown = a.described()
        assert (shown.group_epoch, shown.assignment_epoch, shown.assignor_name) == (
            a.epoch,
            a.epoch,
            "uniform",
        )
        by_id = {each.member_id: each for each in shown.members}
        assert {each.member_type for each in shown.members} == {1}
        assert by_id[a.member_id].instance_id == "i"
        for member in (a, b):
            described = by_id[member.member_id]
            assert described.subscribed_topic_names == [name]
            for side in (described.assignment, described.target_assignment):
                [topic] = side.topic_partitions
                assert (topic.topic_id, set(topic.partitions)) == (a.topic_id, member.held)
        old = describe(a.client, name)
        assert (old.group_state, old.error_code) == ("Dead", E.NONE)
        assert a.client.request(m.DeleteGroupsRequest(groups_names=[name]), 2).results[0].error_code == (
            E.NON_EMPTY_GROUP
        )


def test_an_empty_group_is_deleted(bootstrap: str, name: str) -> None:
    """With its offsets; then it is not known."""
    with beaters(bootstrap, name, None) as [a]:
        joined([a])
        assert a.commit(a.epoch) == E.NONE
        a.send(member_epoch=-1)
        assert listed(a.client, name) == [("consumer", "Empty", "consumer")]
        delete = partial(a.client.request, m.DeleteGroupsRequest(groups_names=[name]), 2)
        assert delete().results[0].error_code == E.NONE
        assert a.described().error_code == E.GROUP_ID_NOT_FOUND
        assert delete().results[0].error_code == E.GROUP_ID_NOT_FOUND


def test_an_empty_group_changes_its_protocol_with_who_joins(bootstrap: str, name: str) -> None:
    """Either way; offsets stay."""
    with beaters(bootstrap, name, None) as [a], members(bootstrap, name, "c") as [classic]:
        form([classic])
        assert classic.commit(name, 0, 7) == E.NONE
        assert remove(a.client, name, "c") == [E.NONE]
        joined([a])
        assert listed(a.client, name)[0][2] == "consumer"
        assert a.fetch(None, -1) == E.NONE
        a.send(member_epoch=-1)
        with Member(bootstrap, name, "d") as later:
            form([later])
            assert listed(a.client, name)[0][2] == "classic"
