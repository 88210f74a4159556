"""A member of a classic group, and what a client is known by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from slackwater.kafka.wire import messages as m


class JoinProtocol(NamedTuple):
    """A protocol that a member offers: for consumers an assignor and the encoded subscription."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request. ``host`` has Java's form, with a slash in front."""

    client_id: str
    host: str


JoinReply = Callable[[m.JoinGroupResponse], None]
SyncReply = Callable[[m.SyncGroupResponse], None]


@dataclass(slots=True)
class Member:
    """One member. ``join_reply`` and ``sync_reply`` are there while such a request is parked."""

    member_id: str
    instance_id: str | None
    client: Client
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[JoinProtocol, ...]
    assignment: bytes = b""
    #: It has not had an answer to its first join, and so does not know its id and cannot heartbeat.
    is_new: bool = False
    join_reply: JoinReply | None = None
    sync_reply: SyncReply | None = None

    @property
    def is_static(self) -> bool:
        """Whether it has a ``group.instance.id`` (KIP-345)."""
        return self.instance_id is not None

    @property
    def excused_from_heartbeat(self) -> bool:
        """A member whose request is parked need not heartbeat, except before its first answer."""
        return not self.is_new and (self.join_reply is not None or self.sync_reply is not None)

    def metadata(self, protocol: str | None) -> bytes:
        """What the member sent for this protocol; empty when it does not offer it."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: Iterable[str]) -> str | None:
        """The first of its protocols that is a candidate."""
        wanted = set(candidates)
        return next((name for name, _ in self.protocols if name in wanted), None)

    def finish_join(self, response: m.JoinGroupResponse) -> bool:
        """Answers the parked join; False when none is parked."""
        reply, self.join_reply = self.join_reply, None
        if reply is None:
            return False
        reply(response)
        return True

    def finish_sync(self, response: m.SyncGroupResponse) -> bool:
        """Answers the parked sync; False when none is parked."""
        reply, self.sync_reply = self.sync_reply, None
        if reply is None:
            return False
        reply(response)
        return True
