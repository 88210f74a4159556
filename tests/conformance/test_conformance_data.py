"""Records in and out: Produce, Fetch and its sessions, ListOffsets, producer ids."""

from __future__ import annotations

import time
import uuid

import pytest

from slackwater.kafka import records
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.conformance.brokers import needs
from tests.support.waiting import WAIT_S, wait_until
from tests.support.wire.rawclient import RawClient, create_topic
from tests.support.wire.rawdata import (
    batch,
    fetch,
    fetch_request,
    list_offset,
    old_message,
    produce,
    produce_request,
    topic_id_of,
    values_of,
)

T0 = 1_700_000_000_000


@pytest.fixture
def topic(client: RawClient, name: str) -> str:
    """A topic of two partitions."""
    create_topic(client, name, 2)
    return name


def delete(client: RawClient, topic: str) -> None:
    answer = client.request(m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000), 5)
    assert answer.responses[0].error_code == E.NONE


# --- produce -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("fetch_version", [4, 12])
def test_all_codecs(client: RawClient, topic: str, codec: str, fetch_version: int) -> None:
    """All four codecs; zstd even to Fetch v4."""
    data = batch([b"a" * 500, None, b"c"], compression=codec)
    answer = produce(client, topic, data)
    assert (answer.error_code, answer.base_offset) == (E.NONE, 0)
    part = fetch(client, topic, 0, version=fetch_version)
    assert values_of(part) == [b"a" * 500, None, b"c"]
    assert part.high_watermark == 3
    [header] = list(records.iter_batches(part.records or b""))
    assert records.verify_crc(part.records or b"", header)


def test_zstd_needs_produce_v7(client: RawClient, topic: str) -> None:
    """zstd: Produce v7+, else UNSUPPORTED_COMPRESSION_TYPE."""
    data = batch([b"a"], compression="zstd")
    assert produce(client, topic, data, version=6).error_code == E.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(client, topic, data, version=7).error_code == E.NONE


@pytest.mark.parametrize("magic", [0, 1])
def test_old_magic_is_refused(client: RawClient, topic: str, magic: int) -> None:
    """Magic 0/1: INVALID_RECORD."""
    assert produce(client, topic, old_message(magic, b"x")).error_code == E.INVALID_RECORD
    assert list_offset(client, topic, -1).offset == 0


@pytest.mark.parametrize("version", range(3, 13))
@needs(m.ProduceRequest)
def test_every_produce_version(client: RawClient, topic: str, version: int) -> None:
    """Produce 3-12 by name."""
    answer = produce(client, topic, batch([b"x", b"y"]), version=version)
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (E.NONE, 0, -1)
    assert produce(client, topic, batch([b"z"]), version=version).base_offset == 2


@pytest.mark.parametrize("version", range(4, 13))
@needs(m.FetchRequest)
def test_every_fetch_version_by_name(client: RawClient, topic: str, version: int) -> None:
    """Fetch 4-12 by name."""
    produce(client, topic, batch([b"x", b"y"]))
    part = fetch(client, topic, 1, version=version)
    assert (part.error_code, part.high_watermark) == (E.NONE, 2)
    assert values_of(part, 1) == [b"y"]


@pytest.mark.parametrize("version", range(13, 19))
@needs(m.FetchRequest)
def test_every_fetch_version_by_id(client: RawClient, topic: str, version: int) -> None:
    """Fetch 13-18 by id."""
    produce(client, topic, batch([b"x"]))
    assert values_of(fetch(client, topic_id_of(client, topic), 0, version=version)) == [b"x"]


@needs(m.ProduceRequest, 13)
def test_produce_by_id(client: RawClient, topic: str) -> None:
    """Produce 13 by id; an id that nobody has: UNKNOWN_TOPIC_ID."""
    assert produce(client, topic_id_of(client, topic), batch([b"x"]), version=13).error_code == E.NONE
    assert values_of(fetch(client, topic, 0)) == [b"x"]
    assert produce(client, uuid.uuid4(), batch([b"x"]), version=13).error_code == E.UNKNOWN_TOPIC_ID


def test_wrong_checksum(client: RawClient, topic: str) -> None:
    """A batch whose CRC does not fit: CORRUPT_MESSAGE, and nothing is appended."""
    data = bytearray(batch([b"hello"]))
    data[-1] ^= 1
    assert produce(client, topic, bytes(data)).error_code == E.CORRUPT_MESSAGE
    assert list_offset(client, topic, -1).offset == 0


