"""What a program can import, and that it is what kafka-python calls so."""

from __future__ import annotations

import inspect
from typing import Any

import kafka
import kafka.errors
import pytest

import slackwater.kafka as ours
from slackwater.kafka import errors

NOT_HERE = {"IsolationLevel", "OffsetSpec", "TopicPartitionReplica"}
"""Of kafka-python's admin client; ours has calls of its own."""
OWN_MACHINERY = {
    "Cancelled", "CorrelationIdError", "InvalidReceiveError", "MetadataEmptyBrokerList", "NoError",
    "NodeNotReadyError", "QuotaViolationError", "StaleMetadata", "TooManyInFlightRequests",
    "UnknownBrokerIdError", "UnrecognizedBrokerVersion",
}  # fmt: skip
"""Errors of kafka-python's own insides, which no call of ours can raise."""


def test_the_names_of_kafka_python_can_be_imported() -> None:
    names = set(kafka.__all__) - {"KafkaAdminClient"}
    assert {name for name in names if not hasattr(ours, name)} == NOT_HERE


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("KafkaAdminClient", "KafkaAdmin "),
        ("AIOKafkaConsumer", "AsyncConsumer"),
        ("AIOKafkaProducer", "AsyncProducer"),
    ],
)
def test_an_import_of_another_clients_name_is_told_ours(name: str, instead: str) -> None:
    with pytest.raises(ImportError, match=f"use {instead}"):
        exec(f"from slackwater.kafka import {name}", {})


def test_every_public_name_can_be_imported() -> None:
    for name in (
        *ours.__all__,
        "OffsetAndTimestamp",
        "CommitFailedError",
        "WakeupError",
        "NoBrokersAvailable",
    ):
        assert getattr(ours, name) is not None
    assert set(ours.__all__) <= set(dir(ours))
    assert {"NotCoordinatorError", "KafkaTimeoutError"} <= set(dir(ours))
    for name in ("no_such_name", "ErrorCode", "for_code", "_BY_CODE"):
        with pytest.raises(AttributeError, match=name):
            getattr(ours, name)


def test_errors_have_kafka_pythons_names_codes_and_kinds() -> None:
    theirs: dict[str, Any]
    theirs = {name: kind for name, kind in vars(kafka.errors).items() if inspect.isclass(kind)}
    theirs = {name: kind for name, kind in theirs.items() if issubclass(kind, kafka.errors.KafkaError)}
    assert {name for name in theirs if not hasattr(errors, name)} == OWN_MACHINERY
    for name, kind in theirs.items():
        mine: Any = getattr(errors, name, None)
        if mine is None:
            continue
        assert issubclass(mine, errors.KafkaError)
        if issubclass(kind, kafka.errors.BrokerResponseError) and getattr(kind, "errno", None) is not None:
            assert mine.code == kind.errno, name
            assert type(errors.for_code(kind.errno)) is mine, name
        if issubclass(kind, kafka.errors.RetriableError):
            assert issubclass(mine, errors.RetriableError), name
            assert mine.retriable, name
        if issubclass(kind, kafka.errors.InvalidMetadataError):
            assert issubclass(mine, errors.InvalidMetadataError), name


def test_serializers_see_topic_and_headers() -> None:
    json = ours.JsonSerializer()
    assert json.deserialize("t", [], json.serialize("t", [], {"a": [1]})) == {"a": [1]}
    assert (json.serialize("t", [], None), json.deserialize("t", [], None)) == (None, None)
    text = ours.DefaultSerializer("latin-1")
    assert text.serialize("t", [], "ä") == b"\xe4"
    assert text("ä") == b"\xe4", "what a producer calls"
    assert text.deserialize("t", [], b"\xe4") == "ä"
    assert text.serialize("t", [], b"raw") == b"raw"
    for theirs, mine in ((kafka.JsonSerializer(), json), (kafka.DefaultSerializer("latin-1"), text)):
        assert theirs.serialize("t", [], "ä") == mine.serialize("t", [], "ä")
