"""bootstrap_servers, as people write it."""

from __future__ import annotations

import pytest

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.net.dialer import parse_servers


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("a:1", [("a", 1)]),
        ("a:1, b:2,a:1", [("a", 1), ("b", 2)]),
        (["a:1", "b:2,c:3"], [("a", 1), ("b", 2), ("c", 3)]),
        ("kafka", [("kafka", 9092)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[fe80::1]", [("fe80::1", 9092)]),
        ("10.0.0.1:65535", [("10.0.0.1", 65535)]),
        ("PLAINTEXT://a:1,SASL_SSL://[::1]:2", [("a", 1), ("::1", 2)]),
    ],
)
def test_read(given: str | list[str], read: list[tuple[str, int]]) -> None:
    assert parse_servers(given) == read


@pytest.mark.parametrize(
    "given",
    [
        "",
        " , ",
        [],
        "a:",
        ":1",
        "a:b",
        "a:0",
        "a:65536",
        "::1",
        "::1:9092",
        "[::1",
        "[::1]9",
        "[::1]:x",
        "a:²",
        "SSL://",
        "SSL://::1:9092",
    ],
)
def test_refused_with_its_name(given: str) -> None:
    with pytest.raises(KafkaConfigurationError, match="bootstrap_servers") as raised:
        parse_servers(given)
    assert str(given).strip() in str(raised.value) or repr(given) in str(raised.value)


def test_an_address_is_written_as_it_is_read() -> None:
    assert [str(server) for server in parse_servers("[::1]:1,b:2")] == ["[::1]:1", "b:2"]