def test_exactly_one_batch_per_partition(client: RawClient, topic: str) -> None:
    """Produce v3+: exactly one batch per partition, else INVALID_RECORD."""
    two = batch([b"x"]) + batch([b"y"])
    assert produce(client, topic, two).error_code == E.INVALID_RECORD


def test_too_large_a_batch(client: RawClient, name: str) -> None:
    """Above max.message.bytes: MESSAGE_TOO_LARGE."""
    create_topic(client, name, 1, max_message_bytes="1000")
    assert produce(client, name, batch([b"x" * 2000])).error_code == E.MESSAGE_TOO_LARGE
    assert produce(client, name, batch([b"x" * 500])).error_code == E.NONE


def test_acks(client: RawClient, topic: str) -> None:
    """acks other than -1, 0, 1: INVALID_REQUIRED_ACKS; 0: no answer at all."""
    assert produce(client, topic, batch([b"x"]), acks=2).error_code == E.INVALID_REQUIRED_ACKS
    assert produce(client, topic, batch([b"x"]), acks=1).error_code == E.NONE
    client.send(produce_request(topic, batch([b"quiet"]), acks=0), 9)
    client._sent.clear()
    end = client.request(m.MetadataRequest(topics=[]), 9)  # the next answer is the next request's
    assert end.brokers
    assert list_offset(client, topic, -1).offset == 2


def test_produce_to_what_is_not_there(client: RawClient, topic: str) -> None:
    """No such topic or partition: UNKNOWN_TOPIC_OR_PARTITION."""
    missing = E.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(client, "no-" + topic, batch([b"x"])).error_code == missing
    assert produce(client, topic, batch([b"x"]), partition=2).error_code == missing


# --- the broker's time ---------------------------------------------------------------------------


@pytest.fixture
def appended(client: RawClient, name: str) -> str:
    """A topic whose records have the broker's time."""
    create_topic(client, name, 1, message_timestamp_type="LogAppendTime")
    return name


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_log_append_time(client: RawClient, appended: str, codec: str) -> None:
    """The batch has the time of append in place of its largest, attribute bit 3 and a new checksum; the
    producer's base stays. Produce, Fetch and ListOffsets agree.
    """
    data = batch([b"a", b"b"], timestamps=[T0 + 50, T0], compression=codec)
    time_ms = produce(client, appended, data).log_append_time_ms
    assert time_ms > T0 + 50
    part = fetch(client, appended, 0)
    [header] = list(records.iter_batches(part.records or b""))
    assert records.verify_crc(part.records or b"", header)
    assert (header.attributes & 8, header.base_timestamp_ms, header.max_timestamp_ms) == (8, T0 + 50, time_ms)
    read = records.decode(part.records or b"", fetch_offset=0).records(appended, 0)
    assert [(r.timestamp, r.timestamp_type) for r in read] == [(time_ms, 1)] * 2
    by_time = [list_offset(client, appended, at) for at in (T0, time_ms, time_ms + 1)]
    assert [(at.offset, at.timestamp) for at in by_time] == [(0, time_ms), (0, time_ms), (-1, -1)]


@needs(m.ListOffsetsRequest, 7)
def test_first_of_records_with_one_time(client: RawClient, appended: str) -> None:
    """ListOffsets v7 -3: the first record with the largest timestamp."""
    time_ms = produce(client, appended, batch([b"a", b"b"])).log_append_time_ms
    offset = list_offset(client, appended, -3)
    assert (offset.offset, offset.timestamp) == (0, time_ms)


def test_a_batch_that_claims_the_brokers_time(client: RawClient, appended: str) -> None:
    """Attribute bit 3 in a Produce: INVALID_TIMESTAMP."""
    data = bytearray(batch([b"a"]))
    data[22] |= 8
    answer = produce(client, appended, records.stamp_crc(data))
    assert answer.error_code == E.INVALID_TIMESTAMP
    assert list_offset(client, appended, -1).offset == 0


# --- idempotent produce --------------------------------------------------------------------------


