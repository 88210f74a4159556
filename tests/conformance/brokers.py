"""Which brokers the rows run against, and which versions of the calls each of them has.

The ranges are what ApiVersions answers (`test_api_versions` holds each broker to them); the suite takes
them from here, so that a row about a version that a broker does not have says so before it is run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.frame import RequestHeader, decode_response, encode_request
from slackwater.kafka.wire.schema import Request
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.kafka.brokers import BROKERS
from tests.support.wire.rawclient import CEILINGS, RawClient, parse_address

FIXTURES = BROKERS
"""The name of a broker in a test's id -> its fixture."""
OLD = ("kafka-4.3", "kafka-3.9", "kafka-2.8")
"""Those that most rows meet only when the long tests run."""
OLDEST = "kafka-2.8"
"""The one that rows marked `on_old_brokers` meet in `make verify`."""

Ranges = Mapping[type[Request[Any]], tuple[int, int]]

_COLUMNS = {"kafka-4.4": 0, "kafka-4.3": 0, "kafka-3.9": 1, "kafka-2.8": 2, "devbroker": 0}
_TABLE = {
    # of Kafka 4.4 and 4.3, 3.9 and 2.8; (0, -1): not there
    m.ProduceRequest: ((0, 13), (0, 11), (0, 9)),
    m.FetchRequest: ((4, 18), (0, 17), (0, 12)),
    m.ListOffsetsRequest: ((1, 11), (0, 9), (0, 6)),
    m.MetadataRequest: ((0, 13), (0, 12), (0, 11)),
    m.OffsetCommitRequest: ((2, 10), (0, 9), (0, 8)),
    m.OffsetFetchRequest: ((1, 10), (0, 9), (0, 7)),
    m.FindCoordinatorRequest: ((0, 6), (0, 6), (0, 3)),
    m.JoinGroupRequest: ((0, 9), (0, 9), (0, 7)),
    m.HeartbeatRequest: ((0, 4), (0, 4), (0, 4)),
    m.LeaveGroupRequest: ((0, 5), (0, 5), (0, 4)),
    m.SyncGroupRequest: ((0, 5), (0, 5), (0, 5)),
    m.DescribeGroupsRequest: ((0, 6), (0, 5), (0, 5)),
    m.ListGroupsRequest: ((0, 5), (0, 5), (0, 4)),
    m.ApiVersionsRequest: ((0, 4), (0, 4), (0, 3)),
    m.CreateTopicsRequest: ((2, 7), (0, 7), (0, 7)),
    m.DeleteTopicsRequest: ((1, 6), (0, 6), (0, 6)),
    m.InitProducerIdRequest: ((0, 5), (0, 5), (0, 4)),
    m.DescribeConfigsRequest: ((1, 4), (0, 4), (0, 4)),
    m.DeleteGroupsRequest: ((0, 2), (0, 2), (0, 2)),
    m.ConsumerGroupHeartbeatRequest: ((0, 1), (0, 0), (0, -1)),
    m.ConsumerGroupDescribeRequest: ((0, 1), (0, 0), (0, -1)),
}
_NEWEST: Ranges = {m.ApiVersionsRequest: (0, 5), m.DeleteGroupsRequest: (0, 3)}
"""What differs in Kafka 4.4; the dev broker has the versions of 4.3."""
RANGES: Mapping[str, Ranges] = {
    broker: {message: spans[column] for message, spans in _TABLE.items()}
    | (_NEWEST if broker == "kafka-4.4" else {})
    for broker, column in _COLUMNS.items()
}

Row = Callable[..., Any]


def needs(message: type[Request[Any]], version: int | None = None) -> Callable[[Row], Row]:
    """Marks a row that is about ``version`` of a call (None: the row's own parameter ``version``).

    On a broker whose highest version is lower, the row does not exist: what is tested there is that
    the broker refuses such a request. All other rows use the highest version that the broker has.
    """
    return pytest.mark.needs(message, version)


on_old_brokers = pytest.mark.on_old_brokers
"""Marks rows that meet the oldest broker in `make verify`; the others do so when the long tests run."""


def ceilings(broker: str) -> dict[int, int]:
    """The highest version of each call, by API key."""
    return {message.api_key: high for message, (_, high) in RANGES[broker].items()}


def chosen(request: pytest.FixtureRequest) -> KafkaCluster | DevBroker:
    """The broker that a fixture's parameter names. Requests to it have at most its versions."""
    broker: KafkaCluster | DevBroker = request.getfixturevalue(BROKERS[request.param])
    CEILINGS[parse_address(broker.bootstrap)[1]] = ceilings(request.param)
    return broker


def missing(
    broker: str, needed: list[tuple[type[Request[Any]], int]]
) -> tuple[type[Request[Any]], int] | None:
    """The first of the ``needed`` versions that the broker does not have; None: it has all."""
    return next(((kind, version) for kind, version in needed if version > RANGES[broker][kind][1]), None)


def is_refused(bootstrap: str, api_key: int, version: int) -> bool:
    """Whether a request of that version, which has no sense otherwise, ends its connection."""
    header = struct.pack(">hhih", api_key, version, 1, -1) + bytes(64)
    return _ends(bootstrap, api_key, struct.pack(">i", len(header)) + header)


def lacks(bootstrap: str, message: type[Request[Any]], version: int) -> bool:
    """Whether the broker refuses a request of that version that has nothing else wrong with it."""
    request = message(acks=-1) if message is m.ProduceRequest else message()
    frame = encode_request(RequestHeader(message.api_key, version, 1, "raw"), request)
    return _ends(bootstrap, message.api_key, b"".join(frame))


def _ends(bootstrap: str, api_key: int, frame: bytes) -> bool:
    """Whether the broker closes the connection; a version of ApiVersions it refuses in words (KIP-511)."""
    with RawClient.to(bootstrap) as client:
        client.send_bytes(frame)
        if api_key != m.ApiVersionsRequest.api_key:
            return client.closed_by_broker()
        _, answer = decode_response(client.receive_frame(), api_key, 0, m.ApiVersionsResponse)
        return answer.error_code == ErrorCode.UNSUPPORTED_VERSION
