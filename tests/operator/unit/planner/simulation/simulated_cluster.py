"""A cluster in virtual time: an API server with its controllers, kubelets, workers, and a Kafka group.

The operator's own code runs against it unchanged (`simulated_operator.py`); time passes only when `tick` says
so, and nothing is random. What the parts do was seen on the real ones (docs/design/operator.md, tests/e2e).
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.status.group_status import Skip
from slackwater_operator.kafka.clusters import Round
from slackwater_operator.kubernetes.errors import KubeError, KubeUnavailable
from slackwater_operator.kubernetes.object_api import MANAGER
from slackwater_operator.kubernetes.store import Key, Store
from slackwater_operator.local.machine.objects import DELETED, LocalObjects
from slackwater_operator.local.machine.workloads import Workloads
from slackwater_operator.model import names
from slackwater_operator.model.worker_status import (
    StandbyStatus,
    StoppedPartition,
    TakeoverStatus,
    WorkerCounts,
    WorkerStatus,
)
from slackwater_operator.policies.rollout.analysis import MetricValue
from slackwater_operator.workers.client import PodAddress
from tests.operator.unit.planner.simulation.simulated_kafka_group import SimulatedKafkaGroup

Json = dict[str, Any]

NAMESPACE, NAME = "default", "flights"
KEY = Key(NAMESPACE, NAME)
NAME_LABEL, JOB_LABEL = "app.kubernetes.io/name", "batch.kubernetes.io/job-name"
TICK_MS = 100
BEGIN_MS = 1_790_000_000_000


def stamp(ms: int) -> str:
    """A time as Kubernetes writes it: whole seconds."""
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def at_once(call: Coroutine[Any, Any, Any]) -> Any:
    """The result of a call that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


@dataclass
class Timer:
    """A call that is due at a time."""

    at_ms: int
    call: Callable[[], object]

    def cancel(self) -> None:
        self.call = lambda: None


@dataclass
class Process:
    """A worker's process in a pod.

    `asks`: whom it asks for the handover, None before it is told, "" for nobody. `hands_to`: who has asked
    it. `silent`: it answers nobody who asks it to hand over. `hung_until_ms`: until then it does nothing.
    """

    pod: str
    member: str
    uid: str
    image: str
    began_ms: int
    phase: str = "starting"
    since_ms: int = 0
    joined_ms: int | None = None
    running_since_ms: int | None = None
    gate_open: bool = False
    id: str = ""
    hung: bool = False
    grace_ms: int = 30_000
    has_key: bool = False
    asks: str | None = None
    told_ms: int = 0
    hands_to: str = ""
    committed_ms: int | None = None
    handed_over: bool = False
    silent: bool = False
    hung_until_ms: int = 0
    takeover: TakeoverStatus | None = None
    lonely_ms: int = 0


@dataclass
class Timing:
    """How long things take, in ms."""

    start: int = 600
    ask: int = 200
    warm: int = 800
    drain: int = 400
    hand_over: int = 200
    deadline: int = 20_000
    removal: int = 200
    control: int = 100
    job: int = 700
    watch: int = 100


