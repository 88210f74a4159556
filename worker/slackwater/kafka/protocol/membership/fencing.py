"""Whether FENCED_INSTANCE_ID is the last word.

It means that another consumer joined with this ``group.instance.id``: delivery stops and the error is raised.
One exception: a static rejoin during a rebalance is stored only with the leader's Sync, so a coordinator that
moves before that brings the old member.id back and fences the rightful owner of the id. So a member whose
current member.id has never had a Sync answered, and whose coordinator was lost since it got that id, joins
once more with an empty member.id; a second fence is final. Two consumers can never go back and forth by this
rule: it is used up until a Sync succeeds, and a member that has synced never uses it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Fence:
    """The rule above as three facts."""

    confirmed: bool = False
    """The current member.id has had a Sync answered."""
    coordinator_moved: bool = False
    """The coordinator was lost since the current member.id was given."""
    forgiven: bool = False

    def new_id(self) -> None:
        """Another member.id, or none."""
        self.confirmed = False

    def joined(self) -> None:
        """A Join was answered: the coordinator that will judge is the one that gave the member.id."""
        self.coordinator_moved = False

    def synced(self) -> None:
        """A Sync was answered: the member.id is stored."""
        self.confirmed, self.forgiven = True, False

    def forgive(self) -> bool:
        """Whether a fence may be a coordinator's mistake; true once until the next Sync."""
        if self.confirmed or not self.coordinator_moved or self.forgiven:
            return False
        self.forgiven = True
        return True
