"""Settings of topics, brokers and groups: read, and changed one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from slackwater.kafka.admin.attempts import Attempts
from slackwater.kafka.admin.results import ConfigEntry, ConfigResource, PerItem, ResourceType
from slackwater.kafka.errors import KafkaError, for_code
from slackwater.kafka.net.cluster import Cluster
from slackwater.kafka.protocol.metadata import ANY_NODE
from slackwater.kafka.wire import messages as m

T = TypeVar("T")
_SET, _DELETE = 0, 1


async def describe_configs(
    cluster: Cluster, attempts: Attempts, resources: Iterable[ConfigResource]
) -> PerItem[ConfigResource, dict[str, ConfigEntry]]:
    """Reads the settings of topics and brokers (DescribeConfigs)."""
    return await attempts.each(resources, partial(_at_nodes, partial(_configs_at, cluster, attempts)))


async def alter_configs(
    cluster: Cluster,
    attempts: Attempts,
    changes: Mapping[ConfigResource, Mapping[str, str | None]],
    *,
    validate_only: bool,
) -> PerItem[ConfigResource, None]:
    """Changes single settings (IncrementalAlterConfigs, KIP-339)."""

    async def alter_at(node_id: int, resources: list[ConfigResource]) -> Mapping[ConfigResource, T]:
        request = m.IncrementalAlterConfigsRequest(
            resources=[_altered(resource, changes[resource]) for resource in resources],
            validate_only=validate_only,
        )
        answer = await cluster.send(node_id, request, timeout_ms=attempts.left_ms)
        results: dict[ConfigResource, Any] = {}
        for result in answer.responses:
            resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
            results[resource] = _refusal(resource, result, "IncrementalAlterConfigs")
        return results

    return await attempts.each(changes, partial(_at_nodes, alter_at))


def _altered(
    resource: ConfigResource, settings: Mapping[str, str | None]
) -> m.IncrementalAlterConfigsRequestAlterConfigsResource:
    return m.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=int(resource.type),
        resource_name=resource.name,
        configs=[
            m.IncrementalAlterConfigsRequestAlterableConfig(
                name=name, config_operation=_DELETE if value is None else _SET, value=value
            )
            for name, value in settings.items()
        ],
    )


async def _at_nodes(
    ask: Callable[[int, list[ConfigResource]], Awaitable[Mapping[ConfigResource, T]]],
    left: list[ConfigResource],
) -> Mapping[ConfigResource, T | KafkaError]:
    """Asks about resources: a broker's own settings are known to that broker alone."""
    results: dict[ConfigResource, T | KafkaError] = {}
    nodes: dict[int, list[ConfigResource]] = {}
    for resource in left:
        own = resource.type == ResourceType.BROKER and resource.name
        nodes.setdefault(int(resource.name) if own else ANY_NODE, []).append(resource)
    for node_id, at_node in nodes.items():
        try:
            results.update(await ask(node_id, at_node))
        except KafkaError as exc:
            results.update(dict.fromkeys(at_node, exc))
    return results


def _refusal(resource: ConfigResource, result: Any, api: str) -> KafkaError | None:
    if not result.error_code:
        return None
    text = result.error_message or api
    return for_code(result.error_code, f"of {resource.type.name} {resource.name!r}: {text}", api=api)


async def _configs_at(
    cluster: Cluster, attempts: Attempts, node_id: int, resources: list[ConfigResource]
) -> Mapping[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
    request = m.DescribeConfigsRequest(
        resources=[
            m.DescribeConfigsRequestResource(
                resource_type=int(r.type), resource_name=r.name, configuration_keys=None
            )
            for r in resources
        ]
    )
    answer = await cluster.send(node_id, request, timeout_ms=attempts.left_ms)
    results: dict[ConfigResource, dict[str, ConfigEntry] | KafkaError] = {}
    for result in answer.results:
        resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
        results[resource] = _refusal(resource, result, "DescribeConfigs") or {
            entry.name: ConfigEntry(
                entry.name, entry.value, entry.config_source, entry.read_only, entry.is_sensitive
            )
            for entry in result.configs
        }
    return results
