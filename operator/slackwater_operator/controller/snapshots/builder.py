"""Builds a group's snapshot from the Store, the last observation and the workers' status."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from typing import Any

from slackwater.clock import Clock
from slackwater.fields import FieldError
from slackwater_operator.api.times import time_ms
from slackwater_operator.api.v1alpha1.consumer_group import (
    API_VERSION,
    KIND,
    ConsumerGroup,
)
from slackwater_operator.api.v1alpha1.spec.kafka import Kafka
from slackwater_operator.api.v1alpha1.spec.rollout import TAKEOVER
from slackwater_operator.api.v1alpha1.status.group_status import GroupStatus, KafkaStatus, parse_status
from slackwater_operator.api.v1alpha1.validation import DEFAULT_MAX_POLL_INTERVAL_MS
from slackwater_operator.api.v1alpha1.yaml_file import ResourceError
from slackwater_operator.controller.analysis_watch import Ask
from slackwater_operator.controller.execution.credentials import identity
from slackwater_operator.controller.execution.refusals import note
from slackwater_operator.controller.session import Resource, Session
from slackwater_operator.controller.settings import Settings
from slackwater_operator.controller.snapshots.group_id_claims import Claims, cluster_ref
from slackwater_operator.controller.snapshots.object_events import ObjectEvents
from slackwater_operator.controller.snapshots.object_parsing import (
    good_template,
    is_worker,
    of_app,
    pod_snapshot,
    revision_of,
    statefulset_snapshot,
    unfinished,
)
from slackwater_operator.controller.snapshots.observation_changes import take_observation
from slackwater_operator.kafka.clusters import Clusters, GroupWanted
from slackwater_operator.kubernetes.errors import KubeError, KubeForbidden
from slackwater_operator.kubernetes.object_api import ObjectApi
from slackwater_operator.kubernetes.store import Key, Store, owns_spec
from slackwater_operator.model import names
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.planner.connection import in_force
from slackwater_operator.planner.objects import CONFIG_MAP, STATEFULSET, makes_set, wanted_names
from slackwater_operator.planner.scaling import replicas_now
from slackwater_operator.planner.snapshot import GroupSnapshot, Manifest, Measured, PodSnapshot
from slackwater_operator.policies.membership.group_id import Sharing
from slackwater_operator.policies.object_events import is_of_the_namespace
from slackwater_operator.policies.resource_policies import scaling_policy
from slackwater_operator.policies.topics import TopicWatch
from slackwater_operator.specs.statefulset import read_resource, template_hash
from slackwater_operator.specs.supporting_objects import POD_MONITOR_API_VERSION, POD_MONITOR_KIND
from slackwater_operator.workers.client import PodAddress, WorkerStatuses

log = logging.getLogger(__name__)

_UIDS_KEPT = 8
"""So many ConsumerGroups of one name are remembered, of those that came one after the other."""
_AWAY_MS = 15_000
"""After which time without an answer from the workers' Kafka the one that the spec leads to is looked at."""
_LOOK_AGAIN_MS = 30_000
"""After which time a name that was free, or taken by somebody else, is looked up again."""


