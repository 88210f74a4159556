"""The operator finds the brokers that a pod in the group's namespace finds."""

from __future__ import annotations

import socket

import pytest

from slackwater.kafka.net.dialer import Address, ResolvedAddress
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup, parse
from slackwater_operator.controller.execution.credentials import identity
from slackwater_operator.kafka.cluster_dns import depends_on_namespace, resolve_in, servers_in
from slackwater_operator.kubernetes.store import Store


class Names:
    """A resolver with the names of a cluster, as seen from the operator's namespace."""

    def __init__(self, **addresses: str) -> None:
        self._addresses = {name.replace("__", "."): address for name, address in addresses.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> list[ResolvedAddress]:
        self.asked.append(host)
        if host not in self._addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [ResolvedAddress(socket.AF_INET, (self._addresses[host], port))]


@pytest.mark.parametrize("host", ["kafka", "kafka-0.kafka", "example.com"])
async def test_a_short_name_is_looked_up_in_the_namespace_of_the_workers(host: str) -> None:
    names = Names(**{f"{host}.orders.svc": "10.0.0.7", host: "10.0.0.1"})
    (endpoint,) = await resolve_in("orders", names.resolve)(host, 9092)
    assert endpoint.sockaddr == ("10.0.0.7", 9092)
    assert names.asked == [f"{host}.orders.svc"]


async def test_a_short_name_that_the_namespace_lacks_is_looked_up_as_it_stands() -> None:
    names = Names(**{"kafka-0.kafka": "10.0.0.1"})
    (endpoint,) = await resolve_in("orders", names.resolve)("kafka-0.kafka", 9092)
    assert endpoint.sockaddr == ("10.0.0.1", 9092)
    assert names.asked == ["kafka-0.kafka.orders.svc", "kafka-0.kafka"]


async def test_the_error_names_the_host_as_it_is_written() -> None:
    with pytest.raises(socket.gaierror):
        await resolve_in("orders", Names().resolve)("kafka", 9092)


@pytest.mark.parametrize(
    "host",
    [
        "kafka.kafka.svc", "kafka.svc", "kafka-0.kafka.kafka.svc.cluster.local", "b-1.msk.example.com",
        "kafka.", "localhost", "10.0.0.1", "127.0.0.1", "::1",
    ],
)  # fmt: skip
async def test_a_name_that_is_the_same_in_all_namespaces_is_looked_up_once(host: str) -> None:
    names = Names(**{host: "10.0.0.1"})
    await resolve_in("orders", names.resolve)(host, 9092)
    assert names.asked == [host]
    assert not depends_on_namespace(str(Address(host, 9092)))


def test_a_single_short_name_makes_the_servers_depend_on_the_namespace() -> None:
    assert depends_on_namespace("kafka.kafka.svc:9092, kafka-1.kafka:9092")
    assert not depends_on_namespace("kafka.kafka.svc:9092, 127.0.0.1:9092")


def group(namespace: str, servers: str) -> ConsumerGroup:
    document = {
        "apiVersion": "slackwater.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "orders", "namespace": namespace},
        "spec": {
            "kafka": {"bootstrapServers": servers},
            "topics": ["orders"],
            "pipeline": {"handler": "orders.pipeline:as_table", "engine": "arrow", "sink": {"path": "/data"}},
        },
    }
    return parse(document)


@pytest.mark.parametrize(
    ("servers", "shared"), [("kafka-0.kafka:9092", False), ("kafka.kafka.svc:9092", True)]
)
def test_groups_share_connections_only_where_a_name_is_the_same_host(servers: str, shared: bool) -> None:
    first, other = (
        identity(group(namespace, servers).spec.kafka, namespace, Store())
        for namespace in ("orders", "returns")
    )
    assert (first == other) == shared


def test_servers_have_one_name_however_they_are_written() -> None:
    written = "PLAINTEXT://kafka:9092, [::1]:9092"
    assert servers_in("orders", written) == {"kafka:9092 in orders", "[::1]:9092"}
    assert servers_in("orders", "kafka:none") == frozenset()
