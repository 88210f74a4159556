"""A real Prometheus finds and scrapes the running operator and workers through the real API server, by what
the PodMonitors say, and every expression of the dashboards and the alerts has an answer there.

One story, and what it leaves in Prometheus: groups that run, a scale step, a rolling restart by steps with an
analysis, a rollout by takeover, an unplanned rebalance, dead letters, a group whose Kafka is not there, and
one whose spec cannot work.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, KafkaProducer
from slackwater_operator.controller.rebalances import OURS_FOR_MS
from slackwater_operator.policies import conditions
from tests.support.chromium import grafana
from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.devbroker import DevBroker
from tests.support.operator import chart, monitoring
from tests.support.waiting import HANG_S, WAIT_S
from tools.dashboards.conditions import LEVELS

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.parts("prometheus", "prometheus-discovery"),
    pytest.mark.long,
]

RELEASE = "sw"
GROUP, GROUP_ID, TOPIC = "flights", "readers", "flights"
MOVERS = "movers"
"""A group with strategy Takeover: what only such a group has is asked of it."""
SPARKED = "sparked"
"""A group on Spark. It has no worker before the pictures are taken."""
PARTITIONS = 6
SCRAPE_S = 2
GROUPS = "slackwater.dev/v1alpha1"
MONITORS = path_of("monitoring.coreos.com/v1", "podmonitors")
READS_PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
# Alerts whose condition this story does not bring about; then its series are asked for without the status.
NOT_BROUGHT_ABOUT = {
    "alert SlackwaterGroupStuck": "a consumer counts as stuck after minutes without a commit; "
    "that it fires is tested by promtool, and the condition in its own scenario",
}
# What has no series here: most alerts' exist only once it has happened, which this story's broker cannot make
# happen.
WITHOUT_SERIES = {
    "alert SlackwaterRecordsSkipped": "the dev broker deletes no records; promtool tests the rule, and "
    "tests/worker/integration/processes/test_worker_lost_positions.py the metric on a real Kafka",
    "alert SlackwaterAdmissionCertificate": "this release serves no webhook, which would refuse its broken "
    "group; promtool tests the rule, and tests/e2e/chart/test_chart_install.py the webhook",
    "alert SlackwaterPartitionsStopped": "as the one before, of a log that ends before the position",
    "alert SlackwaterWatchRefused": "the operator here can read all; promtool tests the rule, and "
    "tests/e2e/kube/test_kube_operator.py the metric",
    "group: JVM heap (A)": "no Spark runs here; test_pipeline_spark.py has the metric",
    "group: Garbage collection (A)": "as the one before",
    "group: Memory (B)": "these pods are processes without a limit; the unit test has the metric",
}
# The steps analysis and pause are promoted when Prometheus has seen them.
STEPS = {
    "steps": [{"setWorkers": 1}, {"analysis": {"duration": "1h"}}, {"pause": {}}],
    "analysis": {"interval": "1s", "inconclusiveLimit": 1000, "metrics": [
        {"name": "dead letters", "figure": "DeadLetterRate", "thresholdRange": {"max": 1}},
    ]},
}  # fmt: skip
# Slow enough for a lag that lasts: a worker's capacity is what it commits while there is one.
HANDLER = """
import time
import pyarrow as pa, pyarrow.compute as pc

def transform(table: pa.Table) -> pa.Table:
    time.sleep(0.2)
    bad = pc.equal(table["value"], b"bad")
    return table.append_column("_error", pc.if_else(bad, "bad", pa.scalar(None, pa.string())))
"""
SPARK_HANDLER = """
def transform(records):
    return records
