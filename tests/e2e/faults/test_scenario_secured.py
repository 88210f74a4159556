"""A group on a Kafka that wants TLS and a login: Secrets for pods and operator, a password that changes."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.kafka.secured import PASSWORD, USER, SecuredKafka
from tests.support.site import ClusterSite

pytestmark = pytest.mark.controlplane

LOGIN, TRUST = "kafka-login", "kafka-trust"
SECURITY = {
    "protocol": "SASL_SSL",
    "mechanism": "SCRAM-SHA-512",
    "credentialsSecret": LOGIN,
    "caSecret": TRUST,
}
NEW_PASSWORD = "another, no shorter one"


@pytest.fixture
def secured() -> Iterator[SecuredKafka]:
    with SecuredKafka({"group.initial.rebalance.delay.ms": "150"}) as kafka:
        yield kafka


def put_secret(plane: ControlPlane, namespace: str, name: str, **data: str) -> None:
    """Makes a Secret, or changes it."""
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    path = path_of("v1", "secrets", namespace)
    if plane.api.get(f"{path}/{name}") is None:
        plane.api.create(path, {"metadata": {"name": name}, "data": encoded})
    else:
        plane.api.patch(f"{path}/{name}", {"data": encoded})


@pytest.mark.long
def test_a_secured_group_rolls_and_outlives_its_password(
    control_plane: ControlPlane, secured: SecuredKafka, namespace: str
) -> None:
    put_secret(control_plane, namespace, LOGIN, username=USER, password="not this one")
    put_secret(control_plane, namespace, TRUST, **{"ca.crt": secured.authority.pem})
    with ClusterSite(control_plane, secured.cluster, namespace) as site, site.operator():
        group = site.group(
            f"secured-{namespace}",
            partitions=6,
            replicas=2,
            kafka={"bootstrapServers": secured.at("LOGIN_TLS"), "security": SECURITY},
        )

        def refused() -> bool:
            condition = group.condition("LagKnown")
            message = condition.get("message", "")
            return condition.get("status") == "False" and ("SCRAM-SHA-512" in message or "assword" in message)

        until(refused, "that the password is wrong")
        put_secret(control_plane, namespace, LOGIN, username=USER, password=PASSWORD)
        generation = group.await_settled(2)
        group.await_condition("LagKnown")
        with group.load(rate=300) as load:
            secured.set_password(USER, NEW_PASSWORD)
            put_secret(control_plane, namespace, LOGIN, username=USER, password=NEW_PASSWORD)
            since = group.roll(site.image("v2"))
            group.await_rolled(site.image("v2"), 2)
            until(lambda: group.condition("LagKnown").get("status") == "True", "the lag is known")
            produced = load.stop()
        group.await_handled(produced)
        assert group.await_settled(2) == generation
        assert group.rebalances(since) == 0, group.tell()
        verdict = group.verify(produced)
        assert verdict.exact, verdict