class Producer:
    """A producer id of one's own, and numbered batches to partition 0."""

    def __init__(self, client: RawClient, topic: str) -> None:
        request = m.InitProducerIdRequest(transactional_id=None)
        # A broker that has just started has no block of ids yet.
        wait_until(lambda: client.request(request, 4).error_code != E.COORDINATOR_LOAD_IN_PROGRESS)
        answer = client.request(request, 4)
        assert answer.error_code == E.NONE
        self.client, self.topic = client, topic
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def send(self, sequence: int, count: int = 1, *, epoch: int | None = None) -> tuple[int, int]:
        """Error code and base offset of a batch of ``count`` records from ``sequence`` on."""
        data = batch(
            [b"x"] * count,
            producer_id=self.id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
        )
        answer = produce(self.client, self.topic, data)
        return answer.error_code, answer.base_offset


def test_producer_ids_are_new_each_time(client: RawClient, topic: str) -> None:
    """InitProducerId without a transactional id: another id, epoch 0."""
    first, second = Producer(client, topic), Producer(client, topic)
    assert first.id != second.id
    assert (first.epoch, second.epoch) == (0, 0)


def test_repeated_batch_is_acknowledged_once_stored(client: RawClient, topic: str) -> None:
    """One of the last five batches again: NONE with the offset it has, and nothing is appended."""
    producer = Producer(client, topic)
    offsets = [producer.send(i * 2, 2) for i in range(5)]
    assert offsets == [(E.NONE, i * 2) for i in range(5)]
    for i in range(5):
        assert producer.send(i * 2, 2) == (E.NONE, i * 2)
    assert list_offset(client, topic, -1).offset == 10


@pytest.mark.parametrize("times", ["CreateTime", "LogAppendTime"])
def test_repeated_batch_has_the_time_that_is_stored(client: RawClient, name: str, times: str) -> None:
    """The answer to a repeated batch has the largest timestamp of the stored one, whoever set it."""
    create_topic(client, name, 1, message_timestamp_type=times)
    producer = Producer(client, name)
    assert [producer.send(0)[0] for _ in range(2)] == [E.NONE, E.NONE]
    data = batch([b"x"], producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=0)
    [header] = list(records.iter_batches(fetch(client, name, 0).records or b""))
    assert produce(client, name, data).log_append_time_ms == header.max_timestamp_ms


def test_batch_older_than_the_last_five(client: RawClient, topic: str) -> None:
    """A repeat of an older batch cannot be told from a gap any more: OUT_OF_ORDER_SEQUENCE_NUMBER."""
    producer = Producer(client, topic)
    for i in range(6):
        producer.send(i)
    assert producer.send(0)[0] == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert list_offset(client, topic, -1).offset == 6


def test_gap_in_the_sequence(client: RawClient, topic: str) -> None:
    """A sequence number that is not the next: OUT_OF_ORDER_SEQUENCE_NUMBER; the next is still good."""
    producer = Producer(client, topic)
    assert producer.send(0, 3)[0] == E.NONE
    assert producer.send(4)[0] == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(3) == (E.NONE, 3)


def test_producer_epochs(client: RawClient, topic: str) -> None:
    """A lower epoch: INVALID_PRODUCER_EPOCH; a higher one starts at sequence 0."""
    producer = Producer(client, topic)
    assert producer.send(0, epoch=3)[0] == E.NONE
    assert producer.send(1, epoch=2)[0] == E.INVALID_PRODUCER_EPOCH
    assert producer.send(1, epoch=4)[0] == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(0, epoch=4)[0] == E.NONE


def test_unknown_producer_may_start_anywhere(client: RawClient, topic: str) -> None:
    """A producer that the partition has nothing of (expired, say) may start at any sequence."""
    assert Producer(client, topic).send(17)[0] == E.NONE


# --- fetch ---------------------------------------------------------------------------------------


def test_fetch_out_of_range(client: RawClient, topic: str) -> None:
    """Before the start or after the end: OFFSET_OUT_OF_RANGE; at the end: nothing, no error."""
    produce(client, topic, batch([b"x"]))
    for offset in (2, -1, 99):
        part = fetch(client, topic, offset)
        assert (part.error_code, part.high_watermark) == (E.OFFSET_OUT_OF_RANGE, -1)
    part = fetch(client, topic, 1)
    assert (part.error_code, bytes(part.records or b"")) == (E.NONE, b"")


