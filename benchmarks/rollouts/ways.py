"""The ways to roll: how each is started, given another image, and taken away."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from benchmarks.rollouts import manifests
from benchmarks.rollouts.work import JOURNAL
from slackwater.kafka.admin import ConfigResource, KafkaAdmin, ResourceType
from slackwater.pipeline.engines.spark_session import ARCHIVE_VARIABLE
from slackwater_operator.model.names import selector_text
from tests.support import spark
from tests.support.controlplane import Image, path_of, this_checkout
from tests.support.controlplane.api import Json
from tests.support.java.programs import java_command
from tests.support.site import ClusterSite, Group

ROOT = Path(__file__).resolve().parents[2]
FETCH_MIN_BYTES = 100_000
"""More than comes within the wait: answers are as far apart as that, and the machine is not busy with batches
of a record or two."""
PYTHON, JVM = "python", "jvm"
"""The kinds of handler: one in Python, and the same one on a Spark session of its own in each pod."""
CLASSIC, CONSUMER = "Classic", "Consumer"
"""Kafka's group protocols, as spec.kafka.groupProtocol has them."""
HANDLERS = {PYTHON: "benchmarks.rollouts.work:handle", JVM: "benchmarks.rollouts.work:handle_on_spark"}
ENGINES = {PYTHON: "python", JVM: "spark"}
SPARK_CONF = {"spark.driver.extraJavaOptions": f"-XX:+UseSerialGC {spark.QUICK}"}
"""Of all ways: what docs/design/spark.md says of pods where restarts count more than batches. It starts
soonest."""
JAVA_OPTIONS = ("-Dawait.handled=true", "-Dorg.apache.logging.log4j.level=ERROR")
"""Of tests/support/java/Peer.java."""
JVM_SESSION_BUDGET = "90%"
"""Of ours, where the default is 60 %: a StatefulSet restarts whatever the session timeout is, and a restart
of ours is not to be refused because Java starts slowly on a busy machine."""


@dataclass(frozen=True)
class Settings:
    """``surge``, ``unavailable``: of the Deployment, numbers or percentages. ``fetch_wait_ms``: how long a
    broker gathers records for an answer. ``handler``: ``python`` or ``jvm``."""

    workers: int = 4
    partitions: int = 12
    session_timeout_ms: int = 45_000
    heartbeat_ms: int = 1000
    fetch_wait_ms: int = 100
    surge: str = "25%"
    unavailable: str = "25%"
    handler: str = PYTHON


