"""Logins that end, passwords and certificates that change, while clients work on a real Kafka."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka import KafkaProducer, Security, security_from_properties
from slackwater.kafka.errors import (
    KafkaConnectionError,
    SaslAuthenticationError,
)
from slackwater.kafka.net import Cluster, Connection, Purpose
from slackwater.kafka.wire import messages as m
from tests.client.integration.groups.consumer_harness import (
    Member,
    make_topic,
    members,
    produce,
    settled,
    unique,
)
from tests.support.kafka.secured import PASSWORD, REAUTH_MS, USER, SecuredKafka
from tests.support.kafka.token_endpoint import Answer, TokenEndpoint, granting, unsecured_token
from tests.support.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.parts("kafka"), pytest.mark.xdist_group("secured-kafka")]

PARTITIONS = 2


def security(mechanism: str = "SCRAM-SHA-512", **more: Any) -> Security:
    given = {"username": USER, "password": PASSWORD, **more}
    return Security(protocol="SASL_PLAINTEXT", mechanism=mechanism, **given)


def connections_of(cluster: Cluster) -> dict[Any, Connection]:
    """The open connections by node and purpose."""
    return {
        key: slot.connection
        for key, slot in cluster._pool._slots.items()
        if slot.connection is not None and not slot.connection.closed
    }


def in_use(cluster: Cluster) -> set[Purpose]:
    """What it has connections for; without that of the joins, where nothing is asked after the join."""
    return {purpose for _, purpose in connections_of(cluster)} - {Purpose.GROUP}


def count(member: Member) -> int:
    return sum(len(values) for values in member.values.values())


class Load:
    """Writes numbered records in the background, over a connection of its own."""

    def __init__(self, topic: str, **options: Any) -> None:
        self.topic, self.sent = topic, 0
        self.producer = KafkaProducer(**options)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            for partition in range(PARTITIONS):
                self.producer.send(self.topic, b"%d" % self.sent, partition=partition).get(WAIT_S)
            self.sent += 1

    def stop(self) -> int:
        """How many each partition has got."""
        self._stop.set()
        self._thread.join(WAIT_S)
        self.producer.close(60)
        return self.sent


@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_logins_are_renewed_on_the_open_connections(secured: SecuredKafka, mechanism: str) -> None:
    """Through three lifetimes of a login: same connections and generation, every record once and in order."""
    topic = make_topic(secured.cluster.bootstrap, PARTITIONS)
    where = {"bootstrap_servers": secured.at("REAUTH"), "security": security(mechanism)}
    with members() as group:
        load = Load(topic, **where)
        member = Member(
            [topic], **where, group_id=unique("g"), auto_offset_reset="earliest",
            heartbeat_interval_ms=300, session_timeout_ms=30_000, enable_auto_commit=True,
            auto_commit_interval_ms=200,
        )  # fmt: skip
        group.append(member)
        wait_until(lambda: settled(group, topic, PARTITIONS) and count(member) > 0, "joined and reading")
        clusters = [member.consumer._core.cluster, load.producer._core.cluster]
        before = [connections_of(cluster) for cluster in clusters]
        until = time.monotonic() + 3.2 * REAUTH_MS / 1000
        wait_until(lambda: time.monotonic() > until, "the time of three logins")
        sent = load.stop()
        wait_until(lambda: count(member) == PARTITIONS * sent, f"all {sent} records of each partition")
        after = connections_of(clusters[0])
        assert member.error is None
        assert member.generation == 1
        assert not member.notices("lost")
    assert all(values == list(range(sent)) for values in member.values.values())
    busy = {key for key in before[0] if key[1] is not Purpose.GROUP}  # nothing is asked there after the join
    assert {Purpose.FETCH, Purpose.GENERAL} <= {purpose for _, purpose in busy}
    for key in busy:
        assert after[key] is before[0][key], f"{key} was connected anew"
        assert after[key].logins >= 4
    assert max(consumer.logins for consumer in before[1].values()) >= 4


TOKEN_LIFE_S = 4


@pytest.mark.long
def test_tokens_from_an_endpoint_are_renewed_on_the_open_connections(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    """A login is valid until its token expires; each renewal needs a new token."""

    def answer(_: int) -> Answer:
        return granting(unsecured_token(valid_s=TOKEN_LIFE_S), expires_in=TOKEN_LIFE_S)

    topic = make_topic(secured.cluster.bootstrap, PARTITIONS)
    with TokenEndpoint(answer, tmp_path) as endpoint, members() as group:
        wanted = security_from_properties({
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": endpoint.url,
            "sasl.oauthbearer.client.credentials.client.id": "client",
            "sasl.oauthbearer.client.credentials.client.secret": "secret",
            "sasl.oauth.cafile": str(endpoint.ca_file),
        })  # fmt: skip
        member = Member(
            [topic], bootstrap_servers=secured.at("REAUTH"), security=wanted, group_id=unique("g"),
            auto_offset_reset="earliest", heartbeat_interval_ms=300, session_timeout_ms=30_000,
        )  # fmt: skip
        group.append(member)
        wait_until(lambda: settled(group, topic, PARTITIONS), "joined")
        cluster = member.consumer._core.cluster

        def busy() -> dict[Any, Connection]:
            # On the others nothing is asked for a while.
            return {k: v for k, v in connections_of(cluster).items() if k[1] is Purpose.FETCH}

        wait_until(busy, "fetches are under way")
        before, asked = busy(), len(endpoint.requests)
        until = time.monotonic() + 3.2 * TOKEN_LIFE_S
        wait_until(lambda: time.monotonic() > until, "the time of three tokens")
        sent = 20
        produce(secured.cluster.bootstrap, topic, PARTITIONS, PARTITIONS * sent)
        wait_until(lambda: count(member) == PARTITIONS * sent, "all records")
        after, every = busy(), connections_of(cluster).values()
        assert member.error is None
        assert member.generation == 1
        for key, connection in before.items():
            assert after[key] is connection, f"{key} was connected anew"
            assert connection.logins >= 4
        # One token for all connections that log in at about the same time.
        assert asked + 3 <= len(endpoint.requests) < sum(consumer.logins for consumer in every)


@pytest.mark.long
async def test_a_broker_ends_a_connection_whose_login_is_not_renewed(secured: SecuredKafka) -> None:
    """Shows that the test above can fail."""
    cluster = Cluster(secured.at("REAUTH"), security=security())
    await cluster.start()
    try:
        node = next(iter(cluster.metadata.brokers))
        connection = await cluster.connection(node)
        connection._login_due = float("inf")
        await asyncio.sleep(REAUTH_MS / 1000 + 0.2)
        with pytest.raises(KafkaConnectionError, match="closed the connection"):
            await connection.request(m.MetadataRequest(topics=[]))
    finally:
        await cluster.close()


async def logs_in(secured: SecuredKafka, user: str, password: str) -> bool:
    wanted = security(username=user, password=password)
    cluster = Cluster(secured.at("LOGIN"), security=wanted)
    try:
        await cluster.start()
        return True
    except SaslAuthenticationError:
        return False
    finally:
        await cluster.close()


def rotate(secured: SecuredKafka, user: str, password: str) -> None:
    secured.set_password(user, password)
    wait_until(lambda: asyncio.run(logs_in(secured, user, password)), f"{user}'s new password counts")


def test_a_rotated_password_is_read_from_its_file(secured: SecuredKafka, tmp_path: Path) -> None:
    """The broker has the new password seconds before the file: refused meanwhile, then on in the same
    generation, without a restart and without a loss."""
    user, file = unique("user"), tmp_path / "password"
    rotate(secured, user, "first")
    file.write_text("first\n")
    topic = make_topic(secured.cluster.bootstrap, PARTITIONS, 100)
    wanted = security(username=user, password=None, password_file=file, retry_refused=True)
    with members() as group:
        member = Member(
            [topic], bootstrap_servers=secured.at("REAUTH"), security=wanted, group_id=unique("g"),
            auto_offset_reset="earliest", heartbeat_interval_ms=300, session_timeout_ms=60_000,
            enable_auto_commit=False, group_instance_id="a",
        )  # fmt: skip
        group.append(member)
        wait_until(lambda: settled(group, topic, PARTITIONS) and count(member) == 100, "joined and reading")
        cluster = member.consumer._core.cluster
        rotate(secured, user, "second")
        wait_until(lambda: not in_use(cluster), "every login is refused")
        produce(secured.cluster.bootstrap, topic, PARTITIONS, 100, start=50)
        file.write_text("second\n")
        written = time.monotonic()
        wait_until(lambda: count(member) == 200, "what was written meanwhile")
        took = time.monotonic() - written
        assert member.error is None
        assert member.generation == 1
        assert not member.notices("lost")
    assert all(values == list(range(100)) for values in member.values.values())
    assert took < 5, f"{took:.1f} s: a changed file is presented at once"