def test_fetch_from_the_middle_of_a_batch(client: RawClient, topic: str) -> None:
    """The whole batch that holds the offset comes back."""
    produce(client, topic, batch([b"a", b"b", b"c"]))
    part = fetch(client, topic, 2)
    [header] = list(records.iter_batches(part.records or b""))
    assert (header.base_offset, header.record_count) == (0, 3)
    assert values_of(part, 2) == [b"c"]


def test_fetch_limits(client: RawClient, topic: str) -> None:
    """KIP-74: the first batch comes whole however small the limit, later ones only as far as they fit."""
    for i in range(3):
        produce(client, topic, batch([bytes([i]) * 3000]))
    part = fetch(client, topic, 0, partition_max_bytes=1)
    assert values_of(part) == [b"\0" * 3000]
    part = fetch(client, topic, 0, max_bytes=1)
    assert values_of(part) == [b"\0" * 3000]
    part = fetch(client, topic, 0, partition_max_bytes=7000)
    assert len(values_of(part)) == 2


def test_only_the_first_partition_may_break_the_limit(client: RawClient, topic: str) -> None:
    """max_bytes is over all partitions: the second one's batch must fit what is left."""
    for partition in (0, 1):
        produce(client, topic, batch([b"x" * 3000]), partition=partition)
    answer = client.request(fetch_request([(topic, 0, 0), (topic, 1, 0)], max_bytes=1000), 12)
    sizes = [len(p.records or b"") for t in answer.responses for p in t.partitions]
    assert sorted(size > 0 for size in sizes) == [False, True]


def test_long_poll_ends_with_data(client: RawClient, topic: str, bootstrap: str) -> None:
    """A fetch waits for min_bytes, and is answered when a record comes."""
    client.send(fetch_request([(topic, 0, 0)], max_wait_ms=15_000), 12)
    assert client.is_silent(0.3)
    with RawClient.to(bootstrap) as other:
        start = time.monotonic()
        produce(other, topic, batch([b"x"]))
        part = client.receive().responses[0].partitions[0]
    assert values_of(part) == [b"x"]
    assert time.monotonic() - start < 10


def test_long_poll_ends_with_time(client: RawClient, topic: str) -> None:
    """A fetch is answered after max_wait_ms, with nothing."""
    start = time.monotonic()
    part = fetch(client, topic, 0, max_wait_ms=500)
    assert 0.45 <= time.monotonic() - start < 10
    assert bytes(part.records or b"") == b""


def test_out_of_range_ends_a_long_poll(client: RawClient, topic: str) -> None:
    """An offset out of range ends the wait at once."""
    start = time.monotonic()
    answer = client.request(fetch_request([(topic, 0, 0), (topic, 1, 5)], max_wait_ms=15_000), 12)
    assert time.monotonic() - start < 10
    assert shown(answer) == {0: E.NONE, 1: E.OFFSET_OUT_OF_RANGE}


def test_missing_partition_does_not_end_a_long_poll(client: RawClient, topic: str) -> None:
    """A partition that is not there does not end the wait for the others; alone it is answered at once."""
    start = time.monotonic()
    answer = client.request(fetch_request([(topic, 0, 0), (topic, 7, 0)], max_wait_ms=700), 12)
    assert time.monotonic() - start >= 0.65
    assert shown(answer) == {0: E.NONE, 7: E.UNKNOWN_TOPIC_OR_PARTITION}
    start = time.monotonic()
    answer = client.request(fetch_request([(topic, 7, 0)], max_wait_ms=15_000), 12)
    assert time.monotonic() - start < 10
    assert shown(answer) == {7: E.UNKNOWN_TOPIC_OR_PARTITION}


def test_fetch_with_a_wrong_leader_epoch(client: RawClient, topic: str) -> None:
    """A leader epoch from the future: UNKNOWN_LEADER_EPOCH (KIP-320)."""
    request = fetch_request([(topic, 0, 0)])
    request.topics[0].partitions[0].current_leader_epoch = 1000
    part = client.request(request, 12).responses[0].partitions[0]
    assert part.error_code == E.UNKNOWN_LEADER_EPOCH


@needs(m.FetchRequest, 13)
def test_topics_that_are_not_there_or_not_the_same(client: RawClient, topic: str) -> None:
    """Fetch v13+ without a session: an id that is not known (any more): UNKNOWN_TOPIC_ID."""
    old = topic_id_of(client, topic)
    assert fetch(client, uuid.uuid4(), 0, version=13).error_code == E.UNKNOWN_TOPIC_ID
    delete(client, topic)
    wait_until(lambda: fetch(client, old, 0, version=13).error_code != E.NONE)
    assert fetch(client, old, 0, version=13).error_code == E.UNKNOWN_TOPIC_ID
    assert fetch(client, topic, 0, version=12).error_code == E.UNKNOWN_TOPIC_OR_PARTITION


