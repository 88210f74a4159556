"""Each example is applied to a real API server, and all that the operator would make of it is taken, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater_operator.api.v1alpha1.consumer_group import load, parse
from slackwater_operator.specs.preflight_job import preflight_job
from slackwater_operator.specs.statefulset import revision, statefulset
from slackwater_operator.specs.supporting_objects import disruption_budget, service, service_account
from slackwater_operator.specs.worker_config import takeover_secret
from tests.support.controlplane import ControlPlane

pytestmark = pytest.mark.controlplane

EXAMPLES = Path(__file__).parents[3] / "examples"
FILES = sorted(EXAMPLES.glob("*/*.yaml"))
ON_KUBERNETES = [file for file in FILES if file.name != "consumergroup.yaml"]


@pytest.fixture(scope="module")
def home(api_server: ControlPlane) -> Iterator[str]:
    with api_server.namespace(pod_security="restricted") as name:
        yield name


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_an_example_is_accepted_unchanged(api_server: ControlPlane, home: str, file: Path) -> None:
    output = api_server.kubectl("apply", "-n", home, "-f", str(file))
    group = load(file)
    assert f"consumergroup.slackwater.dev/{group.name} created" in output
    assert "Warning" not in output
    kept = json.loads(api_server.kubectl("get", "cg", group.name, "-n", home, "-o", "json"))
    assert parse(kept).spec == group.spec
    assert "unchanged" in api_server.kubectl("apply", "-n", home, "-f", str(file))
    api_server.kubectl("delete", "-n", home, "-f", str(file))


@pytest.mark.parametrize("file", ON_KUBERNETES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_objects_built_from_an_example_are_accepted(api_server: ControlPlane, home: str, file: Path) -> None:
    name = load(file).name
    api_server.kubectl("apply", "-n", home, "-f", str(file))
    group = parse(json.loads(api_server.kubectl("get", "cg", name, "-n", home, "-o", "json")))
    made = revision(group, worker_image="slackwater/worker:1")
    documents = [
        made.config_map,
        service_account(group),
        service(group),
        statefulset(group, template=made.template, replicas=group.initial_replicas),
        disruption_budget(group, max_unavailable=1),
        preflight_job(group, made),
    ]
    if group.spec.rollout.takes_over:
        for suffix, start in (("a", 0), ("b", 2)):
            documents.append(
                statefulset(group, template=made.template, replicas=1, suffix=suffix, start=start)
            )
        documents.append(takeover_secret(group, "0f" * 32))
    output = api_server.kubectl(
        "apply",
        "--server-side",
        "--dry-run=server",
        "-f",
        "-",
        stdin="\n---\n".join(map(json.dumps, documents)),
    )
    assert output.count("serverside-applied (server dry run)") == len(documents)
    api_server.kubectl("delete", "-n", home, "-f", str(file))
