"""One ConsumerGroup of a site: applied, watched, and held against Kafka, its pods and its sink."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from slackwater.kafka import KafkaAdmin, TopicPartition
from slackwater.kafka.errors import KafkaError
from slackwater_operator.api.v1alpha1.status.rollout import IDLE, PAUSED, REFUSED, STOPPED
from slackwater_operator.local.machine.events import WorkerEvent, parse_event
from slackwater_operator.local.report.timeline import ObservedTakeover, Restart, Timeline
from slackwater_operator.model import names
from tests.support.controlplane import ApiError, ControlPlane, ProcessEvent, path_of, until
from tests.support.controlplane.api import Json
from tests.support.site.load import Load, Produced, ends
from tests.support.site.recorder import Recorder, Sample, now_ms
from tests.support.site.sink import Verdict, handled, verify
from tests.support.waiting import HANG_S, WAIT_S

API_VERSION = "slackwater.dev/v1alpha1"
PLURAL = "consumergroups"
RESTARTED_AT = "slackwater.dev/restartedAt"
POLL_S = 0.25
"""How often a group is looked at: a look costs its processes and servers some 10 ms of CPU time."""
AT_REST = (IDLE, PAUSED, REFUSED, STOPPED)
"""The phases of a rollout in which no worker is restarted or taken over, or about to be."""


class Brokers(Protocol):
    """Any of the test kit's clusters."""

    @property
    def bootstrap(self) -> str:
        """``host:port,...``."""
        ...


class PodRecords(Protocol):
    """What a kubelet's pods did: :class:`PodProcesses`, and its like for a real node."""

    def journal(self, namespace: str, pod: str = "") -> list[ProcessEvent]: ...

    def logs(self, namespace: str, pod: str) -> str: ...

    def run_logs(self, namespace: str, pod: str) -> list[bytes]: ...


class Site(Protocol):
    """Where a group is: a namespace of a control plane, a Kafka, the operators' logs by name."""

    @property
    def plane(self) -> ControlPlane: ...

    @property
    def kafka(self) -> Brokers: ...

    @property
    def namespace(self) -> str: ...

    @property
    def pods(self) -> PodRecords: ...

    def operator_logs(self) -> Mapping[str, str]: ...


