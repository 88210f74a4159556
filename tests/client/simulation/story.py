"""What happened in a run, line by line, for whoever replays it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode


class Story:
    """Lines with their virtual time. ``on`` false: nothing is kept, and callers make no text."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, on: bool) -> None:
        self._loop = loop
        self.on = on
        self.lines: list[str] = []

    def tell(self, who: str, text: str) -> None:
        """Adds a line; seconds count from the run's begin."""
        if self.on:
            self.lines.append(f"{self._loop.time() - 1000:9.3f} {who:<12} {text}")


class StoryHandler(logging.Handler):
    """Puts what the client logs into the story."""

    def __init__(self, story: Story) -> None:
        super().__init__(logging.INFO)
        self._story = story

    def emit(self, record: logging.LogRecord) -> None:
        self._story.tell("log", f"{record.name.rpartition('.')[2]}: {record.getMessage()}")


def brief(message: Any) -> str:
    """A request or a response in a few words."""
    name = type(message).__name__.removesuffix("Request").removesuffix("Response")
    describe = _WORDS.get(type(message))
    return f"{name} {describe(message)}" if describe is not None else name


def _error(code: int) -> str:
    return str(ErrorCode.name_of(code)) if code else "ok"


def _commit(r: m.OffsetCommitRequest) -> str:
    offsets = " ".join(
        f"{topic.name or topic.topic_id}-{p.partition_index}={p.committed_offset}"
        for topic in r.topics
        for p in topic.partitions
    )
    return f"g{r.generation_id_or_member_epoch} {r.member_id} {offsets}"


def _committed(r: m.OffsetCommitResponse) -> str:
    codes = sorted({p.error_code for topic in r.topics for p in topic.partitions})
    return " ".join(map(_error, codes))


def _fetched(r: m.OffsetFetchResponse) -> str:
    groups: list[Any] = list(r.groups) or [r]
    return " ".join(
        [_error(groups[0].error_code)]
        + [
            f"{t.name or t.topic_id}-{p.partition_index}={p.committed_offset}"
            for t in groups[0].topics
            for p in t.partitions
        ]
    )


def _fetch(r: m.FetchRequest) -> str:
    parts = " ".join(f"{p.partition}@{p.fetch_offset}" for t in r.topics for p in t.partitions)
    return f"session {r.session_id}/{r.session_epoch} {parts}"


def _data(r: m.FetchResponse) -> str:
    parts = [
        f"{p.partition_index}:{_error(p.error_code) if p.error_code else len(p.records or b'')}"
        for t in r.responses
        for p in t.partitions
    ]
    return f"{_error(r.error_code)} {' '.join(parts)}"


_WORDS: dict[type[Any], Any] = {
    m.JoinGroupRequest: lambda r: f"{r.member_id or '-'} instance {r.group_instance_id} ({r.reason or ''})",
    m.JoinGroupResponse: lambda r: (
        f"{_error(r.error_code)} g{r.generation_id} {r.member_id} leader {r.leader}"
        f" {r.protocol_name}{' skip' if r.skip_assignment else ''}"
    ),
    m.SyncGroupRequest: lambda r: f"g{r.generation_id} {r.member_id} ({len(r.assignments)} assignments)",
    m.SyncGroupResponse: lambda r: f"{_error(r.error_code)} {len(r.assignment)} bytes",
    m.HeartbeatRequest: lambda r: f"g{r.generation_id} {r.member_id}",
    m.HeartbeatResponse: lambda r: _error(r.error_code),
    m.OffsetCommitRequest: _commit,
    m.OffsetCommitResponse: _committed,
    m.OffsetFetchResponse: _fetched,
    m.FetchRequest: _fetch,
    m.FetchResponse: _data,
    m.FindCoordinatorResponse: lambda r: " ".join(
        f"{_error(c.error_code)} node {c.node_id}" for c in (r.coordinators or [r])
    ),
    m.LeaveGroupResponse: lambda r: " ".join(
        map(_error, [r.error_code, *(member.error_code for member in r.members)])
    ),
    m.MetadataResponse: lambda r: " ".join(
        f"{t.name}:{','.join(str(p.leader_id) for p in t.partitions) or _error(t.error_code)}"
        for t in r.topics
    ),
}
