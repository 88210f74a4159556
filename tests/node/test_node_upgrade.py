"""From the release before to this one and back on the node: chart, operator's image, workers that go on.

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


def await_others(site: NodeSite, before: dict[str, str]) -> str:
    """Waits for two operators in place of those of before. Returns their image."""
    replaced = until(
        lambda: now if len(now := operators(site)) == 2 and not set(before) & set(now) else None,
        "new operators",
    )
    (image,) = set(replaced.values())
    return image


def test_upgrade_from_the_release_before_and_back(site: NodeSite, report: Report) -> None:
    """`helm upgrade --reuse-values --wait` and `helm rollback`, as upgrade.md has them: first with workers of
    the old release, then with ones of this release whose image goes back before the operator does.
    """
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
        old_image = operator.name.removeprefix("docker.io/")
        assert set(before.values()) == {old_image}
        uids = group.uids()
        restarted: list[bool] = []
        back_ms: list[int] = []

        def upgrade() -> None:
            site.plane.helm(
                "upgrade", "slackwater", str(chart.CHART), "--namespace", NAMESPACE, "--reuse-values",
                "--wait", "--set", f"image.repository={images.REGISTRY}/slackwater/operator",
            )  # fmt: skip
            image = await_others(site, before)
            assert image == f"{images.REGISTRY}/slackwater/operator:{images.VERSION}"
            group.await_condition("RolledOut")
            group.await_settled(2)
            restarted.append(group.uids() != uids)
            group.roll(NEW_IMAGE)  # then the workers' image, by the new operator
            group.await_rolled(NEW_IMAGE, 2)
            group.await_settled(2)

        def go_back() -> None:
            group.roll(workers.name)
            group.await_rolled(workers.name, 2)
            group.await_settled(2)
            after = operators(site)
            site.plane.helm("rollback", "slackwater", "1", "--namespace", NAMESPACE, "--wait")
            assert await_others(site, after) == old_image
            group.await_condition("RolledOut")
            group.await_settled(2)

        def there_and_back() -> None:
            upgrade()
            back_ms.append(now_ms())
            go_back()

        cost = under_load(group, there_and_back)
        assert group.rebalances(since) == 0, group.tell()
        went_on = "restarted once, as the pod template differs" if restarted[0] else "not restarted"
        report.add(
            f"`helm upgrade` from {package.stem} to this chart, the workers' image, and all of it back",
            f"workers {went_on} by the upgrade; {cost}; gaps {seconds(gaps(group, since))}, "
            f"{seconds(gaps(group, back_ms[0]))} on the way back",
        )
