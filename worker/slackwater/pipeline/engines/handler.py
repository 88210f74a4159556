"""Loads a handler (``module:function``).

An error while loading is one line that says what is wrong.
"""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from slackwater.runtime.errors import HandlerLoadError

Handler = Callable[..., Any]
"""Takes and returns a Spark DataFrame or a ``pyarrow.Table``, or takes records and gives rows, as the engine
has it. A second parameter is for the :class:`slackwater.Batch`."""

_INSTALLED = frozenset(("site-packages", "dist-packages"))
log = logging.getLogger(__name__)


def load(spec: str, path: Sequence[str] = (), what: str = "handler") -> Handler:
    """The function that ``spec`` (``module:function``) names. ``what``: what it is, for errors.

    The folders ``path`` are put first on ``sys.path``, in their order, and stay there, because the
    handler may import more later. Raises HandlerLoadError.
    """
    name, _, function = spec.partition(":")
    if not name or not function:
        raise HandlerLoadError(f"{what} {spec!r}: write it as module:function")
    folders = [str(Path(folder).resolve()) for folder in path]
    for folder in folders:
        if not Path(folder).is_dir():
            raise HandlerLoadError(f"{what} {spec}: {folder} in handlerPath is not a folder")
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    module = _import(f"{what} {spec}", name, folders)
    handler = getattr(module, function, None)
    if not callable(handler):
        raise HandlerLoadError(f"{what} {spec}: {_no_function(module, function)}")
    return handler  # type: ignore[no-any-return]  # what it takes and gives shows in warm-up


def modules_in(path: Sequence[str]) -> list[ModuleType]:
    """The modules that were imported from these folders, without installed packages below them."""
    folders = [Path(folder).resolve() for folder in path]

    def is_inside(file: Path) -> bool:
        inside = [file.relative_to(folder) for folder in folders if file.is_relative_to(folder)]
        return any(not _INSTALLED.intersection(below.parts) for below in inside)

    files = ((module, getattr(module, "__file__", None)) for module in list(sys.modules.values()))
    return [module for module, file in files if file and is_inside(Path(file).resolve())]


def _import(loaded: str, name: str, folders: Sequence[str]) -> ModuleType:
    """The module ``name``. ``loaded``: what is loaded from it, for errors."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        parts = name.split(".")
        if exc.name in {".".join(parts[:n]) for n in range(1, len(parts) + 1)}:
            searched = ", ".join(folders) or "no handlerPath is set"
            raise HandlerLoadError(
                f"{loaded}: no module {exc.name} in handlerPath ({searched}) nor in Python's own path"
            ) from None
        raise _failed(loaded, exc) from exc
    except BaseException as exc:  # also SystemExit: a module that calls exit() is no handler
        if isinstance(exc, KeyboardInterrupt):
            raise
        raise _failed(loaded, exc) from exc


def _failed(loaded: str, exc: BaseException) -> HandlerLoadError:
    log.error("importing the %s failed", loaded, exc_info=exc)
    if isinstance(exc, SyntaxError):
        return HandlerLoadError(f"{loaded}: {exc.filename} line {exc.lineno}: {exc.msg}")
    return HandlerLoadError(f"{loaded}: importing it raised {describe(exc)}")


def _no_function(module: ModuleType, name: str) -> str:
    where = f"{module.__name__} ({getattr(module, '__file__', None) or 'a namespace package'})"
    if hasattr(module, name):
        return f"{name} in {where} is no function but {type(getattr(module, name)).__name__}"
    functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    close = get_close_matches(name, functions, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{where} has no function {name}{hint}"


def describe(exc: BaseException) -> str:
    """Type, first line of the message, and the innermost line of the user's code: one line."""
    text = str(exc).strip().splitlines()
    frames = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith(str(Path(__file__).parent))
    ]
    outside = [frame for frame in frames if not _of_a_library(frame.filename)] or frames
    where = f" ({outside[-1].filename} line {outside[-1].lineno})" if outside else ""
    return f"{type(exc).__name__}{': ' + text[0] if text else ''}{where}"


def _of_a_library(file: str) -> bool:
    """Whether ``file`` is an installed package's, or of code that Cython has compiled, such as Arrow's."""
    return "site-packages" in file or file.endswith((".pyx", ".pxi"))
