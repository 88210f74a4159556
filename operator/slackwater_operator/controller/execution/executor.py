"""Executes plans: the actions in their order, up to the first that fails and that the rest depends on.

What the API server refuses is not asked again before its back-off is over (`policies/backoff.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND
from slackwater_operator.controller.execution.refusals import (
    beside,
    makes_pods,
    needed_first,
    note,
    note_failure,
    subject_of,
)
from slackwater_operator.controller.execution.takeover_keys import NoKey, TakeoverKeys
from slackwater_operator.controller.operation_traces import NO_TRACES, OperationTraces
from slackwater_operator.controller.session import Session
from slackwater_operator.kafka.clusters import Clusters
from slackwater_operator.kubernetes.errors import KubeError
from slackwater_operator.kubernetes.object_api import EventRecorder, ObjectApi
from slackwater_operator.kubernetes.store import Key, Store, owns_spec
from slackwater_operator.model import names
from slackwater_operator.planner.actions import (
    Action,
    AdoptObject,
    AnnounceRebalance,
    ApplyObject,
    CreateSecret,
    DeleteKafkaGroup,
    DeleteObject,
    DeletePod,
    EmitEvent,
    FillReplicas,
    OpenGate,
    Plan,
    ReleaseSpec,
    RemoveMembers,
    RequestTakeover,
    SetFinalizers,
    SetReplicas,
    WriteStatus,
)
from slackwater_operator.planner.snapshot import APPLIED, GroupSnapshot
from slackwater_operator.workers.client import ACCEPTED, UNAUTHORIZED, WorkerStatuses

log = logging.getLogger(__name__)

WorkerRequest = Callable[[str, int, str, bytes], Awaitable[int]]
"""Asks the worker at an address and port, a pod of that name, with a key; gives the HTTP status."""
_BY_OTHERS = (OpenGate, RequestTakeover, RemoveMembers, DeleteKafkaGroup)
_OF_THE_GROUP = (WriteStatus, SetFinalizers)
"""Actions on the ConsumerGroup itself, which is gone when the API server does not find it."""


@dataclass(frozen=True)
class Outcome:
    """The result of executing a plan.

    Attributes:
        done: how many of its actions were done, or left out because the rest can do without.
        problem: what failed for a reason that a person has to see to, as (reason, message); or None. What
            the API server refused is in `Session.refusals` instead, what Kafka or a worker did not carry out
            in `Session.act_failures`.
        error: what ended the reconciliation, in words; "".
        backs_off: whether that has a back-off of its own, however often the group is reconciled meanwhile.
    """

    done: int
    problem: tuple[str, str] | None = None
    error: str = ""
    backs_off: bool = False


class ActionFailed(Exception):
    """An action that Kafka or a worker did not carry out; the next reconciliation tries again."""


class Executor:
    """Executes plans."""

    def __init__(
        self,
        kube: ObjectApi,
        store: Store,
        clusters: Clusters,
        workers: WorkerStatuses,
        events: EventRecorder,
        may_act: Callable[[], bool] = lambda: True,
        jitter: Callable[[], float] = random.random,
        traces: OperationTraces = NO_TRACES,
    ) -> None:
        self._kube, self._store, self._clusters = kube, store, clusters
        self._jitter, self._traces = jitter, traces
        self._workers, self._events, self._may_act = workers, events, may_act
        self._keys = TakeoverKeys(kube, store)

    async def execute(self, session: Session, snapshot: GroupSnapshot, plan: Plan, *, now_ms: int) -> Outcome:
        """Executes the plan's actions in their order, up to the first that fails.

        Where the API server refuses one that the rest can do without (`beside`), the rest is done; where it
        refuses what pods need first, all is done up to the first action that gives workers a template.
        """
        missing = ""
        for index, action in enumerate(plan.actions):
            if not self._may_act():
                return Outcome(
                    index, None, "another replica may be the leader now: the plan was not executed"
                )
            if missing and makes_pods(action):
                if beside(action):
                    continue
                return Outcome(index, None, missing, backs_off=True)
            by_others = isinstance(action, _BY_OTHERS)
            held = session.act_failures.held(action, now_ms=now_ms) if by_others else None
            if held is not None:
                return Outcome(index, None, held.message, backs_off=True)
            try:
                refused = await self._attempt(session, snapshot, action, now_ms)
            except KubeError as error:
                log.warning("%s/%s: %s", snapshot.namespace, snapshot.name, error)
                return Outcome(index, None, str(error))
            except NoKey as error:
                log.warning("%s/%s: %s", snapshot.namespace, snapshot.name, error)
                problem = (error.reason, str(error))
                if problem not in session.problems:
                    self._events.post(regarding(snapshot), *problem, kind="Warning")
                return Outcome(index, problem, str(error))
            except ActionFailed as error:
                log.warning("%s/%s: %s", snapshot.namespace, snapshot.name, error)
                news = note_failure(
                    session.act_failures, action, str(error), now_ms=now_ms, jitter=self._jitter()
                )
                if news is not None:
                    self._events.post(regarding(snapshot), *news, kind="Warning")
                return Outcome(index, None, str(error), backs_off=True)
            if by_others:
                session.act_failures.accepted(action)
            if refused and needed_first(action):
                missing = missing or refused
            elif refused and not beside(action):
                return Outcome(index, None, refused, backs_off=True)
        return Outcome(len(plan.actions))

    async def _attempt(self, session: Session, snapshot: GroupSnapshot, action: Action, now_ms: int) -> str:
        """Does an action, unless it was refused and its back-off is not over. Why it is refused; "": done.

        Raises:
            KubeError: the API server did not answer: that is no refusal of this object.
            NoKey: there is no key to sign with.
            ActionFailed: Kafka or a worker did not carry it out.
        """
        subject = subject_of(snapshot, action)
        held = session.refusals.held(subject, now_ms=now_ms)
        if held is not None:
            return held.message
        try:
            await self._do(session, snapshot, action, now_ms)
        except KubeError as error:
            if not subject or not error.status:
                raise
            if error.status == 404 and isinstance(action, _OF_THE_GROUP):
                self._store.drop(KIND, snapshot.namespace, snapshot.name, snapshot.uid)
                return str(error)
            self.refused(session, regarding(snapshot), subject, error, now_ms=now_ms)
            return str(error)
        session.refusals.accepted(subject)
        return ""

    def refused(
        self, session: Session, resource: Mapping[str, Any], subject: str, error: KubeError, *, now_ms: int
    ) -> None:
        """Notes what the API server refuses, and posts an Event the first time.

        Args:
            session: the group.
            resource: the ConsumerGroup: apiVersion, kind, metadata.
            subject: what was asked.
            error: the answer.
            now_ms: wall clock.
        """
        log.warning("%s/%s: %s", *session.key, error)
        news = note(session.refusals, subject, error, now_ms=now_ms, jitter=self._jitter())
        if news is not None:
            self._events.post(dict(resource), *news, kind="Warning")

    async def _do(self, session: Session, snapshot: GroupSnapshot, action: Action, now_ms: int) -> None:
        match action:
            case WriteStatus():
                await self._write_status(session, snapshot, action, now_ms)
            case ApplyObject():
                await self._apply(session, snapshot, action)
            case AdoptObject():
                await self._adopt(snapshot, action)
            case SetReplicas():
                await self._set_replicas(snapshot, action)
            case CreateSecret():
                await self._keys.create(snapshot, action.name)
            case RequestTakeover():
                await self._tell(snapshot, action)
            case DeleteObject():
                await self._delete(snapshot, action.api_version, action.kind, action.name, action.uid)
            case DeletePod():
                log.info("%s: restart %s: %s", snapshot.namespace, action.name, action.reason)
                await self._kube.delete(
                    "v1", "Pod", snapshot.namespace, action.name, uid=action.uid, grace_s=action.grace_s
                )
            case OpenGate():
                await self._open(snapshot, action)
                session.rebalances.scaled(now_ms)
            case AnnounceRebalance():
                session.rebalances.scaled(now_ms)
                await self._announce(session, snapshot, action)
            case RemoveMembers():
                session.rebalances.scaled(now_ms)
                await self._remove(session, action)
            case DeleteKafkaGroup():
                await self._delete_group(session)
            case SetFinalizers():
                await self._set_finalizers(snapshot, action)
            case FillReplicas():
                await self._fill_replicas(snapshot, action)
                await self._release_spec(snapshot)
            case ReleaseSpec():
                await self._release_spec(snapshot)
            case EmitEvent():
                self._events.post(
                    regarding(snapshot),
                    action.reason,
                    action.message,
                    kind="Warning" if action.warning else "Normal",
                )

    async def _write_status(
        self, session: Session, snapshot: GroupSnapshot, action: WriteStatus, now_ms: int
    ) -> None:
        raw = self._store.group(session.key)  # type: ignore[arg-type]
        if raw is not None and _is_written(session, action.status, raw):
            return
        manifest = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": snapshot.name, "namespace": snapshot.namespace, "uid": snapshot.uid},
            "status": dict(action.status),
        }
        answer = await self._kube.apply_status(manifest)
        self._store.put(answer)
        session.written = (action.status, str(answer["metadata"].get("resourceVersion", "")))
        if snapshot.figures_due:
            session.figures_ms = now_ms

    async def _apply(self, session: Session, snapshot: GroupSnapshot, action: ApplyObject) -> None:
        where = (action.manifest["kind"], action.manifest["metadata"]["name"])
        answer = await self._kube.apply(action.manifest)
        version = str(answer["metadata"].get("resourceVersion", ""))
        live = snapshot.live.get(where)
        if live is not None and live["metadata"].get("resourceVersion") == version:
            session.unchanged[where] = (version, action.manifest["metadata"]["annotations"][APPLIED])
            log.info("%s/%s: %s %s is as applied, though it looks different", *session.key, *where)
        self._store.put(answer)

    async def _set_replicas(self, snapshot: GroupSnapshot, action: SetReplicas) -> None:
        spec: dict[str, object] = {"replicas": action.replicas}
        if action.start is not None:
            spec["ordinals"] = {"start": action.start}
        body = {"metadata": {"uid": action.uid}, "spec": spec}
        self._store.put(
            await self._kube.patch("apps/v1", "StatefulSet", snapshot.namespace, action.name, body)
        )

    async def _adopt(self, snapshot: GroupSnapshot, action: AdoptObject) -> None:
        assert snapshot.group is not None
        metadata: dict[str, object] = {
            "uid": action.uid,
            "ownerReferences": [names.owner_reference(snapshot.group)],
        }
        if action.former:
            metadata["annotations"] = {names.ADOPTED_FROM: action.former}
        body = {"metadata": metadata}
        self._store.put(
            await self._kube.patch(action.api_version, action.kind, snapshot.namespace, action.name, body)
        )

    async def _delete(
        self, snapshot: GroupSnapshot, api_version: str, kind: str, name: str, uid: str
    ) -> None:
        await self._kube.delete(api_version, kind, snapshot.namespace, name, uid=uid)

    async def _open(self, snapshot: GroupSnapshot, action: OpenGate) -> None:
        """Lets workers join."""
        statuses = await self._post(snapshot, action.pods, self._workers.open_gate)
        closed = [name for name, status in statuses.items() if status != ACCEPTED]
        if closed:
            raise ActionFailed(
                f"{', '.join(closed)} did not accept the request to join; the operator retries"
            )

    async def _announce(self, session: Session, snapshot: GroupSnapshot, action: AnnounceRebalance) -> None:
        """What fails here costs time only: the members hear of it with their usual heartbeats, and those that
        were removed are taken out of the group when their pods are gone.

        Brokers assign at most once in an interval. So where it cannot be shortened, the partitions of the
        second member that leaves by itself would wait longer than if all leave together.
        """
        leaving = action.leaving
        if len(leaving) > 1:
            assert session.cluster is not None
            assert session.wanted is not None
            refused = await self._clusters.hasten_assignments(session.cluster, session.wanted.group_id)
            if refused:
                log.info("%s/%s: the workers do not leave one by one: %s", *session.key, refused)
                leaving = ()
        await asyncio.gather(
            self._post(snapshot, action.pods, self._workers.open_gate),
            self._post(snapshot, leaving, self._workers.leave),
        )

    async def _post(
        self, snapshot: GroupSnapshot, pods: Sequence[tuple[str, str, int]], request: WorkerRequest
    ) -> dict[str, int]:
        """The HTTP status of each request, by pod; they are signed if the workers can take over from each
        other."""
        assert snapshot.group is not None
        key = await self._keys.key(snapshot) if snapshot.group.spec.rollout.takes_over else b""
        statuses = await _post_all(pods, key, request)
        if UNAUTHORIZED in statuses.values():
            # They were started with another strategy, or with another Secret than the one known.
            key = await self._keys.key(snapshot, again=True)
            again = [pod for pod in pods if statuses[pod[0]] == UNAUTHORIZED]
            statuses |= await _post_all(again, key, request)
        return statuses

    async def _tell(self, snapshot: GroupSnapshot, action: RequestTakeover) -> None:
        """Tells a standby to take over; with the key read again where it does not take the one known."""
        pods = {
            pod["metadata"]["name"]: pod for pod in self._store.pods(Key(snapshot.namespace, snapshot.name))
        }
        there = pods.get(action.pod)
        if there is not None and there["metadata"].get("uid") != action.uid:
            raise ActionFailed(f"{action.pod} was replaced by another pod; the operator observes it again")
        key = await self._keys.key(snapshot)
        span = self._traces.order(snapshot, action)
        with span.current():
            log.info("%s: %s is asked to take over from %s", *_takeover_of(snapshot, action))
        trace = str(span.context or "")
        status, error = await self._tell_with(action, key, trace)
        if status == UNAUTHORIZED:
            again = await self._keys.key(snapshot, again=True)
            if again != key:
                status, error = await self._tell_with(action, again, trace)
        self._traces.ordered(span, "" if status == ACCEPTED else error)
        if status == UNAUTHORIZED:
            error += (
                f"; if Secret {names.takeover_secret(snapshot.name)} was replaced after the pod started, "
                "set spec.rollout.strategy to Restart until all workers have restarted, and then set it "
                "back"
            )
        if status != ACCEPTED:
            raise ActionFailed(f"{action.pod} could not be asked to take over: {error}; the operator retries")

    async def _tell_with(self, action: RequestTakeover, key: bytes, trace: str) -> tuple[int, str]:
        return await self._workers.take_over(
            action.ip, action.port, action.pod, action.predecessor, key, trace
        )

    async def _remove(self, session: Session, action: RemoveMembers) -> None:
        assert session.cluster is not None
        assert session.wanted is not None
        failed = await self._clusters.remove_members(
            session.cluster,
            session.wanted.group_id,
            {**dict.fromkeys(action.instance_ids, ""), **dict(action.member_ids)},
        )
        if failed:
            errors = "; ".join(f"{name}: {error}" for name, error in sorted(failed.items()))
            raise ActionFailed(
                f"members could not be removed from the group ({errors}); the operator retries"
            )

    async def _delete_group(self, session: Session) -> None:
        assert session.cluster is not None
        assert session.wanted is not None
        failed = await self._clusters.delete_group(session.cluster, session.wanted.group_id)
        if failed:
            raise ActionFailed(
                f"Kafka group {session.wanted.group_id} could not be deleted: {failed}; the operator retries"
            )

    async def _set_finalizers(self, snapshot: GroupSnapshot, action: SetFinalizers) -> None:
        """Replaces the finalizers, unless the resource has changed since the snapshot: others add theirs."""
        raw = self._store.group(Key(snapshot.namespace, snapshot.name))
        if raw is None or tuple(raw["metadata"].get("finalizers") or ()) != snapshot.finalizers:
            return
        observed = {"uid": snapshot.uid, "resourceVersion": raw["metadata"]["resourceVersion"]}
        body = {"metadata": {**observed, "finalizers": list(action.finalizers)}}
        answer = await self._kube.patch(API_VERSION, KIND, snapshot.namespace, snapshot.name, body)
        self._store.put(answer)

    async def _fill_replicas(self, snapshot: GroupSnapshot, action: FillReplicas) -> None:
        """Sets spec.replicas, unless the resource has changed since the snapshot."""
        raw = self._store.group(Key(snapshot.namespace, snapshot.name))
        if raw is None or "replicas" in raw["spec"]:
            return
        observed = {"uid": snapshot.uid, "resourceVersion": raw["metadata"]["resourceVersion"]}
        body = {"metadata": observed, "spec": {"replicas": action.replicas}}
        self._store.put(await self._kube.patch(API_VERSION, KIND, snapshot.namespace, snapshot.name, body))

    async def _release_spec(self, snapshot: GroupSnapshot) -> None:
        """Leaves the spec's fields as they are, without the operator as their manager.

        The API server takes the managers that a request names, and adds the one of the request only where
        this changes a field. So it takes a request of its own.
        """
        live = await self._kube.get(API_VERSION, KIND, snapshot.namespace, snapshot.name)
        managers = (live or {}).get("metadata", {}).get("managedFields") or []
        others = [entry for entry in managers if not owns_spec(entry)]
        if live is None or len(others) == len(managers):
            return
        observed = {"uid": snapshot.uid, "resourceVersion": live["metadata"]["resourceVersion"]}
        # An empty list changes nothing; a list of an empty entry removes all.
        body = {"metadata": {**observed, "managedFields": others or [{}]}}
        self._store.put(await self._kube.patch(API_VERSION, KIND, snapshot.namespace, snapshot.name, body))


async def _post_all(
    pods: Sequence[tuple[str, str, int]], key: bytes, request: WorkerRequest
) -> dict[str, int]:
    """The HTTP status of each request, by pod.

    All are sent at once: workers that join while the others of the group still rejoin cost one rebalance
    together, and one that joins later costs another.
    """
    statuses = await asyncio.gather(*(request(ip, port, name, key) for name, ip, port in pods))
    return {name: status for (name, _, _), status in zip(pods, statuses, strict=True)}


def _is_written(session: Session, status: Mapping[str, Any], raw: Mapping[str, Any]) -> bool:
    """Whether the status is what was written last. What the API server keeps of it may differ: an older
    CustomResourceDefinition lacks fields, such as the time, which alone is no reason to write there."""
    if session.written is None:
        return False
    written, version = session.written
    if "lastConfirmedTime" not in (raw.get("status") or {}):
        written = {**written, "lastConfirmedTime": status.get("lastConfirmedTime")}
    return written == status and version == str(raw["metadata"].get("resourceVersion", ""))


def regarding(snapshot: GroupSnapshot) -> dict[str, Any]:
    """The ConsumerGroup, as an Event names it."""
    metadata = {"name": snapshot.name, "namespace": snapshot.namespace, "uid": snapshot.uid}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}


def _takeover_of(snapshot: GroupSnapshot, action: RequestTakeover) -> tuple[str, str, str]:
    return snapshot.namespace, action.pod, action.predecessor or "no predecessor"
