"""Which topics of a name a folder holds rows of: the first one's files have plain names, others ids.

``PATH/.topics/NAME/first`` holds the id of the topic whose files are named by topic, partition and offset
alone, as before there were ids. Each later topic of that name has an empty file there, called by its id, and
has that id in the names of its files: so a topic that was deleted and made anew overwrites nothing.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path

TOPICS = ".topics"
"""Readers leave out names that begin with a dot."""
_FIRST = "first"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class SinkTopics:
    """The record in ``folder``. Its methods raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / TOPICS

    def ids(self, topic: str) -> frozenset[str]:
        """The ids of the topics of this name that there are rows of."""
        try:
            names = [file.name for file in (self._folder / topic).iterdir()]
        except FileNotFoundError:
            return frozenset()
        found = {name for name in names if name != _FIRST and not name.startswith(".")}
        first = self._first(topic)
        return frozenset(found | {first} if first else found)

    def is_first(self, topic: str, topic_id: str, may_become: Callable[[], bool]) -> bool:
        """Whether the topic with this id is the one whose files have plain names; notes what it is.

        ``may_become``: whether it can become that, where none is yet.
        """
        first = self._first(topic)
        if not first and not self._marker(topic, topic_id).exists() and may_become():
            first = self._become_first(topic, topic_id)
        if first != topic_id:
            self._marker(topic, topic_id).parent.mkdir(parents=True, exist_ok=True)
            self._marker(topic, topic_id).touch()
        return first == topic_id

    def _marker(self, topic: str, topic_id: str) -> Path:
        return self._folder / topic / topic_id

    def _first(self, topic: str) -> str:
        try:
            return (self._folder / topic / _FIRST).read_text("ascii").strip()
        except FileNotFoundError:
            return ""

    def _become_first(self, topic: str, topic_id: str) -> str:
        """Whoever comes first is it, also of two workers at once. Returns whose id it is."""
        folder = self._folder / topic
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{uuid.uuid4().hex}"
        try:
            with temporary.open("x", encoding="ascii") as file:
                file.write(topic_id)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, folder / _FIRST)
            except FileExistsError:
                pass
            except OSError as exc:
                if exc.errno not in _NO_LINKS:
                    raise
                temporary.replace(folder / _FIRST)
        finally:
            temporary.unlink(missing_ok=True)
        return self._first(topic)