class Way(ABC):
    """One way. Its name is the topic's, the Kafka group's and the workload's.

    ``kind``: what it is, as kubectl has it. ``times``: of a member, by the names of its properties.
    """

    kind: str

    def __init__(self, variant: Variant, site: ClusterSite, settings: Settings, name: str) -> None:
        self.variant, self.site, self.settings, self.name = variant, site, settings, name
        self.times = {
            "session.timeout.ms": str(settings.session_timeout_ms),
            "heartbeat.interval.ms": str(settings.heartbeat_ms),
        }
        self.sink = site.folder / f"sink-{name}"
        self.journal = site.folder / f"journal-{name}"
        self.journal.mkdir()

    def configure(self) -> None:
        """Sets the configs of its Kafka group: by the consumer protocol it has the times of its members, and
        brokers assign as soon as members come and go. Raises KafkaError."""
        if self.variant.protocol == CONSUMER:
            configs = {f"consumer.{name}": value for name, value in self.times.items()}
            configs["consumer.assignment.interval.ms"] = "0"
            with KafkaAdmin(self.site.kafka.bootstrap) as admin:
                admin.alter_configs({ConfigResource(ResourceType.GROUP, self.name): configs}).unwrap()

    @abstractmethod
    def push(self) -> None:
        """Makes the images known that :meth:`image` names."""

    @abstractmethod
    def manifest(self, image: str) -> Json:
        """The workload with that image."""

    @property
    @abstractmethod
    def selector(self) -> str:
        """The labels of its pods."""

    def image(self, tag: str) -> str:
        """The name of its image with that tag."""
        return f"{self.site.namespace}.example/{self.name}:{tag}"

    def apply(self, image: str) -> None:
        """``kubectl apply``, as a user does it."""
        manifest = yaml.safe_dump(self.manifest(image))
        self.site.plane.kubectl("apply", "-n", self.site.namespace, "-f", "-", stdin=manifest)

    @abstractmethod
    def settle(self) -> None:
        """Waits until it takes a new revision."""

    def remove(self) -> None:
        """Deletes it."""
        self.site.plane.kubectl("delete", "-n", self.site.namespace, self.kind, self.name, "--timeout=60s")

    def pods(self) -> list[Json]:
        """Its pods, those that end included."""
        path = path_of("v1", "pods", self.site.namespace)
        return self.site.plane.api.list(path, label_selector=self.selector)

    def rolled(self, image: str) -> bool:
        """Whether there are as many pods as wanted, all of that image and ready, and none that ends."""
        pods = self.pods()
        return len(pods) == self.settings.workers and all(_serves(pod, image) for pod in pods)

    def starts_s(self) -> tuple[float, ...]:
        """How long each of its pods took from its container's start until it was ready."""
        return tuple(start_s(pod) for pod in self.pods() if "deletionTimestamp" not in pod["metadata"])

    def restarts(self) -> int:
        """How often a container was restarted in its pod, which no rollout does."""
        return sum(
            container["restartCount"]
            for pod in self.pods()
            for container in pod["status"].get("containerStatuses", [])
        )

    def tell(self) -> str:
        """What to say when it does not do what it should."""
        lines = [self.site.plane.kubectl("get", "pods", "-n", self.site.namespace, "-o", "wide", check=False)]
        for pod in self.pods()[:3]:
            log = self.site.plane.pods.logs(self.site.namespace, pod["metadata"]["name"])
            lines.append(f"--- {pod['metadata']['name']}\n{log[-1500:]}")
        return "\n".join(lines)

    def environment(self) -> dict[str, str]:
        """Of every container of every way. Spark has the archive of its classes that a worker's image has.

        Raises SparkUnavailable where that cannot be made.
        """
        archive = {ARCHIVE_VARIABLE: str(spark.archive())} if self.settings.handler == JVM else {}
        return {
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": f"{ROOT}:{ROOT}/worker:{ROOT}/operator",
            JOURNAL: str(self.journal),
            **archive,
        }