class SimulatedKube:
    """The API server, as `Kube` shows it: the machine's objects, with answers that fail or are refused."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.writes: Counter[str] = Counter()
        self.others: set[str] = set()  # kinds of others that are served, such as PodMonitor
        self.reads: Counter[str] = Counter()
        self.fail: Callable[[str, str], bool] = lambda verb, kind: False
        self.prune: Callable[[Json], object] = lambda status: None
        self.refuse: Callable[[str, str], KubeError | None] = lambda verb, kind: None

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        """`get`, `apply`, `create` and `delete`."""
        call = getattr(self._simulation.api, verb)

        async def checked(*args: Any, **more: Any) -> Any:
            self._check(verb, args[0]["kind"] if verb in ("apply", "create") else args[1])
            return await call(*args, **more)

        return checked

    def _check(self, verb: str, kind: str) -> None:
        counts = self.reads if verb in ("get", "list") else self.writes
        counts[f"{verb} {kind}"] += 1
        if self.fail(verb, kind):
            raise KubeUnavailable(503, "ServiceUnavailable", f"{verb} {kind}: try again")
        refused = self.refuse(verb, kind)
        if refused is not None:
            raise refused

    async def list(self, api_version: str, kind: str, *where: str, field_selector: str = "") -> list[Json]:
        self._check("list", kind)
        if kind == "Event":
            about = dict(part.split("=") for part in field_selector.split(","))
            return self._simulation.object_events.get((about["regarding.kind"], about["regarding.name"]), [])
        return await self._simulation.api.list(api_version, kind, *where)

    async def apply_status(self, manifest: Json) -> Json:
        self._check("status", manifest["kind"])
        status = json.loads(json.dumps(manifest["status"]))
        self.prune(status)
        return await self._simulation.api.apply_status({**manifest, "status": status})

    async def patch(self, api_version: str, kind: str, namespace: str, name: str, body: Json) -> Json:
        self._check("patch", kind)
        if "spec" in body:
            live = self._simulation.objects[kind, name]["metadata"]
            fields = {"f:spec": {f"f:{field}": {} for field in body["spec"]}}
            mine = {"manager": MANAGER, "operation": "Update", "fieldsV1": fields}
            managed = {"managedFields": [*live.get("managedFields", []), mine]}
            body = {**body, "metadata": {**body["metadata"], **managed}}
        return await self._simulation.api.patch(api_version, kind, namespace, name, body)

    async def served(self, api_version: str, kind: str) -> bool:
        if (refused := self.refuse("discover", kind)) is not None:
            raise refused
        return kind in self.others


class SimulatedControllers(Workloads):
    """The machine's controllers, which a quota, or an error of the API server, keeps from creating pods."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation.api, lambda: simulation)
        self._simulation = simulation
        self._blocked: set[str] = set()  # the uids of Jobs

    def _create(self, pod: Json) -> None:
        quota = self._simulation.quota
        if quota is None or JOB_LABEL in pod["metadata"]["labels"] or len(self._simulation.pods) < quota:
            super()._create(pod)

    def _keep_job(self, job: Json) -> None:
        simulation, uid = self._simulation, job["metadata"]["uid"]
        if "status" not in job and uid not in self._blocked:
            if simulation.job_blocked:
                event = {
                    "metadata": {"name": "event", "creationTimestamp": stamp(simulation.now_ms)},
                    "type": "Warning",
                    "reason": "FailedCreate",
                    "note": simulation.job_blocked,
                }
                simulation.object_events["Job", job["metadata"]["name"]] = [event]
            if simulation.job_blocked or not simulation.starts_job(job):
                self._blocked.add(uid)
                self._limit(job)
        if uid not in self._blocked:
            super()._keep_job(job)


class SimulatedClusters:
    """The Kafka clusters, as `Clusters` shows them."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.away = False
        self.nowhere: set[str] = set()  # bootstrap servers that nobody answers at
        self.ids: dict[str, str] = {}  # the cluster's id by its bootstrap servers, where that is another
        self.keeps_interval = ""  # why the interval of assignments cannot be shortened
        self.deleted: list[str] = []
        self.deleted_at: list[str] = []  # the bootstrap servers of each

    async def observe(self, cluster: Any, wanted: Sequence[Any]) -> Round[Any]:
        away = self.away or cluster.bootstrap_servers in self.nowhere
        result = None if away else self._simulation.group.snapshot(self._simulation.now_ms)
        return Round({group.key: result for group in wanted}, "away" if away else "", 0.0)

    async def identify(self, cluster: Any) -> str | None:
        if self.away or cluster.bootstrap_servers in self.nowhere:
            return None
        return self.ids.get(cluster.bootstrap_servers, "cluster-1")

    async def remove_members(self, cluster: Any, group_id: str, members: Mapping[str, str]) -> dict[str, str]:
        if self.away:
            return dict.fromkeys(members, "away")
        self._simulation.group.remove(members)
        return {}

    async def hasten_assignments(self, cluster: Any, group_id: str) -> str:
        return self.keeps_interval

    async def delete_group(self, cluster: Any, group_id: str) -> str:
        self.deleted.append(group_id)
        self.deleted_at.append(cluster.bootstrap_servers)
        self._simulation.group.state = "Dead"
        return ""


class SimulatedWorkers:
    """The pods' health endpoints, as `WorkerStatuses` shows them. `traces`: the headers of orders."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.traces: list[str] = []
        self.told_to_leave: list[str] = []

    async def statuses(self, pods: Iterable[PodAddress]) -> dict[str, WorkerStatus | None]:
        return {pod.name: self._simulation.worker_status(pod.name) for pod in pods}

    async def open_gate(self, ip: str, port: int, pod: str, key: bytes = b"") -> int:
        for process in self._simulation.processes.values():
            if self._simulation.address(process.pod) == ip:
                process.gate_open = True
                return 202
        return 0

    async def leave(self, ip: str, port: int, pod: str, key: bytes = b"") -> int:
        self.told_to_leave.append(pod)
        return 202

    async def take_over(
        self, ip: str, port: int, pod: str, predecessor: str, key: bytes, trace: str = ""
    ) -> tuple[int, str]:
        self.traces.append(trace)
        secret = self._simulation.objects["Secret", f"{NAME}-takeover"]
        assert key.hex() == base64.b64decode(secret["data"]["key"]).decode(), "signed with another key"
        process = self._simulation.process_at(ip)
        if process is None or process.hung_until_ms > self._simulation.now_ms:
            return 0, "does not answer"
        if process.phase not in ("standby", "warming") or not process.has_key:
            return 409, f"is {process.phase}"
        process.asks, process.told_ms = predecessor.rpartition(":")[0], self._simulation.now_ms
        return 202, ""


