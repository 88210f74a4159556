"""Pods, StatefulSets and ControllerRevisions as the API server shows them."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater_operator.reconcile.parse import good_template, pod_seen, statefulset_seen

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


def test_a_pod_that_runs() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    seen = pod_seen(
        pod(conditions=ready, **container(state={"running": {"startedAt": "2026-11-21T18:00:00Z"}}))
    )
    assert (seen.name, seen.uid, seen.revision, seen.template) == ("flights-1", "u1", "flights-5d", "abc")
    assert seen.ready
    assert seen.started
    assert not seen.deleting
    assert (seen.trouble, seen.ended_ms, seen.ip, seen.node) == ("", None, "10.244.1.4", "node-1")


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
def test_what_is_wrong_with_a_pod(status: Json, trouble: str) -> None:
    seen = pod_seen(pod(**status))
    assert seen.trouble == trouble
    assert not seen.started


def test_an_evicted_pod_and_its_end() -> None:
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
    raw = pod(conditions=conditions, **container(state={"terminated": ENDED}))
    raw["metadata"]["deletionTimestamp"] = "2026-11-21T18:00:30Z"
    seen = pod_seen(raw)
    assert seen.evicted
    assert seen.deleting
    assert seen.ended_ms == 1_795_284_007_000


def statefulset(observed: int) -> Json:
    template = {"metadata": {"labels": {"slackwater.dev/revision": "abc"}}}
    return {
        "metadata": {"uid": "s1", "generation": 4},
        "spec": {"replicas": 3, "template": template},
        "status": {"observedGeneration": observed, "updateRevision": "flights-5d", "replicas": 2},
    }


def test_a_revision_that_is_older_than_the_spec_is_not_believed() -> None:
    assert statefulset_seen(statefulset(4)).update_revision == "flights-5d"
    assert statefulset_seen(statefulset(3)).update_revision == ""
    assert statefulset_seen(statefulset(3)).template == "abc"


def test_the_template_of_a_controller_revision() -> None:
    kept = {
        "metadata": {"creationTimestamp": None, "labels": {"a": "b"}},
        "spec": {"x": 1},
        "$patch": "replace",
    }
    found = good_template({"data": {"spec": {"template": kept}}})
    assert found == {"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1}}
    assert good_template(None) is None
    assert good_template({"data": {"spec": {}}}) is None
