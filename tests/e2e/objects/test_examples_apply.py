"""Each example is applied to a real API server, and all that the operator would make of it is taken, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

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


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_an_example_is_accepted_unchanged(control_plane: ControlPlane, home: str, file: Path) -> None:
    warnings: list[str] = []
    kept = control_plane.api.try_out(home, yaml.safe_load(file.read_text()), warnings=warnings)
    assert warnings == []
    assert parse(kept).spec == load(file).spec


def test_kubectl_applies_an_example_and_finds_it_unchanged(control_plane: ControlPlane, home: str) -> None:
    command = ("apply", "-n", home, "-f", str(FILES[0]))
    name = f"consumergroup.slackwater.dev/{load(FILES[0]).name}"
    assert control_plane.kubectl(*command) == f"{name} created\n"
    assert control_plane.kubectl(*command) == f"{name} unchanged\n"
    control_plane.kubectl("delete", "-n", home, "-f", str(FILES[0]))


@pytest.mark.parametrize("file", ON_KUBERNETES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_objects_built_from_an_example_are_accepted(
    control_plane: ControlPlane, home: str, file: Path
) -> None:
    group = parse(control_plane.api.try_out(home, yaml.safe_load(file.read_text())))
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
    for document in documents:
        control_plane.api.apply(home, document, dry_run=True)
