"""From the release before to this one on the node: chart, operator's image, workers that go on.

Comes last: it uninstalls the chart that the other tests use.
"""

from __future__ import annotations

import pytest

from tests.node.conftest import NAMESPACE, Report
from tests.node.scenarios import NEW_IMAGE, gaps, seconds, settled, under_load
from tests.support.controlplane import path_of, until
from tests.support.node import images
from tests.support.node.site import NodeSite
from tests.support.operator import chart
from tests.support.site import now_ms

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

CRD = "consumergroups.slackwater.dev"


def operators(site: NodeSite) -> dict[str, str]:
    """The image of each operator's pod."""
    pods = site.plane.api.list(path_of("v1", "pods", NAMESPACE))
    return {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in pods}


def test_upgrade_from_the_release_before(site: NodeSite, report: Report) -> None:
    """`helm upgrade --reuse-values --wait`, as upgrade.md has it, with workers of the old release."""
    operator, workers = images.previous()
    (package,) = images.RELEASED.glob("*.tgz")
    site.node.load(operator, workers)
    site.plane.helm("uninstall", "slackwater", "--namespace", NAMESPACE, "--wait")
    site.plane.kubectl("delete", "crd", CRD, "--ignore-not-found", "--wait", "--timeout=140s")
    site.plane.helm("install", "slackwater", str(package), "--namespace", NAMESPACE, "--wait")
    site.plane.await_definition(CRD)
    manifest = site.manifest("orders/takeover.yaml", "upgraded", replicas=2, rollout={"strategy": "Restart"})
    manifest["spec"]["pipeline"]["image"] = workers.name
    with settled(site, manifest, 2) as group:
        before, since = operators(site), now_ms()
        assert set(before.values()) == {operator.name.removeprefix("docker.io/")}
        uids = group.uids()
        restarted: list[bool] = []

        def upgrade() -> None:
            site.plane.helm(
                "upgrade", "slackwater", str(chart.CHART), "--namespace", NAMESPACE, "--reuse-values",
                "--wait", "--set", f"image.repository={images.REGISTRY}/slackwater/operator",
            )  # fmt: skip
            until(
                lambda: len(operators(site)) == 2 and not set(before) & set(operators(site)), "new operators"
            )
            group.await_condition("RolledOut")
            group.await_settled(2)
            restarted.append(group.uids() != uids)
            group.roll(NEW_IMAGE)  # then the workers' image, by the new operator
            group.await_rolled(NEW_IMAGE, 2)
            group.await_settled(2)

        cost = under_load(group, upgrade)
        after = set(operators(site).values())
        assert after == {f"{images.REGISTRY}/slackwater/operator:{images.VERSION}"}, after
        assert group.rebalances(since) == 0, group.tell()
        went_on = "restarted once, as the pod template differs" if restarted[0] else "not restarted"
        report.add(
            f"`helm upgrade` from {package.stem} to this chart, then the workers' image",
            f"workers {went_on} by the upgrade; {cost}; gaps {seconds(gaps(group, since))}",
        )
