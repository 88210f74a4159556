"""How an error is copied and pickled, whatever its constructor takes.

Python makes an error anew by calling its class with ``args``, the message. That fails for a class that takes
something else, and in a process pool it breaks the pool.
"""

from __future__ import annotations

from typing import Any, TypeVar

E = TypeVar("E", bound=Exception)


def reduce_error(error: Exception) -> tuple[Any, ...]:
    """An error for ``copy`` and ``pickle``, as its ``__reduce__`` returns it."""
    return remake_error, (type(error), error.args), vars(error)


def remake_error(kind: type[E], arguments: tuple[Any, ...]) -> E:
    """An error with these ``args``, made without its constructor."""
    error = kind.__new__(kind)
    error.args = arguments
    return error
