"""The declarations agree with each other, and the error codes with another client's."""

from __future__ import annotations

import kafka.errors

from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.schema import Request
from tests.support.wire.definitions import declared


def test_every_request_names_its_answer_at_the_same_versions() -> None:
    """A request and its answer have the same versions and become flexible together."""
    requests = [kind for kind in declared() if issubclass(kind, Request)]
    assert len(requests) >= 18
    for kind in requests:
        answer = kind.response_type
        assert (kind.min_version, kind.max_version) == (answer.min_version, answer.max_version)
        assert kind.flexible == answer.flexible, kind.__name__


OTHERWISE_NAMED = {-1, 0, 2, 4, 6, 10, 17, 35, 39, 40}
"""Codes that kafka-python calls by another (often an older) name."""


def test_error_codes_are_those_of_another_client() -> None:
    """Names and numbers agree with kafka-python's table."""
    table = {kind.errno: kind.__name__ for kind in vars(kafka.errors).values() if _is_broker_error(kind)}
    assert len(table) > 80
    for code, name in table.items():
        ours = ErrorCode.name_of(code).replace("_", "").lower().removesuffix("error")
        assert (ours == name.lower().removesuffix("error")) == (code not in OTHERWISE_NAMED), (code, name)


def _is_broker_error(kind: object) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, kafka.errors.BrokerResponseError)
        and isinstance(getattr(kind, "errno", None), int)
    )


def test_unknown_code_has_a_name() -> None:
    """A code that is not listed can still be shown."""
    assert ErrorCode.name_of(9999) == "UNKNOWN_CODE_9999"
    assert ErrorCode.name_of(82) == "FENCED_INSTANCE_ID"
