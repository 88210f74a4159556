"""What `kubectl apply` refuses is refused by who reads a file, too; and what only the reader can know."""

from __future__ import annotations

import pytest

from slackwater_operator.api.v1alpha1.consumer_group import FieldError, ResourceError, parse
from slackwater_operator.specs.statefulset import revision
from tests.support.operator.bad_resources import NOT_FOR_PODS, REFUSED, UNREADABLE, Bad, good


def parse_error(bad: Bad) -> str:
    with pytest.raises(ResourceError) as raised:
        parse(bad.document)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_the_good_resource_is_read() -> None:
    assert parse(good()).spec.scaling is not None


@pytest.mark.parametrize("servers", ["[::1]:9092", "PLAINTEXT://a:9092, SASL_SSL://[fd00::7]:9093"])
def test_brokers_are_read_as_kafkas_clients_read_them(servers: str) -> None:
    assert parse(good(**{"spec/kafka/bootstrapServers": servers})).spec.kafka.bootstrap_servers == servers


def test_the_cases_are_many_and_distinct() -> None:
    assert len(REFUSED) + len(UNREADABLE) >= 30
    assert len({bad.what for bad in [*REFUSED, *UNREADABLE, *NOT_FOR_PODS]}) == len(
        [*REFUSED, *UNREADABLE, *NOT_FOR_PODS]
    )


@pytest.mark.parametrize("bad", REFUSED, ids=lambda bad: bad.what)
def test_the_reader_refuses_what_the_api_server_refuses(bad: Bad) -> None:
    assert f"{bad.parse_field or bad.field}" in parse_error(bad)


@pytest.mark.parametrize("bad", UNREADABLE, ids=lambda bad: bad.what)
def test_the_reader_refuses_what_the_api_server_cannot_check(bad: Bad) -> None:
    message = parse_error(bad)
    assert f"resource: {bad.field}:" in message
    assert bad.says in message


@pytest.mark.parametrize("bad", NOT_FOR_PODS, ids=lambda bad: bad.what)
def test_fields_without_meaning_in_a_pod_are_refused(bad: Bad) -> None:
    group = parse(bad.document)
    with pytest.raises(FieldError) as raised:
        revision(group, worker_image="worker:1")
    assert raised.value.path == bad.field
    assert bad.says in raised.value.problem
