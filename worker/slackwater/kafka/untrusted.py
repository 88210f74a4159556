"""Reads untrusted input of brokers, pods and clients with limits: text for messages, JSON, numbers."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_WHOLE = 2**63 - 1
"""The largest whole number that is taken: Kafka's int64."""
_LONGEST_DIGITS = 20


def one_line(text: object, limit: int = 500) -> str:
    r"""The text made safe for one line of a log, an event or a condition.

    Control characters, line and paragraph separators, and what turns the direction of text are written as
    their escapes (``\n``, ``\x1b``, ``\u202e``), so nobody can add a line or move a terminal's cursor.
    What is longer than ``limit`` characters then is cut off, and ends in ``...``.
    """
    # One more, so that what is cut off below is seen.
    shown = str(text)[: limit + 1]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def json_object(body: bytes | str) -> dict[str, Any]:
    """Reads a JSON object.

    Beyond what JSON refuses, it refuses NaN and Infinity (also as 1e999), whole numbers beyond 64 bits, and
    what is nested deeper than Python's parser goes. Raises ValueError, which says in a line what is wrong.
    """
    try:
        document = json.loads(body, parse_constant=_constant, parse_float=_float, parse_int=_int)
    except _NumberError:
        raise
    except RecursionError:
        raise ValueError("the body is JSON that is nested too deeply") from None
    except ValueError:
        raise ValueError("the body is not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("the body must be a JSON object")
    return document


class _NumberError(ValueError):
    """A number that this reader does not accept."""


def _constant(name: str) -> Any:
    raise _NumberError(f"the body has the number {name}, which JSON does not have")


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _NumberError(f"the body has the number {one_line(digits, 40)}, which is too large")
    return number


def _int(digits: str) -> int:
    if len(digits) <= _LONGEST_DIGITS and abs(number := int(digits)) <= MAX_WHOLE:
        return number
    raise _NumberError(f"the body has the number {one_line(digits, 40)}, which is too large")


def whole(value: object, name: str, least: int = 0, most: int = MAX_WHOLE) -> int:
    """A whole number; raises ValueError where ``value`` is none, or not from ``least`` to ``most``."""
    if type(value) is not int:
        raise ValueError(f"{name} must be a whole number, not {_shown(value)}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {_shown(value)}")
    return value


def text(value: object, name: str, most: int = 1_000) -> str:
    """Text; raises ValueError where ``value`` is none, or longer than ``most`` characters."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, not {_shown(value)}")
    if len(value) > most:
        raise ValueError(f"{name} has {len(value)} characters, and {most} are the limit")
    return value


def flag(value: object, name: str) -> bool:
    """True or false; raises ValueError where ``value`` is neither."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    """A value for a message; of what holds others, its type alone, since it may be large or deep."""
    if isinstance(value, dict | list | tuple):
        return type(value).__name__
    # The digits of a large number cannot be written (sys.set_int_max_str_digits).
    if isinstance(value, int) and abs(value) > MAX_WHOLE:
        return "a larger number"
    return one_line(repr(value), 100)
