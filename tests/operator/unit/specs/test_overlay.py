"""How spec.template is laid over the operator's pod template."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from slackwater.fields import FieldError
from slackwater_operator.api.v1alpha1 import pod_template_overlay as overlay
from slackwater_operator.api.v1alpha1.consumer_group import ResourceError
from slackwater_operator.model import names
from slackwater_operator.specs.statefulset import revision
from tests.operator.unit.specs.built_group import IMAGE, group

PLAIN = revision(group(), worker_image=IMAGE).template


def laid(template: dict[str, Any]) -> dict[str, Any]:
    return revision(group(**{"spec/template": template}), worker_image=IMAGE).template


def worker(template: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = next(
        container for container in template["spec"]["containers"] if container["name"] == "worker"
    )
    return result


def with_worker(**fields: Any) -> dict[str, Any]:
    return laid({"spec": {"containers": [{"name": "worker", **fields}]}})


def test_an_empty_template_changes_nothing() -> None:
    assert laid({}) == PLAIN
    assert laid({"metadata": {}, "spec": {"containers": []}}) == PLAIN


def test_resources_are_added_to_the_worker() -> None:
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    container = worker(with_worker(resources=resources))
    assert container["resources"] == resources
    assert {**container, "resources": None} == {**worker(PLAIN), "resources": None}


@pytest.mark.parametrize("quantity", ["1Gi", "500m", "1.5", ".5", "+2.", "1e3", "12E-3", "2E", "2Ei", 2, 0.5])
def test_a_quantity_of_kubernetes_is_taken(quantity: object) -> None:
    resources = {"limits": {"memory": quantity}}
    assert worker(with_worker(resources=resources))["resources"] == resources


def test_variables_are_added_to_ours_and_replace_them_wholly() -> None:
    container = worker(
        with_worker(
            env=[
                {"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "REGION", "value": "eu"},
            ]
        )
    )
    assert [variable["name"] for variable in container["env"]] == [
        names.ORDINAL_VARIABLE, names.INSTANCE_ID_VARIABLE, names.POD_NAME_VARIABLE,
        names.GROUP_UID_VARIABLE, names.POD_IP_VARIABLE, "HOME", "REGION",
    ]  # fmt: skip
    assert "value" not in container["env"][-2]


def test_volumes_and_mounts_are_added() -> None:
    made = laid(
        {
            "spec": {
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": "lake"}},
                    {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
                ],
                "containers": [{"name": "worker", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            }
        }
    )
    assert [volume["name"] for volume in made["spec"]["volumes"]] == ["slackwater", "tmp", "data"]
    assert made["spec"]["volumes"][1] == {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}
    mounts = [mount["mountPath"] for mount in worker(made)["volumeMounts"]]
    assert mounts == ["/etc/slackwater", "/tmp", "/data"]


def test_a_sidecar_and_an_init_container_are_added() -> None:
    made = laid(
        {
            "spec": {
                "containers": [{"name": "agent", "image": "agent:1"}],
                "initContainers": [{"name": "wait", "image": "wait:1", "command": ["wait"]}],
            }
        }
    )
    assert [container["name"] for container in made["spec"]["containers"]] == ["worker", "agent"]
    assert [container["name"] for container in made["spec"]["initContainers"]] == ["wait"]


def test_other_lists_are_replaced_and_null_takes_a_field_away() -> None:
    made = laid(
        {"spec": {"topologySpreadConstraints": [], "affinity": None, "tolerations": [{"key": "gpu"}]}}
    )
    assert made["spec"]["topologySpreadConstraints"] == []
    assert "affinity" not in made["spec"]
    assert made["spec"]["tolerations"] == [{"key": "gpu"}]


@pytest.mark.parametrize(
    "template",
    [
        {"metadata": None, "spec": None},
        {"metadata": {"labels": None, "annotations": None, "creationTimestamp": None}},
        {"metadata": {"labels": dict.fromkeys(["app.kubernetes.io/name", "slackwater.dev/group", "team"])}},
        {"spec": dict.fromkeys([*overlay.OWNED_POD_FIELDS, "containers", "volumes", "nodeSelector"])},
    ],
)  # fmt: skip
def test_null_removes_nothing_that_the_pod_needs(template: dict[str, Any]) -> None:
    assert laid(template) == PLAIN


@pytest.mark.parametrize(
    "field", [*overlay.OWNED_CONTAINER_FIELDS, *overlay.PROBES, "env", "ports", "volumeMounts", "envFrom"]
)
def test_null_removes_nothing_that_the_worker_needs(field: str) -> None:
    assert with_worker(**{field: None}) == PLAIN


def test_null_removes_nothing_that_a_probe_needs() -> None:
    assert with_worker(livenessProbe=dict.fromkeys(overlay.OWNED_PROBE_FIELDS)) == PLAIN


def test_null_in_a_field_that_only_the_user_sets_counts_as_absent() -> None:
    limits = {"cpu": None, "memory": "1Gi"}
    made = laid(
        {
            "spec": {
                "containers": [
                    {"name": "worker", "resources": {"limits": limits, "requests": None}},
                    {"name": "agent", "image": "agent:1", "env": None},
                ]
            }
        }
    )
    assert worker(made)["resources"] == {"limits": {"memory": "1Gi"}}
    assert made["spec"]["containers"][1] == {"name": "agent", "image": "agent:1"}


def test_a_template_that_nests_deeper_than_a_pod_is_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(5_000):
        nested = {"a": nested}
    for template in (nested, {"spec": {"affinity": nested}}):
        with pytest.raises(FieldError) as raised:
            overlay.check(template)
        assert raised.value.path == "spec.template"


def test_times_of_a_probe_can_be_set() -> None:
    probe = worker(with_worker(livenessProbe={"failureThreshold": 30}))["livenessProbe"]
    assert probe == {**worker(PLAIN)["livenessProbe"], "failureThreshold": 30}


def test_labels_and_annotations_are_added() -> None:
    made = laid({"metadata": {"labels": {"team": "lake"}, "annotations": {"a": "b"}}})
    assert made["metadata"]["labels"]["team"] == "lake"
    assert made["metadata"]["labels"].items() >= names.selector("flights").items()
    assert made["metadata"]["annotations"]["a"] == "b"


def test_another_account_can_be_used() -> None:
    made = laid({"spec": {"serviceAccountName": "lake-writer", "automountServiceAccountToken": True}})
    assert made["spec"]["serviceAccountName"] == "lake-writer"


def test_what_is_laid_over_is_not_shared() -> None:
    template: dict[str, Any] = {"spec": {"nodeSelector": {"disk": "fast"}}}
    own: dict[str, Any] = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "worker"}]}}
    made = overlay.lay(own, template)
    made["spec"]["nodeSelector"]["disk"] = "slow"
    made["spec"]["containers"][0]["x"] = 1
    assert template == {"spec": {"nodeSelector": {"disk": "fast"}}}
    assert own["spec"]["containers"] == [{"name": "worker"}]


@pytest.mark.parametrize("field", sorted(overlay.OWNED_POD_FIELDS))
def test_what_is_ours_of_the_pod_cannot_be_set(field: str) -> None:
    with pytest.raises(ResourceError, match=rf"spec\.template\.spec\.{field}: is set by Slackwater"):
        laid({"spec": {field: "x"}})


@pytest.mark.parametrize("field", sorted(overlay.OWNED_CONTAINER_FIELDS))
def test_what_is_ours_of_the_worker_cannot_be_set(field: str) -> None:
    with pytest.raises(ResourceError, match=rf"containers\[worker\]\.{field}: is set by Slackwater"):
        with_worker(**{field: "x"})


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ({"spec": "x"}, "spec.template.spec: must be a mapping"),
        ({"spec": {"containers": "x"}}, "spec.template.spec.containers: must be a list"),
        ({"spec": {"containers": ["x"]}}, "containers[0]: must be a mapping"),
        ({"spec": {"containers": [{"name": 1}]}}, "containers[0].name: is missing"),
        ({"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}, "'a' is used twice"),
        ({"spec": {"volumes": [{"emptyDir": {}}]}}, "volumes[0].name: is missing"),
        ({"spec": {"imagePullSecrets": ["x"]}}, "imagePullSecrets[0]: must be a mapping"),
        ({"metadata": {"labels": {"a": 1}}}, "labels[a]: must be text, but is the number 1"),
        ({"metadata": {"annotations": {"slackwater.dev/restartedAt": "x"}}}, "is set by Slackwater"),
        ({"spec": {"nodeSelector": {"since": date(2026, 1, 1)}}}, "spec.nodeSelector.since: must be text"),
        ({"spec": {"containers": [{"name": "worker", "volumeMounts": [{"mountPath": "/etc/../etc"}]}]}},
         "volumeMounts[/etc/../etc]: would hide /etc/slackwater"),
    ],
)  # fmt: skip
def test_an_invalid_template_is_refused(template: dict[str, Any], expected: str) -> None:
    with pytest.raises(ResourceError) as raised:
        laid(template)
    assert expected in str(raised.value)


def test_what_is_owned_here_is_what_is_built() -> None:
    (container,) = PLAIN["spec"]["containers"]
    assert overlay.WORKER == names.CONTAINER
    assert names.CONFIG_FOLDER == overlay.OWNED_FOLDER
    assert names.CONFIG_VOLUME == overlay.OWNED_VOLUME
    assert (names.PORT_NAME, names.PORT) == (overlay.OWNED_PORT, overlay.OWNED_PORT_NUMBER)
    assert set(overlay.OWNED_VARIABLES) == {
        names.ORDINAL_VARIABLE, names.INSTANCE_ID_VARIABLE, names.POD_NAME_VARIABLE,
        names.GROUP_UID_VARIABLE, names.POD_IP_VARIABLE, names.HEALTH_HOST_VARIABLE,
    }  # fmt: skip
    assert names.POD_INDEX_LABEL in overlay.OWNED_LABELS
    assert set(PLAIN["metadata"]["labels"]) - {names.GROUP_LABEL, names.REVISION_LABEL} <= set(
        overlay.OWNED_LABELS
    )
    assert set(container) <= overlay.CONTAINER_FIELDS
