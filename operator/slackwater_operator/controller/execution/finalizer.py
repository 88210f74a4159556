"""Removes a deleted group's static members from Kafka's group when its pods are gone.

Only members that are known to be its own: others of the same names may be another ConsumerGroup's.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from slackwater.clock import Clock
from slackwater_operator.controller.session import Session
from slackwater_operator.kafka.clusters import Clusters
from slackwater_operator.kubernetes.errors import KubeError
from slackwater_operator.kubernetes.object_api import ObjectApi
from slackwater_operator.kubernetes.store import Key, Store
from slackwater_operator.model import names
from slackwater_operator.planner.snapshot import GroupSnapshot

log = logging.getLogger(__name__)

_POLL_EVERY_S = 0.5
_PATIENCE_MS = 900_000


class MemberRemoval:
    """Removes the members of one deleted group. Best effort: sessions of members that remain expire."""

    def __init__(self, kube: ObjectApi, store: Store, clusters: Clusters, clock: Clock) -> None:
        self._kube, self._store, self._clusters, self._clock = kube, store, clusters, clock

    async def run(self, session: Session, snapshot: GroupSnapshot) -> None:
        """Waits for the pods' end and removes the members. Ends early when the group is made again.

        Nothing is done in a Kafka group whose group.id the ConsumerGroup did not have.
        """
        if session.cluster is None or session.wanted is None or snapshot.group is None:
            return
        if snapshot.sharing.ahead or not snapshot.has_group_id:
            return
        until_ms = self._clock.wall_ms() + _PATIENCE_MS
        while self._clock.wall_ms() < until_ms:
            if self._store.group(Key(*session.key)) is not None:
                return  # made again: the new one looks after the members
            if await self._gone(session) and await self._remove(session, snapshot):
                return
            await asyncio.sleep(_POLL_EVERY_S)

    async def _gone(self, session: Session) -> bool:
        namespace, name = session.key
        try:
            return not await self._kube.list("v1", "Pod", namespace, names.selector_text(name))
        except KubeError as error:
            log.warning("%s/%s: %s", namespace, name, error)
            return False

    async def _remove(self, session: Session, snapshot: GroupSnapshot) -> bool:
        """Removes the group's remaining members. Whether there are none."""
        assert session.cluster is not None
        assert session.wanted is not None
        assert snapshot.group is not None
        result = await self._clusters.observe(session.cluster, [session.wanted])
        kafka = result.snapshots.get(session.key)
        if kafka is None or kafka.group is None:
            return False
        session.owners.observe(kafka.group)
        known = replace(kafka, group=session.owners.fill_in(kafka.group, snapshot.uid))
        observed = replace(snapshot, kafka=known)
        ours = sorted(observed.own_members)
        if not ours:
            return True
        failed = await self._clusters.remove_members(
            session.cluster, session.wanted.group_id, dict(observed.member_ids(ours))
        )
        log.info("%s/%s: removed %s from its Kafka group", *session.key, ", ".join(ours))
        for member, error in failed.items():
            log.warning(
                "%s/%s: %s could not be removed from its Kafka group: %s", *session.key, member, error
            )
        return False  # looked at once more: a coordinator that moves brings members back
