"""Which of two ConsumerGroups gives way whose workers are in one Kafka group.

Two operators of two clusters, or of two namespaces, do not see each other's resources. Where both start at
the same moment neither finds a member of the other, and both run: static members of the same names fence each
other. Then both decide by what both see, the uids in the members' marks: the larger uid gives way.

A group that has been alone in the Kafka group for long knows that it came first, and keeps the group.id
whatever the uids are. The other side cannot see that; where its uid is the smaller one, it gives way when
waiting has not helped. One whose workers have not joined yet came second, whatever the uids are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from slackwater_operator.model.group import GroupView, MemberView

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
