"""HTML pages without scripts: headings, facts and tables. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from slackwater.times import moment

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Go with each page: a browser loads and runs nothing else."""
CONTENT_TYPE = "text/html; charset=utf-8"
REFRESH_S = 5
MOST_ROWS = 1_000
"""A table has at most so many rows; a line says how many more there are."""

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--dim:#777;--well:#1a7f37;--bad:#c9252d;--busy:#9a6700}
body{font:14px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:72rem;padding:0 1rem}
h1{font-size:1.35rem;margin:0}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
p{margin:.3rem 0}.dim{color:var(--dim)}.well{color:var(--well)}.bad{color:var(--bad)}.busy{color:var(--busy)}
.scroll{overflow-x:auto}table{border-collapse:collapse;min-width:50%}
th,td{text-align:left;padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--dim);font-weight:500;white-space:nowrap}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
a{color:inherit}
"""


@dataclass(frozen=True)
class Text:
    """A text. ``tone``: ``well``, ``bad``, ``busy``, ``dim`` or "". ``link``: a path on this server; "":
    none."""

    text: str
    tone: str = ""
    link: str = ""

    def html(self) -> str:
        """The text, escaped."""
        inner = escape(self.text)
        if self.link:
            inner = f'<a href="{escape(self.link)}">{inner}</a>'
        return f'<span class="{self.tone}">{inner}</span>' if self.tone else inner


Cell = str | int | Text | None
"""None: not known."""


@dataclass(frozen=True)
class Section:
    """A part of a page: a heading and its HTML."""

    heading: str
    html: str


def paragraphs(heading: str, lines: Iterable[Text | str]) -> Section:
    """A section of one paragraph a line."""
    return Section(heading, "".join(f"<p>{_html(line)}</p>" for line in lines))


def facts(heading: str, pairs: Mapping[str, Cell]) -> Section:
    """A section of names and their values."""
    rows = "".join(f"<tr><th>{escape(name)}</th>{_cell(value)}</tr>" for name, value in pairs.items())
    return Section(heading, f'<div class="scroll"><table>{rows}</table></div>')


def table(heading: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Section:
    """A section of one table; a line instead where there are no ``rows``. A column whose cells are all whole
    numbers, or not known, is aligned to the right."""
    if not rows:
        return paragraphs(heading, [Text("none", "dim")])
    numbers = [_is_of_numbers([row[column] for row in rows]) for column in range(len(columns))]
    head = "".join(
        f'<th class="number">{escape(name)}</th>' if number else f"<th>{escape(name)}</th>"
        for name, number in zip(columns, numbers, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(_cell(cell, number) for cell, number in zip(row, numbers, strict=True)) + "</tr>"
        for row in rows[:MOST_ROWS]
    )
    more = f'<p class="dim">and {len(rows) - MOST_ROWS:,} more</p>' if len(rows) > MOST_ROWS else ""
    return Section(heading, f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>{more}')


def page(title: str, lead: Iterable[Text | str], sections: Iterable[Section], now_ms: int) -> bytes:
    """The page. ``lead``: paragraphs below the title. ``now_ms``: wall clock. It loads itself again every
    ``REFRESH_S``."""
    parts = "".join(
        f"<section><h2>{escape(section.heading)}</h2>{section.html}</section>" for section in sections
    )
    lines = "".join(f"<p>{_html(line)}</p>" for line in lead)
    head = (
        f'<meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}"><style>{_STYLE}</style>'
    )
    foot = f'<p class="dim">As of {moment(now_ms)}. This page changes nothing.</p>'
    body = f"<h1>{escape(title)}</h1>{lines}{parts}{foot}"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'.encode()


def path_of(*parts: str) -> str:
    """A path on this server of these names."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _is_of_numbers(cells: Sequence[Cell]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(isinstance(cell, int) for cell in known)


def _html(line: Text | str) -> str:
    return line.html() if isinstance(line, Text) else escape(line)


def _cell(cell: Cell, number: bool = False) -> str:
    if cell is None:
        return '<td class="dim number">unknown</td>' if number else '<td class="dim">unknown</td>'
    if isinstance(cell, int):
        return f'<td class="number">{cell:,}</td>' if number else f"<td>{cell:,}</td>"
    return f"<td>{_html(cell)}</td>"