# --- fetch sessions (KIP-227) --------------------------------------------------------------------


class Session:
    """An incremental fetch session by hand."""

    def __init__(self, client: RawClient, version: int = 12) -> None:
        self.client, self.version = client, version
        self.id, self.epoch = 0, 0

    def fetch(self, *topics: tuple[str | uuid.UUID, int, int], **fields: object) -> m.FetchResponse:
        """One fetch of the session; ``topics`` are added or changed."""
        values: dict[str, object] = {"session_id": self.id, "session_epoch": self.epoch}
        request = fetch_request(topics, **{**values, **fields})  # type: ignore[arg-type]
        answer = self.client.request(request, self.version)
        if answer.error_code == E.NONE:
            self.id, self.epoch = answer.session_id, self.epoch + 1
        return answer


def shown(answer: m.FetchResponse) -> dict[int, int]:
    """Partition -> error code of all partitions in the answer."""
    return {p.partition_index: p.error_code for t in answer.responses for p in t.partitions}


def test_session_answers_only_what_changed(client: RawClient, topic: str) -> None:
    """A full fetch names all partitions; an incremental one those with data, every time."""
    session = Session(client)
    assert shown(session.fetch((topic, 0, 0), (topic, 1, 0))) == {0: E.NONE, 1: E.NONE}
    assert session.id != 0
    assert shown(session.fetch()) == {}
    produce(client, topic, batch([b"x"]), partition=1)
    for _ in range(2):
        answer = session.fetch()
        assert shown(answer) == {1: E.NONE}
        assert values_of(answer.responses[0].partitions[0]) == [b"x"]
    assert shown(session.fetch((topic, 1, 1))) in ({}, {1: E.NONE})
    assert shown(session.fetch()) == {}


def test_session_forgets_partitions(client: RawClient, topic: str) -> None:
    """forgotten_topics_data takes partitions out of the session."""
    produce(client, topic, batch([b"x"]))
    produce(client, topic, batch([b"x"]), partition=1)
    session = Session(client)
    session.fetch((topic, 0, 0), (topic, 1, 0))
    gone = [m.FetchRequestForgottenTopic(topic=topic, partitions=[0])]
    assert shown(session.fetch(forgotten_topics_data=gone)) == {1: E.NONE}


def test_wrong_session_epoch_does_not_end_the_session(client: RawClient, topic: str) -> None:
    """A wrong epoch: INVALID_FETCH_SESSION_EPOCH, and the session goes on."""
    session = Session(client)
    session.fetch((topic, 0, 0))
    assert session.fetch(session_epoch=9).error_code == E.INVALID_FETCH_SESSION_EPOCH
    assert session.fetch().error_code == E.NONE
    produce(client, topic, batch([b"x"]))
    assert shown(session.fetch()) == {0: E.NONE}


def test_unknown_session(client: RawClient, topic: str) -> None:
    """No such session: FETCH_SESSION_ID_NOT_FOUND; so too after it was closed by epoch -1."""
    answer = client.request(fetch_request(session_id=123456789, session_epoch=1), 12)
    assert answer.error_code == E.FETCH_SESSION_ID_NOT_FOUND
    session = Session(client)
    session.fetch((topic, 0, 0))
    closed = client.request(fetch_request(session_id=session.id, session_epoch=-1), 12)
    assert (closed.error_code, closed.session_id) == (E.NONE, 0)
    assert session.fetch().error_code == E.FETCH_SESSION_ID_NOT_FOUND


