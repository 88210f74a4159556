"""What waits to be told to an application, after it has changed its mind about what it reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace

from slackwater.kafka.protocol.membership.states import Notice, NoticeKind
from slackwater.kafka.structs import TopicPartition


def leave_out_unread(
    waiting: deque[Notice], topics: Collection[str], owned: Collection[TopicPartition]
) -> bool:
    """Takes partitions of other topics than ``topics`` out of the ASSIGNED notices; true if there were any.

    ``owned``: what the application holds. A first notice whose partitions it holds is being told at this
    moment, and stays: they have been taken, so they have to be revoked. What is left out was never taken.
    An assignment that is left without partitions holds nobody up.
    """
    changed = False
    for index, notice in enumerate(waiting):
        if notice.kind is not NoticeKind.ASSIGNED:
            continue
        if index == 0 and any(tp in owned for tp in notice.partitions):
            continue
        read = tuple(tp for tp in notice.partitions if tp.topic in topics)
        if read != notice.partitions:
            waiting[index] = replace(notice, partitions=read, blocking=bool(read))
            changed = True
    return changed
