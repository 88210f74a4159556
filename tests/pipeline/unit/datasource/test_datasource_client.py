"""Clients of the data source: their options, errors without secrets, and commits to a group."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from slackwater.kafka.errors import CommitFailedError, KafkaConfigurationError, KafkaError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.pipeline.datasource.client import config_of, redacted, without_secrets
from slackwater.pipeline.datasource.commits import GroupCommits
from slackwater.pipeline.datasource.options import OptionError
from tests.pipeline.unit.datasource.fakes import ORDERS, options

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="pa\\"ss";'
SECRETS = {"sasl.jaas.config": JAAS, "ssl.key.password": "s3cret", "bootstrap.servers": "b:1"}


def test_javas_names_are_taken() -> None:
    given = {"bootstrap.servers": "b:1", "isolation.level": "read_committed", "fetch.min.bytes": "7"}
    config = config_of(given)
    assert (config.read_committed, config.fetch_min_bytes, config.group_id) == (True, 7, None)
    assert not config.enable_auto_commit
    assert config.reset_policy.is_none


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fetch.mim.bytes": "1"}, "unknown property 'fetch.mim.bytes'; did you mean 'fetch.min.bytes'"),
        ({"fetch.min.bytes": "many"}, "fetch.min.bytes must be a number, not 'many'"),
        ({"security.protocol": "SASL_SSL"}, "sasl"),
    ],
)
def test_client_options_that_cannot_be_used(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        config_of({"bootstrap.servers": "b:1", **given})
    assert str(raised.value).startswith('option "kafka.*" cannot be used: ')


@pytest.mark.parametrize("secret", [JAAS, 'pa\\"ss', 'pa"ss', "s3cret"])
def test_secrets_are_not_in_errors(secret: str) -> None:
    assert secret not in redacted(f"refused: {secret!s}, b:1", SECRETS)
    assert redacted("b:1", SECRETS) == "b:1"
    for error in (KafkaConfigurationError, KafkaError):
        with pytest.raises((OptionError, KafkaError), match="refused") as raised, without_secrets(SECRETS):
            raise error(f"refused: {secret}")
        assert secret not in str(raised.value)
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__


@pytest.mark.parametrize("written", ["'t0psecret'", "t0psecret", '"t0psecret"'])
def test_a_password_of_jaas_is_a_secret_however_it_is_written(written: str) -> None:
    jaas = f"org.apache.kafka.common.security.plain.PlainLoginModule required password={written};"
    assert redacted("refused: t0psecret", {"sasl.jaas.config": jaas}) == "refused: ***"


def test_secrets_are_not_in_the_causes_that_a_traceback_shows() -> None:
    with pytest.raises(KafkaError, match="^KafkaError: no connection$") as raised, without_secrets(SECRETS):
        raise KafkaError("no connection") from OSError("login with s3cret")
    assert raised.value.__suppress_context__


def test_errors_without_secrets_stay_as_they_are() -> None:
    error = CommitFailedError("x")
    with pytest.raises(CommitFailedError) as raised, without_secrets(SECRETS):
        raise error
    assert raised.value is error


def test_secrets_are_not_in_the_representation_of_options() -> None:
    given = options(**{"kafka.ssl.key.password": "s3cret"})
    assert "s3cret" not in repr(given)
    assert given.properties["ssl.key.password"] == "s3cret"


class FakeClient:
    """Takes commits, or raises ``error``."""

    def __init__(self, properties: Mapping[str, str], group_id: str) -> None:
        self.group_id, self.closed = group_id, False
        self.error: KafkaError | None = None
        self.commits: list[dict[TopicPartition, int]] = []

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float | None = None
    ) -> None:
        if self.error is not None:
            raise self.error
        self.commits.append({tp: at.offset for tp, at in offsets.items()})

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        self.closed = True


def commits() -> tuple[GroupCommits, FakeClient]:
    clients: list[FakeClient] = []

    def opened(properties: Mapping[str, str], **more: Any) -> FakeClient:
        clients.append(FakeClient(properties, **more))
        return clients[-1]

    return GroupCommits("g", SECRETS, opened), clients[0]


def test_offsets_are_committed_when_they_change() -> None:
    group, client = commits()
    for offsets in ({ORDERS[0]: 1, ORDERS[1]: 0}, {ORDERS[0]: 1, ORDERS[1]: 0}, {ORDERS[0]: 2, ORDERS[1]: 0}):
        group.commit(offsets)
    assert client.commits == [{ORDERS[0]: 1, ORDERS[1]: 0}, {ORDERS[0]: 2}]
    group.close()
    assert (client.group_id, client.closed) == ("g", True)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CommitFailedError("x"), "the group has members; name a group that nobody else uses"),
        (KafkaError("refused s3cret"), r"refused \*\*\*"),
    ],
)
def test_a_first_commit_that_fails_ends_the_stream(error: KafkaError, said: str) -> None:
    group, client = commits()
    client.error = error
    with pytest.raises(OptionError, match=f'"commitGroup" cannot be used: group g: {said}'):
        group.commit({ORDERS[0]: 1})


def test_a_later_commit_that_fails_is_logged_and_made_up_for(caplog: pytest.LogCaptureFixture) -> None:
    group, client = commits()
    group.commit({ORDERS[0]: 1})
    client.error = KafkaError("the coordinator is away, s3cret")
    with caplog.at_level(logging.WARNING):
        group.commit({ORDERS[0]: 2})
    assert "group g: the stream's offsets are not committed: the coordinator is away, ***" in caplog.text
    client.error = None
    group.commit({ORDERS[0]: 2})
    assert client.commits[-1] == {ORDERS[0]: 2}