"""


@dataclass
class Story:
    """What runs."""

    plane: ControlPlane
    namespace: str
    operator_namespace: str
    prometheus: monitoring.Prometheus
    broker: DevBroker
    began_s: float = field(default_factory=time.time)

    def group(self, name: str = GROUP) -> dict[str, Any]:
        return self.plane.api.get(path_of(GROUPS, "consumergroups", self.namespace, name)) or {}

    def patch(self, body: dict[str, Any], name: str = GROUP) -> None:
        self.plane.api.patch(path_of(GROUPS, "consumergroups", self.namespace, name), body)

    def condition(self, kind: str, name: str = GROUP) -> str:
        conditions = self.group(name).get("status", {}).get("conditions", [])
        return next((condition["status"] for condition in conditions if condition["type"] == kind), "")


class Load(threading.Thread):
    """Produces until it is stopped: some hundred records a second, one in fifty of them bad."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self._stop_now = threading.Event()

    def run(self) -> None:
        with KafkaProducer(bootstrap_servers=self._servers) as producer:
            while not self._stop_now.wait(0.1):
                for number in range(60):
                    value = b"bad" if number == 0 else b"good"
                    producer.send(TOPIC, value, partition=number % PARTITIONS)
                producer.flush()

    def stop(self) -> None:
        self._stop_now.set()
        self.join(HANG_S)


def group(bootstrap: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": GROUPS,
        "kind": "ConsumerGroup",
        "metadata": {"name": GROUP},
        "spec": {
            "groupId": GROUP_ID,
            "kafka": {
                "bootstrapServers": bootstrap,
                "properties": {"session.timeout.ms": "30000", "heartbeat.interval.ms": "500",
                               "auto.offset.reset": "earliest", "max.poll.records": "200"},
            },
            "topics": [TOPIC],
            "pipeline": {"handler": "told_by_test:transform", "handlerPath": ["/handlers"],
                         "engine": "arrow", "sink": {"path": "/data/out"}, "deadLetterTopic": "flights.dlq"},
            "template": {"spec": {
                "volumes": [{"name": "data", "emptyDir": {}},
                            {"name": "handlers", "configMap": {"name": "handlers"}}],
                "containers": [{"name": "worker", "volumeMounts": [
                    {"name": "data", "mountPath": "/data"}, {"name": "handlers", "mountPath": "/handlers"}]}],
            }},
            "replicas": 2,
            "scaling": {"minReplicas": 2, "maxReplicas": 3, "catchUp": "30s"},
            **spec,
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-prom-") as directory,
        ControlPlane.start(Path(directory), nodes=("node-1",)) as plane,
        DevBroker() as broker,
        plane.namespace() as operator_namespace,
        plane.namespace() as namespace,
    ):
        for crd in monitoring.crds():
            plane.define(crd)
        values = {"podMonitor.enabled": True, "prometheusRule.enabled": True, "dashboards.enabled": True}
        plane.helm("install", RELEASE, str(chart.CHART), "--namespace", operator_namespace, "--wait",
                   "--timeout", "600s", *chart.set_values(values))  # fmt: skip
        with KafkaAdmin(bootstrap_servers=broker.bootstrap) as admin:
            make_topics(admin)
        produce(broker.bootstrap, 60_000)  # a lag to begin with: only then a worker's capacity shows
        handlers = {"metadata": {"name": "handlers"}, "data": {
            "told_by_test.py": HANDLER, "told_by_spark.py": SPARK_HANDLER,
        }}  # fmt: skip
        plane.api.create(path_of("v1", "configmaps", namespace), handlers)
        for made in groups(broker.bootstrap):
            plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(made))
        until(lambda: {GROUP, MOVERS, SPARKED} <= monitors(plane), "the PodMonitors of the groups")
        kubeconfig = plane.kubeconfig_for(operator_namespace, "prometheus", rules=READS_PODS)
        scrapes = [
            config
            for monitor in plane.api.list(MONITORS)
            for config in monitoring.scrape_config(monitor, kubeconfig)
        ]
        (rule,) = plane.api.list(path_of("monitoring.coreos.com/v1", "prometheusrules"))
        with monitoring.prometheus(
            folder / "server", scrapes, rule["spec"]["groups"], interval=f"{SCRAPE_S}s"
        ) as server:
            yield tell(Story(plane, namespace, operator_namespace, server, broker))


