"""The objects of a group: names, labels, owners, and what must hold between them."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater_operator.model import names
from slackwater_operator.specs.preflight_job import preflight_job
from slackwater_operator.specs.rewind_job import rewind_job
from slackwater_operator.specs.statefulset import revision, statefulset, template_hash
from slackwater_operator.specs.supporting_objects import (
    disruption_budget,
    pod_monitor,
    service,
    service_account,
)
from slackwater_operator.specs.worker_config import takeover_secret
from tests.operator.unit.specs.built_group import IMAGE, group

LONGEST = "f" * 52


def everything(**changes: Any) -> list[dict[str, Any]]:
    made_for = group(**changes)
    made = revision(made_for, worker_image=IMAGE)
    return [
        made.config_map,
        service_account(made_for),
        service(made_for),
        statefulset(made_for, template=made.template, replicas=3),
        disruption_budget(made_for, max_unavailable=1),
        pod_monitor(made_for),
        preflight_job(made_for, made),
        takeover_secret(made_for, "0f" * 32),
    ]


def rewind(*, check: bool = False, **changes: Any) -> dict[str, Any]:
    made_for = group(**changes)
    template = revision(made_for, worker_image=IMAGE).template
    starts = ["flights:3:4200", "flights:4:start"]
    return rewind_job(made_for, template, key="0123456789", starts=starts, limit_ms=90_500, check=check)


def by_kind(**changes: Any) -> dict[str, dict[str, Any]]:
    return {manifest["kind"]: manifest for manifest in everything(**changes)}


@pytest.mark.parametrize("built", everything(), ids=lambda built: built["kind"])
def test_each_object_belongs_to_the_group(built: dict[str, Any]) -> None:
    assert built["metadata"]["namespace"] == "lake"
    assert built["metadata"]["labels"][names.GROUP_LABEL] == "flights"
    assert names.is_owned(built, group().metadata.uid)
    assert not names.is_owned(built, "another")


@pytest.mark.parametrize("built", everything(**{"metadata/name": LONGEST}), ids=lambda built: built["kind"])
def test_the_longest_name_fits(built: dict[str, Any]) -> None:
    name = built["metadata"]["name"]
    assert len(name) <= (253 if built["kind"] in ("ConfigMap", "Secret") else 63)
    assert all(len(value) <= 63 for value in built["metadata"]["labels"].values())


def test_two_groups_with_the_same_beginning_have_preflights_of_their_own() -> None:
    jobs = {by_kind(**{"metadata/name": "f" * 51 + last})["Job"]["metadata"]["name"] for last in ("a", "b")}
    assert len(jobs) == 2


def test_selectors_find_workers_and_no_preflight() -> None:
    built = by_kind()
    worker = built["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    preflight = built["Job"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        built["Service"]["spec"]["selector"],
        built["StatefulSet"]["spec"]["selector"]["matchLabels"],
        built["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        built["PodMonitor"]["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector == names.selector("flights")
        assert selector.items() <= worker.items()
        assert not selector.items() <= preflight.items()
    assert (
        names.selector_text("flights")
        == "app.kubernetes.io/name=slackwater-worker,slackwater.dev/group=flights"
    )


@pytest.mark.parametrize("check", [False, True])
def test_a_rewind_runs_once_as_a_worker_without_its_place_in_the_group(check: bool) -> None:
    job = rewind(check=check)
    assert job["metadata"]["name"] == f"flights-rewind-0123456789{'-check' if check else ''}"
    assert names.is_owned(job, group().metadata.uid)
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["activeDeadlineSeconds"] == 91
    assert "ttlSecondsAfterFinished" not in job["spec"], "its outcome outlives an operator that is away"
    pod = job["spec"]["template"]
    assert not names.selector("flights").items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["restartPolicy"] == "Never"
    worker = pod["spec"]["containers"][0]
    head = ["slackwater", "rewind", "--config", names.CONFIG_FILE, *(["--check"] if check else [])]
    assert worker["command"] == [*head, "--", "flights:3:4200", "flights:4:start"]
    assert {"startupProbe", "livenessProbe", "readinessProbe", "ports"}.isdisjoint(worker)
    assert names.ORDINAL_VARIABLE not in [variable["name"] for variable in worker["env"]]
    preflight = by_kind()["Job"]["spec"]["template"]["spec"]
    assert pod["spec"]["volumes"] == preflight["volumes"]
    assert worker["securityContext"] == preflight["containers"][0]["securityContext"]


def test_the_name_of_a_rewind_fits_into_a_label() -> None:
    for check in (False, True):
        name = rewind(check=check, **{"metadata/name": LONGEST})["metadata"]["name"]
        assert len(name) <= 63
        assert "-rewind-0123456789" in name


def test_a_statefulset_restarts_nobody_by_itself() -> None:
    spec = by_kind()["StatefulSet"]["spec"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["replicas"] == 3
    assert spec["serviceName"] == "flights"


def test_the_plain_set_has_no_ordinals_and_the_others_always_have() -> None:
    """An apply that leaves a field out which it owned resets it: `start` would become 0, the pods others."""
    template = revision(group(), worker_image=IMAGE).template
    plain = statefulset(group(), template=template, replicas=3)
    assert "ordinals" not in plain["spec"]
    assert statefulset(group(), template=template, replicas=3, suffix="", start=0) == plain
    for suffix, start in (("a", 0), ("b", 7), ("", 2)):
        built = statefulset(group(), template=template, replicas=1, suffix=suffix, start=start)
        assert built["spec"]["ordinals"] == {"start": start}
        assert built["metadata"]["name"] == names.statefulset("flights", suffix)
        assert built["metadata"]["labels"] == plain["metadata"]["labels"]
        assert built["spec"]["selector"] == plain["spec"]["selector"]
        assert built["spec"]["serviceName"] == "flights"


def test_a_former_template_can_be_put_back() -> None:
    old = revision(group(), worker_image="old:1").template
    built = statefulset(group(), template=old, replicas=2)
    assert built["spec"]["template"] == old
    assert template_hash(built["spec"]["template"]) == old["metadata"]["labels"][names.REVISION_LABEL]
    assert template_hash({}) == ""


def test_a_pod_is_what_restricted_pod_security_wants() -> None:
    spec = revision(group(), worker_image=IMAGE).template["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    (worker,) = spec["containers"]
    assert worker["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = [mount["mountPath"] for mount in worker["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["/tmp"]


def test_a_worker_that_is_back_is_known_to_be_within_a_second() -> None:
    (worker,) = revision(group(), worker_image=IMAGE).template["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe"):
        assert worker[probe]["periodSeconds"] == 1
        assert "initialDelaySeconds" not in worker[probe]
    assert worker["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert worker["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_a_preflight_is_one_worker_that_serves_nothing_and_ends() -> None:
    sidecar = {"name": "agent", "image": "agent:1"}
    template = {"spec": {"containers": [sidecar], "initContainers": [{"name": "wait", "image": "wait:1"}]}}
    made_for = group(**{"spec/template": template, "spec/rollout/preflight/timeout": "90s"})
    made = revision(made_for, worker_image=IMAGE)
    job = preflight_job(made_for, made)
    pod = job["spec"]["template"]["spec"]
    assert [container["name"] for container in pod["containers"]] == ["worker"]
    assert [container["name"] for container in pod["initContainers"]] == ["wait"]
    worker = pod["containers"][0]
    assert worker["command"][-1] == "--preflight"
    assert not {"livenessProbe", "readinessProbe", "startupProbe", "ports"} & worker.keys()
    assert pod["restartPolicy"] == "Never"
    assert (job["spec"]["backoffLimit"], job["spec"]["activeDeadlineSeconds"]) == (0, 90)
    assert pod["volumes"] == made.template["spec"]["volumes"]
    assert [container["name"] for container in made.template["spec"]["containers"]] == ["worker", "agent"]


@pytest.mark.parametrize(
    "built",
    [by_kind()["StatefulSet"], by_kind()["Job"], rewind()],
    ids=lambda built: built["metadata"]["name"],
)
def test_kubectl_logs_shows_the_worker_whatever_an_injector_adds(built: dict[str, Any]) -> None:
    annotations = built["spec"]["template"]["metadata"]["annotations"]
    assert annotations["kubectl.kubernetes.io/default-container"] == "worker"


def test_the_budget_lets_a_broken_worker_go() -> None:
    built = disruption_budget(group(), max_unavailable=0)
    assert built["spec"]["maxUnavailable"] == 0
    assert built["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_what_is_built_can_be_written_and_is_the_same_each_time() -> None:
    assert names.short_hash(everything()) == names.short_hash(everything())