class SnapshotBuilder:
    """Builds snapshots. What it remembers is in the sessions."""

    def __init__(
        self,
        kube: ObjectApi,
        store: Store,
        clusters: Clusters,
        workers: WorkerStatuses,
        clock: Clock,
        settings: Settings,
        ask: Ask,
    ) -> None:
        self._ask = ask
        self._kube, self._store, self._clusters, self._workers = kube, store, clusters, workers
        self._clock, self._settings = clock, settings
        self._claims = Claims(store)
        self._events = ObjectEvents(kube)
        self._uids: dict[Key, list[str]] = {}  # of the ConsumerGroups of each name, the newest last

    def former_uids(self, key: tuple[str, str]) -> tuple[str, ...]:
        """The uids of ConsumerGroups of that name that this operator has looked after, and that are gone."""
        return tuple(self._uids.get(Key(*key), ())[:-1])

    def forget(self, key: tuple[str, str]) -> None:
        """Forgets a ConsumerGroup that is gone, with its members."""
        self._uids.pop(Key(*key), None)
        self._claims.drop(Key(*key))

    async def build(self, session: Session, *, fresh: bool = False) -> GroupSnapshot | None:
        """The snapshot of a group; None when there is no such ConsumerGroup any more.

        Args:
            session: the group; takes in what is found.
            fresh: whether pods, workers, StatefulSet and Kafka are asked for now.

        Raises:
            KubeError: the API server does not tell what is needed.
        """
        key = Key(*session.key)
        if fresh:
            await self._look_afresh(key)
        raw = self._store.group(key)
        if raw is None:
            return None
        memory = self._read(session, raw)
        now_ms = self._clock.wall_ms()
        pods = tuple(pod_snapshot(pod) for pod in self._store.pods(key) if is_worker(pod))
        asked_ms = now_ms if fresh else now_ms - self._settings.stale_ms
        if fresh:
            await self._observe(session)
        await self._ask_workers(session, pods, now_ms, at_once=fresh)
        snapshot = await self._assemble(session, raw, memory, pods, fresh=fresh, asked_ms=asked_ms)
        return snapshot if snapshot.group is None else await self._measured(session, snapshot)

    def preload(self, session: Session) -> None:
        """Finds a new session's cluster, so that it is observed before the first reconciliation.

        Without an observation everything would be unknown whenever an operator starts.
        """
        raw = self._store.group(Key(*session.key))
        if raw is not None:
            self._read(session, raw)

    # -- the resource ----------------------------------------------------------------------------------

    def _read(self, session: Session, raw: Manifest) -> GroupStatus:
        """Parses the ConsumerGroup, if it has changed. Returns what its status stores."""
        version, metadata = version_of(raw), raw["metadata"]
        uids, uid = self._uids.setdefault(Key(*session.key), []), str(metadata.get("uid") or "")
        if uid and uid not in uids:
            uids.append(uid)
            del uids[:-_UIDS_KEPT]
        if session.resource is None or session.resource.version != version:
            session.refusals.try_now()
            session.act_failures.try_now()
            before = session.resource.revision if session.resource is not None else None
            session.resource = read(raw, version, self._settings.worker_image)
            after = session.resource.revision
            if before is not None and after is not None and before.hash != after.hash:
                session.autoscaler.new_revision()
        memory = parse_status(raw.get("status"))
        group, held = session.resource.group, memory.kafka
        if group is not None:
            self._place(session, group, held, deleting=bool(metadata.get("deletionTimestamp")))
        servers = session.running.bootstrap_servers if session.running is not None else ""
        known = held.cluster_id if held is not None and held.bootstrap_servers == servers else ""
        cluster_id = session.kafka.cluster_id if session.kafka is not None and session.moved is None else ""
        session.cluster_id = cluster_id or known
        self._claims.put(Key(*session.key), raw, held, servers, session.cluster_id)
        if group is None:
            return memory
        session.autoscaler.policy = scaling_policy(group)
        if not session.restored:
            session.restored = True
            session.autoscaler.restore(memory.scaling, now_ms=self._clock.wall_ms())
        return memory

    def _place(
        self, session: Session, group: ConsumerGroup, held: KafkaStatus | None, *, deleting: bool
    ) -> None:
        """Where the group is looked at: where its workers are. Where that does not answer any more, and what
        the spec says now does, there; but a group that is being deleted ends where its workers were.

        What was seen elsewhere says nothing of it.
        """
        assert session.resource is not None
        assert session.resource.revision is not None
        key, before = Key(*session.key), session.cluster
        pods = [pod["metadata"].get("labels") or {} for pod in self._store.pods(key) if is_worker(pod)]
        uid = group.metadata.uid
        owned = [live for live in self._store.statefulsets(key) if names.is_owned(live, uid)]
        sets = [live["spec"].get("template") or {} for live in owned]
        templates = {str(labels.get(names.REVISION_LABEL, "")) for labels in pods} | {
            *map(template_hash, sets)
        }
        wanted_hash = session.resource.revision.hash
        running = in_force(group.spec.kafka, held, templates, wanted_hash, deleting=deleting)
        here = identity(running, key.namespace, self._store)
        following = here if deleting else identity(group.spec.kafka, key.namespace, self._store)
        if following != session.next_cluster:
            session.next_id = session.moved = None
        session.running, session.next_cluster = running, following if following != here else None
        away_ms = self._clock.wall_ms() - session.kafka_since_ms if session.unanswered else 0
        if session.next_cluster is None:
            session.moved = None
        elif session.next_id is not None and away_ms >= _AWAY_MS:
            session.moved = session.next_cluster
        session.cluster = session.moved or here
        if before is not None and before.bootstrap_servers != session.cluster.bootstrap_servers:
            session.kafka, session.unanswered, session.topics = None, False, TopicWatch()
            session.kafka_since_ms = self._clock.wall_ms()
        session.wanted = wanted(session.key, group, running)
        session.stalls.stuck_after_ms = int(
            running.properties.get("max.poll.interval.ms", DEFAULT_MAX_POLL_INTERVAL_MS)
        )

    # -- looking ---------------------------------------------------------------------------------------

    async def _look_afresh(self, key: Key) -> None:
        """Updates the Store from the API server."""
        resource = await self._kube.get(API_VERSION, KIND, key.namespace, key.name)
        if resource is None:
            return
        self._store.put(resource)
        sets = await self._kube.list("apps/v1", STATEFULSET, key.namespace, names.selector_text(key.name))
        self._replace(key, STATEFULSET, sets, known=self._store.statefulsets(key))
        pods = await self._kube.list("v1", "Pod", key.namespace, names.selector_text(key.name))
        self._replace(key, "Pod", pods, known=[pod for pod in self._store.pods(key) if is_worker(pod)])

    def _replace(self, key: Key, kind: str, live: list[Manifest], *, known: list[Manifest]) -> None:
        """Puts live objects into the Store, and removes deleted ones."""
        there = {obj["metadata"]["name"]: obj["metadata"].get("uid", "") for obj in live}
        for obj in known:
            name, uid = obj["metadata"]["name"], obj["metadata"].get("uid", "")
            if there.get(name) != uid:
                self._store.drop(kind, key.namespace, name, uid)
        for obj in live:
            self._store.put(obj)

    async def _observe(self, session: Session) -> None:
        """Asks the cluster about this group alone."""
        if session.cluster is None or session.wanted is None:
            return
        result = await self._clusters.observe(session.cluster, [session.wanted])
        take_observation(session, result.snapshots.get(session.key), self._clock.wall_ms(), result.problem)

    async def _ask_workers(
        self, session: Session, pods: tuple[PodSnapshot, ...], now_ms: int, *, at_once: bool
    ) -> None:
        """Asks the workers for their status: during operations always, else at intervals."""
        asked = [pod for pod in pods if pod.started and pod.ip]
        unknown = any(
            (status := session.workers.get(pod.name)) is None or status.uid != pod.uid for pod in asked
        )
        due = now_ms - session.workers_ms >= self._settings.worker_poll_ms
        if not (at_once or due or session.busy or unknown):
            return
        addresses = [PodAddress(pod.name, pod.ip, pod.port) for pod in asked]
        answers = await self._workers.statuses(addresses)
        at_ms = self._clock.wall_ms()
        session.workers_ms = at_ms
        session.workers = {
            pod.name: replace(status, uid=pod.uid, at_ms=at_ms)
            if (status := answers.get(pod.name)) is not None
            else None
            for pod in asked
        }
        uid = self._uids[Key(*session.key)][-1]
        session.owners.add((status.member_id for status in answers.values() if status is not None), uid)

    async def _assemble(
        self,
        session: Session,
        raw: Manifest,
        memory: GroupStatus,
        pods: tuple[PodSnapshot, ...],
        *,
        fresh: bool,
        asked_ms: int,
    ) -> GroupSnapshot:
        key, metadata = Key(*session.key), raw["metadata"]
        assert session.resource is not None
        all_pods = self._store.pods(key)
        configmaps = [
            configmap
            for configmap in self._store.configmaps(key)
            if names.is_owned(configmap, metadata["uid"])
        ]
        owned = self._sets(key, metadata["uid"])
        sets = {suffix: statefulset_snapshot(live, suffix) for suffix, live in owned.items()}
        jobs = [job for job in self._store.jobs(key) if names.is_owned(job, metadata["uid"])]
        now_ms = self._clock.wall_ms()
        snapshot = GroupSnapshot(
            now_ms=now_ms,
            namespace=key.namespace,
            name=key.name,
            uid=metadata.get("uid", ""),
            generation=int(metadata.get("generation") or 0),
            memory=memory,
            annotations=metadata.get("annotations") or {},
            finalizers=tuple(metadata.get("finalizers") or ()),
            owns_spec=any(map(owns_spec, metadata.get("managedFields") or ())),
            deleting=bool(metadata.get("deletionTimestamp")),
            deleted_ms=time_ms(metadata.get("deletionTimestamp")) or 0,
            status=raw.get("status") or {},
            group=session.resource.group,
            error=session.resource.error,
            revision=session.resource.revision,
            pod_monitors=await self._pod_monitors(),
            live={},
            rivals=self._rivals(key, raw),
            running=session.running,
            cluster_id=session.cluster_id,
            sharing=self._claims.sharing(key),
            next_id=session.next_id or "",
            sharing_next=self._sharing_next(session),
            sets=sets,
            pods=pods,
            not_created=await self._events.not_created(session, [*sets.values()], pods, now_ms=now_ms),
            jobs=await self._events.jobs(session, of_app(jobs, names.PREFLIGHT_APP), all_pods, now_ms=now_ms),
            rewind_jobs=await self._events.job_runs(
                session, of_app(jobs, names.REWIND_APP), all_pods, now_ms=now_ms
            ),
            rewind_pods=unfinished(of_app(all_pods, names.REWIND_APP)),
            maintenance_jobs=await self._events.job_runs(
                session, of_app(jobs, names.MAINTENANCE_APP), all_pods, now_ms=now_ms
            ),
            maintenance_pods=unfinished(of_app(all_pods, names.MAINTENANCE_APP)),
            configmaps={
                configmap["metadata"]["name"]: configmap["metadata"]["uid"]
                for configmap in configmaps
                if revision_of(configmap) is None
            },
            revisions=tuple(filter(None, map(revision_of, configmaps))),
            workers=session.workers,
            kafka=self._kafka(session, metadata["uid"], asked_ms),
            unchanged=session.unchanged,
            fresh=fresh,
            figures_due=now_ms - session.figures_ms >= self._settings.figures_ms,
            problems=session.problems,
            troubles=session.troubles,
        )
        return replace(
            snapshot,
            live=await self._live(session, snapshot),
            secret=self._secret(snapshot),
            good_template=await self._good_template(session, snapshot),
        )

    def _kafka(self, session: Session, uid: str, asked_ms: int) -> KafkaSnapshot | None:
        """The last observation, with the owner of each member as far as it is known; None: it is too old."""
        observed = session.kafka
        if observed is None or observed.at_ms < asked_ms:
            return None
        if observed.group is None:
            return observed
        adopted = (
            (live["metadata"].get("annotations") or {}).get(names.ADOPTED_FROM)
            for live in self._sets(Key(*session.key), uid).values()
        )
        former = {*self.former_uids(session.key), *filter(None, adopted)}
        return replace(observed, group=session.owners.fill_in(observed.group, uid, former))

    def _sharing_next(self, session: Session) -> Sharing:
        """Who shares the group.id where the spec leads to; nobody where the workers are there."""
        following, key = session.next_cluster, Key(*session.key)
        if following is None:
            return Sharing()
        there = cluster_ref(key.namespace, following.bootstrap_servers, session.next_id or "")
        return self._claims.sharing(key, there)

    def _sets(self, key: Key, uid: str) -> dict[str, Manifest]:
        """The group's StatefulSets by their suffix."""
        suffixes = {names.statefulset(key.name, suffix): suffix for suffix in names.SETS}
        sets = [live for live in self._store.statefulsets(key) if names.is_owned(live, uid)]
        return {
            suffixes[live["metadata"]["name"]]: live for live in sets if live["metadata"]["name"] in suffixes
        }

    def _rivals(self, key: Key, raw: Manifest) -> tuple[str, ...]:
        """The older groups that a name of a StatefulSet may be wanted by, too; of two of the same second the
        one whose name comes first counts as older."""
        own, older = _may_have(key.name, raw), []
        for name in names.rivals(key.name):
            other = self._store.group(Key(key.namespace, name))
            if other is not None and _since(other) < _since(raw) and own & _may_have(name, other):
                older.append(name)
        return tuple(older)

    def _secret(self, snapshot: GroupSnapshot) -> str | None:
        """What is known of the takeover Secret; asked for only where a pod needs it now, since that costs
        requests."""
        starting = any(pod.can_hand_over and not pod.started for pod in snapshot.pods)
        if not starting and not makes_set(snapshot):
            return None
        return self._store.secret_version(snapshot.namespace, names.takeover_secret(snapshot.name))

    async def _pod_monitors(self) -> bool:
        """Whether groups get PodMonitors; not where the API server does not tell whether it has that kind."""
        try:
            return self._settings.pod_monitors and await self._kube.served(
                POD_MONITOR_API_VERSION, POD_MONITOR_KIND
            )
        except KubeError as error:
            log.debug("%s", error)
            return False

    async def _live(self, session: Session, snapshot: GroupSnapshot) -> dict[tuple[str, str], Manifest]:
        """The wanted objects that are there.

        One that the Store does not have is looked up, since the Store knows only what carries our label: a
        name may be somebody else's.
        """
        key = Key(*session.key)
        known = {
            "Service": self._store.service(key),
            "ServiceAccount": self._store.service_account(key),
            "PodDisruptionBudget": self._store.pdb(key),
        }
        several = {
            CONFIG_MAP: {
                configmap["metadata"]["name"]: configmap for configmap in self._store.configmaps(key)
            },
            STATEFULSET: self._sets_of_anybody(key),
        }
        objects: dict[tuple[str, str], Manifest] = {}
        for api_version, kind, name in wanted_names(snapshot):
            live = several[kind].get(name) if kind in several else known.get(kind)
            if live is None:
                live = await self._look_up(session, api_version, kind, name, snapshot.now_ms)
            else:
                session.foreign.pop((kind, name), None)
                session.looked_ms.pop((kind, name), None)
            if live is not None:
                objects[kind, name] = live
        takes_over = snapshot.group is not None and snapshot.group.spec.rollout.takes_over
        for name, live in several[STATEFULSET].items():
            if takes_over or names.is_orphan(live, key.name):  # the next roll wants another name
                objects.setdefault((STATEFULSET, name), live)
        for name, live in several[CONFIG_MAP].items():
            if names.is_orphan(live, key.name):
                objects.setdefault((CONFIG_MAP, name), live)
        return objects

    def _sets_of_anybody(self, key: Key) -> dict[str, Manifest]:
        """By name the StatefulSets that the Store has under the names that the group's may have."""
        named = {
            name: self._store.statefulset_named(key.namespace, name) for name in names.set_names(key.name)
        }
        return {name: live for name, live in named.items() if live is not None}

    async def _look_up(
        self, session: Session, api_version: str, kind: str, name: str, now_ms: int
    ) -> Manifest | None:
        where = (kind, name)
        if session.refusals.held(f"apply {kind} {name}", now_ms=now_ms) is not None:
            return session.foreign.get(where)  # what is refused is not there, and is not asked for meanwhile
        looked = session.looked_ms.get(where)
        taken = where in session.foreign
        if looked is None or not taken or now_ms - looked >= _LOOK_AGAIN_MS:
            try:
                live = await self._kube.get(api_version, kind, session.key[0], name)
            except KubeForbidden as error:
                if kind != POD_MONITOR_KIND:
                    raise
                # The rest goes on without it, as where its apply is refused.
                note(session.refusals, f"apply {kind} {name}", error, now_ms=now_ms, jitter=random.random())
                return session.foreign.get(where)
            session.looked_ms[where] = now_ms
            if live is None:
                session.foreign.pop(where, None)
            else:
                session.foreign[where] = live
                self._store.put(live)  # ours, if it carries our label: the watch was behind
        return session.foreign.get(where)

    async def _good_template(self, session: Session, snapshot: GroupSnapshot) -> Manifest | None:
        """The template to go back to, where it is another than the one that is there.

        Of two sets the one that is left has it.
        """
        good, there = snapshot.memory.rollout.good, snapshot.statefulset
        if not good or there is None or len(snapshot.sets) > 1:
            return None
        if good == (there.manifest.get("status") or {}).get("updateRevision"):
            return None
        if session.good[0] != good:
            kept = await self._kube.get("apps/v1", "ControllerRevision", session.key[0], good)
            session.good = (good, good_template(kept))
        return session.good[1]

    # -- what several observations tell ------------------------------------------------------------------

    async def _measured(self, session: Session, snapshot: GroupSnapshot) -> GroupSnapshot:
        autoscaler, now_ms = session.autoscaler, snapshot.now_ms
        group, kafka = snapshot.kafka_group, snapshot.kafka
        if group is not None:
            unstable = not group.stable and bool(group.members)
            if not unstable:
                session.unstable_since_ms = None
            elif session.unstable_since_ms is None:
                session.unstable_since_ms = now_ms
        session.contest.observe(
            group,
            snapshot.uid,
            has_pods=bool(snapshot.pods),
            may_have_joined=any(_may_have_joined(snapshot, pod) for pod in snapshot.pods),
            now_ms=now_ms,
        )
        scaling = None
        if autoscaler.automatic:
            scaling = autoscaler.decide(
                kafka, replicas_now(snapshot), now_ms=now_ms, settled_since_ms=session.settled_since_ms
            )
        held_up = _held_up(snapshot)
        if held_up:
            session.forced.held_up(held_up, now_ms=now_ms)
        under_way = snapshot.memory.rollout.under_way
        moving = snapshot.memory.rollout.moving
        begun = [restart.since_ms for restart in under_way] + (
            [moving.since_ms] if moving is not None else []
        )
        oldest = min(begun, default=None)
        lag_s = autoscaler.oldest_s if kafka is not None else None
        measured = Measured(
            scaling=scaling,
            scaling_status=autoscaler.status(),
            produced_per_s=autoscaler.produced_per_s,
            consumed_per_s=autoscaler.consumed_per_s,
            capacity_per_s=autoscaler.capacity_per_s,
            lag_s=lag_s,
            stalls=session.stalls.stalls(),
            forced=session.forced.since(oldest) if oldest is not None else "",
            topics_changed=session.topics.since(oldest) if oldest is not None else "",
            topic_changes=session.topics.unreported,
            sessions_since_ms=session.forced.sessions_since_ms,
            unplanned=session.rebalances.unplanned(now_ms, snapshot.terms),
            kafka_problem=session.kafka_problem,
            kafka_away_ms=0 if kafka is not None else now_ms - session.kafka_since_ms,
            unstable_for_ms=now_ms - session.unstable_since_ms if session.unstable_since_ms else 0,
            settled_since_ms=session.settled_since_ms,
            contest=session.contest.contest(),
            alone_ms=session.contest.alone_ms(now_ms),
            analysis=session.analysis.observe(
                snapshot, lag_s=lag_s, ask=self._ask, clock=self._clock, changed=session.wake.set
            ),
        )
        return replace(snapshot, measured=measured)