def monitors(plane: ControlPlane) -> set[str]:
    return {monitor["metadata"]["name"] for monitor in plane.api.list(MONITORS)}


def make_topics(admin: KafkaAdmin) -> None:
    from slackwater.kafka.admin import NewTopic

    admin.create_topics([NewTopic(TOPIC, PARTITIONS), NewTopic("flights.dlq", 1)]).unwrap()


def groups(bootstrap: str) -> Iterator[dict[str, Any]]:
    yield group(bootstrap, rollout=STEPS)
    movers = group(bootstrap, groupId=MOVERS, rollout={"strategy": "Takeover"})
    movers["metadata"]["name"] = MOVERS
    del movers["spec"]["scaling"]
    yield movers
    sparked = group(bootstrap, groupId=SPARKED, replicas=0)
    sparked["metadata"]["name"] = SPARKED
    sparked["spec"]["pipeline"] |= {"engine": "spark", "handler": "told_by_spark:transform"}
    del sparked["spec"]["scaling"]
    yield sparked
    lost = group("127.0.0.1:9")
    lost["metadata"]["name"] = lost["spec"]["groupId"] = "lost"
    yield lost
    broken = group(bootstrap)
    broken["metadata"]["name"] = broken["spec"]["groupId"] = "broken"
    broken["spec"]["kafka"]["properties"]["no.such.property"] = "1"
    yield broken


def produce(bootstrap: str, count: int) -> None:
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(count):
            producer.send(TOPIC, b"good", partition=number % PARTITIONS)
        producer.flush()


def tell(story: Story) -> Story:
    """What happens before anything is asked."""
    load = Load(story.broker.bootstrap)
    load.start()
    try:
        until(lambda: story.condition("Ready") == "True", "the group")
        # A scale step, then a rolling restart by steps.
        story.patch({"spec": {"replicas": 3, "scaling": {"minReplicas": 3}}})
        until(
            lambda: story.group()["status"].get("members") == 3 and story.condition("Ready") == "True",
            "three",
        )
        until(lambda: story.condition("RolledOut") == "True", "nothing to roll")
        story.patch({"metadata": {"annotations": {"slackwater.dev/restartedAt": "now"}}})
        until(lambda: shown(story, "rollout_analysis", 'result="successful"'), "the analysis")
        promote(story, 2)
        until(lambda: shown(story, "rollout_phase", 'phase="Paused"'), "the pause")
        promote(story, 3)
        until(lambda: story.condition("RolledOut") == "True", "the rolling restart")
        until(lambda: story.condition("Ready", MOVERS) == "True", "the group of takeovers")
        until(lambda: story.condition("RolledOut", MOVERS) == "True", "nothing to take over")
        story.patch({"metadata": {"annotations": {"slackwater.dev/restartedAt": "now"}}}, MOVERS)
        until(lambda: story.condition("RolledOut", MOVERS) == "False", "takeovers to begin")
        until(lambda: story.condition("RolledOut", MOVERS) == "True", "takeovers")
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{describe(story)}") from error
    finally:
        load.stop()
    return story


def shown(story: Story, metric: str, label: str) -> bool:
    """Whether a metric of the group is 1 in Prometheus."""
    return story.prometheus.value(f'max(slackwater_{metric}{{group="{GROUP}", {label}}})') == 1


def promote(story: Story, step: int) -> None:
    story.patch({"metadata": {"annotations": {"slackwater.dev/promote": f"{step} now"}}})


def describe(story: Story) -> str:
    """What the parts say, for a failure's message."""
    status = json.dumps([story.group(name).get("status") for name in (GROUP, MOVERS)], indent=1)
    objects = story.plane.kubectl("get", "cg,pods,events", "-n", story.namespace, check=False)
    logs = [
        f"--- {pod}\n{story.plane.pods.logs(namespace, pod)[-2000:]}"
        for namespace in (story.namespace, story.operator_namespace)
        for pod in sorted(names_of_pods(story, namespace))
    ]
    return "\n".join([status, objects, *logs])


