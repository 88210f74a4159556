"""Consumer, producer and admin on the secured listeners of a real Kafka; and what they say when it fails."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, KafkaProducer, Security, security_from_properties
from slackwater.kafka.admin import NewTopic
from slackwater.kafka.errors import (
    AuthenticationError,
    KafkaError,
    NoBrokersAvailable,
    SaslAuthenticationError,
    SslAuthenticationError,
)
from tests.client.integration.groups.consumer_harness import drain, unique
from tests.support.kafka.certificates import Authority
from tests.support.kafka.secured import PASSWORD, USER, SecuredKafka
from tests.support.kafka.token_endpoint import TokenEndpoint, granting, unsecured_token
from tests.support.waiting import WAIT_S

pytestmark = [pytest.mark.parts("kafka"), pytest.mark.xdist_group("secured-kafka")]

RECORDS = 200


class Tokens:
    """Makes its own."""

    def __init__(self, *, valid_s: float = 3600) -> None:
        self.valid_s = valid_s

    def token(self) -> str:
        return unsecured_token(valid_s=self.valid_s)


def login(mechanism: str, **more: Any) -> dict[str, Any]:
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        return {**options, "sasl_oauth_token_provider": Tokens(), **more}
    return {**options, "sasl_plain_username": USER, "sasl_plain_password": PASSWORD, **more}


def ways(secured: SecuredKafka) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> listener and options."""
    ca = {"ssl_cafile": str(secured.ca_file)}
    client = secured.authority.issue("client")
    cert = {
        "ssl_certfile": str(secured.write("client.crt", client.cert)),
        "ssl_keyfile": str(secured.write("client.key", client.locked_key("open"))),
        "ssl_password": "open",
    }
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "TLS": ("TLS", {"security_protocol": "SSL", **ca}),
        "MTLS": ("MTLS", {"security_protocol": "SSL", **ca, **cert}),
        "other name, not checked": (
            "ELSEWHERE",
            {"security_protocol": "SSL", **ca, "ssl_check_hostname": False},
        ),
    }
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"):
        ways[mechanism] = ("LOGIN", login(mechanism))
        ways[f"{mechanism} over TLS"] = ("LOGIN_TLS", login(mechanism, security_protocol="SASL_SSL", **ca))
    return ways


WAYS = [
    "TLS", "MTLS", "other name, not checked", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER",
    "PLAIN over TLS", "SCRAM-SHA-256 over TLS", "SCRAM-SHA-512 over TLS", "OAUTHBEARER over TLS",
]  # fmt: skip


def round_trip(bootstrap: str, options: dict[str, Any], consumer: KafkaConsumer | None = None) -> None:
    """Makes a topic, writes to it, reads it as a group, and looks at the group."""
    topic, group = unique("t"), unique("g")
    with KafkaAdmin(bootstrap, **options) as admin:
        admin.create_topics([NewTopic(topic, 2)]).unwrap()
        with KafkaProducer(bootstrap_servers=bootstrap, **options) as producer:
            for number in range(RECORDS):
                producer.send(topic, b"%d" % number, partition=number % 2)
            producer.flush(WAIT_S)
        with KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **options,
        ) as reader:
            values = drain(reader, RECORDS)
            reader.commit()
            assert sorted(n for offset in values.values() for n in offset) == list(range(RECORDS))
            described = admin.describe_groups([group]).unwrap()[group]
            assert described.state == "Stable"
            assert len(described.members) == 1
        committed = admin.committed_offsets(group)
        assert {tp.partition: offset.offset for tp, offset in committed.items()} == {0: 100, 1: 100}


SHORT = {"MTLS", "OAUTHBEARER", "SCRAM-SHA-512 over TLS", "SCRAM-SHA-512", "other authority", "name",
         "client without certificate"}  # fmt: skip
"""The cases of `make verify`."""


def cases(names: Iterable[str]) -> list[Any]:
    return [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.mark.parametrize("way", cases(WAYS))
def test_clients_produce_consume_and_administer(secured: SecuredKafka, way: str) -> None:
    listener, options = ways(secured)[way]
    round_trip(secured.at(listener), options)


@pytest.mark.long
def test_javas_option_names_are_accepted(secured: SecuredKafka) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORD}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(secured.ca_file),
    }
    round_trip(secured.at("LOGIN_TLS"), {"security": security_from_properties(properties)})
    client = secured.authority.issue("client")
    one_line = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": secured.authority.pem.replace("\n", " "),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": client.cert.replace("\n", " "),
        "ssl.keystore.key": client.key.replace("\n", " "),
    }
    made = KafkaConsumer.from_properties({"bootstrap.servers": secured.at("MTLS"), **one_line})
    with made:
        assert made.topics() is not None


