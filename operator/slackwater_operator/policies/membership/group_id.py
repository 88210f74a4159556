"""Which ConsumerGroup may use a group.id that several name.

Within one operator (`share`): a ConsumerGroup that already uses the group.id on that Kafka cluster keeps it;
otherwise the older one has it.

Between operators (`gives_way`): operators of two Kubernetes clusters, or of two sets of namespaces, do not
see each other's resources, only each other's members. If both groups start at the same moment, neither
finds a member of the other, both run, and static members of the same names fence each other. Both operators
then decide by what both see, the uids in the members' subscriptions: the group with the larger uid gives
way.

A group that was alone in the Kafka group for `EXCLUSIVE_AFTER_MS` came first, and keeps the group.id whatever
the uids are. The other operator cannot see that; if its uid is the smaller one, it gives way after
`patience_ms`. A group whose workers have not joined yet came second, whatever the uids are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from slackwater_operator.model.group import GroupView, MemberView


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
        places = [known for known in (self.place, self.held) if known is not None]
        answers = {known.same_as(place) for known in places}
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


EXCLUSIVE_AFTER_MS = 600_000
"""A group that has been alone for that long came first. The kubelet starts a fenced worker again sooner."""

FREE_AFTER_MS = 330_000
"""A group.id is free that long after its owner's members were seen last: the kubelet starts a container that
has ended again and again after five minutes, and it takes a while to join."""

MARGIN_MS = 60_000
"""For the other operator to notice, beyond the time that its workers and their sessions take to end."""


@dataclass(frozen=True)
class Contest:
    """Workers of other ConsumerGroups are in the Kafka group where this one's are, too; or were lately.

    Attributes:
        rivals: the other ConsumerGroups' members as they were seen last, at least one.
        lasted_ms: how long they have been seen, from the first sight to the last.
        joined: whether a worker of this ConsumerGroup has been in the group, or may have been, since it
            had no pods.
    """

    rivals: tuple[MemberView, ...]
    lasted_ms: int = 0
    joined: bool = False


class ContestWatch:
    """Follows whose members are in one Kafka group."""

    def __init__(self) -> None:
        """Has seen nothing."""
        self._rivals: tuple[MemberView, ...] = ()
        self._since_ms = self._last_ms = 0
        self._joined = False
        self._alone_since_ms: int | None = None

    def observe(
        self, group: GroupView | None, uid: str, *, has_pods: bool, may_have_joined: bool, now_ms: int
    ) -> None:
        """Takes in an observation.

        Args:
            group: the group with its members' owners; None: the broker did not say.
            uid: the ConsumerGroup's uid.
            has_pods: whether it has pods, in whatever state.
            may_have_joined: whether a worker of them has joined, or has ended and may have joined before.
            now_ms: wall clock.
        """
        self._joined = (has_pods or bool(self._rivals)) and (self._joined or may_have_joined)
        if group is None:
            self._alone_since_ms = None
            return
        rivals = tuple(member for member in group.members if member.owner not in ("", uid))
        ours = any(member.owner == uid for member in group.members)
        self._joined |= has_pods and ours
        if rivals and (has_pods or self._rivals):
            if not self._rivals:
                self._since_ms = now_ms
            self._rivals, self._last_ms = rivals, now_ms
        elif now_ms - self._last_ms >= FREE_AFTER_MS:
            self._rivals = ()
        alone = has_pods and group.stable and ours and not self._rivals
        if not alone:
            self._alone_since_ms = None
        elif self._alone_since_ms is None:
            self._alone_since_ms = now_ms

    def contest(self) -> Contest | None:
        """Who is in the group besides, or was lately; None: nobody."""
        if not self._rivals:
            return None
        return Contest(self._rivals, self._last_ms - self._since_ms, self._joined)

    def alone_ms(self, now_ms: int) -> int:
        """For how long the Stable group has had workers of no other ConsumerGroup than this; 0: it has."""
        return now_ms - self._alone_since_ms if self._alone_since_ms is not None else 0


def gives_way(
    contest: Contest | None,
    uid: str,
    *,
    exclusive: bool,
    behind: Collection[str] = (),
    patience_ms: int,
) -> str:
    """Why this ConsumerGroup leaves the group.id to another one, in words; "": it does not.

    Args:
        contest: who is in the group besides; None: nobody.
        uid: the ConsumerGroup's uid.
        exclusive: whether its workers had the group to themselves for long, so that it came first.
        behind: the uids of those that are known to come after it.
        patience_ms: how long the members of one that gives way may be seen.
    """
    if contest is None or exclusive:
        return ""
    rivals = {member.owner for member in contest.rivals} - set(behind)
    if not rivals:
        return ""
    if not contest.joined:
        return "they were there before this one's had joined"
    if min(rivals) < uid:
        return f"of two that run at the same time the smaller uid keeps the group.id, and this one's is {uid}"
    if contest.lasted_ms >= patience_ms:
        return f"they have not given way for {contest.lasted_ms // 1000} s, as one that came first does not"
    return ""
