"""The ConsumerGroups by group.id and cluster, of all that the operator reconciles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slackwater_operator.api.v1alpha1.status.group_status import KafkaStatus
from slackwater_operator.kafka.cluster_dns import servers_in
from slackwater_operator.kubernetes.store import Key, Store
from slackwater_operator.policies.membership.group_id import Claim, KafkaClusterRef, Sharing, share


class Claims:
    """By group.id the ConsumerGroups that name it. Each is added before its first reconciliation."""

    def __init__(self, store: Store) -> None:
        """`store` says which of them are still there."""
        self._store = store
        self._claims: dict[str, dict[Key, Claim]] = {}
        self._group_ids: dict[Key, str] = {}

    def put(
        self, key: Key, raw: Mapping[str, Any], held: KafkaStatus | None, servers: str, cluster_id: str
    ) -> None:
        """Takes a ConsumerGroup in as it is now.

        Args:
            key: the ConsumerGroup.
            raw: as the API server has it.
            held: what its status says of where it has its group.id.
            servers: what its workers reach Kafka with, or are to; "": not known.
            cluster_id: of the Kafka that they are on; "": not known.
        """
        spec, metadata = raw.get("spec") or {}, raw["metadata"]
        group_id = str(spec.get("groupId") or key.name)
        if self._group_ids.get(key, group_id) != group_id:
            self.drop(key)
        self._group_ids[key] = group_id
        self._claims.setdefault(group_id, {})[key] = Claim(
            name="/".join(key),
            uid=str(metadata.get("uid") or ""),
            created=str(metadata.get("creationTimestamp") or ""),
            cluster=cluster_ref(key.namespace, servers, cluster_id),
            held=cluster_ref(key.namespace, held.bootstrap_servers, held.cluster_id)
            if held is not None
            else None,
        )

    def drop(self, key: Key) -> None:
        """Forgets a ConsumerGroup."""
        claims = self._claims.get(self._group_ids.pop(key, ""), {})
        claims.pop(key, None)

    def sharing(self, key: Key, there: KafkaClusterRef | None = None) -> Sharing:
        """Who shares its group.id with a ConsumerGroup that has been put in: where it is, or `there`.

        Forgets those that are gone.
        """
        claims = self._claims[self._group_ids[key]]
        for other in [claim for claim in claims if claim != key and self._store.group(claim) is None]:
            self.drop(other)
        own = claims[key] if there is None else replace(claims[key], cluster=there)
        return share(own, [claim for other, claim in claims.items() if other != key])


def cluster_ref(namespace: str, bootstrap_servers: str, cluster_id: str) -> KafkaClusterRef:
    """A cluster by the servers that a ConsumerGroup of that namespace names."""
    return KafkaClusterRef(servers_in(namespace, bootstrap_servers), cluster_id)
