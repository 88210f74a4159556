"""What the interceptors of consumers and producers have in common: how they are named, checked and called."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.java_names import PythonName

log = logging.getLogger(__name__)

T = TypeVar("T")


def check_interceptors(given: Any, methods: Sequence[str]) -> None:
    """Raises :class:`KafkaConfigurationError` for what has none of these methods, as far as that can be known
    before the names of Python are loaded."""
    if isinstance(given, str):
        raise KafkaConfigurationError(f"interceptor_classes must be a list, not {given!r}")
    for interceptor in map(named_interceptor, given):
        if isinstance(interceptor, PythonName):
            continue
        if isinstance(interceptor, str):
            raise KafkaConfigurationError(
                f"interceptor.classes: {interceptor!r} names a Java class; name one of Python as module:Class"
            )
        if not any(callable(getattr(interceptor, method, None)) for method in methods):
            wanted = " nor ".join(f"{method}()" for method in methods)
            raise KafkaConfigurationError(f"interceptor_classes: {interceptor!r} has neither {wanted}")


def named_interceptor(given: Any) -> Any:
    """A :class:`PythonName` for a text that has a colon; any other interceptor as it is."""
    named = isinstance(given, str) and ":" in given
    return PythonName("interceptor.classes", given) if named else given


class Chain:
    """Interceptors, made of classes or given as objects, which are called in their order."""

    def __init__(self, given: Sequence[Any], config: object) -> None:
        self._all: list[Any] = []
        for interceptor in given:
            made = interceptor() if isinstance(interceptor, type) else interceptor
            if callable(getattr(made, "configure", None)):
                made.configure(config)
            self._all.append(made)

    def __bool__(self) -> bool:
        return bool(self._all)

    def close(self) -> None:
        """Closes all."""
        self._tell("close")

    def _tell(
        self, method: str, *arguments: Any, errors: tuple[type[BaseException], ...] = (Exception,)
    ) -> None:
        """Calls the method of all that have it. ``errors``: what they may raise, which is logged."""
        for interceptor in self._all:
            call = getattr(interceptor, method, None)
            if callable(call):
                try:
                    call(*arguments)
                except errors:
                    self._failed(interceptor, method)

    def _pass_on(self, method: str, value: T, checked: Callable[[Any], T]) -> T:
        """``value`` after the method of all that have it. One that raises, or returns what ``checked`` raises
        for, is logged and passed over."""
        for interceptor in self._all:
            call = getattr(interceptor, method, None)
            if callable(call):
                try:
                    value = checked(call(value))
                except Exception:
                    self._failed(interceptor, method)
        return value

    @staticmethod
    def _failed(interceptor: Any, method: str) -> None:
        log.warning("interceptor %r: %s() failed; ignored", interceptor, method, exc_info=True)
