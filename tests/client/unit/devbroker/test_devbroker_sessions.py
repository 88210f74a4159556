"""Fetch sessions (KIP-227), without a broker around them."""

from __future__ import annotations

import random
from uuid import UUID

from slackwater.devbroker.api.fetch_sessions import Answer, FetchContext, FetchSessions, next_epoch
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

NAMES, IDS = 12, 13


def request(
    session: int,
    epoch: int,
    partitions: dict[int, int],
    forget: list[int] | None = None,
    *,
    by_id: bool = False,
) -> m.FetchRequest:
    key = {"topic_id": UUID(int=5)} if by_id else {"topic": "t"}
    wanted = [m.FetchRequestPartition(partition=i, fetch_offset=o) for i, o in partitions.items()]
    return m.FetchRequest(
        session_id=session,
        session_epoch=epoch,
        topics=[m.FetchRequestTopic(**key, partitions=wanted)] if wanted else [],  # type: ignore[arg-type]
        forgotten_topics_data=[m.FetchRequestForgottenTopic(**key, partitions=forget)] if forget else [],  # type: ignore[arg-type]
    )


def sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots, random.Random(1))


def answers(context: FetchContext, **changes: object) -> list[Answer]:
    return [
        (part, m.FetchResponsePartition(**{"partition_index": part.index, "high_watermark": 3, **changes}))
        for part in context.partitions
    ]


def open_session(cache: FetchSessions, partitions: dict[int, int], version: int = NAMES) -> int:
    context = cache.context(request(0, 0, partitions, by_id=version >= IDS), version, 0)
    assert context.session is not None
    assert len(cache.answered(context, answers(context))) == len(partitions), "the first answer holds all"
    return context.session.id


def test_an_incremental_answer_holds_only_news() -> None:
    cache = sessions()
    session = open_session(cache, {0: 0, 1: 0})
    context = cache.context(request(session, 1, {}), NAMES, 0)
    assert [part.index for part in context.partitions] == [0, 1]
    assert cache.answered(context, answers(context)) == []
    context = cache.context(request(session, 2, {}), NAMES, 0)
    assert len(cache.answered(context, answers(context, high_watermark=4))) == 2
    context = cache.context(request(session, 3, {}), NAMES, 0)
    assert len(cache.answered(context, answers(context, high_watermark=4, records=b"data"))) == 2


def test_partitions_are_added_changed_and_forgotten() -> None:
    cache = sessions()
    session = open_session(cache, {0: 0, 1: 0})
    context = cache.context(request(session, 1, {1: 7, 2: 9}, forget=[0]), NAMES, 0)
    assert [(part.index, part.fetch_offset) for part in context.partitions] == [(1, 7), (2, 9)]


def test_a_session_without_partitions_ends() -> None:
    cache = sessions()
    session = open_session(cache, {0: 0})
    context = cache.context(request(session, 1, {}, forget=[0]), NAMES, 0)
    assert (context.session, context.partitions, len(cache)) == (None, [], 0)


def test_partitions_with_data_go_to_the_back() -> None:
    cache = sessions()
    session = open_session(cache, {0: 0, 1: 0, 2: 0})
    context = cache.context(request(session, 1, {}), NAMES, 0)
    given = answers(context)
    given[0][1].records = b"data"
    cache.answered(context, given)
    context = cache.context(request(session, 2, {}), NAMES, 0)
    assert [part.index for part in context.partitions] == [1, 2, 0]


def test_a_full_request_replaces_a_session_and_the_final_epoch_ends_it() -> None:
    cache = sessions()
    session = open_session(cache, {0: 0})
    replaced = cache.context(request(session, 0, {1: 0}), NAMES, 0)
    assert replaced.session is not None
    assert replaced.session.id != session
    assert len(cache) == 1
    last = cache.context(request(replaced.session.id, -1, {1: 0}), NAMES, 0)
    assert (last.session, len(last.partitions), len(cache)) == (None, 1, 0)


def test_before_version_7_there_are_no_sessions() -> None:
    cache = sessions()
    assert cache.context(request(0, 0, {0: 0}), 6, 0).session is None
    assert len(cache) == 0


def test_a_full_cache_gives_up_only_a_session_that_is_long_unused() -> None:
    cache = sessions(slots=1)
    first = open_session(cache, {0: 0})
    assert cache.context(request(0, 0, {0: 0}), NAMES, 119_999).session is None
    later = cache.context(request(0, 0, {0: 0}), NAMES, 120_000).session
    assert later is not None
    assert cache.context(request(first, 1, {}), NAMES, 120_000).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_epochs_wrap_to_one() -> None:
    assert [next_epoch(1), next_epoch(2**31 - 1)] == [2, 1]
