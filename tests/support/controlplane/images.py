"""What a container image is on this machine: how its container becomes a process.

The test writes the registry's file, the kubelet reads it at each start of a container, so that an image
can be pushed (or broken) while pods run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Image:
    """How a container of this image runs.

    ``entrypoint``, ``command``: what it runs where the container has no ``command``, no ``args``. A program
    is looked up in ``path`` first, then in the kubelet's PATH.
    ``prefix``: goes before the container's whole command line, which it gets as its arguments: the place
    for what crashes, hangs or waits instead (:data:`CRASHES`, :data:`HANGS`).
    ``env``: under the container's own. ``$(POD_IP)``, ``$(POD_NAME)`` and ``$(POD_NAMESPACE)`` are filled in.
    ``pull_ms``: how long its pull takes, once a node. ``missing``: the pull fails (ErrImagePull).
    """

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    prefix: Sequence[str] = ()
    path: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    pull_ms: int = 0
    missing: bool = False

    def argv(self, command: Sequence[str], args: Sequence[str]) -> list[str]:
        """The command line of a container, by Kubernetes' table of command, args, ENTRYPOINT and CMD."""
        if command:
            return [*self.prefix, *command, *args]
        return [*self.prefix, *self.entrypoint, *(args or self.command)]


CRASHES = ("sh", "-c", 'echo "boom: $*" >&2; exit 3', "sh")
"""A prefix: ends with exit code 3 at once."""

HANGS = ("sh", "-c", "trap '' TERM; while :; do sleep 1; done", "sh")
"""A prefix: does nothing, and ignores SIGTERM."""


def unless(argument: str, prefix: Sequence[str]) -> tuple[str, ...]:
    """``prefix`` but for command lines that have ``argument``, which run as they are.

    ``unless("--preflight", CRASHES)`` is an image that passes its preflight and crashes then.
    """
    script = (
        'no=$1; n=$2; shift 2; for a in "$@"; do'
        ' if [ "$a" = "$no" ]; then shift "$n"; exec "$@"; fi; done; exec "$@"'
    )
    return ("sh", "-c", script, "sh", argument, str(len(prefix)), *prefix)


def this_checkout(program: str = "slackwater", **env: str) -> Image:
    """The programs of this checkout's environment, ``program`` where the container names none."""
    return Image(
        path=[str(Path(sys.executable).parent)],
        env={"PYTHONUNBUFFERED": "1", "PYTHONPATH": f"{ROOT}/worker:{ROOT}/operator", **env},
        entrypoint=[program],
    )


BUILT_IN: Mapping[str, Image] = {
    "*": Image(),
    "*slackwater/worker:*": this_checkout(),
    "*slackwater/operator:*": this_checkout("slackwater-operator"),
    "*slackwater-worker:*": this_checkout(),
    "*slackwater-operator:*": this_checkout("slackwater-operator"),
}
"""By pattern of the image's name, the later before the earlier. ``*``: whatever the container's command
names, run from the PATH (``busybox``)."""


class ImageRegistry:
    """Patterns of image names (``fnmatch``) and their images, in a file that the kubelet reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._images = dict(BUILT_IN)
        self._write()

    def push(self, pattern: str, image: Image) -> None:
        """From now on containers of images that match ``pattern`` run as ``image``."""
        self._images.pop(pattern, None)
        self._images[pattern] = image
        self._write()

    def remove(self, pattern: str) -> None:
        """Takes back a push."""
        self._images.pop(pattern)
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".new")
        unfinished.write_text(json.dumps({name: asdict(image) for name, image in self._images.items()}))
        unfinished.replace(self._path)


def find_image(path: Path, name: str) -> Image:
    """The image called ``name`` by the registry's file: the latest pattern that matches."""
    images: dict[str, dict[str, object]] = json.loads(path.read_text())
    for pattern in reversed(images):
        if fnmatchcase(name, pattern):
            return Image(**images[pattern])  # type: ignore[arg-type]
    return Image(missing=True)