def names_of_pods(story: Story, namespace: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in story.plane.api.list(path_of("v1", "pods", namespace))}


def intrude(story: Story) -> bool:
    """Somebody joins the group and leaves it again. Whether the operator has counted that as unplanned: what
    comes within ``OURS_FOR_MS`` of its own doing is taken for its own."""
    before = unplanned(story)
    consumer = KafkaConsumer(TOPIC, bootstrap_servers=story.broker.bootstrap, group_id=GROUP_ID,
                             partition_assignment_strategy="cooperative-sticky")  # fmt: skip
    with consumer:
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline and not consumer.assignment():
            consumer.poll(timeout_ms=200)
        assert consumer.assignment()
    with contextlib.suppress(TimeoutError):
        until(lambda: unplanned(story) > before, "an unplanned rebalance", 10)
    return unplanned(story) > before


def measured(story: Story) -> bool:
    """Whether the operator knows what a worker can do. Sees to the lag that it is measured by: that of the
    beginning may have gone before there had been as many workers for half a window."""
    lag, capacity = (
        story.prometheus.value(f'max(slackwater_group_{what}{{group="{GROUP}"}})')
        for what in ("lag_records", "capacity_per_second")
    )
    if not capacity and (lag or 0) < 20_000:
        produce(story.broker.bootstrap, 20_000)
    return bool(capacity)


def unplanned(story: Story) -> float:
    metric = f'slackwater_group_rebalances_total{{group="{GROUP}",cause="unplanned"}}'
    return story.prometheus.value(f"sum({metric})") or 0


# --- what is asked


def operands(expr: str) -> list[str]:
    """An alert's expression without its comparisons: what must have series also when all is well."""
    operands: list[str] = []

    def split(node: Any) -> None:
        if isinstance(node, promql_parser.ParenExpr):
            split(node.expr)
        elif isinstance(node, promql_parser.BinaryExpr) and str(node.op) in COMPARISONS:
            split(node.lhs)
            split(node.rhs)
        elif not isinstance(node, promql_parser.NumberLiteral):
            operands.append(node.prettify())

    split(promql_parser.parse(expr))
    return operands


COMPARISONS = {">", "<", ">=", "<=", "==", "!=", "and", "or", "unless"}


def questions(story: Story) -> list[chart.Asked]:
    asked = []
    for expression in chart.all_expressions():
        if expression.where in WITHOUT_SERIES:
            continue
        group = MOVERS if "takeover" in expression.expr else GROUP
        expr = chart.substituted(expression.expr, namespace=story.namespace, group=group)
        if expression.where in NOT_BROUGHT_ABOUT:
            expr = expr.replace('status="True"', 'status=~".+"')
        parts = operands(expr) if expression.where.startswith("alert ") else [expr]
        asked += [chart.Asked(expression.where, part) for part in parts]
    return asked


def answered(story: Story, expr: str) -> bool:
    """At any time of the story: some are about what lasts a moment, such as what holds a step."""
    # A value that is no number is no answer: 0/0 of a rate that did not move.
    return any(value != "NaN" for value in story.prometheus.values_since(expr, story.began_s))


def test_an_unknown_metric_returns_nothing(story: Story) -> None:
    assert not answered(story, "slackwater_group_lag_recrods")
    assert answered(story, "slackwater_group_lag_records")


def test_every_pod_is_found_and_scraped(story: Story) -> None:
    def all_up() -> bool:
        return {pod: up for pod, (up, _) in scraped(story).items()} == dict.fromkeys(expected(story), "up")

    until(all_up, f"all of {expected(story)}")
    for pod, (_, labels) in scraped(story).items():
        if labels["namespace"] == story.namespace:
            assert labels["consumergroup"] in (GROUP, MOVERS)
            assert pod.startswith(labels["consumergroup"])
            assert labels["container"] == "worker"
        else:
            assert labels["namespace"] == story.operator_namespace
            assert "consumergroup" not in labels


