"""Broker names as a pod in a group's namespace resolves them.

A pod's resolver appends its own namespace to a short name first (`kafka-0.kafka` in the namespace `orders`
is `kafka-0.kafka.orders.svc`), so that the same name means another host to the operator, which runs in
another namespace. https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
"""

from __future__ import annotations

import ipaddress

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.net.dialer import Address, Resolve, ResolvedAddress, parse_servers, resolve

_LONGEST_RELATIVE_NAME = 2
"""Labels of `SERVICE`, or of `POD.SERVICE`. With a third, the namespace, a name is the same for all pods."""


def depends_on_namespace(bootstrap_servers: str) -> bool:
    """Whether a pod's namespace decides which hosts `HOST:PORT, ...` are."""
    return any(_is_relative(server.host) for server in _servers(bootstrap_servers))


def servers_in(namespace: str, bootstrap_servers: str) -> frozenset[str]:
    """The servers `HOST:PORT, ...` as a pod in `namespace` names them: with it where it decides."""
    servers = _servers(bootstrap_servers)
    return frozenset(f"{at} in {namespace}" if _is_relative(at.host) else str(at) for at in servers)


def resolve_in(namespace: str, look_up: Resolve = resolve) -> Resolve:
    """A resolver that finds what a pod in `namespace` finds.

    A name of one or two labels is looked up as the name of a Service, or of a pod behind one, in that
    namespace, and only where there is none as it stands.

    Args:
        namespace: of the workers.
        look_up: the operator's own resolver; the cluster's domain is in its search list.
    """

    async def find(host: str, port: int) -> list[ResolvedAddress]:
        if _is_relative(host):
            try:
                return await look_up(f"{host}.{namespace}.svc", port)
            except OSError:
                pass  # no such Service: `SERVICE.NAMESPACE`, or a name outside of the cluster
        return await look_up(host, port)

    return find


def _servers(bootstrap_servers: str) -> list[Address]:
    try:
        return parse_servers(bootstrap_servers)
    except KafkaConfigurationError:
        return []  # of a status that somebody has changed: connecting says what is wrong


def _is_relative(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return False
    if host == "localhost" or host.endswith("."):
        return False
    labels = host.split(".")
    return len(labels) <= _LONGEST_RELATIVE_NAME and labels[-1] != "svc"
