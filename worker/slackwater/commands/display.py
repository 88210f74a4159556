"""Tables and progress: by rich on a terminal, in plain columns and lines elsewhere, which programs can read.

Without rich (the extra ``cli``) a terminal gets the plain form, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from slackwater.tools.record_text import cell, printable, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


def terminal() -> Console | None:
    """The terminal that the standard output is, for rich; None: it is none, or a dumb one, or there is no
    rich."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return None
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return Console(highlight=False, markup=False, emoji=False)


def print_table(names: Sequence[str], rows: Sequence[Sequence[Any]], *, most: int | None = None) -> None:
    """Prints rows beneath the names of their columns. ``most``: characters of a cell; None: the usual."""
    console = terminal()
    if console is None:
        for line in table(names, rows, most=most):
            print(line)
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    for at, name in enumerate(names):
        numbers = all(_is_number(row[at]) for row in rows)
        shown.add_column(Text(printable(name)), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell(value, most=most)) for value in row))
    console.print(shown)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or str(value).replace(",", "").isdecimal() or value == "-"


class ProgressLines:
    """Lines of a long command, and how far it is. On a terminal a bar stays beneath the lines.

    A context manager. ``bar_only``: only a terminal shows how far it is."""

    def __init__(self, *, bar_only: bool = False) -> None:
        self._bar_only = bar_only
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        console = terminal()
        if console is not None:
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}", markup=False),
                console=console,
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, text: str) -> None:
        """Prints a line, at once."""
        if self._progress is not None:
            self._progress.console.print(text, soft_wrap=True)
        else:
            print(text, flush=True)

    def progress(self, done: int, total: int, text: str) -> None:
        """``done`` of ``total`` (0: not known) is done. ``text``: says more; elsewhere than on a terminal it
        is a line."""
        if self._progress is None:
            if not self._bar_only:
                self.say(text if total <= 0 else f"{100 * done // total:3d}%  {text}")
            return
        if self._task is None:
            self._task = self._progress.add_task(text, total=total or None)
        self._progress.update(self._task, completed=done, total=total or None, description=text)
