"""The site builds strictly, has every page, and loads nothing from other hosts."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.chromium.browser import browse
from tests.support.docs import site
from tests.support.docs.blocks import ROOT
from tools.addresses import REPOSITORY, SITE

pytestmark = [pytest.mark.parts("docs"), pytest.mark.long]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    site.build(folder)
    return folder


class Loads(HTMLParser):
    """Collects what a browser loads with a page: scripts, styles, pictures, frames."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.loaded.append(given.get("src") or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loaded.append(given.get("href") or "")


def test_every_page_is_there_and_can_be_searched(built: Path) -> None:
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    for page in pages:
        folder = page.parent if page.name == "README.md" else page.with_suffix("")
        assert (built / folder / "index.html").exists(), page
    index = json.loads((built / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert len({entry["location"].split("#")[0] for entry in index["docs"]}) >= len(pages)
    assert any("RolloutRefused" in entry["text"] for entry in index["docs"])


def test_nothing_is_loaded_from_other_hosts(built: Path) -> None:
    for page in built.rglob("*.html"):
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert [target for target in loads.loaded if re.match(r"(https?:)?//", target)] == [], page
    assert (built / "assets" / "mermaid.min.js").stat().st_size > 1_000_000


def test_links_out_of_the_docs_lead_to_the_repository(built: Path) -> None:
    page = (built / "tutorials" / "first-group" / "index.html").read_text(encoding="utf-8")
    assert '/blob/main/examples/README.md"' in page


def test_each_page_leads_to_the_documentation_of_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_DOCS_RELEASES", "v0.2.0 v0.1.0")
    site.build(tmp_path)
    page = (tmp_path / "tutorials" / "first-group" / "index.html").read_text(encoding="utf-8")
    assert f'href="{SITE}/docs/0.2.0/"' in page
    assert "Documentation of main" in page


def test_the_theme_asks_no_host_about_the_repository(built: Path) -> None:
    """A theme that knows the repository asks github.com's API for its stars; the navigation links to it."""
    page = (built / "index.html").read_text(encoding="utf-8")
    assert "md-source" not in page
    assert f'href="{REPOSITORY}"' in page


@pytest.fixture(scope="module")
def served(built: Path) -> Iterator[str]:
    handler = partial(QuietHandler, directory=str(built))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_each_page_whole(built: Path, served: str, tmp_path: Path, width: int) -> None:
    """No page is wider than the window. On a narrow one tables and code scroll by themselves."""
    pages = sorted(page.relative_to(built) for page in built.rglob("index.html"))
    urls = {f"{served}/{page}": tmp_path / f"{'-'.join(page.parent.parts) or 'home'}.png" for page in pages}
    shown = browse(urls, width=width)
    assert len(shown) > 60
    assert {url: page.status for url, page in shown.items() if page.status != 200} == {}
    assert [url for url, page in shown.items() if page.wide] == []
    assert {url: page.problems for url, page in shown.items() if page.problems} == {}
    assert {url: page.broken for url, page in shown.items() if page.broken} == {}
    assert [url for url, page in shown.items() if "\\|" in page.text] == []
    if width == 1280:
        assert {url: page.cut for url, page in shown.items() if page.cut} == {}