def _serves(pod: Json, image: str) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return (
        pod["spec"]["containers"][0]["image"] == image
        and "deletionTimestamp" not in pod["metadata"]
        and any((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)
    )


def start_s(pod: Json) -> float:
    """From the start of a ready pod's container until it was ready, in seconds, which the API's times are."""
    started = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    ready = next(
        condition["lastTransitionTime"]
        for condition in pod["status"]["conditions"]
        if condition["type"] == "Ready"
    )
    return (datetime.fromisoformat(ready) - datetime.fromisoformat(started)).total_seconds()


class _Peers(Way):
    """Consumers by `peer.py`. ``static``: whether its members are."""

    static: bool

    def push(self) -> None:
        base = this_checkout()
        image = Image(
            entrypoint=("python", "-m", "benchmarks.rollouts.peer"), path=base.path, env=self.environment()
        )
        self.site.plane.images.push(self.image("*"), image)

    @property
    def selector(self) -> str:
        return f"{manifests.NAME_LABEL}={self.name}"

    def settle(self) -> None:
        """A Deployment's and a StatefulSet's controller takes one at any time."""

    def template(self, image: str) -> Json:
        """The pods'."""
        settings: dict[str, Any] = {
            "bootstrap": self.site.kafka.bootstrap,
            "topic": self.name,
            "group": self.name,
            "sink": str(self.sink),
            "static": self.static,
            "properties": {
                "fetch.wait.max.ms": self.settings.fetch_wait_ms,
                "fetch.min.bytes": FETCH_MIN_BYTES,
                **self._membership(),
            },
        }
        if self.variant.java:
            settings["java"] = java_command("Peer", heap_mb=96, options=JAVA_OPTIONS)
        needs_jvm = self.settings.handler == JVM
        if needs_jvm:
            settings |= {"spark_handler": HANDLERS[JVM], "spark_conf": SPARK_CONF}
        return manifests.peer_template(self.name, image, settings, scratch=needs_jvm)

    def _membership(self) -> dict[str, str]:
        if self.variant.protocol == CONSUMER:
            return {"group.protocol": "consumer"}
        return {**self.times, "partition.assignment.strategy": "cooperative-sticky"}


class DeploymentOfPeers(_Peers):
    """Dynamic members: pods come and go under new names."""

    static, kind = False, "deployment"

    def manifest(self, image: str) -> Json:
        wanted = self.settings
        return manifests.deployment(
            self.template(image), self.name, wanted.workers, wanted.surge, wanted.unavailable
        )


class StatefulSetOfPeers(_Peers):
    """Static members: a pod comes back under its name."""

    static, kind = True, "statefulset"

    def manifest(self, image: str) -> Json:
        return manifests.statefulset(self.template(image), self.name, self.settings.workers)


class _Ours(Way):
    """A ConsumerGroup. ``strategy``: spec.rollout's."""

    strategy: str
    kind = "consumergroup"

    def push(self) -> None:
        base = this_checkout()
        self.site.plane.images.push(
            self.image("*"), Image(entrypoint=base.entrypoint, path=base.path, env=self.environment())
        )

    @property
    def selector(self) -> str:
        return selector_text(self.name)

    def manifest(self, image: str) -> Json:
        kind = self.settings.handler
        conf = {"spark": {"conf": SPARK_CONF}} if kind == JVM else {}
        budget = {"sessionBudget": JVM_SESSION_BUDGET} if kind == JVM else {}
        return self.site.manifest(
            self.name,
            replicas=self.settings.workers,
            kafka={
                "groupProtocol": self.variant.protocol,
                "properties": {
                    "fetch.max.wait.ms": str(self.settings.fetch_wait_ms),
                    "fetch.min.bytes": str(FETCH_MIN_BYTES),
                    **(self.times if self.variant.protocol == CLASSIC else dict.fromkeys(self.times)),
                },
            },
            pipeline={
                "image": image,
                "engine": ENGINES[kind],
                "handler": HANDLERS[kind],
                "sink": {"path": str(self.sink)},
                **conf,
            },
            rollout={"strategy": self.strategy, **budget},
        )

    def settle(self) -> None:
        self._group().await_condition("RolledOut", timeout_s=120)

    def tell(self) -> str:
        return self._group().tell()

    def _group(self) -> Group:
        return Group(self.site, self.name, self.settings.partitions, self.sink)


class RestartOfOurs(_Ours):
    """A worker comes back under its name, inside its session."""

    strategy = "Restart"


class TakeoverOfOurs(_Ours):
    """A warm successor takes the membership over."""

    strategy = "Takeover"


@dataclass(frozen=True)
class Variant:
    """A way with a protocol. ``key``: ``a`` to ``i``. ``title``: for the table. ``java``: whether a peer's
    consumer is Java's, in place of confluent-kafka."""

    key: str
    title: str
    way: type[Way]
    protocol: str = CLASSIC
    java: bool = False

    def make(self, site: ClusterSite, settings: Settings, name: str = "") -> Way:
        """The way; without a name it has one of its key."""
        return self.way(self, site, settings, name or f"roll-{self.key}")


WAYS: Sequence[Variant] = (
    Variant("a", "Deployment, cooperative-sticky", DeploymentOfPeers),
    Variant("b", "StatefulSet, static members", StatefulSetOfPeers),
    Variant("c", "Slackwater, Restart", RestartOfOurs),
    Variant("d", "Slackwater, Takeover", TakeoverOfOurs),
    Variant("e", "Deployment, consumer protocol", DeploymentOfPeers, CONSUMER),
    Variant("f", "StatefulSet, static members, consumer protocol", StatefulSetOfPeers, CONSUMER),
    Variant("g", "Slackwater, Restart, consumer protocol", RestartOfOurs, CONSUMER),
    Variant("h", "Slackwater, Takeover, consumer protocol", TakeoverOfOurs, CONSUMER),
    Variant("i", "Deployment of Java's consumers, consumer protocol", DeploymentOfPeers, CONSUMER, java=True),
)
