"""helm 4 waits for a ConsumerGroup as it does for a Deployment, and kstatus' own library says the same."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pytest
import yaml

from tests.support.controlplane import CRASHES, CommandFailed, ControlPlane, build, until
from tests.support.controlplane.api import Json
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group
from tests.support.waiting import HANG_S

pytestmark = [pytest.mark.controlplane, pytest.mark.parts("kstatus"), pytest.mark.long]

RELEASE = "flights"


class Release:
    """A release whose chart has one ConsumerGroup."""

    def __init__(self, plane: ControlPlane, namespace: str, chart: Path) -> None:
        self._plane, self._namespace, self._chart = plane, namespace, chart
        (chart / "templates").mkdir(parents=True)
        (chart / "Chart.yaml").write_text("{apiVersion: v2, name: flights, version: 0.1.0}\n")
        (chart / "templates" / "group.yaml").write_text("{{ .Values.group | toYaml }}\n")

    def apply(self, manifest: Json, *arguments: str) -> None:
        """Installs or upgrades it."""
        values = yaml.safe_dump({"group": manifest})
        command = ("upgrade", "--install", RELEASE, str(self._chart), "--namespace", self._namespace)
        self._plane.helm(*command, "--values", "-", *arguments, stdin=values, timeout_s=HANG_S)

    def wait(self, manifest: Json) -> None:
        """The same, and waits until it is ready. Raises :class:`CommandFailed`."""
        self.apply(manifest, "--wait", "--timeout", f"{HANG_S:.0f}s")


@contextmanager
def watched(plane: ControlPlane, group: Group, out: Path) -> Iterator[None]:
    """Writes what kstatus makes of each version of the resource."""
    command = ("get", "cg", group.name, "--namespace", group.site.namespace, "-w", "-o", "json")
    env = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
    with (
        out.open("w") as file,
        subprocess.Popen([build.kubectl(), *command], env=env, stdout=subprocess.PIPE) as watch,
        subprocess.Popen([build.kstatus()], stdin=watch.stdout, stdout=file) as printer,
    ):
        try:
            yield
        finally:
            watch.terminate()
            printer.wait(HANG_S)


def statuses(out: Path) -> list[str]:
    """Those that were said, without repetitions."""
    return [status for status, _ in groupby(line.split("\t")[0] for line in out.read_text().splitlines())]


def images(group: Group) -> list[str]:
    """What the pods run."""
    return [pod["spec"]["containers"][0]["image"] for pod in group.pods()]


def test_helm_waits_until_a_group_is_rolled_out(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str, tmp_path: Path
) -> None:
    out = tmp_path / "kstatus"
    with ClusterSite(control_plane, kafka, namespace) as site:
        name = f"waits-{namespace}"
        site.make_topic(name, 2)
        release = Release(control_plane, namespace, tmp_path / "chart")
        manifest = site.manifest(name, replicas=1, rollout={"strategy": "Restart"})
        release.apply(manifest)
        group = Group(site, name, 2, site.folder / f"sink-{name}")
        with watched(control_plane, group, out):
            until(lambda: statuses(out) == ["InProgress"], "kstatus of a group without an operator")
            with site.operator():
                release.wait(manifest)
                assert images(group) == [site.image("v1")]
                manifest["spec"]["pipeline"]["image"] = site.image("v2")
                release.wait(manifest)
                assert images(group) == [site.image("v2")]
                manifest["spec"]["suspend"] = True
                release.wait(manifest)
                assert group.pods() == []
                manifest["spec"].update(suspend=False)
                manifest["spec"]["pipeline"]["image"] = site.push("crashes", CRASHES)
                with pytest.raises(CommandFailed, match="Failed.*preflight"):
                    release.wait(manifest)
        assert statuses(out) == [*["InProgress", "Current"] * 3, "InProgress", "Failed"]
