"""Regular expressions for topic names, matched in linear time by RE2, as in Kafka's brokers (KIP-848, RE2/J).

Whoever may write a pattern could otherwise stop the process: for `(a+)+b` Python's `re` tries all ways to
split a name, and RE2 reads each character once. What RE2 cannot do for that reason (backreferences,
lookarounds, possessive quantifiers) is refused.
"""

from __future__ import annotations

import re
from typing import Any

from slackwater.kafka.errors import IllegalArgumentError

MAX_PROGRAM = 10_000
"""RE2's instructions for a pattern: `orders-.*` has 13, a list of names about one a character. What a name
costs grows with them: 3 ms for the worst pattern of 2,000 and a name of 249 characters."""
MAX_MEMORY_BYTES = 1024 * 1024
"""For the compiled pattern and RE2's cache of states. A pattern that needs more to compile is refused."""

_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}
_UNCHANGED = re.ASCII | re.UNICODE
"""Topics have ASCII names alone (`Topic.validate`), so these change nothing."""
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_OPEN_COUNT = re.compile(r"\{,[0-9]+\}")


class TopicPattern:
    r"""A regular expression that topics' names match from their beginning, as with ``re.match``.

    Takes RE2's syntax, and of Python's also ``\Z`` (the end of the name) and a compiled pattern with the
    flags IGNORECASE, MULTILINE and DOTALL.

    Args:
        pattern: the expression.
        max_program: how many instructions RE2 may make of it.

    Raises:
        IllegalArgumentError: it is no regular expression, RE2 cannot do it, or it is too large.
    """

    __slots__ = ("_compiled", "text")

    def __init__(self, pattern: str | re.Pattern[str], *, max_program: int = MAX_PROGRAM) -> None:
        # Loaded here: it takes 10 ms, and most consumers name their topics.
        import re2

        if not isinstance(pattern, (str, re.Pattern)) or not isinstance(_text(pattern), str):
            raise IllegalArgumentError(
                f"a topic pattern must be a string, or one that re.compile made of a string, not {pattern!r}"
            )
        self.text: str = _text(pattern)
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.log_errors = False
        options.max_mem = MAX_MEMORY_BYTES
        options.never_capture = True
        try:
            self._compiled: Any = re2.compile(_in_re2(pattern), options)
        except re2.error as error:
            raise self._refused(_reason(error)) from None
        except UnicodeEncodeError as error:
            character = self.text[error.start : error.end][:1]
            raise self._refused(f"no topic's name has the character {character!a}") from None
        if self._compiled.programsize > max_program:
            raise self._refused(
                f"it makes a program of {self._compiled.programsize} instructions, and {max_program} are the "
                "limit; use fewer and smaller counts in braces"
            )

    def matches(self, topic: str) -> bool:
        """Whether the pattern matches the beginning of the topic's name."""
        return self._compiled.match(topic.encode("latin-1", "replace")) is not None

    def matches_all_of(self, topic: str) -> bool:
        """Whether the pattern matches the whole name, as a broker has it (KIP-848)."""
        return self._compiled.fullmatch(topic.encode("latin-1", "replace")) is not None

    def _refused(self, reason: str) -> IllegalArgumentError:
        shown = self.text if len(self.text) <= 200 else f"{self.text[:200]}..."
        return IllegalArgumentError(f"pattern {shown!r} is not a regular expression that RE2 takes: {reason}")


def _text(pattern: str | re.Pattern[str]) -> str:
    return pattern.pattern if isinstance(pattern, re.Pattern) else pattern


def _in_re2(pattern: str | re.Pattern[str]) -> bytes:
    """The pattern as RE2 writes it. Raises :class:`IllegalArgumentError` for flags that RE2 does not have."""
    text = _ESCAPE.sub(lambda escape: r"\z" if escape[0] == r"\Z" else escape[0], _text(pattern))
    if count := _OPEN_COUNT.search(_ESCAPE.sub("", text)):
        # RE2 takes it for these characters themselves, so that the pattern would match nothing.
        raise IllegalArgumentError(
            f"pattern {_text(pattern)!r}: RE2 knows no {count[0]}; write {{0{count[0][1:]} instead"
        )
    if isinstance(pattern, re.Pattern):
        flags = pattern.flags & ~_UNCHANGED
        for flag, letter in _FLAGS.items():
            if flags & flag:
                text = f"(?{letter}){text}"
                flags &= ~flag
        if flags:
            raise IllegalArgumentError(
                f"pattern {_text(pattern)!r} has {re.RegexFlag(flags)!r}, which RE2 does not have; "
                "compile it without"
            )
    return text.encode("latin-1")


def _reason(error: Exception) -> str:
    text = error.args[0] if error.args else ""
    reason = text.decode("latin-1") if isinstance(text, bytes) else str(text)
    if "invalid perl operator" in reason or "invalid escape sequence: \\" in reason:
        return f"{reason} (it has no lookarounds, backreferences or (?x); github.com/google/re2/wiki/Syntax)"
    return reason
