"""A whole site: Kafka, a control plane, the CRD, the operator as a process, groups under load.

::

    with ClusterSite(control_plane, kafka3, namespace) as site, site.operator():
        group = site.group("flights", partitions=20, replicas=10, session_timeout_ms=90_000)
        group.await_settled(10)
        with group.load(rate=2000) as load:
            since = group.roll(site.image("v2"))
            group.await_rolled(site.image("v2"), 10)
            produced = load.stop()
        group.await_handled(produced)
        assert group.rebalances(since) == 0
        assert group.verify(produced).exact
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.controlplane import ApiError, ControlPlane, Image, PodProcesses, path_of, this_checkout
from tests.support.controlplane.api import Json
from tests.support.controlplane.build import ROOT
from tests.support.site.group import API_VERSION, PLURAL, Brokers, Group
from tests.support.site.links import Links
from tests.support.site.operator import OperatorProcess
from tests.support.waiting import HANG_S

ACCOUNT = "slackwater-operator"
CLASSIC = "Classic"
GROUP_PROTOCOL = os.environ.get("SLACKWATER_TEST_GROUP_PROTOCOL", CLASSIC)
"""spec.kafka.groupProtocol of all groups whose test does not say one."""
SESSION_MS = 90_000
"""Twice Kafka's default: a worker that is started again on a busy machine is to be back in time."""

HANDLERS = '''\
"""Handlers for scenarios (engine arrow, if not said otherwise); FOLDER/switch says how they behave."""
import os
import pathlib
import time

SWITCH = pathlib.Path(__file__).with_name("switch")
time.sleep(float(os.environ.get("IMPORT_S", "0")))  # an image that warms up slowly


def keep(table):
    return table


def keep_rows(records):
    """The same for the engine python."""
    return [{"topic": r.topic, "partition": r.partition, "offset": r.offset} for r in records]


def slow(table):
    """A millisecond for each record, or what the switch says in ms."""
    each_ms = float(SWITCH.read_text()) if SWITCH.exists() else 1.0
    time.sleep(table.num_rows * each_ms / 1000)
    return table


def letters(table):
    """Like keep, but dead-letters every second record where LETTERS is set."""
    if not os.environ.get("LETTERS"):
        return table
    import pyarrow as pa, pyarrow.compute as pc

    odd = pc.equal(pc.bit_wise_and(table["offset"], 1), 1)
    return table.append_column("_error", pc.if_else(odd, "odd", pa.scalar(None, pa.string())))


def stuck(table):
    """Like keep, until the switch says "stuck": then no batch ends."""
    while table.num_rows and SWITCH.exists() and SWITCH.read_text() == "stuck":
        time.sleep(0.1)
    return table
'''


