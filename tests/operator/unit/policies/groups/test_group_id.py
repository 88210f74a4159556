"""Which of several ConsumerGroups has a group.id."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slackwater_operator.policies.membership.group_id import Claim, KafkaClusterRef, Sharing, share

KAFKA = KafkaClusterRef(frozenset({"kafka.a.svc:9092"}), "cluster-1")
OTHER_NAME = KafkaClusterRef(frozenset({"10.0.0.1:9092"}), "cluster-1")
ELSEWHERE = KafkaClusterRef(frozenset({"10.0.0.9:9092"}), "cluster-2")
UNKNOWN = KafkaClusterRef(frozenset({"10.0.0.5:9092"}))
A = Claim("one/flights", "uid-a", "2026-11-01T00:00:00Z", KAFKA)
B = Claim("two/flights", "uid-b", "2026-11-02T00:00:00Z", KAFKA)


@pytest.mark.parametrize(
    ("place", "other", "same"),
    [
        (KAFKA, OTHER_NAME, True),
        (KAFKA, ELSEWHERE, False),
        (replace(KAFKA, servers=ELSEWHERE.servers), ELSEWHERE, False),  # the ids decide
        (replace(KAFKA, cluster_id=""), KAFKA, True),
        (UNKNOWN, KAFKA, None),
        (UNKNOWN, UNKNOWN, True),
        (KafkaClusterRef(frozenset()), KafkaClusterRef(frozenset()), None),
    ],
)
def test_clusters_are_the_same_by_id_or_by_a_common_server(
    place: KafkaClusterRef, other: KafkaClusterRef, same: bool | None
) -> None:
    assert place.same_as(other) is same
    assert other.same_as(place) is same


def test_the_older_one_comes_first_and_of_one_second_that_of_the_smaller_uid() -> None:
    assert share(B, [A]) == Sharing(ahead=("one/flights",))
    assert share(A, [B]) == Sharing(behind=("two/flights",), behind_uids=frozenset({"uid-b"}))
    same = replace(B, created=A.created)
    assert share(same, [A]).ahead == ("one/flights",)
    assert share(A, [same]).ahead == ()


def test_two_spellings_of_one_cluster_are_one() -> None:
    assert share(replace(B, cluster=OTHER_NAME), [A]).ahead == ("one/flights",)


def test_groups_on_different_clusters_share_nothing() -> None:
    assert share(replace(B, cluster=ELSEWHERE), [A]) == Sharing()


def test_a_holder_keeps_the_group_id_when_an_older_group_appears() -> None:
    """The older one had another bootstrapServers before."""
    holder = replace(B, held=KAFKA)
    mover = replace(A, held=ELSEWHERE)
    assert share(holder, [mover]) == Sharing(behind=("one/flights",), behind_uids=frozenset({"uid-a"}))
    assert share(mover, [holder]) == Sharing(ahead=("two/flights",))


def test_the_older_of_two_holders_comes_first() -> None:
    assert share(replace(B, held=KAFKA), [replace(A, held=KAFKA)]).ahead == ("one/flights",)


def test_a_holder_counts_although_its_spec_names_another_cluster() -> None:
    moving = replace(A, cluster=ELSEWHERE, held=KAFKA)
    assert share(B, [moving]).ahead == ("one/flights",)


def test_an_unknown_cluster_delays_only_groups_that_have_not_started() -> None:
    holder = replace(A, cluster=UNKNOWN, held=UNKNOWN)
    assert share(B, [holder]) == Sharing(unclear=("one/flights",))
    assert share(replace(B, held=KAFKA), [holder]) == Sharing()
    assert share(B, [replace(A, cluster=UNKNOWN)]) == Sharing()  # it has nothing, wherever it is
