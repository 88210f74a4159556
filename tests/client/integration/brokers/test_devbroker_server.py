"""The dev broker at its socket: order, long polls, faults, bad frames, the control port."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from slackwater.devbroker import Fault
from slackwater.devbroker.network.router import APIS
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import EncodeError, ErrorCode
from slackwater.kafka.wire.frame import RequestHeader, encode_request
from slackwater.kafka.wire.schema import ARRAY, Struct
from tests.support.devbroker.thread import ThreadedBroker, running_broker
from tests.support.waiting import WAIT_S, wait_until
from tests.support.wire.rawclient import ConnectionClosed, Member, RawClient, form, parse_address
from tests.support.wire.rawdata import batch as make_batch

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "socket.request.max.bytes": "2000000"}
TOPIC = "t"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedBroker]:
    with running_broker(tmp_path_factory.mktemp("data"), SETTINGS, control_port=0) as broker:
        yield broker


@pytest.fixture
def broker(shared: ThreadedBroker) -> Iterator[ThreadedBroker]:
    """A broker with one empty topic of two partitions, no faults and nobody in its groups."""
    with RawClient.to(shared.bootstrap) as client:
        create(client, TOPIC, 2)
        yield shared
        shared.call(lambda b: b.faults.clear())
        client.request(m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name=TOPIC)]))


@pytest.fixture
def client(broker: ThreadedBroker) -> Iterator[RawClient]:
    with RawClient.to(broker.bootstrap) as connection:
        yield connection


def create(client: RawClient, name: str, partitions: int) -> None:
    topic = m.CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = client.request(m.CreateTopicsRequest(topics=[topic])).topics[0]
    assert answer.error_code == 0, answer.error_message


def produce_request(*batches: tuple[int, bytes], acks: int = -1) -> m.ProduceRequest:
    parts = [m.ProduceRequestPartition(index=index, records=batch) for index, batch in batches]
    return m.ProduceRequest(acks=acks, topic_data=[m.ProduceRequestTopic(name=TOPIC, partition_data=parts)])


def produce(client: RawClient, partition: int, *values: bytes) -> m.ProduceResponsePartition:
    answer = client.request(produce_request((partition, make_batch(values))), 12)
    return answer.responses[0].partition_responses[0]


def fetch_request(*offsets: int, max_wait_ms: int = 0, min_bytes: int = 1, **values: Any) -> m.FetchRequest:
    parts = [
        m.FetchRequestPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index, offset in enumerate(offsets)
    ]
    return m.FetchRequest(
        **{
            "max_wait_ms": max_wait_ms,
            "min_bytes": min_bytes,
            "session_epoch": -1,
            "topics": [m.FetchRequestTopic(topic=TOPIC, partitions=parts)],
            **values,
        }
    )


def fetched(answer: m.FetchResponse) -> dict[int, m.FetchResponsePartition]:
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


# -- fetch ------------------------------------------------------------------------------------


def test_a_long_poll_waits_for_min_bytes(broker: ThreadedBroker, client: RawClient) -> None:
    size = len(make_batch([b"x" * 100]))
    with RawClient.to(broker.bootstrap) as consumer:
        consumer.send(fetch_request(0, 0, max_wait_ms=20_000, min_bytes=3 * size), 12)
        produce(client, 0, b"x" * 100)
        produce(client, 1, b"x" * 100)
        assert consumer.is_silent(0.1)
        produce(client, 0, b"x" * 100)
        answer = fetched(consumer.receive())
    assert [len(answer[index].records or b"") for index in (0, 1)] == [2 * size, size]


def test_a_long_poll_ends_when_its_topic_is_deleted(broker: ThreadedBroker, client: RawClient) -> None:
    create(client, "short-lived", 1)
    topic = m.FetchRequestTopic(
        topic="short-lived", partitions=[m.FetchRequestPartition(partition=0, partition_max_bytes=1000)]
    )
    with RawClient.to(broker.bootstrap) as consumer:
        consumer.send(fetch_request(max_wait_ms=20_000, topics=[topic]), 12)
        assert consumer.is_silent(0.1)
        client.request(m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name="short-lived")]))
        assert fetched(consumer.receive())[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_client_that_goes_away_in_a_long_poll_leaves_nothing_behind(
    broker: ThreadedBroker, client: RawClient
) -> None:
    def waiting() -> int:
        return broker.call(lambda b: len(b.topics.by_name(TOPIC).partitions[0].waiters))  # type: ignore[union-attr]

    with RawClient.to(broker.bootstrap) as gone:
        gone.send(fetch_request(0, max_wait_ms=5_000), 12)
        wait_until(lambda: waiting() == 1)
    wait_until(lambda: waiting() == 0)
    assert produce(client, 0, b"still here").error_code == 0


def test_a_slow_reader_delays_no_other_client_and_gets_everything(
    broker: ThreadedBroker, client: RawClient
) -> None:
    for _ in range(20):
        produce(client, 0, b"y" * 900_000)
    with RawClient.to(broker.bootstrap) as slow:
        for _ in range(5):
            slow.send(fetch_request(0, max_bytes=50_000_000, topics=[_all_of_partition_0()]), 12)
        assert produce(client, 1, b"meanwhile").error_code == 0
        sizes = {len(fetched(slow.receive())[0].records or b"") for _ in range(5)}
    assert sizes == {20 * len(make_batch([b"y" * 900_000]))}


def _all_of_partition_0() -> m.FetchRequestTopic:
    part = m.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=50_000_000)
    return m.FetchRequestTopic(topic=TOPIC, partitions=[part])


# -- produce ----------------------------------------------------------------------------------


def test_acks_0_is_not_answered_and_an_error_closes_the_connection(
    broker: ThreadedBroker, client: RawClient
) -> None:
    client.send(produce_request((0, make_batch([b"quiet"])), acks=0), 12)
    client._sent.clear()
    assert client.request(fetch_request(0), 12).responses[0].partitions[0].high_watermark == 1
    client.send(produce_request((5, make_batch([b"nowhere"])), acks=0), 12)
    assert client.closed_by_broker()


def test_one_bad_partition_does_not_stop_the_others(client: RawClient) -> None:
    bad = bytearray(make_batch([b"bad"]))
    bad[-1] ^= 1
    answer = client.request(produce_request((0, bytes(bad)), (1, make_batch([b"good"]))), 12)
    assert [part.error_code for part in answer.responses[0].partition_responses] == [
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NONE,
    ]
    assert "checksum" in (answer.responses[0].partition_responses[0].error_message or "")


# -- bad frames -------------------------------------------------------------------------------


def filled(struct: type[Struct]) -> Struct:
    """A struct with something in every field."""
    values: dict[str, Any] = {}
    for field in struct._fields:
        kind = field.type
        if isinstance(kind, ARRAY):
            item = kind._item
            values[field.name] = [_filled_value(item)]
        else:
            values[field.name] = _filled_value(kind)
    return struct(**values)


def _filled_value(kind: Any) -> Any:
    if isinstance(kind, type):
        return filled(kind)
    plain = {"string": TOPIC, "uuid": UUID(int=7), "boolean": False}
    records = make_batch([b"one", b"two"])
    return plain.get(kind.name, records if kind.name == "records" else b"x" if kind.name == "bytes" else 0)


def mutated(rng: random.Random) -> bytes:
    """A good request of any API and version with a few bytes changed, left out or put in."""
    api = rng.choice(list(APIS.values()))
    version = rng.randint(max(api.min_version, api.request.min_version), api.max_version)
    request = filled(api.request)
    for field in request._fields:
        if not field.present(version):
            setattr(request, field.name, field.make_default())
    header = RequestHeader(api.request.api_key, version, 1, "fuzz")
    try:
        data = bytearray(b"".join(encode_request(header, request)))  # type: ignore[arg-type]
    except EncodeError:
        data = bytearray(b"".join(encode_request(header, api.request())))
    for _ in range(rng.randrange(4)):
        at = rng.randrange(14, len(data) + 1)
        change = rng.randrange(3)
        if change == 0:
            data[at : at + 1] = bytes([rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])])
        elif change == 1:
            del data[at : at + rng.randrange(4)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(4))
    data[:4] = struct.pack(">i", len(data) - 4)
    return bytes(data)


def test_requests_that_are_nearly_right_break_nothing(
    broker: ThreadedBroker, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(21)
    host, port = parse_address(broker.bootstrap)
    for _ in range(500):
        with socket.create_connection((host, port), timeout=WAIT_S) as sock:
            sock.sendall(mutated(rng))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
    assert client.request(m.ApiVersionsRequest(), 0).error_code == 0
    assert "Traceback" not in caplog.text, "a request that is nearly right is no fault of the broker"
    names = broker.call(lambda b: [topic.name for topic in b.topics if topic.name != TOPIC])
    client.request(m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name=name) for name in names]))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (struct.pack(">i", 2_000_001), "2000001 bytes"),
        (struct.pack(">i", -5), "-5 bytes"),
        (struct.pack(">ihhih", 10, 99, 0, 1, -1), "API key 99"),
        (struct.pack(">ihhih", 10, 0, 2, 1, -1), "Produce version 2"),
        (struct.pack(">ihhih", 10, 1, 19, 1, -1), "Fetch version 19"),
        (struct.pack(">ihhih", 10, 11, 5, 1, -1), "frame ends"),
    ],
    ids=["oversized", "negative", "unknown API", "Produce 2", "Fetch 19", "truncated"],
)
def test_a_bad_frame_is_one_log_line_with_the_peer_and_the_reason(
    broker: ThreadedBroker, frame: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = parse_address(broker.bootstrap)
    with socket.create_connection((host, port), timeout=WAIT_S) as sock:
        peer = f"127.0.0.1:{sock.getsockname()[1]}"
        sock.sendall(frame)
        assert sock.recv(100) == b""
    lines = [record.getMessage() for record in caplog.records if peer in record.getMessage()]
    assert len(lines) == 1
    assert reason in lines[0]


# -- faults -----------------------------------------------------------------------------------


def inject(broker: ThreadedBroker, **values: Any) -> None:
    broker.call(lambda b: b.faults.add(Fault(**values)))


def test_an_injected_error_hits_one_partition_and_the_others_are_appended(
    broker: ThreadedBroker, client: RawClient
) -> None:
    inject(broker, api="Produce", topic=TOPIC, partition=1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    request = produce_request((0, make_batch([b"a"])), (1, make_batch([b"b"])))
    codes = {
        part.index: part.error_code
        for topic in client.request(request, 12).responses
        for part in topic.partition_responses
    }
    assert codes == {0: 0, 1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    answer = fetched(client.request(fetch_request(0, 0), 12))
    assert [answer[index].high_watermark for index in (0, 1)] == [1, 0]
    assert produce(client, 1, b"again").error_code == 0


def test_an_injected_fetch_error_is_by_partition_or_at_the_top(
    broker: ThreadedBroker, client: RawClient
) -> None:
    inject(broker, api="Fetch", partition=1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    answer = fetched(client.request(fetch_request(0, 0, max_wait_ms=10_000), 12))
    assert [answer[index].error_code for index in (0, 1)] == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    inject(broker, api="Fetch", error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    top = client.request(fetch_request(0, 0), 12)
    assert (top.error_code, top.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


@pytest.mark.parametrize("version", [3, 9])
def test_an_injected_offset_fetch_error_is_by_partition_or_by_group(
    broker: ThreadedBroker, client: RawClient, version: int
) -> None:
    wanted: Any = {"topics": [m.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0, 1])]}
    if version >= 8:
        topics = [m.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0, 1])]
        wanted = {"groups": [m.OffsetFetchRequestGroup(group_id="g", topics=topics)]}
    request = m.OffsetFetchRequest(**wanted) if version >= 8 else m.OffsetFetchRequest(group_id="g", **wanted)
    inject(broker, api="OffsetFetch", topic=TOPIC, partition=0, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    answer: Any = client.request(request, version)
    topic = (answer.groups[0] if version >= 8 else answer).topics[0]
    assert [part.error_code for part in topic.partitions] == [ErrorCode.UNSTABLE_OFFSET_COMMIT, 0]
    inject(broker, api="OffsetFetch", group="g", error=ErrorCode.NOT_COORDINATOR)
    answer = client.request(request, version)
    assert (answer.groups[0] if version >= 8 else answer).error_code == ErrorCode.NOT_COORDINATOR


def test_an_injected_metadata_error_hides_one_topic(broker: ThreadedBroker, client: RawClient) -> None:
    create(client, "other", 1)
    inject(broker, api="Metadata", topic=TOPIC, error=ErrorCode.LEADER_NOT_AVAILABLE)
    wanted = [m.MetadataRequestTopic(name=name) for name in (TOPIC, "other")]
    answer = client.request(m.MetadataRequest(topics=wanted), 12)
    assert {topic.name: topic.error_code for topic in answer.topics} == {TOPIC: 5, "other": 0}
    client.request(m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name="other")]))


def test_a_request_that_is_dropped_before_was_not_handled(broker: ThreadedBroker) -> None:
    for when, end in (("before", 0), ("after", 1)):
        inject(broker, api="Produce", drop=when)
        with RawClient.to(broker.bootstrap) as client:
            client.send(produce_request((0, make_batch([b"x"]))), 12)
            assert client.closed_by_broker()
        with RawClient.to(broker.bootstrap) as client:
            assert fetched(client.request(fetch_request(end), 12))[0].high_watermark == end


def test_a_delayed_request_is_handled_later_from_its_own_bytes(
    broker: ThreadedBroker, client: RawClient
) -> None:
    inject(broker, api="Produce", delay_ms=200)
    began = time.monotonic()
    for value in (b"first", b"second"):
        client.send(produce_request((0, make_batch([value * 1000]))), 12)
    offsets = [client.receive().responses[0].partition_responses[0].base_offset for _ in range(2)]
    assert offsets == [0, 1]
    assert time.monotonic() - began >= 0.19


def test_a_move_of_the_coordinator_answers_parked_requests(broker: ThreadedBroker) -> None:
    with Member(broker.bootstrap, "moved", "a") as first, Member(broker.bootstrap, "moved", "b") as second:
        form([first])
        second.send_join()
        assert second.main.is_silent(0.1)
        inject(broker, api="Heartbeat", group="moved", move_coordinator=3_000)
        assert first.heartbeat() == ErrorCode.NOT_COORDINATOR
        assert second.receive_join().error_code == ErrorCode.NOT_COORDINATOR
        coordinator = first.side.request(m.FindCoordinatorRequest(coordinator_keys=["moved"]), 4)
        assert coordinator.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        wait_until(lambda: first.heartbeat() != ErrorCode.NOT_COORDINATOR)
        assert first.heartbeat() == ErrorCode.NONE
        coordinator = first.side.request(m.FindCoordinatorRequest(coordinator_keys=["moved"]), 4)
        assert coordinator.coordinators[0].error_code == ErrorCode.NONE


# -- the control port -------------------------------------------------------------------------


def control(broker: ThreadedBroker, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    port = broker.broker.control_port
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, data=data)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as exc:
        return exc.code, json.loads(exc.read())


def test_faults_are_injected_by_http(broker: ThreadedBroker, client: RawClient) -> None:
    rule = {"api": "Produce", "topic": TOPIC, "error": "KAFKA_STORAGE_ERROR", "times": 2}
    status, made = control(broker, "POST", "/faults", [rule])
    assert (status, made["faults"][0]["left"]) == (200, 2)
    assert produce(client, 0, b"x").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    listed = control(broker, "GET", "/faults")[1]["faults"]
    assert [(entry["left"], entry["hits"], entry["error"]) for entry in listed] == [
        (1, 1, "KAFKA_STORAGE_ERROR")
    ]
    assert control(broker, "DELETE", f"/faults/{listed[0]['id']}")[0] == 200
    assert produce(client, 0, b"x").error_code == 0
    assert control(broker, "DELETE", "/faults") == (200, {"faults": []})


def test_the_state_is_read_by_http(broker: ThreadedBroker, client: RawClient) -> None:
    produce(client, 1, b"a", b"b")
    with Member(broker.bootstrap, "seen", "a") as member:
        form([member])
        state = control(broker, "GET", "/state")[1]
    assert [part["end_offset"] for part in state["topics"][TOPIC]["partitions"]] == [0, 2]
    group = next(group for group in state["groups"] if group["group"] == "seen")
    assert (group["state"], group["generation"], len(group["members"])) == ("Stable", member.generation, 1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "named"),
    [
        ("GET", "/nothing", None, 404, "/nothing"),
        ("PUT", "/faults", None, 405, "PUT"),
        ("POST", "/faults", b"{nonsense", 400, "JSON"),
        ("POST", "/faults", {"api": "Nope", "error": 1}, 400, "Nope"),
        ("DELETE", "/faults/99999", None, 404, "99999"),
        ("POST", "/coordinator/move", {"down_ms": "soon"}, 400, "down_ms"),
    ],
)
def test_the_control_port_refuses_bad_requests(
    broker: ThreadedBroker, method: str, path: str, body: Any, status: int, named: str
) -> None:
    got, answer = control(broker, method, path, body)
    assert got == status
    assert named in answer["error"]


def test_the_control_port_refuses_garbage(broker: ThreadedBroker) -> None:
    for data in (
        b"\x00" * 50,
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /faults HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", broker.broker.control_port or 0), timeout=WAIT_S) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1000).startswith(b"HTTP/1.1 400")
    assert control(broker, "GET", "/state")[0] == 200


def test_idle_connections_are_closed_also_behind_a_parked_request(tmp_path: Path) -> None:
    settings = {**SETTINGS, "connections.max.idle.ms": "3000"}
    with running_broker(tmp_path, settings) as broker:
        first, second = (Member(broker.bootstrap, "g", name) for name in "ab")
        form([first])
        second.send_join()
        began = time.monotonic()
        ends = began + 60
        while time.monotonic() < ends:
            assert first.heartbeat() in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
            if second.main.closed_by_broker(0.05):
                break
        else:
            pytest.fail("the idle connection stayed open")
        assert time.monotonic() - began >= 2.5
        assert first.main.closed_by_broker(60)
        assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "the one that is used stays open"
        first.close()
        second.close()


# -- the end ----------------------------------------------------------------------------------


def test_stopping_answers_what_is_parked(tmp_path: Path) -> None:
    answers: list[Any] = []

    def wait(member: Member) -> None:
        try:
            answers.append(member.receive_join().error_code)
        except ConnectionClosed:
            answers.append("closed")

    with running_broker(tmp_path, SETTINGS) as broker:
        first, second = (Member(broker.bootstrap, "g", name) for name in "ab")
        form([first])
        second.send_join()
        assert second.main.is_silent(0.1)
        waiting = threading.Thread(target=wait, args=(second,))
        waiting.start()
    waiting.join(WAIT_S)
    first.close()
    second.close()
    assert answers == [ErrorCode.NOT_COORDINATOR]