@dataclass
class Posted:
    """The Events posted."""

    said: list[tuple[str, str]] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)

    def post(
        self, regarding: Json, reason: str, message: str, *, action: str = "", kind: str = "Normal"
    ) -> None:
        self.said.append((reason, message))
        self.warned += [reason] if kind == "Warning" else []


class Simulation:
    """The cluster."""

    def __init__(
        self, spec: Json, *, partitions: int = 6, timing: Timing | None = None, uid: str = "uid"
    ) -> None:
        self.now_ms = BEGIN_MS
        self.timing = timing or Timing()
        self._counter = 0
        self.api = LocalObjects(lambda: self.now_ms, lambda: f"{uid}-{self.number()}")
        self.objects: dict[tuple[str, str], Json] = {}
        """The objects by kind and name, as they are now."""
        self.processes: dict[str, Process] = {}
        self.store = Store()
        self.store.synced = True
        self.kube = SimulatedKube(self)
        self.clusters = SimulatedClusters(self)
        self.workers = SimulatedWorkers(self)
        self.events = Posted()
        self.stopped: dict[str, tuple[StoppedPartition, ...]] = {}
        """By member, what its worker says that it reads nothing more of."""
        self.skipped: dict[str, tuple[Skip, ...]] = {}
        self.rate = 10  # records a partition and tick
        self.capacity = 1_000  # records a worker and tick
        self.job_blocked = ""  # why the Job's controller cannot create a preflight's pod
        self.starts_job: Callable[[Json], bool] = lambda job: True  # whether it gets a pod
        self.runs_job: Callable[[Json], bool] = lambda pod: False  # whether its pod is not a preflight's
        self.object_events: dict[tuple[str, str], list[Json]] = {}
        self.dead = 0.0  # the share of records that workers with the image :letters dead-letter
        self.counted: dict[str, tuple[int, int]] = {}
        """By process, how many records it has committed, and how many of them it has dead-lettered."""
        self.answer: MetricValue = MetricValue(None, "Prometheus: away")  # to every query
        self.asked: list[tuple[str, object, tuple[str, ...]]] = []  # namespace, settings and queries
        self.each_tick: list[Callable[[Simulation], None]] = []
        self.pods_ever: list[str] = []
        self.lost: set[str] = set()  # pods whose node is lost: they do not end
        self.room: int | None = None  # for how many pods there is room; None: for all
        self.pull_error = ""  # what a kubelet says of each image that it would pull
        self.unserved_ms: Counter[str] = Counter()  # by member, in a row
        self._quota: int | None = None
        self._changes = 0  # of objects, but for ConsumerGroups
        self._late: list[tuple[int, str, Json]] = []
        self._due: list[Timer] = []
        self._unscheduled: list[str] = []  # the uids of pods
        self._ending: set[str] = set()
        self.api.on_change(self._changed)
        self._controllers = SimulatedControllers(self)
        session_ms = int(spec["kafka"].get("properties", {}).get("session.timeout.ms", 45_000))
        self.group = SimulatedKafkaGroup(partitions, session_ms)
        self.apply(
            {
                "apiVersion": "slackwater.dev/v1alpha1",
                "kind": "ConsumerGroup",
                "metadata": {"name": NAME, "namespace": NAMESPACE},
                "spec": spec,
            }
        )

    # -- the API server ----------------------------------------------------------------------------------

    @property
    def resource(self) -> Json:
        return self.objects["ConsumerGroup", NAME]

    @property
    def status(self) -> Json:
        """The ConsumerGroup's; empty where it is gone."""
        result: Json = self.objects.get(("ConsumerGroup", NAME), {}).get("status") or {}
        return result

    @property
    def deleted(self) -> bool:
        """Whether the ConsumerGroup is gone."""
        return ("ConsumerGroup", NAME) not in self.objects

    def condition(self, kind: str) -> Json:
        return next((condition for condition in self._conditions() if condition["type"] == kind), {})

    def _conditions(self) -> list[Json]:
        return [condition for condition in self.status.get("conditions", []) if isinstance(condition, dict)]

    @property
    def pods(self) -> list[Json]:
        pods = [made for (kind, _), made in sorted(self.objects.items()) if kind == "Pod"]
        return [pod for pod in pods if pod["metadata"]["labels"][NAME_LABEL] == "slackwater-worker"]

    @property
    def quota(self) -> int | None:
        """How many pods may be there; None: as many as are wanted."""
        return self._quota

    @quota.setter
    def quota(self, pods: int | None) -> None:
        self._quota = pods
        self._controllers.look()

    def number(self) -> int:
        self._counter += 1
        return self._counter

    def apply(self, manifest: Json) -> Json:
        return at_once(self.api.apply(manifest))

    def merge(self, live: Json, body: Json) -> None:
        """A merge patch."""
        at_once(self.api.patch("", live["kind"], NAMESPACE, live["metadata"]["name"], body))

    def set_status(self, live: Json, status: Json) -> None:
        self.api.set_status(
            live["kind"], NAMESPACE, live["metadata"]["name"], live["metadata"]["uid"], status
        )

    def change(self, **spec: Any) -> None:
        """The user changes the spec: merge patch."""
        self.merge(self.resource, {"spec": spec})

    def annotate(self, **annotations: str) -> None:
        self.merge(
            self.resource,
            {"metadata": {"annotations": {f"slackwater.dev/{k}": v for k, v in annotations.items()}}},
        )

    def delete(self, kind: str, name: str, uid: str = "") -> bool:
        return at_once(self.api.delete("", kind, NAMESPACE, name, uid=uid))

    def gone(self, kind: str, name: str) -> None:
        """An object is gone at once, and what it owned remains (`--cascade=orphan`)."""
        uid = self.objects[kind, name]["metadata"]["uid"]
        for owned in list(self.objects.values()):
            if uid in [owner["uid"] for owner in owned["metadata"].get("ownerReferences", ())]:
                self.api.put({**owned, "metadata": {**owned["metadata"], "ownerReferences": []}})
        self.api.remove(kind, NAMESPACE, name, uid)

    def _changed(self, change: str, live: Json) -> None:
        """The watch tells of it a little later, the kubelet at once."""
        where = str(live["kind"]), str(live["metadata"]["name"])
        known = where in self.objects
        self._changes += live["kind"] != "ConsumerGroup"
        self._late.append((self.now_ms + self.timing.watch, change, live))
        if change == DELETED:
            del self.objects[where]
            self.processes.pop(live["metadata"]["uid"], None)
            return
        self.objects[where] = live
        if live["kind"] == "Pod" and not known:
            self._pod_created(live)
        elif live["kind"] == "Pod" and "deletionTimestamp" in live["metadata"]:
            self._end_pod(live["metadata"])

    # -- time --------------------------------------------------------------------------------------------

    def _after(self, ms: int, call: Callable[[], None]) -> None:
        self.call_later(ms / 1_000, call)

    def call_soon(self, call: Callable[[], object]) -> Timer:
        """As a loop's: in the next tick."""
        return self.call_later(0, call)

    def call_later(self, delay_s: float, call: Callable[..., object], *args: Any) -> Timer:
        """As a loop's."""
        timer = Timer(self.now_ms + round(delay_s * 1_000), lambda: call(*args))
        self._due.append(timer)
        return timer

    def tick(self) -> None:
        """A tenth of a second passes."""
        self.now_ms += TICK_MS
        due = [timer for timer in self._due if timer.at_ms <= self.now_ms]
        self._due = [timer for timer in self._due if timer.at_ms > self.now_ms]
        for timer in due:
            timer.call()
        self._schedule()
        for process in list(self.processes.values()):
            if process.phase == "draining" or process.hung_until_ms <= self.now_ms:
                self._live(process)
        self.group.tick(self.now_ms, self.heartbeating)
        self._work()
        due = [change for change in self._late if change[0] <= self.now_ms]
        self._late = [change for change in self._late if change[0] > self.now_ms]
        for _, change, live in due:
            if change == DELETED:
                self.store.drop(live["kind"], NAMESPACE, live["metadata"]["name"], live["metadata"]["uid"])
            else:
                self.store.put(live)  # but for Secrets, which it does not keep
        for check in self.each_tick:
            check(self)

    @property
    def heartbeating(self) -> set[str]:
        """The processes that heartbeat."""
        in_the_group = ("joining", "running", "handing-over", "draining")
        return {
            process.id
            for process in self.processes.values()
            if process.phase in in_the_group
            and process.joined_ms is not None
            and process.hung_until_ms <= self.now_ms
        }

    # -- pods --------------------------------------------------------------------------------------------

    def _pod_created(self, pod: Json) -> None:
        metadata = pod["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        if JOB_LABEL not in metadata["labels"]:
            self.pods_ever.append(name)
            self._unscheduled.append(uid)
        elif not self.runs_job(pod):
            self._after(self.timing.job, lambda: self._finish_preflight(name))

    def _finish_preflight(self, name: str) -> None:
        pod = self.objects.get(("Pod", name))
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            return
        code = int(pod["spec"]["containers"][0]["image"].endswith(":unfit"))
        ended = {"exitCode": code, "finishedAt": stamp(self.now_ms), "message": "handler not found"}
        state = {"name": "worker", "state": {"terminated": ended}}
        self.set_status(pod, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [state]})

    def _schedule(self) -> None:
        """The scheduler: pods get a node as long as there is room, in the order in which they came."""
        if not self._unscheduled:
            return
        pods = {pod["metadata"]["uid"]: pod for pod in self.pods}
        self._unscheduled = [uid for uid in self._unscheduled if uid in pods]
        room = len(pods) if self.room is None else self.room - len(pods) + len(self._unscheduled)
        for uid in list(self._unscheduled):
            pod, room = pods[uid], room - 1
            if room >= 0:
                self._unscheduled.remove(uid)
                self.set_status(pod, {"phase": "Pending"})
                name = pod["metadata"]["name"]
                self._after(self.timing.start, lambda name=name, uid=uid: self._start(name, uid))  # type: ignore[misc]
            elif "conditions" not in pod["status"]:
                why = {"reason": "Unschedulable", "message": "0/1 nodes: no room"}
                condition = {"type": "PodScheduled", "status": "False", **why}
                self.set_status(pod, {**pod["status"], "conditions": [condition]})

    def _start(self, name: str, uid: str, restarts: int = 0, last: Json | None = None) -> None:
        pod = self.objects.get(("Pod", name))
        if pod is None or pod["metadata"]["uid"] != uid or "deletionTimestamp" in pod["metadata"]:
            return
        if self.pull_error:
            waiting = {"reason": "ErrImagePull", "message": self.pull_error}
            state = {"name": "worker", "state": {"waiting": waiting}, "restartCount": restarts}
            self.set_status(pod, {"phase": "Pending", "containerStatuses": [state]})
            self._after(1_000, lambda: self._start(name, uid, restarts, last))
            return
        state: Json = {"name": "worker", "state": {"running": {}}, "restartCount": restarts}
        if last is not None:
            state["lastState"] = {"terminated": last}
        status = {"phase": "Running", "podIP": self.address(name), "containerStatuses": [state]}
        self.set_status(pod, status)
        image = pod["spec"]["containers"][0]["image"]
        self.processes[uid] = Process(
            name,
            names.member_of(NAME, name),
            uid,
            image,
            self.now_ms,
            since_ms=self.now_ms,
            id=f"{uid}/{restarts}",
            has_key=names.can_hand_over(pod),
        )

    def address(self, pod: str) -> str:
        return f"10.244.{names.SETS.index(names.set_of(NAME, pod))}.{int(pod.rsplit('-', 1)[1]) + 10}"

    def process_at(self, ip: str) -> Process | None:
        return next((process for process in self.processes.values() if self.address(process.pod) == ip), None)

    def process(self, pod: str) -> Process:
        return next(process for process in self.processes.values() if process.pod == pod)

    def _end_pod(self, metadata: Json) -> None:
        name, uid = metadata["name"], metadata["uid"]
        if uid in self._ending or name in self.lost:
            return
        self._ending.add(uid)
        process = self.processes.get(uid)
        if process is None:
            self._after(self.timing.removal, lambda: self._pod_gone(name, uid))
            return
        process.hung = process.image.endswith(":hangs")  # and does not listen to SIGTERM
        process.grace_ms = metadata["deletionGracePeriodSeconds"] * 1_000
        if process.phase == "standby":
            process.grace_ms, process.hung = 0, True
        self._phase(process, "draining")

    def _pod_gone(self, name: str, uid: str) -> None:
        live = self.objects.get(("Pod", name))
        if live is None or live["metadata"]["uid"] != uid:
            return
        if not live["metadata"].get("finalizers"):
            self.api.remove("Pod", NAMESPACE, name, uid)
            return
        if live["status"].get("phase") != "Failed":
            ended = {"name": "worker", "state": {"terminated": {"exitCode": 143}}, "restartCount": 0}
            self.set_status(live, {"phase": "Failed", "containerStatuses": [ended]})
        self._after(self.timing.removal, lambda: self._pod_gone(name, uid))

    # -- processes ---------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """kill -9 of a worker."""
        pod = self.objects["Pod", name]
        self._end(self.processes[pod["metadata"]["uid"]], 137)

    def evict(self, name: str) -> None:
        """Somebody else deletes the pod."""
        self.delete("Pod", name)

    def _end(self, process: Process, code: int) -> None:
        """A process ends by itself: the kubelet starts another, later the more often it failed."""
        del self.processes[process.uid]
        pod = self.objects["Pod", process.pod]
        container = pod["status"]["containerStatuses"][0]
        restarts = container["restartCount"] + 1
        last = {"exitCode": code, "finishedAt": stamp(self.now_ms), "reason": "Error"}
        waits = {"reason": "CrashLoopBackOff"} if restarts > 1 else {"reason": "ContainerCreating"}
        state = {
            "name": "worker",
            "state": {"waiting": waits},
            "lastState": {"terminated": last},
            "restartCount": restarts,
        }
        self.set_status(pod, {**pod["status"], "containerStatuses": [state]})
        backoff = 0 if restarts <= 1 else 1_000 * 2 ** min(restarts - 2, 5)
        self._after(backoff + 200, lambda: self._start(process.pod, process.uid, restarts, last))

    def _live(self, process: Process) -> None:
        """A worker's life, a step further."""
        lasted, timing = self.now_ms - process.since_ms, self.timing
        if process.phase == "draining":
            if lasted >= (process.grace_ms if process.hung else timing.drain):
                del self.processes[process.uid]
                self._after(timing.removal, lambda: self._pod_gone(process.pod, process.uid))
            return
        if process.image.endswith(":crashes") and lasted >= 300:
            self._end(process, 3)
        elif process.image.endswith(":breaks") and process.phase == "running" and lasted >= 600:
            self._end(process, 4)
        elif process.image.endswith(":hangs"):
            return
        elif process.phase == "starting" and lasted >= timing.ask:
            self._phase(process, "joining" if self._returns(process) else "warming")
        elif process.phase == "warming":
            self._warm_up(process, lasted)
        elif process.phase == "warm" and process.gate_open:
            self._phase(process, "joining")
        elif process.phase == "standby":
            self._stand_by(process)
        elif process.phase == "taking-over":
            self._take_over(process, lasted)
        elif process.phase == "joining":
            self._join(process)
            self._notice_fencing(process)
        elif process.phase in ("running", "handing-over"):
            self._serve(process, lasted)

    def _holder(self, process: Process) -> str | None:
        """Which pod is its member; None: nobody is."""
        member = self.group.members.get(process.member)
        return None if member is None else member.client

    def _returns(self, process: Process) -> bool:
        holder = self._holder(process)
        return holder is not None and (holder == process.pod or not process.has_key)

    def _warm_up(self, process: Process, lasted: int) -> None:
        if process.asks == "" and self._holder(process) is not None:
            self._begin_takeover(process)  # at once: the session runs out
        elif lasted >= self.timing.warm * (1_000 if process.image.endswith(":slow") else 1):
            self._phase(process, "warm" if self._holder(process) is None else "standby")

    def _stand_by(self, process: Process) -> None:
        holder = self._holder(process)
        if holder is None:
            process.handed_over, process.gate_open = False, False
            self._phase(process, "warm")
        elif process.asks is not None:
            self._begin_takeover(process)
        elif process.handed_over:  # the take-back rule: its successor is gone
            there = any(other.pod == holder for other in self.processes.values())
            process.lonely_ms = 0 if there else process.lonely_ms + TICK_MS
            if process.lonely_ms >= 3_000:
                process.asks, process.lonely_ms = "", 0

    def _begin_takeover(self, process: Process) -> None:
        self._phase(process, "taking-over")
        process.committed_ms = None

    def _take_over(self, process: Process, lasted: int) -> None:
        """Its predecessor hands over, or is not there, or does not answer until the deadline."""
        holder = self._holder(process)
        asked = self.process_at(process.asks) if process.asks else None
        answers = asked is not None and not asked.silent and asked.hung_until_ms <= self.now_ms
        if asked is not None and asked.member == process.member and answers:
            if asked.phase == "running" and self.group.state == "Stable":
                asked.hands_to, asked.committed_ms = process.pod, None
                self._phase(asked, "handing-over")
            if asked.phase != "handing-over" or asked.committed_ms is None:
                return
            process.committed_ms = asked.committed_ms
        elif process.asks and lasted < (self.timing.deadline if asked is not None else 2_000):
            return
        process.takeover = TakeoverStatus(
            predecessor=holder or "",
            asked_ms=process.told_ms,
            committed_ms=process.committed_ms,
            answered_ms=self.now_ms if process.committed_ms is not None else None,
            joined_ms=self.now_ms,
            first_record_ms=self.now_ms + 5,
            generation_before=self.group.generation,
            generation=self.group.generation,
            forced=process.committed_ms is None,
            pauses_ms={TopicPartition("flights", 0): 21},
        )
        process.asks, process.joined_ms = None, None
        self._phase(process, "joining")
        self._join(process)

    def _serve(self, process: Process, lasted: int) -> None:
        if (
            process.phase == "handing-over"
            and lasted >= self.timing.hand_over
            and process.committed_ms is None
        ):
            process.committed_ms = self.now_ms
        self._join(process)
        if self._notice_fencing(process):
            return
        if process.phase == "handing-over" and lasted >= self.timing.deadline:
            self._phase(process, "running")

    def _notice_fencing(self, process: Process) -> bool:
        """Ends a process that another one has fenced, or has it stand by; whether it is fenced."""
        member = self.group.members.get(process.member)
        if member is None or member.process == process.id:
            return False
        if not process.has_key:
            self._end(process, 3)
        else:
            process.handed_over, process.joined_ms, process.running_since_ms = True, None, None
            self._phase(process, "standby")
        return True

    def _phase(self, process: Process, phase: str) -> None:
        process.phase, process.since_ms = phase, self.now_ms

    def _join(self, process: Process) -> None:
        if process.joined_ms is None or process.member not in self.group.members:
            self.group.join(process.member, process.id, self.now_ms, process.pod, self._mark(process))
            process.joined_ms = process.joined_ms or self.now_ms
        member = self.group.members.get(process.member)
        joined = (
            member is not None and member.process == process.id and member.joined == self.group.generation
        )
        if process.phase == "joining" and joined and self.group.state == "Stable":
            process.running_since_ms = self.now_ms
            self._phase(process, "running")

    def _mark(self, process: Process) -> str:
        """What the process marks its membership with; one of an older version does not."""
        variables = self.objects["Pod", process.pod]["spec"]["containers"][0]["env"]
        uid = next(each["value"] for each in variables if each["name"] == names.GROUP_UID_VARIABLE)
        return "" if process.image.endswith(":older") else str(uid)

    def _serves(self, process: Process) -> bool:
        member = self.group.members.get(process.member)
        return process.phase == "running" and member is not None and member.process == process.id

    def _work(self) -> None:
        """Records are produced and read."""
        for partition in self.group.partitions:
            self.group.ends[partition] += self.rate
        for process in self.processes.values():
            left = self.capacity if self._serves(process) and self.group.state == "Stable" else 0
            for partition in sorted(self.group.assignment.get(process.member, ())):
                done = min(self.group.ends[partition] - self.group.positions[partition], left)
                self.group.positions[partition] += done
                left -= done
                records, dead = self.counted.get(process.id, (0, 0))
                bad = int(done * self.dead) if process.image.endswith(":letters") else 0
                self.counted[process.id] = records + done, dead + bad
        served = {process.member for process in self.processes.values() if self._serves(process)}
        for name in self.group.members:
            self.unserved_ms[name] = 0 if name in served else self.unserved_ms[name] + TICK_MS

    async def prometheus(self, namespace: str, security: object, queries: Sequence[str]) -> list[MetricValue]:
        """Prometheus, as the operator asks it."""
        self.asked.append((namespace, security, tuple(queries)))
        return [self.answer for _ in queries]

    def worker_status(self, name: str) -> WorkerStatus | None:
        pod = self.objects.get(("Pod", name))
        process = self.processes.get(pod["metadata"]["uid"]) if pod is not None else None
        if process is None or process.hung_until_ms > self.now_ms:
            return None
        member = self.group.members.get(process.member)
        mine = member is not None and member.process == process.id
        standby = process.phase in ("standby", "taking-over")
        return WorkerStatus(
            phase=process.phase,
            generation=member.joined if mine and member is not None else -1,
            member_id=process.id if process.joined_ms is not None else "",
            is_leader=mine and self.group.leader == process.member,
            assignment=self.group.assignment.get(process.member, frozenset()) if mine else frozenset(),
            started_ms=process.began_ms,
            joined_ms=process.joined_ms,
            waiting_since_ms=process.since_ms if process.phase == "warm" else None,
            running_since_ms=process.running_since_ms if process.phase == "running" else None,
            pod=name,
            holder=(self._holder(process) or "") if standby else "",
            standby=StandbyStatus(process.since_ms, process.handed_over, 0, process.asks is not None)
            if standby
            else None,
            takeover=process.takeover,
            stopped=self.stopped.get(process.member, ()),
            skipped=self.skipped.get(process.member, ()),
            counts=WorkerCounts(*self.counted.get(process.id, (0, 0))),
        )

    # -- what tests ask ------------------------------------------------------------------------------------

    @property
    def running(self) -> list[str]:
        """The workers that are in the group and handle records."""
        return sorted(process.pod for process in self.processes.values() if process.phase == "running")

    @property
    def serving(self) -> dict[str, str]:
        """The members that are served, and by which pod."""
        return {process.member: process.pod for process in self.processes.values() if self._serves(process)}

    def shown(self) -> tuple[object, ...]:
        """What an operator can see of the cluster, but for figures: it differs after each change."""
        phases = [(process.id, process.phase) for process in self.processes.values()]
        group = self.objects.get(("ConsumerGroup", NAME), {"metadata": {}})
        wanted = {**group["metadata"], "resourceVersion": ""}
        return self._changes, wanted, self.group.state, self.group.generation, phases

    def spans(self) -> dict[str, tuple[int, int]]:
        """Of each StatefulSet the first ordinal and how many pods it is to have."""
        return {
            name: ((manifest["spec"].get("ordinals") or {}).get("start", 0), manifest["spec"]["replicas"])
            for (kind, name), manifest in sorted(self.objects.items())
            if kind == "StatefulSet"
        }

    @property
    def configurations(self) -> list[str]:
        """The ConfigMaps with a configuration of workers."""
        return [name for kind, name in self.objects if kind == "ConfigMap" and "-revision-" not in name]

    @property
    def numbers(self) -> dict[str, int]:
        """By revision, the numbers of those whose spec is kept."""
        kept = [made["metadata"] for (kind, name), made in self.objects.items() if "-revision-" in name]
        return {
            metadata["labels"][names.REVISION_LABEL]: int(metadata["annotations"][names.REVISION_NUMBER])
            for metadata in kept
        }

    def images(self) -> dict[str, str]:
        """Each pod's image."""
        return {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in self.pods}


