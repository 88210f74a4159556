"""Pages in a headless Chromium, which comes with the renderer of the dashboards."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.chromium.grafana import DRAW_TIMEOUT_S, DrawingFailed, program, renderer

SCRIPT = Path(__file__).with_name("browse.js")


@dataclass(frozen=True)
class Page:
    """A page as the browser shows it.

    Attributes:
        status: of the response.
        title: the document's.
        text: what is visible.
        links: the targets of its links.
        wide: whether it is wider than the window.
        cut: the first lines of blocks of code that do not fit in.
        broken: names in the first column of tables that are broken into several lines.
        problems: what the browser complains of.
    """

    status: int
    title: str
    text: str
    links: list[str]
    wide: bool
    cut: list[str]
    broken: list[str]
    problems: list[str]


def browse(urls: Mapping[str, Path], *, width: int = 1280) -> dict[str, Page]:
    """Opens each URL in a window that is `width` pixels wide, and takes a picture of it into its file.

    Raises:
        GrafanaUnavailable: there is no browser, and none can be made.
        DrawingFailed: a page could not be opened.
    """
    folder = renderer()
    request = [{"url": url, "out": str(out), "width": width} for url, out in urls.items()]
    with tempfile.TemporaryDirectory() as scratch:
        asked = Path(scratch) / "request.json"
        asked.write_text(json.dumps(request), encoding="utf-8")
        done = subprocess.run(
            [program("node"), str(SCRIPT), str(asked)],
            # Chromium is unpacked into the folder for temporary files, once.
            env={**os.environ, "TMPDIR": str(folder / "tmp"), "NODE_PATH": str(folder / "node_modules")},
            capture_output=True,
            text=True,
            timeout=DRAW_TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise DrawingFailed(done.stderr[-3000:])
    pages: list[dict[str, Any]] = json.loads(done.stdout)
    return {url: Page(**page) for url, page in zip(urls, pages, strict=True)}
