"""A member's mark: whose it is, behind what its assignor tells."""

from __future__ import annotations

import pytest

from slackwater.kafka.protocol.assignors import (
    BUILT_IN,
    Assignor,
    DelayedAssignor,
    GroupSubscription,
    MarkedAssignor,
    MemberAssignment,
    MemberSubscription,
    marked_member_id,
    owner_in,
    owner_of,
)
from slackwater.kafka.structs import ConsumerGroupMetadata, TopicPartition

UID = "0b5ad2a2-4f0e-4b7a-9d1c-000000000001"
HELD = tuple(TopicPartition("t", number) for number in (0, 2))
KINDS = [*BUILT_IN.values(), lambda: DelayedAssignor(1_000)]


def user_data(assignor: Assignor, *, generation: int) -> bytes | None:
    """What a member tells that was given `HELD`, and then a partition less."""
    metadata = ConsumerGroupMetadata("g", generation, "m", "i")
    assignor.on_assignment(MemberAssignment(HELD), metadata)
    assignor.on_assignment(MemberAssignment(HELD[:1]), metadata)
    return assignor.user_data(["t"], generation)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("generation", [-1, 7])
def test_a_plan_is_the_same_with_marks_and_without(kind: type[Assignor], generation: int) -> None:
    """Under an old leader, too: it reads the same classes."""

    def plan(marked: bool) -> object:
        members = {}
        for number in range(3):
            assignor = kind()
            own: Assignor = MarkedAssignor(assignor, UID) if marked and number != 1 else assignor
            data = user_data(own, generation=generation) if number == 0 else own.user_data(["t"], generation)
            owned = HELD[:1] if number == 0 and generation >= 0 else ()
            members[f"m-{number}"] = MemberSubscription(("t",), owned, generation, data)
        group = GroupSubscription({"t": 5}, members, generation=generation + 1)
        return kind().assign_group(group).partitions

    assert plan(marked=True) == plan(marked=False)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mark_is_read_back(kind: type[Assignor]) -> None:
    marked = MarkedAssignor(kind(), UID)
    assert (marked.name, marked.protocols) == (kind().name, kind().protocols)
    assert owner_of(marked.user_data(["t"], -1)) == UID
    assert owner_of(user_data(marked, generation=3)) == UID
    assert owner_in(marked_member_id("0b5ad2a2", UID)) == UID
    assert owner_in(marked_member_id("0b5ad2a2", "")) == owner_in("Iz8u1-owner") == ""


@pytest.mark.parametrize(
    "data",
    [None, b"", b"\0\0\0\7", f"slackwater.dev/group/{UID} ".encode(), b"slackwater.dev/group/", UID.encode()],
)
def test_what_is_no_mark(data: bytes | None) -> None:
    assert owner_of(data) == ""


@pytest.mark.parametrize("owner", ["", "a b", "a" * 65, "é", "a\n"])
def test_an_owner_that_cannot_be_a_mark_is_refused(owner: str) -> None:
    with pytest.raises(ValueError, match="owner must be"):
        MarkedAssignor(BUILT_IN["range"](), owner)