def spec(**changes: Any) -> Json:
    """A ConsumerGroup's spec."""
    return {
        "kafka": {
            "bootstrapServers": "kafka:9092",
            "properties": {"session.timeout.ms": "45000"},
        },
        "topics": ["flights"],
        "pipeline": {
            "image": "slackwater/worker:v1",
            "handler": "flights.pipeline:transform",
            "engine": "arrow",
            "sink": {"path": "/data/flights"},
        },
        "replicas": 3,
        **changes,
    }


def image(tag: str) -> dict[str, object]:
    """A pipeline with the worker's image of that tag."""
    return {**spec()["pipeline"], "image": f"slackwater/worker:{tag}"}


def settled(simulation: Simulation, replicas: int, *, phase: str = "Idle") -> bool:
    """Whether so many workers run, and nothing is under way."""
    there = simulation.status
    return (
        simulation.condition("Ready").get("status") == "True"
        and there["rollout"]["phase"] == phase
        and there["observedGeneration"] == simulation.resource["metadata"]["generation"]
        and there["desiredReplicas"] == replicas
        and len(simulation.running) == replicas
    )


def rolled(simulation: Simulation, tag: str, replicas: int = 3) -> bool:
    """Whether the group is at rest in one set with that image."""
    return (
        settled(simulation, replicas)
        and set(simulation.images().values()) == {f"slackwater/worker:{tag}"}
        and len(simulation.spans()) == 1
    )
