"""The chart as it is published: with the repository's address, the images of the release, and its changes."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.controlplane import build
from tools.release import project
from tools.release.changelog import Section
from tools.release.commands import run

IMAGES = {"operator": "", "worker": "", "worker-delta": "-delta", "worker-spark": "-spark"}
"""Image -> what follows the version in its tag."""
_IMAGE = re.compile(r"(?<![\w./-])slackwater/(operator|worker)(?![\w/-])")


@dataclass(frozen=True)
class Publication:
    """Where a release goes.

    `repository` and `site` are addresses without a slash at the end; `registry` is the registry with the
    namespace, such as `ghcr.io/acme`. Empty: the images are named without one.
    """

    repository: str = project.REPOSITORY
    site: str = project.SITE
    registry: str = ""

    def image(self, name: str) -> str:
        """The repository of an image: of `operator` or `worker`."""
        return f"{self.registry}/slackwater/{name}" if self.registry else f"slackwater/{name}"


def stage(target: Path, publication: Publication, section: Section) -> Path:
    """Copies the chart into `target`, fills in what depends on the release, and returns the copy's path.

    Source: https://artifacthub.io/docs/topics/annotations/helm for the annotations.
    """
    staged = target / project.CHART.name
    shutil.copytree(project.CHART, staged)
    for name in ("values.yaml", "files/defaults.yaml", "README.md", "Chart.yaml"):
        path = staged / name
        path.write_text(
            published(path.read_text(encoding="utf-8"), publication, section.version), encoding="utf-8"
        )
    path = staged / "Chart.yaml"
    metadata: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    metadata["annotations"] |= {
        "artifacthub.io/changes": _yaml(section.changes),
        "artifacthub.io/images": _yaml(
            [
                {"name": name, "image": f"{publication.image(name.split('-')[0])}:{section.version}{suffix}"}
                for name, suffix in IMAGES.items()
            ]
        ),
    }
    path.write_text(_yaml(metadata), encoding="utf-8")
    return staged


def published(text: str, publication: Publication, version: str) -> str:
    """A file's text with a publication's addresses and images, its links into the repository absolute."""
    text = text.replace("](../../", f"]({publication.repository}/blob/v{version}/")
    text = text.replace(project.REPOSITORY, publication.repository).replace(project.SITE, publication.site)
    return _IMAGE.sub(lambda match: publication.image(match[1]), text)


def package(staged: Path, target: Path) -> Path:
    """Lints the chart strictly and writes its package into the folder `target`; returns the package's path.

    Raises :class:`ReleaseProblem`.
    """
    run([build.helm(), "lint", "--strict", staged])
    said = run([build.helm(), "package", staged, "--destination", target])
    return Path(said.rsplit(": ", 1)[1].strip())


def push_and_pull(packaged: Path, registry: str, scratch: Path) -> str:
    """Pushes the package to an OCI registry on loopback, pulls it back, and renders what came.

    Args:
        packaged: the chart's package.
        registry: `HOST:PORT`, without TLS.
        scratch: an empty folder.

    Returns:
        The digest under which the registry has it.

    Raises:
        ReleaseProblem: what came back is not what was pushed.
    """
    place = f"oci://{registry}/charts"
    name, _, version = packaged.name.removesuffix(".tgz").partition("-")
    source = [f"{place}/{name}", "--version", version, "--plain-http"]
    said = run([build.helm(), "push", packaged, place, "--plain-http"])
    run([build.helm(), "pull", *source, "--destination", scratch])
    pulled = scratch / packaged.name
    if pulled.read_bytes() != packaged.read_bytes():
        raise project.ReleaseProblem(f"the registry returns other bytes than {packaged}; look at its log")
    run([build.helm(), "template", "sw", *source, "--namespace", "slackwater"])
    digest = re.search(r"sha256:[0-9a-f]{64}", said)
    if digest is None:
        raise project.ReleaseProblem(f"helm push stated no digest: {said}")
    return digest[0]


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=110)