class ClusterSite:
    """One namespace of a control plane, one Kafka; a context manager that ends and removes what it made.

    ``folder``: where sinks, handlers and logs are (not below /tmp, which the workers have one of their own).
    ``watches``: further namespaces that the operators look after. ``operators``: those that :meth:`operator`
    has made. ``links``: those between the workers.
    """

    def __init__(
        self, plane: ControlPlane, kafka: Brokers, namespace: str, watches: Sequence[str] = ()
    ) -> None:
        self.plane = plane
        self.kafka = kafka
        self.namespace = namespace
        self.watches = (namespace, *watches)
        self.operators: list[OperatorProcess] = []
        self.folder = Path(tempfile.mkdtemp(prefix="slackwater-site-", dir="/var/tmp"))
        (self.folder / "handlers.py").write_text(HANDLERS)
        self.links = Links(self.folder)

    def __enter__(self) -> Self:
        self.plane.define()
        self.push("*")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for operator in self.operators:
            operator.kill()
        self._let_go()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pods(self) -> PodProcesses:
        """The pods' processes."""
        return self.plane.pods

    def operator_logs(self) -> dict[str, str]:
        """What each operator has written, by its name."""
        return {operator.name: operator.log for operator in self.operators}

    def _let_go(self) -> None:
        """Without an operator nobody takes finalizers away."""
        for document in self.plane.api.list(path_of(API_VERSION, PLURAL, self.namespace)):
            name = document["metadata"]["name"]
            path = path_of(API_VERSION, PLURAL, self.namespace, name)
            try:
                self.plane.api.patch(path, {"metadata": {"finalizers": None}})
                self.plane.api.delete(path)
            except ApiError as exc:
                if exc.status != 404:
                    raise

    # --- images -----------------------------------------------------------------------------------

    def image(self, tag: str) -> str:
        """The name of this site's worker image with that tag."""
        return f"{self.namespace}.example/worker:{tag}"

    def push(
        self, tag: str, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None, **image: Any
    ) -> str:
        """What the tag runs: this checkout behind ``prefix`` (``CRASHES``, ``HANGS``, ``unless(...)``), with
        more variables in its ``environment`` and more fields of :class:`Image` (``pull_ms``, ``missing``). A
        tag that nobody pushed runs what "*" does.

        Returns the image's name.
        """
        places = f"{ROOT}/worker:{ROOT}/operator:{self.folder}"
        base = this_checkout(PYTHONPATH=places, **(environment or {}))
        pushed = Image(entrypoint=base.entrypoint, path=base.path, env=base.env, prefix=prefix, **image)
        self.plane.images.push(self.image(tag), pushed)
        return self.image(tag)

    def switch(self, text: str | None) -> None:
        """Says to the handlers ``slow`` and ``stuck`` how to behave; None: as at first."""
        path = self.folder / "switch"
        if text is None:
            path.unlink(missing_ok=True)
        else:
            unfinished = path.with_suffix(".new")
            unfinished.write_text(text)
            unfinished.replace(path)

    # --- the operator -----------------------------------------------------------------------------

    def operator(self, name: str = "operator", arguments: Sequence[str] = ()) -> OperatorProcess:
        """An operator for this namespace as the ServiceAccount with the chart's roles; enter it to start it.

        Two of different names are two replicas with one Lease.
        """
        made = OperatorProcess(
            self.plane,
            self._kubeconfig(),
            self.folder,
            namespace=self.namespace,
            worker_image=self.image("v1"),
            name=name,
            arguments=[*(f"--namespace={watch}" for watch in self.watches[1:]), *arguments],
        )
        self.operators.append(made)
        return made

    def _kubeconfig(self) -> Path:
        """The chart's ServiceAccount and its roles, and nothing else of the chart."""
        rendered = self.plane.helm(
            "template", ACCOUNT, str(ROOT / "charts" / "slackwater"), "--namespace", self.namespace,
            "--set", f"fullnameOverride={ACCOUNT}", "--set", f"watchNamespaces={{{','.join(self.watches)}}}",
        )  # fmt: skip
        kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
        wanted = [
            document for document in yaml.safe_load_all(rendered) if document and document["kind"] in kinds
        ]
        account = next(
            document["metadata"]["name"] for document in wanted if document["kind"] == "ServiceAccount"
        )
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(wanted))
        return self.plane.kubeconfig_for(self.namespace, account)

    # --- groups -----------------------------------------------------------------------------------

    def runs_anew(self, pod: str, pid: int) -> bool:
        """Whether a pod has another process than the one that was killed."""
        return any(process.pid not in (0, pid) for process in self.plane.pods.running(self.namespace, pod))

    def make_topic(self, name: str, partitions: int, replication: int | None = None) -> None:
        """Makes a topic, on up to three brokers."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        copies = replication or min(3, len(self.kafka.bootstrap.split(",")))
        admin.create_topics([NewTopic(name, partitions, copies)])[name].result(HANG_S)

    def manifest(
        self,
        name: str,
        *,
        replicas: int | None,
        session_timeout_ms: int = SESSION_MS,
        handler: str = "keep",
        **spec: Any,
    ) -> Json:
        """A ConsumerGroup with a handler of :data:`HANDLERS`; ``spec`` is laid over it, deeply: None takes a
        field away.

        ``replicas``: None leaves it out.
        """
        kafka = {"groupProtocol": GROUP_PROTOCOL, **spec.pop("kafka", {})}
        properties = {"auto.offset.reset": "earliest"}
        if kafka["groupProtocol"] == CLASSIC:
            properties |= {"session.timeout.ms": str(session_timeout_ms), "heartbeat.interval.ms": "1000"}
        base: Json = {
            "kafka": {"bootstrapServers": self.kafka.bootstrap, "properties": properties},
            "topics": [name],
            "pipeline": {
                "image": self.image("v1"),
                "handler": f"handlers:{handler}",
                "engine": "arrow",
                "sink": {"path": str(self.folder / f"sink-{name}")},
            },
        }
        if replicas is not None:
            base["replicas"] = replicas
        return {
            "apiVersion": API_VERSION,
            "kind": "ConsumerGroup",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": _laid_over(base, {"kafka": kafka, **spec}),
        }

    def group(
        self,
        name: str,
        *,
        partitions: int,
        replicas: int | None,
        session_timeout_ms: int = SESSION_MS,
        handler: str = "keep",
        **spec: Any,
    ) -> Group:
        """Makes the topic and applies a ConsumerGroup (see :meth:`manifest`) by the real kubectl.

        Its name is the topic's and the Kafka group's, too: choose one that no other test has.
        """
        self.make_topic(name, partitions)
        manifest = self.manifest(
            name, replicas=replicas, session_timeout_ms=session_timeout_ms, handler=handler, **spec
        )
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
        return Group(self, name, partitions, self.folder / f"sink-{name}")


def _laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> Json:
    merged = dict(base)
    for name, value in over.items():
        before = merged.pop(name, None)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[name] = _laid_over(before, value)
        elif value is not None:
            merged[name] = value
    return merged
