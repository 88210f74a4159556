"""How a handler is called, and the functions that its module may define beside it: ``setup`` and ``refresh``.

Both take the SparkSession, or None with the engines ``arrow`` and ``python``, and their result is not used.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from slackwater.handler import Batch
from slackwater.pipeline.engines.handler import Handler, describe, load
from slackwater.runtime.errors import (
    HandlerLoadError,
    HandlerSetupError,
    StartError,
    WorkerError,
    is_transient,
)

Hook = Callable[[Any], object]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedHandler:
    """A handler and its module's hooks. ``call``: takes the records and the batch that they are of.
    ``refresh``: None where it is not to be called."""

    function: Handler
    call: Callable[[Any, Batch], Any]
    setup: Hook | None = None
    refresh: Hook | None = None

    @property
    def is_async(self) -> bool:
        """Whether it is a coroutine function, which is called for each record."""
        return inspect.iscoroutinefunction(_innermost(self.function))


def load_handler(
    spec: str, path: Sequence[str] = (), *, function: Handler | None = None, refreshes: bool = False
) -> LoadedHandler:
    """The handler ``spec`` and the hooks of its module.

    ``function``: the handler itself, for a caller that has it; the hooks are those of the module that defines
    it. ``refreshes``: whether the module must have ``refresh``. Raises HandlerLoadError.
    """
    if function is None:
        function = load(spec, path)
        module = sys.modules.get(spec.partition(":")[0])
    else:
        module = sys.modules.get(getattr(_innermost(function), "__module__", None) or "")
    call = _call_of(function, spec)
    setup = _hook(module, "setup", spec)
    if not refreshes:
        return LoadedHandler(function, call, setup)
    refresh = _hook(module, "refresh", spec)
    if refresh is None:
        raise HandlerLoadError(
            f"handler {spec}: refreshEvery is set, and {_file(module)} has no function refresh; define "
            "refresh(spark) there, or remove spec.pipeline.refreshEvery (refreshEveryMs in the worker's file)"
        )
    return LoadedHandler(function, call, setup, refresh)


def refuse_async(handler: LoadedHandler, spec: str) -> None:
    """Raises HandlerLoadError for a coroutine function."""
    if handler.is_async:
        raise HandlerLoadError(
            f"handler {spec} is a coroutine function (async def), which only the engine python calls: write "
            "it as def, or set engine to python"
        )


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function)


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _call_of(function: Callable[..., Any], spec: str) -> Callable[[Any, Batch], Any]:
    """Calls ``function`` with the batch, too, if it has a second parameter that must be given, or one named
    ``batch``. Raises HandlerLoadError for a function that cannot be called so."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function that is written in C
        return lambda given, batch: function(given)
    parameters = signature.parameters.values()
    second = [parameter for parameter in parameters if parameter.kind in _BY_POSITION][1:2]
    by_name = any(
        parameter.name == "batch" and parameter.kind is inspect.Parameter.KEYWORD_ONLY
        for parameter in parameters
    )
    with_batch = any(p.default is inspect.Parameter.empty or p.name == "batch" for p in second)
    try:
        if by_name:
            signature.bind(None, batch=None)
            return lambda given, batch: function(given, batch=batch)
        if with_batch:
            signature.bind(None, None)
            return function
        signature.bind(None)
    except TypeError as exc:
        raise HandlerLoadError(
            f"handler {spec} has the parameters {signature}: {exc}; it is called with the records and, if it "
            "has a second parameter, with their slackwater.Batch"
        ) from None
    return lambda given, batch: function(given)


def _hook(module: ModuleType | None, name: str, spec: str) -> Hook | None:
    hook = getattr(module, name, None)
    if hook is None:
        return None
    where = f"handler {spec}: {name} in {_file(module)}"
    as_it_should = f"write it as def {name}(spark), or give it another name"
    if not callable(hook):
        raise HandlerLoadError(f"{where} is no function but {type(hook).__name__}; {as_it_should}")
    if (
        inspect.iscoroutinefunction(hook)
        or inspect.isgeneratorfunction(hook)
        or inspect.isasyncgenfunction(hook)
    ):
        raise HandlerLoadError(
            f"{where} is a coroutine or generator function, so that a call runs none of it; {as_it_should}"
        )
    try:
        signature = inspect.signature(hook)
    except ValueError:  # of a function that is written in C
        return hook  # type: ignore[no-any-return]
    try:
        signature.bind(None)
    except TypeError as exc:
        raise HandlerLoadError(
            f"{where} is {name}{signature}, and is called with one argument, the SparkSession or None: "
            f"{exc}; {as_it_should}"
        ) from None
    return hook  # type: ignore[no-any-return]


def _file(module: ModuleType | None) -> str:
    if module is None:
        return "its module"
    return f"{module.__name__} ({getattr(module, '__file__', None) or 'no file'})"


def setup_failure(spec: str, exc: BaseException, text: str = "") -> WorkerError:
    """The error to raise for what ``setup`` has raised: StartError where another try may pass.

    ``text``: of ``exc`` in one line; "": its type, message and line.
    """
    if isinstance(exc, WorkerError):
        return exc
    log.error("setup of the handler %s failed", spec, exc_info=exc)
    kind = StartError if is_transient(exc) else HandlerSetupError
    return kind(f"setup of the handler {spec} failed: {text or describe(exc)}")
