"""What the group knows of a worker's member, observed from outside the group.

The connections stay open between two observations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from slackwater.kafka.errors import KafkaError
from slackwater.kafka.group_states import STABLE
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.delivery.partition import CommitNote

if TYPE_CHECKING:
    from slackwater.kafka.admin import KafkaAdmin


@dataclass(frozen=True)
class MemberView:
    """A look at the group (DescribeGroups, OffsetFetch).

    ``instance``: the member's group.instance.id. ``state``: the group's. ``member_id``: changes with each
    join; "" where the group does not know the member. ``client_id``: of the FIRST process that joined as
    it, since a broker leaves that as it is when another follows (seen with Kafka 4.3). ``partitions``:
    the member's; known in a group at rest only. ``committed``: of these; of all of the group's where they
    are not known. ``epoch``: the group's, by the consumer protocol.
    """

    instance: str
    state: str = ""
    member_id: str = ""
    client_id: str = ""
    partitions: tuple[TopicPartition, ...] = ()
    committed: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    epoch: int | None = None

    @property
    def taken(self) -> bool:
        """Whether the group knows the member."""
        return bool(self.member_id)

    @property
    def stable(self) -> bool:
        """Whether the group is at rest, and the member in it."""
        return self.state == STABLE and self.taken

    @property
    def note(self) -> CommitNote | None:
        """The note of the process that has joined last as the member, as far as it has committed."""
        notes = [CommitNote.decode(offset.metadata) for offset in self.committed.values()]
        own = [note for note in notes if note is not None and note.instance == self.instance and note.pod]
        return max(own, key=lambda note: (note.since_ms or 0, note.at_ms or 0), default=None)

    @property
    def holder(self) -> str:
        """The pod that is the member: who signed last; before the first commit the one that joined first."""
        note = self.note
        return note.pod if note is not None else self.client_id


class GroupObserver(Protocol):
    """Looks at the group without being in it. Its calls come from one thread."""

    def observe(self, *, offsets: bool) -> MemberView:
        """The member as the group has it now; with ``offsets`` what is committed, too. Raises KafkaError."""

    def close(self) -> None:
        """Closes the connections. May be called again; a look after that opens them anew."""


class KafkaGroupObserver:
    """A :class:`GroupObserver` over a Kafka admin client."""

    def __init__(self, group_id: str, instance: str, connect: Callable[[], KafkaAdmin]) -> None:
        """``connect``: a new client, which the observer closes. Raises KafkaError where no broker answers."""
        self._group_id, self._instance, self._connect = group_id, instance, connect
        self._admin: KafkaAdmin | None = None

    def observe(self, *, offsets: bool) -> MemberView:
        """See :class:`GroupObserver`. After an error it connects anew."""
        try:
            if self._admin is None:
                self._admin = self._connect()
            return self._look(self._admin, offsets)
        except KafkaError:
            self.close()
            raise

    def _look(self, admin: KafkaAdmin, offsets: bool) -> MemberView:
        group = admin.describe_groups([self._group_id]).unwrap()[self._group_id]
        member = next((member for member in group.members if member.instance_id == self._instance), None)
        if member is None:
            return MemberView(self._instance, group.state)
        known = group.at_rest
        partitions = (member.assignment or ()) if known else ()
        # Not Stable: the assignment is not told, but all that is committed says who signed last.
        asked = offsets and (bool(partitions) or not known)
        committed = admin.committed_offsets(self._group_id, partitions if known else None) if asked else {}
        return MemberView(
            self._instance,
            STABLE if known else group.state,
            member.member_id,
            member.client_id,
            partitions,
            committed,
            group.epoch,
        )

    def close(self) -> None:
        """Closes the connections."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
