"""User names and passwords from files, read each time they are needed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from slackwater.kafka.errors import SaslAuthenticationError


@dataclass(frozen=True, slots=True)
class Credentials:
    """User name and password (or OAuth client id and secret), as last read."""

    username: str
    password: str = field(repr=False)


def read_line(what: str, file: str | os.PathLike[str]) -> str:
    """A file's content without the line end that an editor puts there.

    Raises :class:`SaslAuthenticationError` that names the file, and calls it ``what``.
    """
    try:
        text = Path(file).read_bytes().decode()
    except OSError as exc:
        raise SaslAuthenticationError(
            f"{what} file {os.fspath(file)} cannot be read: {exc.strerror or exc}"
        ) from exc
    except UnicodeDecodeError:
        raise SaslAuthenticationError(f"{what} file {os.fspath(file)} is not UTF-8 text") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise SaslAuthenticationError(f"{what} file {os.fspath(file)} is empty")
    return text