def _held_up(snapshot: GroupSnapshot) -> str:
    """Which of the workers that are restarted or moved Kubernetes keeps from running, and why; "" if none."""
    rollout = snapshot.memory.rollout
    away = {snapshot.member_of(restart.name) for restart in rollout.under_way}
    if rollout.moving is not None:
        away.add(snapshot.member_of(names.pod(snapshot.name, rollout.moving.ordinal)))
    causes = {name: why for name, why in snapshot.not_created.items() if is_of_the_namespace(why)}
    causes |= {pod.name: pod.held_up for pod in snapshot.pods if pod.held_up}
    held_up = (f"{name}: {why}" for name, why in sorted(causes.items()) if snapshot.member_of(name) in away)
    return next(held_up, "")


def _may_have_joined(snapshot: GroupSnapshot, pod: PodSnapshot) -> bool:
    """Whether a worker in this pod has been in the Kafka group, or may have: then it does not say that it has
    not, or is not the first one in the pod."""
    if not pod.started and not pod.restarts:
        return False
    worker = snapshot.worker(pod)
    return pod.restarts > 0 or worker is None or worker.joined_ms is not None


def _may_have(name: str, raw: Manifest) -> set[str]:
    """The names of the StatefulSets that a group may have by its strategy."""
    rollout = raw.get("spec", {}).get("rollout") or {}
    return {*names.set_names(name)} if rollout.get("strategy") == TAKEOVER else {names.statefulset(name, "")}


