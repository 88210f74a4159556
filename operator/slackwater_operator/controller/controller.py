"""Reconciles all groups: when they change, after observations of their cluster, and at intervals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from slackwater.clock import SYSTEM_CLOCK, Clock
from slackwater.tracing.spans import NO_TRACING, Tracing
from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND
from slackwater_operator.api.v1alpha1.status.group_status import parse_status
from slackwater_operator.controller.execution.credentials import options
from slackwater_operator.controller.execution.executor import Executor
from slackwater_operator.controller.execution.finalizer import MemberRemoval
from slackwater_operator.controller.execution.refusals import subject_of
from slackwater_operator.controller.group_metrics import figures
from slackwater_operator.controller.operation_traces import OperationTraces
from slackwater_operator.controller.prometheus import Prometheus
from slackwater_operator.controller.session import Session, new_session
from slackwater_operator.controller.session_update import (
    new_rebalances,
    record_outcome,
    unowned_partition_seconds,
)
from slackwater_operator.controller.settings import Settings
from slackwater_operator.controller.snapshots.builder import SnapshotBuilder, version_of
from slackwater_operator.controller.snapshots.observation_changes import take_observation
from slackwater_operator.kafka.clusters import ClusterIdentity, Clusters
from slackwater_operator.kubernetes.errors import KubeError
from slackwater_operator.kubernetes.object_api import EventRecorder, ObjectApi
from slackwater_operator.kubernetes.store import Key, Store
from slackwater_operator.planner import plan as planner
from slackwater_operator.planner.actions import Plan
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.backoff import delay_ms
from slackwater_operator.policies.conditions import Trouble
from slackwater_operator.telemetry.metrics import OperatorMetrics
from slackwater_operator.workers.client import WorkerStatuses

log = logging.getLogger(__name__)

_FIRST_OBSERVATION_MS = 8_000  # how long the first reconciliation waits for the first observation
_TOGETHER_S = 0.05  # changes that come at the same time make one reconciliation
_SHORTEST_S = 0.2  # between two reconciliations of a group
_AFTER_ERROR_MS = 1_000
_TRY_OUT_AGAIN = 30  # rounds, after which a Kafka that workers are to be moved to is asked for its id again
_HELD_MS = 5_000  # the longest time to the next reconciliation while a back-off holds up the rest
_READING = "read the group's objects"


class Controller:
    """Reconciles all ConsumerGroups of the Store. Used on one event loop.

    `run()` works until it is cancelled. Its memory can be lost at any moment: the statuses and new
    observations replace it.
    """

    def __init__(
        self,
        kube: ObjectApi,
        store: Store,
        events: EventRecorder,
        metrics: OperatorMetrics,
        settings: Settings | None = None,
        *,
        may_act: Callable[[], bool] = lambda: True,
        clusters: Clusters | None = None,
        workers: WorkerStatuses | None = None,
        clock: Clock = SYSTEM_CLOCK,
        jitter: Callable[[], float] = random.random,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """Starts nothing yet.

        Args:
            kube: the API server.
            store: what the watches have seen. Nothing is done before it is `synced`.
            events: Kubernetes' Events.
            metrics: what is exported.
            settings: how it behaves.
            may_act: asked before each act; False: another replica may lead by now, so nothing is done.
            clusters: the Kafka clusters; without it, its own.
            workers: the way to the pods; without it, its own.
            clock: the time.
            jitter: gives random numbers from 0 to 1, for the back-offs.
            tracing: for the traces of takeovers and restarts.
        """
        self._kube, self._store = kube, store
        self._metrics, self._clock, self._jitter = metrics, clock, jitter
        self._settings = settings or Settings()
        self._clusters = clusters or Clusters(
            options(kube), receive_message_max_bytes=self._settings.receive_message_max_bytes
        )
        self._own_clusters = clusters is None
        self._workers = workers or WorkerStatuses()
        self._own_workers = workers is None
        self._reconciled_ms = clock.mono_ms()
        self._prometheus = Prometheus(self._settings.prometheus_url, kube)
        self._snapshots = SnapshotBuilder(
            kube, store, self._clusters, self._workers, clock, self._settings, self._prometheus.values
        )
        self._traces = OperationTraces(tracing, clock)
        self._executor = Executor(
            kube, store, self._clusters, self._workers, events, may_act, jitter, self._traces
        )
        self._sessions: dict[Key, Session] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._rounds: dict[ClusterIdentity, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(self._settings.reconciliations_at_once)
        self._changed = asyncio.Event()
        store.on_change(self._on_change)

    @property
    def groups(self) -> list[Key]:
        """The groups that are reconciled."""
        return sorted(self._sessions)

    def session(self, key: Key) -> Session | None:
        """What is known of a group, read-only; None: it is not reconciled."""
        return self._sessions.get(key)

    async def run(self) -> None:
        """Reconciles the groups until it is cancelled."""
        self._reconciled_ms = self._clock.mono_ms()
        try:
            while True:
                if self._store.synced:
                    self._begin()
                    self._watch_clusters()
                self._changed.clear()
                try:
                    async with asyncio.timeout(1.0):
                        await self._changed.wait()
                except TimeoutError:
                    pass
        finally:
            tasks = [*self._tasks.values(), *self._rounds.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()

    def silent_s(self) -> float:
        """How long no reconciliation has ended although there are groups; 0 without any."""
        return (self._clock.mono_ms() - self._reconciled_ms) / 1000 if self._sessions else 0.0

    async def _close(self) -> None:
        for session in self._sessions.values():
            session.analysis.close()
        await self._prometheus.close()
        if self._own_workers:
            await self._workers.close()
        if self._own_clusters:
            await self._clusters.close()

    # -- which groups and clusters there are -------------------------------------------------------------

    def _on_change(self, key: Key) -> None:
        session = self._sessions.get(key)
        if session is not None:
            session.wake.set()
        else:
            self._changed.set()

    def _begin(self) -> None:
        """Starts the tasks of new groups, and removes finished ones."""
        for key in self._store.groups():
            if key not in self._tasks:
                self._sessions[key] = self._new_session(key)
                self._tasks[key] = asyncio.create_task(
                    self._reconcile_until_gone(key), name=f"reconcile {key}"
                )
        for key in [key for key, task in self._tasks.items() if task.done()]:
            del self._tasks[key]
            if (session := self._sessions.pop(key, None)) is not None:
                session.analysis.close()
            self._metrics.forget(key)
            self._traces.forget(key)
            if self._store.group(key) is None:
                self._snapshots.forget(key)

    def _new_session(self, key: Key) -> Session:
        wanted = self._settings
        return new_session(
            key,
            now_ms=self._clock.wall_ms(),
            window_ms=wanted.window_ms,
            down_window_ms=wanted.down_window_ms,
            up_window_ms=wanted.up_window_ms,
            settle_ms=wanted.settle_ms,
        )

    def _watch_clusters(self) -> None:
        named = [
            each for session in self._sessions.values() for each in (session.cluster, session.next_cluster)
        ]
        used = {cluster for cluster in named if cluster is not None}
        for cluster in used - self._rounds.keys():
            self._rounds[cluster] = asyncio.create_task(self._observe(cluster), name=f"observe {cluster}")
        over = self._rounds.keys() - used
        for cluster in over:
            self._rounds.pop(cluster).cancel()
            if str(cluster) not in {str(other) for other in used}:
                self._metrics.forget_cluster(str(cluster))
        if over:
            task = asyncio.create_task(self._clusters.retain(used))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    # -- observations -----------------------------------------------------------------------------------

    async def _observe(self, cluster: ClusterIdentity) -> None:
        """Observes a cluster's groups at intervals: calm ones every second time, busy ones more often."""
        due_ms, rounds = 0.0, 0
        while True:
            now_ms = self._clock.mono_ms()
            due = now_ms >= due_ms
            if due:
                due_ms = now_ms + self._settings.round_ms
                rounds += 1
            here = [session for session in self._sessions.values() if session.cluster == cluster]
            asked = [
                session for session in here if session.busy or (due and (rounds % 2 or not session.calm))
            ]
            again = rounds % _TRY_OUT_AGAIN == 0
            nearing = [session for session in self._sessions.values() if session.next_cluster == cluster]
            try:
                if asked:
                    await self._round(cluster, asked)
                if due and nearing and (again or any(session.next_id is None for session in nearing)):
                    await self._try_out(cluster, nearing)
            except Exception:
                log.exception("Kafka cluster %s could not be observed", cluster)
                self._metrics.observed(str(cluster), 0.0, errors=1)
            await asyncio.sleep(self._settings.busy_round_ms / 1000)

    async def _round(self, cluster: ClusterIdentity, asked: list[Session]) -> None:
        wanted = [session.wanted for session in asked if session.wanted is not None]
        result = await self._clusters.observe(cluster, wanted)
        self._metrics.observed(str(cluster), result.took_s, errors=1 if result.problem else 0)
        now_ms = self._clock.wall_ms()
        for session in asked:
            observed = result.snapshots.get(session.key)
            if take_observation(session, observed, now_ms, result.problem):
                session.wake.set()
            elif session.snapshot is not None and session.plan is not None:
                shown = figures(session, replace(session.snapshot, kafka=observed), session.plan)
                self._metrics.show(Key(*session.key), shown)

    async def _try_out(self, cluster: ClusterIdentity, nearing: list[Session]) -> None:
        """Asks the Kafka cluster that a changed spec names for its id."""
        cluster_id = await self._clusters.identify(cluster)
        for session in nearing:
            if session.next_cluster == cluster and session.next_id != cluster_id:
                session.next_id = cluster_id
                session.wake.set()

    # -- reconciliations --------------------------------------------------------------------------------

    async def _reconcile_until_gone(self, key: Key) -> None:
        """Reconciles one group, again and again, until it is gone."""
        session = self._sessions[key]
        with contextlib.suppress(Exception):  # the reconciliation fails as well, and reports why
            self._snapshots.preload(session)
        self._changed.set()  # its cluster may be a new one
        await self._first_observation(session)
        last: tuple[GroupSnapshot, Plan] | None = None
        while True:
            async with self._slots:
                wait_ms, made = await self._guarded(session)
            if wait_ms is None:
                break
            last = made or last
            if session.failed:
                await self._back_off(session, wait_ms)
            else:
                await self._wait(session, wait_ms)
        if last is not None:
            removal = MemberRemoval(self._kube, self._store, self._clusters, self._clock)
            await removal.run(session, last[0])
        asyncio.get_running_loop().call_soon(self._changed.set)  # run() removes the finished task

    async def _first_observation(self, session: Session) -> None:
        """Waits for the first observation of the group's cluster, for a limited time."""
        until_ms = self._clock.mono_ms() + _FIRST_OBSERVATION_MS
        while session.cluster is not None and session.kafka is None and not session.unanswered:
            left_ms = until_ms - self._clock.mono_ms()
            if left_ms <= 0:
                return
            await self._wait(session, left_ms)

    async def _wait(self, session: Session, wait_ms: float) -> None:
        """Waits until the group changes, or the time is over."""
        await asyncio.sleep(_SHORTEST_S)
        try:
            async with asyncio.timeout(max(0.0, wait_ms / 1000 - _SHORTEST_S)):
                await session.wake.wait()
            await asyncio.sleep(_TOGETHER_S)
        except TimeoutError:
            pass
        session.wake.clear()

    async def _back_off(self, session: Session, wait_ms: float) -> None:
        """Waits for the back-off of a failed reconciliation; only an edit of the resource ends it sooner."""
        until_ms = self._clock.mono_ms() + wait_ms
        while (left_ms := until_ms - self._clock.mono_ms()) > 0:
            await self._wait(session, left_ms)
            raw = self._store.group(Key(*session.key))
            if raw is None or session.resource is None or version_of(raw) != session.resource.version:
                return

    async def _guarded(self, session: Session) -> tuple[float | None, tuple[GroupSnapshot, Plan] | None]:
        """Reconciles once, and reports any error. The time to wait, snapshot and plan; Nones: it is gone."""
        began = self._clock.mono_ms()
        failed = session.failed = True
        try:
            made = await self._reconcile(session)
            failed = session.failed = False
            if made is None:
                return None, None
            return max(0, made[1].wake_ms - self._clock.wall_ms()), made
        except KubeError as error:
            session.failed = await self._show_refused(session, error)
            if not session.failed:
                log.warning("%s: %s", "/".join(session.key), error)
        except Exception as error:
            log.exception("%s: reconciliation failed", "/".join(session.key))
            message = f"{type(error).__name__}: {error}; this is a bug in the operator, see its log"
            await self._show(session, Trouble("InternalError", message[:1024]))
        finally:
            self._reconciled_ms = self._clock.mono_ms()
            self._metrics.reconciled((self._clock.mono_ms() - began) / 1000, failed=failed)
        session.failures += 1
        return delay_ms(session.failures, self._jitter(), first_ms=_AFTER_ERROR_MS), None

    async def _show_refused(self, session: Session, error: KubeError) -> bool:
        """Shows that the API server refuses a read that a reconciliation needs; False: it did not answer."""
        raw = self._store.group(Key(*session.key))
        if not error.status or raw is None:
            return False
        resource = {"apiVersion": API_VERSION, "kind": KIND, "metadata": raw["metadata"]}
        self._executor.refused(session, resource, _READING, error, now_ms=self._clock.wall_ms())
        problem = session.refusals.shown(_READING)
        if problem is not None:
            await self._show(session, Trouble(*problem))
        return True

    async def _reconcile(self, session: Session) -> tuple[GroupSnapshot, Plan] | None:
        unread = self._store.unread(session.key[0])
        if unread is not None:  # an object that is not in the Store may exist
            raise unread.error()
        snapshot = await self._snapshots.build(session)
        if snapshot is None:
            return None
        plan = planner.plan(snapshot)
        if plan.needs_fresh:
            snapshot = await self._snapshots.build(session, fresh=True)
            if snapshot is None:
                return None
            plan = planner.plan(snapshot)
        now_ms = self._clock.wall_ms()
        outcome = await self._executor.execute(session, snapshot, plan, now_ms=now_ms)
        session.refusals.keep({subject_of(snapshot, action) for action in plan.actions})
        session.act_failures.keep(plan.actions)
        problems = (*session.shown_failures, *([outcome.problem] if outcome.problem is not None else []))
        if problems != session.problems:
            session.problems = problems
            session.wake.set()  # the next reconciliation writes it into the status
        session.plan = plan
        self._after(session, snapshot, plan, done=outcome.done)
        if not outcome.error:
            session.failures = 0
            return snapshot, plan
        due = (session.refusals.next_due_ms(now_ms), session.act_failures.next_due_ms(now_ms))
        due_ms = min((at_ms for at_ms in due if at_ms is not None), default=None)
        if outcome.backs_off and due_ms is not None:
            session.failures = 0  # the plan was executed: the failed action has its own back-off
            wait_ms = min(due_ms - now_ms, _HELD_MS)
        else:
            session.failures += 1
            wait_ms = delay_ms(session.failures, self._jitter(), first_ms=_AFTER_ERROR_MS)
        return snapshot, replace(plan, wake_ms=now_ms + wait_ms)

    def _after(self, session: Session, snapshot: GroupSnapshot, plan: Plan, *, done: int) -> None:
        """Updates the session and the metrics after a reconciliation."""
        key = Key(*session.key)
        record_outcome(session, snapshot, plan, done=done)
        self._traces.observe(snapshot, session.workers, plan.taken_over)
        for rebalance in new_rebalances(session, snapshot):
            seconds = rebalance.took_ms / 1000 if rebalance.took_ms is not None else None
            self._metrics.rebalanced(key, rebalance.cause, seconds)
        unowned_s = unowned_partition_seconds(session, snapshot, self._settings.round_ms)
        if unowned_s:
            self._metrics.unowned(key, unowned_s)
        for outcome in plan.taken_over:
            self._metrics.taken_over(key, outcome)
        for kind, action in _new_decisions(snapshot, plan):
            self._metrics.decided(key, kind, action)
        self._metrics.show(key, figures(session, snapshot, plan))

    async def _show(self, session: Session, trouble: Trouble) -> None:
        """Writes into the status that this group cannot be reconciled; other groups continue."""
        raw = self._store.group(Key(*session.key))
        if raw is None:
            return
        metadata, now_ms = raw["metadata"], self._clock.wall_ms()
        try:
            snapshot = GroupSnapshot(
                now_ms,
                session.key[0],
                session.key[1],
                metadata.get("uid", ""),
                int(metadata.get("generation") or 0),
                parse_status(raw.get("status")),
                status=raw.get("status") or {},
                figures_due=False,
                problems=session.shown_failures,
                troubles=session.troubles,
            )
            plan = planner.plan_of_trouble(snapshot, trouble)
            outcome = await self._executor.execute(session, snapshot, plan, now_ms=now_ms)
            if outcome.done:
                session.troubles = plan.troubles
        except Exception:
            log.exception("%s: the failure could not be written to the status", "/".join(session.key))


def _new_decisions(snapshot: GroupSnapshot, plan: Plan) -> Iterable[tuple[str, str]]:
    """The decisions that were not in the status before."""
    known = {(decision.at_ms, decision.kind, decision.action) for decision in snapshot.memory.decisions}
    for decision in plan.status.get("decisions") or []:
        at_ms, kind, action = decision["at"], decision["kind"], decision.get("action", "")
        if (at_ms, kind, action) not in known:
            yield kind, action.split(" ")[0]
