"""Looks at a worker's group from outside of it, over connections of its own that stay open between two
looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slackwater.kafka.errors import KafkaError
from slackwater.kafka.group_states import STABLE
from slackwater.runtime.takeover.member_view import MemberView

if TYPE_CHECKING:
    from slackwater.kafka.admin import KafkaAdmin


class KafkaWatch:
    """A :class:`slackwater.runtime.takeover.member_view.Watch`."""

    def __init__(self, group_id: str, instance: str, connect: Callable[[], KafkaAdmin]) -> None:
        """``connect``: a new client, which the watch closes. Raises KafkaError where no broker is there."""
        self._group_id, self._instance, self._connect = group_id, instance, connect
        self._admin: KafkaAdmin | None = None

    def look(self, *, offsets: bool) -> MemberView:
        """See :class:`~slackwater.runtime.takeover.member_view.Watch`. After an error it connects anew."""
        try:
            if self._admin is None:
                self._admin = self._connect()
            return self._look(self._admin, offsets)
        except KafkaError:
            self.close()
            raise

    def _look(self, admin: KafkaAdmin, offsets: bool) -> MemberView:
        group = admin.describe_groups([self._group_id]).unwrap()[self._group_id]
        member = next((one for one in group.members if one.instance_id == self._instance), None)
        if member is None:
            return MemberView(self._instance, group.state)
        known = group.state == STABLE
        partitions = (member.assignment or ()) if known else ()
        # Not Stable: the assignment is not told, but all that is committed says who signed last.
        asked = offsets and (bool(partitions) or not known)
        committed = admin.committed_offsets(self._group_id, partitions if known else None) if asked else {}
        return MemberView(
            self._instance, group.state, member.member_id, member.client_id, partitions, committed
        )

    def close(self) -> None:
        """Closes the connections."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