def _since(raw: Manifest) -> tuple[str, str]:
    """The key by which ConsumerGroups are ordered by age; creationTimestamp is in whole seconds."""
    return str(raw["metadata"].get("creationTimestamp") or ""), str(raw["metadata"]["name"])


def version_of(raw: Manifest) -> tuple[Any, ...]:
    """The version of a ConsumerGroup: it differs after an edit."""
    metadata = raw["metadata"]
    return (
        metadata.get("uid"),
        metadata.get("generation"),
        tuple(sorted((metadata.get("annotations") or {}).items())),
        raw.get("spec") if metadata.get("generation") is None else None,
    )


def read(raw: Manifest, version: tuple[Any, ...], worker_image: str) -> Resource:
    """Parses a ConsumerGroup, and renders its revision."""
    try:
        return Resource(version, *read_resource(raw, worker_image=worker_image))
    except (ResourceError, FieldError) as error:
        return Resource(version, error=str(error))


def wanted(key: tuple[str, str], group: ConsumerGroup, kafka: Kafka) -> GroupWanted[tuple[str, str]]:
    """The request to the cluster about a group; `kafka` is the workers' setting."""
    properties = kafka.properties
    reset = properties.get("auto.offset.reset", "earliest")
    return GroupWanted(
        key,
        group.group_id,
        group.spec.topics,
        checked_topics=(letters,) if (letters := group.spec.pipeline.dead_letter_topic) else (),
        topic_pattern=group.spec.topic_expression,
        offset_reset=reset,
        read_committed=properties.get("isolation.level") == "read_committed",
    )
