"""Incremental fetch sessions: what each request names, and what ends a session."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, strategies as st

from slackwater.kafka.protocol.fetch_session import (
    LAST_VERSION_BY_NAME,
    FetchPartition,
    FetchSession,
    FetchSettings,
)
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from slackwater.kafka.wire.primitives import ZERO_UUID

SETTINGS = FetchSettings()
ID = uuid.UUID(int=7)


def tp(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def named(request: m.FetchRequest) -> dict[int, int]:
    """Partition -> offset of what a request names."""
    return {p.partition: p.fetch_offset for topic in request.topics for p in topic.partitions}


def forgotten(request: m.FetchRequest) -> list[int]:
    return sorted(number for topic in request.forgotten_topics_data for number in topic.partitions)


def answer(session_id: int, *numbers: int, code: int = 0, topic_id: uuid.UUID = ID) -> m.FetchResponse:
    partitions = [m.FetchResponsePartition(partition_index=number) for number in numbers]
    topics = [m.FetchResponseTopic(topic_id=topic_id, partitions=partitions)] if numbers else []
    return m.FetchResponse(session_id=session_id, error_code=code, responses=topics)


def at(offset: int, topic_id: uuid.UUID = ID) -> FetchPartition:
    return FetchPartition(offset, 1_000, 3, topic_id)


def test_a_session_names_only_what_changed() -> None:
    session = FetchSession()
    first = session.build({tp(0): at(0), tp(1): at(5)}, SETTINGS)
    assert (first.session_id, first.session_epoch, named(first)) == (0, 0, {0: 0, 1: 5})
    assert [partition for partition, _ in session.take(answer(9, 0, 1)) or []] == [tp(0), tp(1)]
    second = session.build({tp(0): at(4), tp(1): at(5)}, SETTINGS)
    assert (second.session_id, second.session_epoch, named(second)) == (9, 1, {0: 4})
    assert session.take(answer(9)) == []
    third = session.build({tp(1): at(5), tp(2): at(0)}, SETTINGS)
    assert (third.session_epoch, named(third), forgotten(third)) == (2, {2: 0}, [0])


def test_a_broker_without_room_for_sessions_gets_full_requests() -> None:
    session = FetchSession()
    for _ in range(3):
        request = session.build({tp(0): at(0)}, SETTINGS)
        assert (request.session_id, request.session_epoch, named(request)) == (0, 0, {0: 0})
        session.take(answer(0, 0))


def test_without_incremental_sessions_nothing_is_remembered() -> None:
    session = FetchSession(incremental=False)
    for _ in range(2):
        request = session.build({tp(0): at(0)}, SETTINGS)
        assert (request.session_id, request.session_epoch, named(request)) == (0, -1, {0: 0})
        session.take(answer(9, 0))


@pytest.mark.parametrize(
    ("code", "kept_id"),
    [
        (E.FETCH_SESSION_ID_NOT_FOUND, 0),
        (E.INVALID_FETCH_SESSION_EPOCH, 9),
        (E.FETCH_SESSION_TOPIC_ID_ERROR, 9),
        (E.UNKNOWN_TOPIC_ID, 9),
    ],
)
def test_an_error_of_the_session_starts_a_new_one(code: int, kept_id: int) -> None:
    session = FetchSession()
    session.build({tp(0): at(0)}, SETTINGS)
    session.take(answer(9, 0))
    session.build({tp(0): at(1)}, SETTINGS)
    assert session.take(answer(0, code=code)) is None
    again = session.build({tp(0): at(1)}, SETTINGS)
    # Epoch 0 with an id closes the old session and opens a new one (KIP-227).
    assert (again.session_id, again.session_epoch, named(again)) == (kept_id, 0, {0: 1})


def test_a_lost_answer_starts_a_new_session() -> None:
    session = FetchSession()
    session.build({tp(0): at(0)}, SETTINGS)
    session.take(answer(9, 0))
    session.build({tp(0): at(1)}, SETTINGS)
    session.failed()
    assert named(session.build({tp(0): at(1)}, SETTINGS)) == {0: 1}


def test_an_answer_with_what_was_not_asked_for_is_refused() -> None:
    session = FetchSession()
    session.build({tp(0): at(0)}, SETTINGS)
    assert session.take(answer(9, 0, 1)) is None
    session.build({tp(0): at(0)}, SETTINGS)
    assert session.take(answer(9, 0, topic_id=uuid.UUID(int=8))) is None
    assert session.epoch == 0


def test_a_topic_made_anew_is_forgotten_by_its_old_id_and_named_by_the_new() -> None:
    session, new = FetchSession(), uuid.UUID(int=8)
    session.build({tp(0): at(5)}, SETTINGS)
    session.take(answer(9, 0))
    request = session.build({tp(0): at(0, new)}, SETTINGS)
    assert [topic.topic_id for topic in request.topics] == [new]
    assert [topic.topic_id for topic in request.forgotten_topics_data] == [ID]


def test_without_ids_the_session_stays_at_the_last_version_by_name() -> None:
    session = FetchSession()
    session.build({tp(0): at(0)}, SETTINGS)
    session.take(answer(9, 0))
    assert session.version_cap is None
    request = session.build({tp(0): at(0), tp(1): at(0, ZERO_UUID)}, SETTINGS)
    assert session.version_cap == LAST_VERSION_BY_NAME
    assert request.session_epoch == 0
    assert named(m.FetchRequest.decode(request.encode(12), 12)) == {0: 0, 1: 0}


@given(st.lists(st.tuples(st.dictionaries(st.integers(0, 5), st.integers(0, 3), min_size=1),
                          st.sampled_from(["ok", "lost", "error"]))))  # fmt: skip
def test_the_broker_knows_what_the_client_wants(steps: list[tuple[dict[int, int], str]]) -> None:
    """A broker that keeps a session as KIP-227 says holds exactly what was wanted, after every request."""
    session, held, epoch = FetchSession(), {}, 0
    for wanted, fate in steps:
        request = session.build({tp(n): at(offset) for n, offset in wanted.items()}, SETTINGS)
        if request.session_epoch == 0:
            held, epoch = {}, 0
        assert request.session_epoch == epoch
        for number in forgotten(request):
            del held[number]
        held.update(named(request))
        assert held == wanted
        epoch += 1
        if fate == "ok":
            assert session.take(answer(9)) == []
        elif fate == "lost":
            session.failed()
        else:
            session.take(answer(0, code=E.FETCH_SESSION_ID_NOT_FOUND))
