"""A dead letter for a terminal, and as JSON."""

from __future__ import annotations

import base64
from typing import Any

from slackwater.tools.letters import StoredLetter
from slackwater.tools.record_text import iso_time, printable, shortened, text_or_hex

MOST_CHARACTERS = 10_000
"""Of a key, a value or a header as it is shown."""


def document_of(letter: StoredLetter, replayed: bool) -> dict[str, Any]:
    """For JSON: bytes as text, or hex where they are none, and in Base64."""
    return {
        "letter": {"topic": letter.tp.topic, "partition": letter.tp.partition, "offset": letter.offset},
        "written": iso_time(letter.written_ms),
        "source": {
            "topic": letter.source.topic,
            "partition": letter.source.partition,
            "offset": letter.source_offset,
            "timestampMs": letter.timestamp_ms,
        },
        "error": letter.error,
        "attempt": letter.attempt,
        "stack": letter.stack or None,
        "replayed": replayed,
        "cut": letter.cut or None,
        "batch": letter.batch or None,
        "key": text_or_hex(letter.key),
        "keyBase64": _base64(letter.key),
        "value": text_or_hex(letter.value),
        "valueBase64": _base64(letter.value),
        "headers": [
            {"key": name, "value": text_or_hex(value), "valueBase64": _base64(value)}
            for name, value in letter.headers
        ],
    }


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def lines_of(letter: StoredLetter, replayed: bool) -> list[str]:
    """For a terminal."""
    lines = [
        f"letter {letter.tp} offset {letter.offset}, written {iso_time(letter.written_ms)}"
        f"{', replayed' if replayed else ''}",
        f"  record:   {letter.source} offset {letter.source_offset}, {iso_time(letter.timestamp_ms)}",
        f"  error:    {printable(letter.error)}",
    ]
    if letter.attempt is not None:
        lines.append(f"  attempt:  {letter.attempt}")
    if letter.cut:
        lines.append(f"  cut:      {printable(letter.cut)}")
    if letter.batch:
        lines.append(f"  batch:    {printable(letter.batch)}")
    lines.append(f"  key:      {_bytes(letter.key)}")
    lines.append(f"  value:    {_bytes(letter.value)}")
    lines += [f"  header:   {printable(name)}: {_bytes(value)}" for name, value in letter.headers]
    if letter.stack:
        lines.append("  stack:")
        lines += [f"    {printable(line)}" for line in letter.stack.splitlines()]
    return lines


def _bytes(value: bytes | None) -> str:
    if value is None:
        return "null"
    text = printable(text_or_hex(value) or "")
    return f"{shortened(text, MOST_CHARACTERS)} ({len(value)} B)"