def scraped(story: Story) -> dict[str, tuple[str, dict[str, str]]]:
    return {
        target["labels"]["pod"]: (target["health"], target["labels"]) for target in story.prometheus.targets()
    }


def expected(story: Story) -> set[str]:
    names = set()
    for namespace, app in (
        (story.operator_namespace, "slackwater-operator"),
        (story.namespace, "slackwater-worker"),
    ):
        label = f"app.kubernetes.io/name={app}"
        pods = story.plane.api.list(path_of("v1", "pods", namespace), label_selector=label)
        names |= {pod["metadata"]["name"] for pod in pods if pod["metadata"]["labels"].get(
            "slackwater.dev/group", GROUP) in (GROUP, MOVERS)}  # fmt: skip
    return names


def test_every_expression_returns_a_value(story: Story) -> None:
    left = questions(story)
    assert len(left) > 80  # a wrong walk through the dashboards would find few
    load = Load(story.broker.bootstrap)
    load.start()
    try:
        until(lambda: intrude(story), "an unplanned rebalance", OURS_FOR_MS / 1000 + WAIT_S)
        until(lambda: measured(story), "what a worker can do")
        deadline = time.monotonic() + HANG_S
        while left and time.monotonic() < deadline:
            left = [expression for expression in left if not answered(story, expression.expr)]
            time.sleep(0.5 if left else 0)
    finally:
        load.stop()
    assert not left, "no answer:\n" + "\n".join(
        f"{expression.where}: {expression.expr}" for expression in left
    )


def test_prometheus_evaluates_every_rule(story: Story) -> None:
    def evaluated() -> bool:
        return all(rule["health"] == "ok" for rule in story.prometheus.rules())

    until(evaluated, "every rule")
    assert len(story.prometheus.rules()) == len(chart.alerts())
    assert all(not rule.get("lastError") for rule in story.prometheus.rules())


def test_each_fault_raises_its_alert_and_no_other(story: Story) -> None:
    """The two bad groups have their conditions; their alerts wait for five minutes and so stay pending."""

    def states() -> dict[str, set[str]]:
        return {
            rule["name"]: {alert["labels"].get("group", "") for alert in rule["alerts"]}
            for rule in story.prometheus.rules()
        }

    def well() -> bool:
        alerts = states()
        none = alerts["SlackwaterNoLeader"] | alerts["SlackwaterOrphanedMembers"]
        return GROUP not in alerts["SlackwaterLagUnknown"] and not none

    until(lambda: "lost" in states()["SlackwaterLagUnknown"], "LagUnknown of the group without Kafka")
    until(lambda: "broken" in states()["SlackwaterGroupDegraded"], "Degraded of the broken group")
    # One scrape that comes too late makes an alert wait, until the next one.
    until(well, f"no alert for what is well: {states()}")


def test_a_condition_has_the_reason_and_the_time_of_the_status(story: Story) -> None:
    name = "slackwater_condition_transition_time_seconds"

    def exported() -> dict[tuple[str, str, str], float]:
        return {
            (s["metric"]["type"], s["metric"]["status"], s["metric"]["reason"]): float(s["value"][1])
            for s in story.prometheus.query(f'{name}{{namespace="{story.namespace}", group="broken"}}')
        }

    def written() -> dict[tuple[str, str, str], float]:
        return {
            (c["type"], c["status"], c["reason"]): datetime.fromisoformat(c["lastTransitionTime"]).timestamp()
            for c in story.group("broken")["status"]["conditions"]
        }

    until(lambda: exported() == written(), f"{exported()} as in {written()}")
    assert ("Degraded", "True", "InvalidSpec") in exported()


