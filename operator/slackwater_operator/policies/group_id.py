"""Which ConsumerGroup may use a group.id, where several of one operator name the same on one Kafka.

Who holds it keeps it; among those that do not, or both do, the older one comes first. What an operator of
another cluster runs is seen by its members only (`policies.ownership`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A Kafka cluster, as far as it is known.

    Attributes:
        servers: where it is reached, each as `HOST:PORT`; a name that only its namespace knows with that.
        cluster_id: as the brokers tell it (Metadata); "": they have not.
    """

    servers: frozenset[str]
    cluster_id: str = ""

    def same_as(self, other: Place) -> bool | None:
        """Whether both are one cluster; None: not known. Servers that both name are one."""
        if self.cluster_id and other.cluster_id:
            return self.cluster_id == other.cluster_id
        return True if self.servers & other.servers else None


@dataclass(frozen=True)
class Claim:
    """A ConsumerGroup that names a group.id.

    Attributes:
        name: NAMESPACE/NAME.
        uid: its uid.
        created: its creationTimestamp (UTC, in whole seconds).
        place: where its workers are, or are to be.
        held: where it has had the group.id to itself, as its status says; None: nowhere yet.
    """

    name: str
    uid: str
    created: str
    place: Place
    held: Place | None = None

    def holds(self, place: Place) -> bool:
        """Whether it has the group.id there."""
        return self.held is not None and self.held.same_as(place) is True

    def is_on(self, place: Place) -> bool | None:
        """Whether it is there, or was and may still have workers there; None: not known."""
        places = [one for one in (self.place, self.held) if one is not None]
        answers = {one.same_as(place) for one in places}
        return True if True in answers else None if None in answers else False


@dataclass(frozen=True)
class Sharing:
    """The other ConsumerGroups that name the same group.id on the same Kafka: NAMESPACE/NAME each.

    Attributes:
        ahead: those that may use it before this one, the first one first.
        behind: those that wait for this one.
        behind_uids: the uids of those.
        unclear: those that have it on a Kafka of which it is not known whether it is this one's, while this
            one does not hold the group.id yet.
    """

    ahead: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    behind_uids: frozenset[str] = frozenset()


def share(own: Claim, others: Iterable[Claim]) -> Sharing:
    """Who of those that name one group.id comes before this one, and who after it."""

    def order(claim: Claim) -> tuple[bool, str, str]:
        return not claim.holds(own.place), claim.created, claim.uid

    ahead: list[str] = []
    behind: list[Claim] = []
    unclear: list[str] = []
    for other in sorted(others, key=order):
        there = other.is_on(own.place)
        if there:
            if order(other) < order(own):
                ahead.append(other.name)
            else:
                behind.append(other)
        elif there is None and other.held is not None and not own.holds(own.place):
            unclear.append(other.name)
    return Sharing(
        tuple(ahead),
        tuple(claim.name for claim in behind),
        tuple(unclear),
        frozenset(claim.uid for claim in behind),
    )
