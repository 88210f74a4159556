"""What `mkdocs build` does besides rendering pages: links out of docs/, the changelog, scripts and styles.

On GitHub a page links to files of the repository (`../../examples/README.md`). The site has only docs/, so
these links become URLs below the repository's address. The theme must not know it as `repo_url`: its script
would ask the API of github.com for stars.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools.addresses import REPOSITORY, SITE

ROOT = Path(__file__).parents[2]
STYLE = Path(__file__).with_name("site.css")
DIAGRAMS = ROOT / ".cache" / "docs" / "mermaid.min.js"
RELEASES = "SLACKWATER_DOCS_RELEASES"
"""The environment variable with the tags whose documentation docs.yml puts below this one."""
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_FIRST_CELL = re.compile(r"<tr>\s*<td[^>]*>.*?</td>", re.DOTALL)
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)((?:#[^)\s]*)?\))")


def on_config(config: Any) -> Any:
    """Adds the addresses of the site, of the repository, and below each page of the releases'
    documentation."""
    config.site_url = f"{SITE}/docs/"
    config.nav.append({"Source": REPOSITORY})
    releases = os.environ.get(RELEASES, "").split()
    links = [f'<a href="{config.site_url}{tag.removeprefix("v")}/">{tag}</a>' for tag in releases]
    config.copyright = " ".join(["Documentation of main. Of releases:", *links]) if links else None
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the changelog, the icon, the style, and the script of the diagrams: pages need no other host."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changelog))
    icon = (ROOT / "charts" / "slackwater" / "icon.svg").read_bytes()
    files.append(File.generated(config, "assets/icon.svg", content=icon))
    files.append(File.generated(config, "assets/site.css", content=STYLE.read_bytes()))
    files.append(File.generated(config, "assets/mermaid.min.js", content=DIAGRAMS.read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """The page's text, with links to files outside of docs/ as URLs of the repository.

    In a table GitHub wants `\\|` for a bar inside of code; Python-Markdown would show the backslash.
    """
    folder = Path(config.docs_dir, page.file.src_uri).parent

    def resolve(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / match[2]))
        if target.is_relative_to(config.docs_dir) and not target.is_dir():
            return match[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_uri}: {match[2]} does not exist")
        kind = "tree" if target.is_dir() else "blob"
        return f"{match[1]}{REPOSITORY}/{kind}/main/{target.relative_to(ROOT)}{match[3]}"

    markdown = _ROW.sub(_unescaped, markdown)
    return _LINK.sub(resolve, markdown)


def _unescaped(row: re.Match[str]) -> str:
    return re.sub("`[^`]+`", lambda code: code[0].replace("\\|", "|"), row[0])


def on_page_content(html: str, *, page: Any, config: Any, files: Files) -> str:
    """The page, with a class for names in the first column of tables: they are not to be broken."""
    return _FIRST_CELL.sub(
        lambda cell: re.sub(r"<code>([^<\s]+)</code>", r'<code class="name">\1</code>', cell[0]), html
    )