def test_client_credentials_log_clients_in(
    secured: SecuredKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tokens come from an endpoint over HTTPS; its refusal is final, and a token that the broker refuses is
    not presented twice."""
    with TokenEndpoint(lambda _: granting(unsecured_token(), expires_in=3600), tmp_path) as endpoint:
        options: dict[str, Any] = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "ssl_cafile": str(secured.ca_file),
            "sasl_oauth_token_endpoint_url": endpoint.url,
            "sasl_oauth_client_id": "bob",
            "sasl_oauth_client_secret": "not-to-be-seen",
            "sasl_oauth_cafile": str(endpoint.ca_file),
        }
        round_trip(secured.at("LOGIN_TLS"), options)
        assert len(endpoint.requests) == 3  # admin, producer, consumer: each its own
        for answer, says in (
            (granting(unsecured_token(valid_s=-600), expires_in=3600), "refused the token: invalid_token"),
            ((401, b'{"error": "invalid_client"}'), "401 Unauthorized .invalid_client.; check client id"),
        ):
            endpoint.answer = lambda _, answer=answer: answer  # type: ignore[misc]
            for make in (KafkaConsumer, KafkaProducer, KafkaAdmin):
                with pytest.raises(SaslAuthenticationError, match=says) as raised:
                    make(bootstrap_servers=secured.at("LOGIN_TLS"), bootstrap_timeout_ms=60_000, **options)
                assert "not-to-be-seen" not in str(raised.value) + caplog.text


# -- what fails ------------------------------------------------------------------------------------


def refusals(secured: SecuredKafka) -> dict[str, tuple[str, dict[str, Any], type[KafkaError], str]]:
    tls = {"security_protocol": "SSL", "ssl_cafile": str(secured.ca_file)}
    stranger, late = Authority("x").issue("client"), secured.authority.issue("client", expired=True)
    other_ca = str(secured.write("other.pem", Authority("another").pem))

    def wrong(mechanism: str, **more: Any) -> dict[str, Any]:
        return login(mechanism, sasl_plain_password="not-the-password", **more)

    said = {
        name: ("LOGIN", wrong(name), SaslAuthenticationError, f"login of user 'alice' by {name} failed")
        for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    }
    no_token = login("OAUTHBEARER", sasl_oauth_token_provider=Tokens(valid_s=-600))
    return {
        **said,
        "unknown user": (
            "LOGIN",
            login("SCRAM-SHA-512", sasl_plain_username="nobody"),
            SaslAuthenticationError,
            "login of user 'nobody' by SCRAM-SHA-512 failed",
        ),
        "expired token": ("LOGIN", no_token, SaslAuthenticationError, "refused the token: invalid_token"),
        "other authority": (
            "TLS",
            {**tls, "ssl_cafile": other_ca},
            SslAuthenticationError,
            "is not signed by ca file",
        ),
        "no authority": ("TLS", {"security_protocol": "SSL"}, SslAuthenticationError, "set ca"),
        "name": ("ELSEWHERE", tls, SslAuthenticationError, "not valid for '127.0.0.1'"),
        "expired": ("EXPIRED", tls, SslAuthenticationError, "certificate has expired"),
        "client without certificate": ("MTLS", tls, SslAuthenticationError, "set cert and key"),
        "client of another authority": (
            "MTLS",
            {**tls, "ssl_certfile": str(secured.write("stranger.pem", stranger.both))},
            SslAuthenticationError,
            "check that the broker trusts the certificate of cert file",
        ),
        "expired client": (
            "MTLS",
            {**tls, "ssl_certfile": str(secured.write("late.pem", late.both))},
            SslAuthenticationError,
            "check that the broker trusts",
        ),
        "plain text to TLS": ("TLS", {}, NoBrokersAvailable, "speaks TLS; set security_protocol"),
        "TLS to plain text": ("LOGIN", tls, NoBrokersAvailable, "is it a port with TLS"),
        "no login": ("LOGIN", {}, NoBrokersAvailable, "a port that requires a login does so"),
        "login where none is": (
            "TLS",
            {**login("PLAIN", security_protocol="SASL_SSL"), "ssl_cafile": str(secured.ca_file)},
            SaslAuthenticationError,
            "requires no login at this port: set protocol to SSL",
        ),
    }


REFUSALS = [
    "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "unknown user", "expired token", "other authority",
    "no authority", "name", "expired", "client without certificate", "client of another authority",
    "expired client", "plain text to TLS", "TLS to plain text", "no login", "login where none is",
]  # fmt: skip


@pytest.mark.parametrize("case", cases(REFUSALS))
def test_a_refusal_is_raised_at_once_and_says_what_to_do(
    secured: SecuredKafka, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    listener, options, kind, says = refusals(secured)[case]
    retried = kind is NoBrokersAvailable  # to the end of its time
    limit_ms = 3_000 if retried else 3_600_000
    for make in (KafkaConsumer, KafkaProducer, KafkaAdmin):
        with pytest.raises(kind, match=says) as raised:
            make(bootstrap_servers=secured.at(listener), bootstrap_timeout_ms=limit_ms, **options)
        assert isinstance(raised.value, AuthenticationError) == (not retried)
        assert "not-the-password" not in str(raised.value) + caplog.text
        assert secured.at(listener) in str(raised.value)


def test_every_case_is_tried(secured: SecuredKafka) -> None:
    assert set(WAYS) == set(ways(secured))
    assert set(REFUSALS) == set(refusals(secured))


@pytest.mark.long
def test_a_client_without_a_certificate_gets_an_error_each_time(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    """In TLS 1.3 the refusal follows the handshake and a request of the client; it must not get lost."""
    for _ in range(10):
        with pytest.raises(SslAuthenticationError, match="set cert and key"):
            KafkaAdmin(secured.at("MTLS"), security=Security(protocol="SSL", ca=secured.ca_file))
