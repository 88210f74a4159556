"""What an application does with a membership."""

from __future__ import annotations

from slackwater.kafka.protocol.consumer_membership.member import ConsumerMembership
from slackwater.kafka.protocol.membership.member import Membership
from slackwater.kafka.protocol.membership.notices import NoticeKind
from slackwater.kafka.structs import TopicPartition


def handle_notices(
    member: Membership | ConsumerMembership, owned: set[TopicPartition], now_ms: int
) -> list[tuple[NoticeKind, list[TopicPartition]]]:
    """Handles all notices, which are returned: the assignment, ``owned``, changes after each was told."""
    handled = []
    while member.notices:
        notice = member.notices[0]
        handled.append((notice.kind, list(notice.partitions)))
        if notice.kind is NoticeKind.ASSIGNED:
            owned |= set(notice.partitions)
        else:
            owned -= set(notice.partitions)
        member.notice_done(now_ms)
    return handled
