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

from slackwater.times import duration
from slackwater_operator.model.group import GroupView, MemberView


@dataclass(frozen=True)
class KafkaClusterRef:
    """A Kafka cluster, as far as it is known.

    Attributes:
        servers: its bootstrap servers, each as `HOST:PORT`; a name that only one namespace can resolve
            includes the namespace.
        cluster_id: the id that its brokers report (Metadata); "" if they have not.
    """

    servers: frozenset[str]
    cluster_id: str = ""

    def same_as(self, other: KafkaClusterRef) -> bool | None:
        """Whether both are one cluster; None if unknown. Those that share a server are one."""
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
        cluster: the cluster of its workers, present or future.
        held: the cluster on which it has used the group.id, by its status; None if it has not.
    """

    name: str
    uid: str
    created: str
    cluster: KafkaClusterRef
    held: KafkaClusterRef | None = None

    def holds(self, cluster: KafkaClusterRef) -> bool:
        """Whether it has used the group.id on that cluster."""
        return self.held is not None and self.held.same_as(cluster) is True

    def is_on(self, cluster: KafkaClusterRef) -> bool | None:
        """Whether it is on that cluster, or was and may still have workers there; None if unknown."""
        clusters = [known for known in (self.cluster, self.held) if known is not None]
        answers = {known.same_as(cluster) for known in clusters}
        return True if True in answers else None if None in answers else False


@dataclass(frozen=True)
class Sharing:
    """The other ConsumerGroups that name the same group.id on the same Kafka cluster, each as
    NAMESPACE/NAME.

    Attributes:
        ahead: those that may use it before this one, in order.
        behind: those that wait for this one.
        behind_uids: the uids of those.
        unclear: those that use it on a cluster that may be this one's, while this one does not use it yet.
    """

    ahead: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    behind_uids: frozenset[str] = frozenset()


def share(own: Claim, others: Iterable[Claim]) -> Sharing:
    """Orders the ConsumerGroups that name one group.id: which come before this one, and which after it."""

    def order(claim: Claim) -> tuple[bool, str, str]:
        return not claim.holds(own.cluster), claim.created, claim.uid

    ahead: list[str] = []
    behind: list[Claim] = []
    unclear: list[str] = []
    for other in sorted(others, key=order):
        there = other.is_on(own.cluster)
        if there:
            if order(other) < order(own):
                ahead.append(other.name)
            else:
                behind.append(other)
        elif there is None and other.held is not None and not own.holds(own.cluster):
            unclear.append(other.name)
    return Sharing(
        tuple(ahead),
        tuple(claim.name for claim in behind),
        tuple(unclear),
        frozenset(claim.uid for claim in behind),
    )


EXCLUSIVE_AFTER_MS = 600_000
"""A group that has been alone for that long came first; the kubelet restarts a fenced worker sooner."""

FREE_AFTER_MS = 330_000
"""A group.id is free that long after its owner's members were last observed.

The kubelet restarts a container that fails repeatedly after five minutes, and the worker then takes a while
to join.
"""

MARGIN_MS = 60_000
"""Time for the other operator to notice, beyond the end of its workers and their sessions."""


@dataclass(frozen=True)
class Contest:
    """Workers of other ConsumerGroups in this one's Kafka group, now or recently.

    Attributes:
        rivals: the other ConsumerGroups' members as last observed, at least one.
        lasted_ms: the time from their first to their last observation.
        joined: whether a worker of this ConsumerGroup has been in the group, or may have been, since it last
            had no pods.
    """

    rivals: tuple[MemberView, ...]
    lasted_ms: int = 0
    joined: bool = False


class ContestWatch:
    """Follows which ConsumerGroups have members in one Kafka group."""

    def __init__(self) -> None:
        """Starts without observations."""
        self._rivals: tuple[MemberView, ...] = ()
        self._since_ms = self._last_ms = 0
        self._joined = False
        self._alone_since_ms: int | None = None

    def observe(
        self, group: GroupView | None, uid: str, *, has_pods: bool, may_have_joined: bool, now_ms: int
    ) -> None:
        """Takes in an observation.

        Args:
            group: the group with its members' owners; None when the broker did not respond.
            uid: the ConsumerGroup's uid.
            has_pods: whether it has pods, in any state.
            may_have_joined: whether one of their workers has joined, or has ended and may have joined
                before.
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
        """The other ConsumerGroups' workers in the group, now or recently; None without any."""
        if not self._rivals:
            return None
        return Contest(self._rivals, self._last_ms - self._since_ms, self._joined)

    def alone_ms(self, now_ms: int) -> int:
        """For how long the Stable group has had workers of this ConsumerGroup only; 0 if it has others."""
        return now_ms - self._alone_since_ms if self._alone_since_ms is not None else 0


def gives_way(
    contest: Contest | None,
    uid: str,
    *,
    exclusive: bool,
    behind: Collection[str] = (),
    patience_ms: int,
) -> str:
    """Why this ConsumerGroup leaves the group.id to another one, in words; "" if it does not.

    Args:
        contest: the other ConsumerGroups' workers in the group; None without any.
        uid: the ConsumerGroup's uid.
        exclusive: whether its workers had the group to themselves for long, so that it came first.
        behind: the uids of those that are known to come after it.
        patience_ms: how long the members of a group that gives way may remain.
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
        return f"they have not given way for {duration(contest.lasted_ms)}, as one that came first does not"
    return ""