@pytest.mark.parts("grafana", "spark")
def test_grafana_draws_the_dashboards(story: Story, tmp_path: Path) -> None:
    """Grafana's components draw every panel from this Prometheus. With SLACKWATER_PICTURES=FOLDER in the
    environment, the pictures are left there."""
    folder = Path(os.environ.get("SLACKWATER_PICTURES", tmp_path))
    pictures = {
        name: grafana.Picture(board, folder / f"{name}.png", namespace, group, rows_open)
        for name, board, namespace, group, rows_open in (
            ("fleet", "fleet.json", ".+", "", False),
            ("fleet-rows", "fleet.json", ".+", "", True),
            ("group", "group.json", story.namespace, GROUP, False),
            ("group-rows", "group.json", story.namespace, GROUP, True),
            ("takeovers-rows", "group.json", story.namespace, MOVERS, True),
            ("spark-rows", "group.json", story.namespace, SPARKED, True),
        )
    }
    story.patch({"spec": {"replicas": 1}}, SPARKED)
    for name in ("jvm_gc_seconds_total", "records_in_total"):
        rate = f'rate(slackwater_{name}{{consumergroup="{SPARKED}"}}[{4 * SCRAPE_S}s])'
        until(lambda expr=rate: story.prometheus.query(expr), rate)
    shown = grafana.draw(
        story.prometheus.url, pictures, start_s=story.began_s, end_s=time.time(), scrape_s=SCRAPE_S
    )
    assert {name: drawn["errors"] for name, drawn in shown.items()} == {name: [] for name in pictures}
    for picture in pictures.values():
        assert picture.out.read_bytes().startswith(b"\x89PNG")
        assert picture.out.stat().st_size > 30_000  # an empty page has less than 10 kB

    panels = {name: {p["title"]: p for p in drawn["panels"]} for name, drawn in shown.items()}
    empty = {name: {t for t, p in by_title.items() if not p["values"]} for name, by_title in panels.items()}
    assert empty["fleet"] == empty["fleet-rows"] == empty["group"] == set()
    # Each of these groups has what the others lack: restarts, takeovers, a JVM.
    assert empty["group-rows"] & empty["takeovers-rows"] & empty["spark-rows"] == set()

    units = {unit for unit in shown["fleet"]["units"] if unit}
    known_units = chart.ROOT / "tests" / "operator" / "unit" / "charts" / "grafana_units.txt"
    assert units == set(known_units.read_text(encoding="utf-8").split())
    fleet, group = panels["fleet"], panels["group"]
    assert "rec/s" in fleet["Groups by state"]["text"]
    assert "rd/s" not in fleet["Groups by state"]["text"]
    assert f"var-namespace={story.namespace}&var-group={GROUP}&" in " ".join(
        fleet["Groups by state"]["links"]
    )
    level_texts = {text for _, text, _ in LEVELS}
    assert group["State"]["text"].split()[-1] in level_texts
    rows = group["Conditions"]["text"].split("\n")
    types = set(conditions.TYPES) - {"Rewound"}  # nobody asks for a rewind here
    assert types <= set(rows)
    assert set(group["Conditions over time"]["series"]) == types
    steps, analysis = (
        panels["group-rows"]["Steps of the rollout"],
        panels["group-rows"]["Analysis of the rollout"],
    )
    assert set(steps["series"]) == {"complete", "all"}
    assert set(analysis["series"]) == {"analysis"}
    assert {"Steps of the rollout", "Analysis of the rollout"} & empty["group-rows"] == set()
    titles = {mark["title"] for mark in shown["group"]["marks"]}
    assert {"scaled to 3 workers", "rebalance: scale", "rollout: Rolling"} <= titles


def test_the_api_server_forbade_the_operator_nothing(story: Story) -> None:
    """The operator had only the roles of the chart."""
    label = "app.kubernetes.io/name=slackwater-operator"
    for pod in story.plane.api.list(path_of("v1", "pods", story.operator_namespace), label_selector=label):
        log = story.plane.pods.logs(story.operator_namespace, pod["metadata"]["name"])
        assert "orbidden" not in log, log[-3000:]
