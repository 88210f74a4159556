"""Pods, StatefulSets and ControllerRevisions as the API server shows them."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.controller.snapshots.object_parsing import (
    good_template,
    pod_snapshot,
    statefulset_snapshot,
    unfinished,
)
from slackwater_operator.model.worker_status import StandbyStatus, TakeoverStatus, WorkerStatus

Json = dict[str, Any]


def pod(**status: Any) -> Json:
    labels = {"controller-revision-hash": "flights-5d", "slackwater.dev/revision": "abc"}
    return {
        "metadata": {"name": "flights-1", "uid": "u1", "labels": labels},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "podIP": "10.244.1.4", **status},
    }


def container(**state: Any) -> Json:
    return {"containerStatuses": [{"name": "worker", "restartCount": 0, **state}]}


def test_a_running_pod_is_parsed() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    snapshot = pod_snapshot(
        pod(conditions=ready, **container(state={"running": {"startedAt": "2026-11-21T18:00:00Z"}}))
    )
    assert (snapshot.name, snapshot.uid, snapshot.revision, snapshot.template) == (
        "flights-1",
        "u1",
        "flights-5d",
        "abc",
    )
    assert snapshot.ready
    assert snapshot.started
    assert not snapshot.deleting
    assert (snapshot.trouble, snapshot.ended_ms, snapshot.ip, snapshot.node) == (
        "",
        None,
        "10.244.1.4",
        "node-1",
    )


ENDED = {
    "exitCode": 3,
    "reason": "Error",
    "finishedAt": "2026-11-21T18:00:07Z",
    "message": "no module named flights\n",
}


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "no node",
                    }
                ]
            },
            "Unschedulable: no node",
        ),
        (
            container(state={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}),
            "ImagePullBackOff: not found",
        ),
        (container(state={"waiting": {"reason": "ContainerCreating"}}), ""),
        (
            container(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": ENDED}),
            "CrashLoopBackOff: exit code 3: no module named flights",
        ),
        (
            container(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            "OOMKilled, exit code 137",
        ),
        (container(state={"terminated": {"exitCode": 0, "reason": "Completed"}}), ""),
        ({}, ""),
    ],
)
def test_the_trouble_of_a_pod_is_parsed(status: Json, trouble: str) -> None:
    snapshot = pod_snapshot(pod(**status))
    assert snapshot.trouble == trouble
    assert not snapshot.started


PULL = 'rpc error: code = {} desc = failed to pull and unpack image "lake/w:v2": {}'


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (PULL.format("Unknown", "failed to do request: dial tcp 127.0.0.1:443: i/o timeout"), "i/o timeout"),
        (PULL.format("Unknown", "tls: x509: certificate signed by unknown authority"), "unknown authority"),
        (PULL.format("Unknown", "failed to authorize: unexpected status: 401"), "imagePullSecrets"),
        (
            "pull access denied, repository does not exist or may require authorization: server message: "
            "insufficient_scope: authorization failed",
            "imagePullSecrets",
        ),
        ("reading manifest v2 in reg/lake/w: unauthorized: authentication required", "imagePullSecrets"),
        ('denied: Permission "repositories.downloadArtifacts" denied on resource', "imagePullSecrets"),
        (PULL.format("NotFound", "failed to resolve reference: reg/lake/w:v2: not found"), ""),
        ("reading manifest v2 in reg/lake/w: manifest unknown", ""),
        ("reading manifest v2 in reg/lake/w: name unknown: repository name not known to registry", ""),
        (PULL.format("NotFound", "no match for platform in manifest: not found"), ""),
    ],
)
def test_only_an_image_that_is_not_there_is_the_revisions_fault(message: str, named: str) -> None:
    snapshot = pod_snapshot(
        pod(**container(state={"waiting": {"reason": "ErrImagePull", "message": message}}))
    )
    assert bool(snapshot.held_up) is bool(named)
    assert named in snapshot.held_up
    assert named in snapshot.trouble


def test_an_init_container_whose_image_cannot_be_pulled_keeps_the_worker_from_running() -> None:
    waiting = {"reason": "ErrImagePull", "message": "dial tcp 127.0.0.1:443: i/o timeout"}
    init = [{"name": "fetch", "state": {"terminated": {"exitCode": 0}}},
            {"name": "istio-init", "state": {"waiting": waiting}}]  # fmt: skip
    worker = container(state={"waiting": {"reason": "PodInitializing"}})
    snapshot = pod_snapshot(pod(initContainerStatuses=init, **worker))
    assert snapshot.held_up == snapshot.trouble == "ErrImagePull: dial tcp 127.0.0.1:443: i/o timeout"


def test_an_evicted_pod_is_parsed_with_its_end() -> None:
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
    raw = pod(conditions=conditions, **container(state={"terminated": ENDED}))
    raw["metadata"]["deletionTimestamp"] = "2026-11-21T18:00:30Z"
    snapshot = pod_snapshot(raw)
    assert snapshot.evicted
    assert snapshot.deleting
    assert snapshot.ended_ms == 1_795_284_007_000


def with_proxy(worker: Json, *, proxy_ready: bool = True) -> Json:
    statuses = [
        {"name": "linkerd-proxy", "ready": proxy_ready, "state": {"running": {}}},
        {"name": "worker", **worker},
    ]
    return {"containerStatuses": statuses}


@pytest.mark.parametrize(
    ("ready", "containers_ready", "own", "is_ready"),
    [
        ("False", "False", True, True),
        ("False", "False", False, False),
        ("False", "True", True, False),  # its node is lost
    ],
)
def test_a_worker_is_ready_whatever_another_container_of_its_pod_is(
    ready: str, containers_ready: str, own: bool, is_ready: bool
) -> None:
    conditions = [{"type": "Ready", "status": ready}, {"type": "ContainersReady", "status": containers_ready}]
    worker = {"ready": own, "state": {"running": {}}}
    assert pod_snapshot(pod(conditions=conditions, **with_proxy(worker))).ready is is_ready


def test_a_container_that_outlives_a_worker_is_named() -> None:
    raw = pod(**with_proxy({"state": {"terminated": {"exitCode": 0}}}))
    assert pod_snapshot(raw).trouble == ""
    raw["metadata"]["deletionTimestamp"] = "2026-11-21T18:00:30Z"
    snapshot = pod_snapshot(raw)
    assert "linkerd-proxy" in snapshot.trouble
    assert snapshot.held_up == snapshot.trouble


@pytest.mark.parametrize(
    ("state", "names"), [({"running": {}}, ("flights-1",)), ({"terminated": {"exitCode": 0}}, ())]
)
def test_the_pod_of_a_job_has_ended_when_its_worker_has(state: Json, names: tuple[str, ...]) -> None:
    raw = pod(**with_proxy({"state": state}))
    assert unfinished([raw]) == names


def statefulset(observed: int) -> Json:
    template = {"metadata": {"labels": {"slackwater.dev/revision": "abc"}}}
    return {
        "metadata": {"uid": "s1", "generation": 4},
        "spec": {"replicas": 3, "template": template},
        "status": {"observedGeneration": observed, "updateRevision": "flights-5d", "replicas": 2},
    }


def test_a_revision_that_is_older_than_the_spec_is_not_believed() -> None:
    assert statefulset_snapshot(statefulset(4)).update_revision == "flights-5d"
    assert statefulset_snapshot(statefulset(3)).update_revision == ""
    assert statefulset_snapshot(statefulset(3)).template == "abc"


def test_the_template_of_a_controller_revision() -> None:
    kept = {
        "metadata": {"creationTimestamp": None, "labels": {"a": "b"}},
        "spec": {"x": 1},
        "$patch": "replace",
    }
    template = good_template({"data": {"spec": {"template": kept}}})
    assert template == {"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1}}
    assert good_template(None) is None
    assert good_template({"data": {"spec": {}}}) is None


@pytest.mark.parametrize(
    ("name", "member", "suffix", "ordinal"),
    [
        ("flights-3", "flights-3", "", 3),
        ("flights-b-3", "flights-3", "b", 3),
        ("flights-c-3", "flights-c-3", "", -1),
    ],
)
def test_a_pod_is_parsed_with_its_member(name: str, member: str, suffix: str, ordinal: int) -> None:
    labels = {"slackwater.dev/group": "flights"}
    snapshot = pod_snapshot({"metadata": {"name": name, "uid": "u", "labels": labels}})
    assert (snapshot.member, snapshot.suffix, snapshot.ordinal) == (member, suffix, ordinal)
    assert not snapshot.can_hand_over
    with_key = {"name": name, "labels": labels, "annotations": {"slackwater.dev/takeover": "true"}}
    assert pod_snapshot({"metadata": with_key}).can_hand_over


def test_a_set_that_does_not_begin_at_zero() -> None:
    live = {
        "metadata": {"name": "flights-b", "uid": "s", "creationTimestamp": "2026-11-21T18:00:00Z"},
        "spec": {"replicas": 2, "ordinals": {"start": 3}},
    }
    snapshot = statefulset_snapshot(live, "b")
    assert (snapshot.name, snapshot.suffix, snapshot.start, snapshot.span.end) == ("flights-b", "b", 3, 5)
    assert snapshot.created_ms == 1_795_284_000_000


def test_a_worker_that_stands_by_and_one_that_has_taken_over() -> None:
    status = WorkerStatus(
        phase="standby", holder="flights-a-1", standby=StandbyStatus(5, True, 4, True, "no")
    )
    assert status.standby is not None
    assert (status.holder, status.standby.since_ms, status.standby.handed_over, status.standby.told) == (
        "flights-a-1",
        5,
        True,
        True,
    )
    assert not status.is_member
    takeover = TakeoverStatus(
        "flights-a-1", 100, 110, 130, 133, 139, 142, 7, 7, False, {TopicPartition("t", 0): 21}
    )
    after = WorkerStatus("running", 7, "flights-1-9f", takeover=takeover)
    assert after.member_id == "flights-1-9f"
    assert after.takeover is not None
    assert after.is_member
    assert after.takeover.phases_ms == {"drain": 20, "answer": 3, "join": 6, "first_record": 3}
    assert (after.takeover.pause_ms, after.takeover.forced) == (21, False)
    forced = TakeoverStatus("flights-a-1", 100, joined_ms=140, forced=True)
    alone = WorkerStatus(phase="running", generation=7, takeover=forced)
    assert alone.takeover is not None
    assert alone.takeover.phases_ms == {"join": 40}
    assert alone.takeover.pause_ms is None
