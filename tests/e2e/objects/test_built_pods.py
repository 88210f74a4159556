"""What is built runs: the real StatefulSet and Job controllers make pods of it that join a group."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater.kafka import KafkaAdmin, KafkaProducer
from slackwater.kafka.admin import NewTopic
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup, parse
from slackwater_operator.model import names
from slackwater_operator.specs.preflight_job import preflight_job
from slackwater_operator.specs.statefulset import Revision, revision, statefulset
from slackwater_operator.specs.supporting_objects import service, service_account
from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.devbroker import DevBroker
from tests.support.operator.bad_resources import GONE, good
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.controlplane

EXAMPLES = Path(__file__).parents[3] / "examples"
IMAGE = "slackwater/worker:1"
ORDER = {"id": "o-1", "customer": "c-1", "quantity": 2, "price": 9.5}


def made(plane: ControlPlane, namespace: str, broker: str, topic: str) -> tuple[ConsumerGroup, Revision]:
    """A ConsumerGroup that is there (so that what is built has an owner), and what its workers run."""
    changes: dict[str, Any] = {
        "spec/groupId": topic,
        "spec/topics": [topic],
        "spec/scaling": GONE,
        "spec/replicas": 2,
        "spec/kafka/bootstrapServers": broker,
        "spec/kafka/properties/heartbeat.interval.ms": "200",
        "spec/pipeline/engine": "python",
        "spec/pipeline/handler": "orders.pipeline:as_rows",
        "spec/pipeline/handlerPath": [str(EXAMPLES)],
        "spec/pipeline/deadLetterTopic": GONE,
        "spec/pipeline/sink/path": "/data/orders",
        "spec/template": {
            "spec": {
                "containers": [{"name": "worker", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                "volumes": [{"name": "data", "emptyDir": {}}],
            }
        },
    }
    document = good(**changes)
    plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(document))
    kept = json.loads(plane.kubectl("get", "cg", "flights", "-n", namespace, "-o", "json"))
    group = parse(kept)
    return group, revision(group, worker_image=IMAGE)


def apply(plane: ControlPlane, *documents: dict[str, Any]) -> None:
    plane.kubectl(
        "apply", "--server-side", "--field-manager=slackwater-operator", "-f", "-",
        stdin="\n---\n".join(map(json.dumps, documents)),
    )  # fmt: skip


def pods(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    return plane.api.list(path_of("v1", "pods", namespace), label_selector="slackwater.dev/group=flights")


def ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def address(pod: dict[str, Any]) -> str:
    return f"http://{pod['status']['podIP']}:{names.PORT}"


def phases(plane: ControlPlane, namespace: str) -> list[str]:
    """The phases of the workers that answer, at their pods' own addresses."""
    phases = []
    for pod in pods(plane, namespace):
        if pod.get("status", {}).get("podIP"):
            with urllib.request.urlopen(f"{address(pod)}/status", timeout=HANG_S) as answer:
                phases.append(json.load(answer)["phase"])
    return phases


@pytest.fixture
def topic(devbroker: DevBroker) -> str:
    name = f"built-{time.time_ns()}"
    with KafkaAdmin(bootstrap_servers=devbroker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 4, 1)]).unwrap()
        admin.wait_for_topic(name, 4)
    return name


@pytest.fixture
def definition(control_plane: ControlPlane) -> None:
    """The CRD, where nobody has put it in yet."""
    if "consumergroups" not in control_plane.kubectl("get", "crd", "-o", "name"):
        control_plane.define()


def test_workers_join_under_their_pod_names_and_handle_records(
    control_plane: ControlPlane, namespace: str, definition: None, devbroker: DevBroker, topic: str
) -> None:
    group, current = made(control_plane, namespace, devbroker.bootstrap, topic)
    apply(
        control_plane,
        current.config_map,
        service_account(group),
        service(group),
        statefulset(group, template=current.template, replicas=2),
    )
    until(
        lambda: len(warm := phases(control_plane, namespace)) == 2 and set(warm) == {"warm"},
        "two at the gate",
        every_s=0.25,
    )
    for pod in pods(control_plane, namespace):
        assert not ready(pod)
        urllib.request.urlopen(urllib.request.Request(f"{address(pod)}/join", method="POST"), timeout=HANG_S)
    until(lambda: sum(map(ready, pods(control_plane, namespace))) == 2, "two workers that are ready")
    with KafkaAdmin(bootstrap_servers=devbroker.bootstrap) as admin:
        described = admin.describe_groups([topic]).unwrap()[topic]
        assert {member.instance_id for member in described.members} == {"flights-0", "flights-1"}
        with KafkaProducer(bootstrap_servers=devbroker.bootstrap) as producer:
            for at in range(100):
                producer.send(topic, value=json.dumps(ORDER).encode(), partition=at % 4)
        until(
            lambda: (
                sum(committed_offset.offset for committed_offset in admin.committed_offsets(topic).values())
                == 100
            ),
            "all commits",
            every_s=0.25,
        )
    control_plane.kubectl("delete", "cg", "flights", "-n", namespace)
    until(lambda: not pods(control_plane, namespace), "the pods' end")
    kinds = "statefulsets,services,configmaps,serviceaccounts,jobs"
    until(
        lambda: "flights" not in control_plane.kubectl("get", kinds, "-n", namespace, "-o", "name"),
        "the end of all that belonged to the group",
        every_s=0.5,
    )
    logs = control_plane.pods.logs(namespace, "flights-0")
    assert '"event": "drained"' in logs or '"event":"drained"' in logs


@pytest.mark.long
def test_a_preflight_succeeds_and_joins_no_group(
    control_plane: ControlPlane, namespace: str, definition: None, devbroker: DevBroker, topic: str
) -> None:
    group, current = made(control_plane, namespace, devbroker.bootstrap, topic)
    job = preflight_job(group, current)
    apply(control_plane, current.config_map, service_account(group), job)
    name = job["metadata"]["name"]
    control_plane.kubectl(
        "wait", "--for=condition=Complete", f"job/{name}", "-n", namespace, "--timeout=600s"
    )
    with KafkaAdmin(bootstrap_servers=devbroker.bootstrap) as admin:
        assert admin.describe_groups([topic]).unwrap()[topic].members == ()


@pytest.mark.long
def test_a_preflight_reports_a_missing_handler(
    control_plane: ControlPlane, namespace: str, definition: None, devbroker: DevBroker, topic: str
) -> None:
    group, _ = made(control_plane, namespace, devbroker.bootstrap, topic)
    document = json.loads(control_plane.kubectl("get", "cg", "flights", "-n", namespace, "-o", "json"))
    document["spec"]["pipeline"]["handler"] = "orders.pipeline:as_row"
    group = parse(document)
    current = revision(group, worker_image=IMAGE)
    job = preflight_job(group, current)
    apply(control_plane, current.config_map, service_account(group), job)
    name = job["metadata"]["name"]
    control_plane.kubectl("wait", "--for=condition=Failed", f"job/{name}", "-n", namespace, "--timeout=600s")
    (pod,) = pods(control_plane, namespace)
    assert "as_rows" in control_plane.pods.logs(namespace, pod["metadata"]["name"])
