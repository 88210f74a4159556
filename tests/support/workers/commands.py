"""Commands of ``slackwater`` in this process: what a test of their answers needs no process for."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

from slackwater import cli


class Terminal(io.StringIO):
    """What a program takes for a terminal."""

    def isatty(self) -> bool:
        return True


def run_command(folder: Path, *words: str, terminal: bool = False) -> CompletedProcess[str]:
    """Runs ``slackwater WORDS``; handlers that it loads are modules below ``folder``."""
    return run(folder, lambda: cli.main([*words]), Terminal() if terminal else io.StringIO())


def run(folder: Path, main: Callable[[], int], output: io.StringIO | None = None) -> CompletedProcess[str]:
    """Runs ``main`` as in a process of its own: no module below ``folder`` is loaded before it, or after."""
    output, errors = output or io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), _own_modules(folder):
        try:
            code = main()
        except SystemExit as exc:  # argparse's
            code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    return CompletedProcess([], code, output.getvalue(), errors.getvalue())


@contextlib.contextmanager
def _own_modules(folder: Path) -> Iterator[None]:
    importlib.invalidate_caches()
    path, handlers = [*sys.path], [*logging.root.handlers]
    try:
        yield
    finally:
        sys.path[:], logging.root.handlers[:] = path, handlers
        for name, module in [*sys.modules.items()]:
            file = getattr(module, "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[name]