def test_errors_return_every_time(client: RawClient, topic: str) -> None:
    """Partitions in error return every time."""
    session = Session(client)
    assert shown(session.fetch((topic, 0, 0), (topic, 9, 0))) == {
        0: E.NONE,
        9: E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    for _ in range(2):
        assert shown(session.fetch()) == {9: E.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("by_id", [True, False], ids=["ids-then-names", "names-then-ids"])
@needs(m.FetchRequest, 13)
def test_names_and_ids_do_not_mix(client: RawClient, topic: str, by_id: bool) -> None:
    """Names (v12-) and ids (v13+) do not mix: FETCH_SESSION_TOPIC_ID_ERROR."""
    topic_id = topic_id_of(client, topic)
    session = Session(client, 13 if by_id else 12)
    session.fetch((topic_id if by_id else topic, 0, 0))
    session.version = 12 if by_id else 13
    assert session.fetch().error_code == E.FETCH_SESSION_TOPIC_ID_ERROR


@needs(m.FetchRequest, 13)
def test_session_of_ids_after_deletion_and_recreation(client: RawClient, name: str) -> None:
    """In a session by id: topic deleted: UNKNOWN_TOPIC_OR_PARTITION, recreated: INCONSISTENT_TOPIC_ID,
    never known: UNKNOWN_TOPIC_ID.
    """
    create_topic(client, name, 1)
    session = Session(client, 13)
    assert shown(session.fetch((topic_id_of(client, name), 0, 0))) == {0: E.NONE}
    delete(client, name)
    assert _until_error(session) == E.UNKNOWN_TOPIC_OR_PARTITION
    create_topic(client, name, 1)
    assert _until_error(session, E.UNKNOWN_TOPIC_OR_PARTITION) == E.INCONSISTENT_TOPIC_ID
    assert shown(Session(client, 13).fetch((uuid.uuid4(), 0, 0))) == {0: E.UNKNOWN_TOPIC_ID}


def _until_error(session: Session, other_than: E = E.NONE) -> int:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        answer = session.fetch()
        assert answer.error_code == E.NONE
        code = shown(answer).get(0, E.NONE)
        if code not in (E.NONE, other_than):
            return code
        time.sleep(0.02)
    raise AssertionError("no error")


# --- offsets by time -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 11))
@needs(m.ListOffsetsRequest)
def test_ends_of_the_log(client: RawClient, topic: str, version: int) -> None:
    """ListOffsets: -2 is the start, -1 the end, at every version."""
    produce(client, topic, batch([b"x"] * 3))
    assert list_offset(client, topic, -2, version=version).offset == 0
    last = list_offset(client, topic, -1, version=version)
    assert (last.error_code, last.offset, last.timestamp) == (E.NONE, 3, -1)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (0, (0, T0)),
        (T0, (0, T0)),
        (T0 + 1, (1, T0 + 10)),
        (T0 + 10, (1, T0 + 10)),
        (T0 + 11, (2, T0 + 50)),
        (T0 + 45, (2, T0 + 50)),
        (T0 + 51, (4, T0 + 60)),
        (T0 + 61, (-1, -1)),
    ],
)
def test_offsets_by_time(client: RawClient, topic: str, timestamp: int, expected: tuple[int, int]) -> None:
    """The first record whose timestamp is at least the one asked for, with its own; none: -1."""
    produce(client, topic, batch([b"x"] * 2, timestamps=[T0, T0 + 10]))
    produce(client, topic, batch([b"x"] * 3, timestamps=[T0 + 50, T0 + 40, T0 + 60], compression="lz4"))
    offset = list_offset(client, topic, timestamp)
    assert (offset.error_code, (offset.offset, offset.timestamp)) == (E.NONE, expected)


@needs(m.ListOffsetsRequest, 7)
def test_record_with_the_largest_timestamp(client: RawClient, topic: str) -> None:
    """ListOffsets v7 -3 (KIP-734): the record with the largest timestamp."""
    produce(client, topic, batch([b"x"] * 3, timestamps=[T0, T0 + 90, T0 + 10]))
    produce(client, topic, batch([b"x"], timestamps=[T0 + 20]))
    offset = list_offset(client, topic, -3)
    assert (offset.error_code, offset.offset, offset.timestamp) == (E.NONE, 1, T0 + 90)
    assert list_offset(client, topic, -3, partition=1).offset == -1


def test_offsets_of_an_empty_or_missing_partition(client: RawClient, topic: str) -> None:
    """An empty log: 0 and 0, by time -1; a partition that is not there: UNKNOWN_TOPIC_OR_PARTITION."""
    assert [list_offset(client, topic, t).offset for t in (-2, -1, T0)] == [0, 0, -1]
    assert list_offset(client, topic, -1, partition=5).error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert list_offset(client, "no-" + topic, -1).error_code == E.UNKNOWN_TOPIC_OR_PARTITION
