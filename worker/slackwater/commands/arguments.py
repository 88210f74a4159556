"""Arguments that several commands have. argparse puts the option's name before what they raise."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from slackwater.tools.starts import TOPIC

_MOST_DIGITS = 18
"""As many as fit into an offset."""


def whole_number(least: int = 0, most: int = 10**_MOST_DIGITS - 1) -> Callable[[str], int]:
    """Reads a decimal number from ``least`` to ``most``."""

    def read(text: str) -> int:
        readable = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
        if not readable or not least <= int(text) <= most:
            limits = f"of at least {least}" if most >= 10**_MOST_DIGITS - 1 else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be a whole number {limits}, not {text!r}")
        return int(text)

    return read


def topic_name(text: str) -> str:
    """Reads the name of a topic."""
    if not TOPIC.fullmatch(text) or text in (".", ".."):
        raise argparse.ArgumentTypeError(
            f"must be 1 to 249 letters, digits, '.', '_' or '-', not {text!r}, and not . or .."
        )
    return text


def separator(text: str) -> str:
    """Reads a text that separates others, which has at least one character."""
    if not text:
        raise argparse.ArgumentTypeError("must have at least one character")
    return text