class Group:
    """The ConsumerGroup ``name``; its topic and Kafka group have the same name. Made by the site."""

    def __init__(self, site: Site, name: str, partitions: int, sink: Path) -> None:
        self.site = site
        self.name = name
        self.topic = name
        self.partitions = partitions
        self.sink = sink
        self._api = site.plane.api
        self._pod_name = re.compile(re.escape(name) + r"-([ab]-)?\d+")

    # --- the resource -----------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Of the resource."""
        return path_of(API_VERSION, PLURAL, self.site.namespace, self.name)

    def resource(self) -> Json:
        """The resource as the API server has it. Raises :class:`AssertionError` when it isn't there."""
        resource = self._api.get(self.path)
        assert resource is not None, f"no ConsumerGroup {self.name}"
        return resource

    @property
    def by_consumer_protocol(self) -> bool:
        """Whether its workers are members by Kafka's consumer protocol, which has no leader."""
        protocol: str = self.resource()["spec"]["kafka"].get("groupProtocol", "Classic")
        return protocol == "Consumer"

    def change(self, **spec: Any) -> None:
        """A merge patch of ``spec``: ``change(replicas=5, pipeline={"image": ...})``."""
        self._api.patch(self.path, {"spec": spec})

    def annotate(self, **annotations: str | None) -> None:
        """Annotations of the domain: ``annotate(paused="true")`` sets ``slackwater.dev/paused``."""
        named = {f"slackwater.dev/{name}": value for name, value in annotations.items()}
        self._api.patch(self.path, {"metadata": {"annotations": named}})

    def delete(self) -> None:
        """Deletes the resource (background propagation)."""
        self._api.delete(self.path)

    def status(self) -> Json:
        """``status`` of the resource, empty before the operator has written one."""
        status: Json = self.resource().get("status", {})
        return status

    def condition(self, kind: str) -> Json:
        """A condition by its type; empty where there is none."""
        return next(
            (condition for condition in self.status().get("conditions", []) if condition["type"] == kind), {}
        )

    def await_condition(
        self, kind: str, status: str = "True", reason: str = "", timeout_s: float = WAIT_S
    ) -> Json:
        """Waits until a condition has that status (and reason) *for the present generation* of the spec."""

        def holds() -> Json | None:
            resource = self.resource()
            for condition in resource.get("status", {}).get("conditions", []):
                if (
                    condition["type"] == kind
                    and condition["status"] == status
                    and reason in ("", condition.get("reason"))
                    and condition.get("observedGeneration", 0) >= resource["metadata"]["generation"]
                ):
                    return dict(condition)
            return None

        try:
            return until(holds, f"{self.name}: {kind}={status} {reason}", timeout_s, POLL_S)
        except TimeoutError as exc:
            raise AssertionError(f"{exc}\n{self.tell()}") from exc

    def decisions(self) -> list[Json]:
        """The last decisions, as the status has them."""
        decisions: list[Json] = self.status().get("decisions", [])
        return decisions

    def events(self) -> list[Json]:
        """Kubernetes' Events about the ConsumerGroup, oldest first."""
        events = [
            event
            for event in self._api.list(path_of("v1", "events", self.site.namespace))
            if (event["involvedObject"].get("kind"), event["involvedObject"].get("name"))
            == ("ConsumerGroup", self.name)
        ]
        return sorted(events, key=lambda event: event["metadata"]["creationTimestamp"])

    # --- pods and workers -------------------------------------------------------------------------

    def pods(self) -> list[Json]:
        """The workers' pods (no preflight's), by name."""
        pods = self._api.list(path_of("v1", "pods", self.site.namespace))
        mine = [pod for pod in pods if self._pod_name.fullmatch(pod["metadata"]["name"])]
        return sorted(mine, key=lambda pod: _ordinal(pod["metadata"]["name"]))

    def uids(self) -> dict[str, str]:
        """The uid of each of the workers' pods by its name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods()}

    def member(self, pod: str) -> str:
        """The member (group.instance.id) that a pod is."""
        return names.member_of(self.name, pod)

    def sets(self) -> dict[str, tuple[int, int]]:
        """The StatefulSets by name: the first ordinal of each, and how many pods it is to have."""
        sets = {}
        for name in names.set_names(self.name):
            statefulset = self._api.get(path_of("apps/v1", "statefulsets", self.site.namespace, name))
            if statefulset is not None:
                start = (statefulset["spec"].get("ordinals") or {}).get("start", 0)
                sets[name] = (int(start), int(statefulset["spec"]["replicas"]))
        return sets

    def ready_pods(self) -> list[str]:
        """The names of the workers' pods that are ready."""
        return [pod["metadata"]["name"] for pod in self.pods() if _is_ready(pod)]

    def evictable(self) -> int:
        """How many pods the PodDisruptionBudget lets go now."""
        path = path_of("policy/v1", "poddisruptionbudgets", self.site.namespace, self.name)
        return int((self._api.get(path) or {}).get("status", {}).get("disruptionsAllowed", 0))

    def workers(self) -> dict[str, Json]:
        """``GET /status`` of each worker that answers, by pod."""
        workers: dict[str, Json] = {}
        for pod in self.pods():
            answer = _worker_status(pod.get("status", {}).get("podIP", ""))
            if answer is not None:
                workers[pod["metadata"]["name"]] = answer
        return workers

    def worker(self, pod: str) -> Json | None:
        """``GET /status`` of one worker; None while it does not answer."""
        document = self._api.get(path_of("v1", "pods", self.site.namespace, pod)) or {}
        return _worker_status(document.get("status", {}).get("podIP", ""))

    def await_settled(
        self, replicas: int, timeout_s: float = WAIT_S, phases: Collection[str] = AT_REST
    ) -> int:
        """Waits until Kafka's group is Stable with these ``replicas`` workers and nobody else, all running in
        one generation, with every partition held, and the rollout is in one of ``phases``
        (:func:`is_in`); the generation."""
        wanted = {f"{self.name}-{ordinal}" for ordinal in range(replicas)}

        def settled() -> int | None:
            if not is_in(phases, self.resource()):
                return None
            try:
                state, members = self.kafka_group()
            except KafkaError:  # a coordinator that moves
                return None
            if state != "Stable" or members != wanted:
                return None
            workers = self.workers()
            generations = {worker["generation"] for worker in workers.values()}
            held = sum(len(worker["assignment"]) for worker in workers.values())
            running = all(worker["phase"] == "running" for worker in workers.values())
            serving = sorted(map(self.member, workers)) == sorted(wanted)
            if serving and running and len(generations) == 1 and held == self.partitions:
                return int(generations.pop())
            return None

        try:
            return until(settled, f"{self.name}: {replicas} workers settled", timeout_s, POLL_S)
        except TimeoutError as exc:
            raise AssertionError(f"{exc}\n{self.tell()}") from exc

    def await_taken_over(self, timeout_s: float = WAIT_S) -> dict[str, Json]:
        """Waits until every partition is served by who took it over; ``GET /status`` of each worker, which
        tells all pauses then (the event ``takeover`` waits for two seconds only)."""

        def served() -> dict[str, Json] | None:
            workers = self.workers()
            reported = sum(
                len((worker["takeover"] or {}).get("pauses_ms", ())) for worker in workers.values()
            )
            return workers if reported >= self.partitions else None

        try:
            return until(
                served, f"{self.name}: a record of each partition after its takeover", timeout_s, POLL_S
            )
        except TimeoutError as exc:
            raise AssertionError(f"{exc}\n{self.tell()}") from exc

    def log(self, pod: str) -> str:
        """All that the pod of that name has written, its former ones included."""
        return self.site.pods.logs(self.site.namespace, pod)

    def roll(self, image: str) -> int:
        """Asks for another image (a new revision); when, by the wall clock in ms."""
        at_ms = now_ms()
        self.change(pipeline={"image": image})
        return at_ms

    def await_rolled(self, image: str, replicas: int, timeout_s: float = HANG_S) -> None:
        """Waits until all ``replicas`` workers' pods run ``image``, are ready, and RolledOut says so."""

        def rolled() -> bool:
            pods = self.pods()
            images = {pod["spec"]["containers"][0]["image"] for pod in pods}
            return len(pods) == replicas and images == {image} and all(map(_is_ready, pods))

        try:
            until(rolled, f"{self.name} rolled to {image}", timeout_s, POLL_S)
        except TimeoutError as exc:
            raise AssertionError(f"{exc}\n{self.tell()}") from exc
        self.await_condition("RolledOut")

    # --- Kafka ------------------------------------------------------------------------------------

    def kafka_group(self) -> tuple[str, set[str]]:
        """State (``Stable``, ``Empty``, ``PreparingRebalance`` ...) and members by group.instance.id.

        Raises :class:`KafkaError` when the coordinator does not answer. By our own admin client:
        librdkafka's aborts the process when the brokers are gone (``rd_kafka_enq_once_del_source_return``).
        """
        with self._admin() as admin:
            group = admin.describe_groups([self.name]).unwrap()[self.name]
        return group.state, {member.instance_id or member.member_id for member in group.members}

    def _admin(self) -> KafkaAdmin:
        return KafkaAdmin(self.site.kafka.bootstrap, bootstrap_timeout_ms=3000, request_timeout_ms=5000)

    def await_kafka_group(self, state: str, timeout_s: float = WAIT_S) -> None:
        """Waits until Kafka's group has no member and is in that state (``Empty``, ``Dead``)."""

        def is_it() -> bool:
            try:
                return self.kafka_group() == (state, set())
            except KafkaError:  # a coordinator that moves, or is busy
                return False

        try:
            until(is_it, f"{self.name}: a group that is {state}", timeout_s, POLL_S)
        except TimeoutError as exc:
            raise AssertionError(f"{exc}\n{self.tell()}") from exc

    def committed(self) -> dict[int, int]:
        """The group's committed offset of each partition, 0 where there is none. Asks until Kafka answers."""
        return until(self._committed, f"{self.name}: its offsets", every_s=POLL_S)

    def _committed(self) -> dict[int, int] | None:
        asked = [TopicPartition(self.topic, number) for number in range(self.partitions)]
        try:
            with self._admin() as admin:
                committed = admin.committed_offsets(self.name, asked)
        except KafkaError:  # a coordinator that moves, or is busy
            return None
        return {place.partition: committed[place].offset if place in committed else 0 for place in asked}

    # --- the load ---------------------------------------------------------------------------------

    def load(self, rate: float, weights: Sequence[float] = (), **more: Any) -> Load:
        """A load on the group's topic, evenly over its partitions unless there are ``weights``; enter it.
        ``more``: as :class:`Load` has it."""
        even = [1.0] * self.partitions
        return Load(self.site.kafka.bootstrap, self.topic, rate=rate, weights=weights or even, **more)

    def await_handled(self, produced: Sequence[Produced], timeout_s: float = WAIT_S) -> None:
        """Waits until everything that was produced is committed."""
        wanted = ends(produced)

        def done() -> bool:
            committed = self.committed()
            return all(committed.get(partition, 0) >= end for partition, end in wanted.items())

        try:
            until(done, f"{self.name}: everything committed", timeout_s, POLL_S)
        except TimeoutError as exc:
            raise AssertionError(f"{exc}: {self.committed()} of {dict(wanted)}\n{self.tell()}") from exc

    def verify(self, produced: Sequence[Produced]) -> Verdict:
        """What is lost and duplicated; call it when everything has been handled."""
        return verify(self.sink, produced)

    def handled_count(self) -> int:
        """How many records are in the sink by now."""
        return len(handled(self.sink))

    # --- what happened ----------------------------------------------------------------------------

    def timeline(self) -> Timeline:
        """Everything that the workers of all times have told (their logs), and when their processes ended."""
        timeline = Timeline()
        for event in self.worker_events():
            timeline.take(event)
        return timeline

    def worker_events(self) -> list[WorkerEvent]:
        """The workers' events and their processes' ends (``exited``), by time."""
        pods = self.site.pods
        events: list[WorkerEvent] = []
        for event in pods.journal(self.site.namespace):
            if event.event == "exited" and self._pod_name.fullmatch(event.pod):
                member = self.member(event.pod)
                events.append(WorkerEvent(event.ts_ms, "exited", member, {"code": event.code}, event.pod))
        for name in {event.pod for event in pods.journal(self.site.namespace)}:
            if self._pod_name.fullmatch(name):
                for log in pods.run_logs(self.site.namespace, name):
                    events += _events_of(log, self.member(name), name)
        return sorted(events, key=lambda event: event.ts_ms)

    def rebalances(self, since_ms: int, until_ms: int | None = None) -> int:
        """Rebalances that began in a span, by the generations that workers joined (a follow-up counts with
        the one before it)."""
        return self.timeline().rebalances(since_ms, until_ms)

    def costs(self, members: int, steps: int = 1) -> range:
        """How many rebalances members may cost that come or go in so many steps: by the classic protocol one
        a step, as they wait for each other; by the consumer protocol an epoch each."""
        return range(1, 1 + (members if self.by_consumer_protocol else steps))

    def restarts(self, since_ms: int, until_ms: int | None = None) -> list[Restart]:
        """The returns of workers whose processes ended in a span: ``same_generation``, ``away_ms`` (process's
        end to join), ``gap_ms`` (last commit to first record)."""
        return self.timeline().restarts(since_ms, until_ms)

    def takeovers(self, since_ms: int, until_ms: int | None = None) -> list[ObservedTakeover]:
        """The takeovers whose successor joined in a span: ``same_generation``, ``forced``, ``pauses_ms``."""
        return self.timeline().takeovers(since_ms, until_ms)

    def record(self) -> Recorder:
        """Samples of the group while it is entered; see :class:`Recorder`."""
        return Recorder(self._sample)

    def _sample(self) -> Sample:
        replicas = pods = ready = state = members = None
        try:
            sets = self.sets()
            replicas = max((start + count for start, count in sets.values() if count), default=0)
            replicas = replicas if sets else None
            there = self.pods()
            pods = frozenset(self.member(pod["metadata"]["name"]) for pod in there)
            ready = frozenset(self.member(pod["metadata"]["name"]) for pod in there if _is_ready(pod))
        except (OSError, ApiError):
            pass
        try:
            state, names = self.kafka_group()
            members = frozenset(names)
        except KafkaError:
            pass
        return Sample(now_ms(), replicas, pods, ready, state, members)

    def tell(self) -> str:
        """What to say of a group that did not do what it should."""
        lines = [f"--- {self.name}"]
        kubectl = self.site.plane.kubectl
        try:
            lines.append(kubectl("-n", self.site.namespace, "get", "pods,sts,jobs", check=False))
            status = dict(self.status())
            for condition in status.pop("conditions", []):
                reason = f"{condition.get('reason')}: {condition.get('message')}"
                lines.append(f"{condition['type']}={condition['status']} {reason}")
            lines += [str(decision) for decision in status.pop("decisions", [])[-8:]]
            lines += [f"status: {status}", f"Kafka: {self.kafka_group()}"]
            lines += [str(generation) for generation in self.timeline().generations()]
            for name, worker in self.workers().items():
                lines.append(
                    f"{name}: {worker['phase']}, generation {worker['generation']} {worker['error']}"
                )
        except Exception as exc:
            lines.append(f"(and then {exc!r})")
        for name, log in self.site.operator_logs().items():
            lines.append(f"--- log of {name}\n{log[-4000:]}")
        return "\n".join(lines)


def is_in(phases: Collection[str], resource: Mapping[str, Any]) -> bool:
    """Whether the operator has read the present spec, and its rollout is in one of these phases. Before a
    preflight or a rollback begins, Kafka's group and the workers look settled, too."""
    status = resource.get("status", {})
    phase = (status.get("rollout") or {}).get("phase")
    return phase in phases and status.get("observedGeneration") == resource["metadata"]["generation"]


def _ordinal(name: str) -> int:
    return int(name.rpartition("-")[2])


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _worker_status(address: str) -> Json | None:
    if not address:
        return None
    try:
        with urllib.request.urlopen(f"http://{address}:8080/status", timeout=10) as answer:
            worker_status: Json = json.load(answer)
            return worker_status
    except (OSError, ValueError):
        return None


def _events_of(log: bytes, member: str, pod: str) -> list[WorkerEvent]:
    events = []
    for line in log.splitlines():
        if line.startswith(b"{"):
            event = parse_event(line, instance=member, now_ms=0, pod=pod)
            if event is not None and event.ts_ms:
                events.append(event)
    return events
