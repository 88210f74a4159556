"""What the sink `parquet` needs of a place for files: a folder (`folder`) or an object store (`store`)."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.pipeline.sinks.marks import MarkKey
    from slackwater.runtime.errors import SinkError

OWN_FOLDER = ".slackwater"
"""In the table's folder: readers leave out names that begin with a dot."""
SCHEMA_FILE = "_common_metadata"
"""In the table's folder: the columns of the table's files. Readers take it for no data, and Spark reads the
table's columns in it."""
STAGED_SUFFIX = ".staged"
"""Of staged files: no pattern for ``*.parquet`` matches them."""


_LARGE_COLUMN_BYTES = 8 * 1024 * 1024
"""Columns below that are written as they come: all copies of them together are small."""
_LARGE_VALUE_BYTES = 64 * 1024
"""A dictionary of such values saves nothing, and Arrow leaves statistics out that are larger than 4 KiB."""
_PAGE_BYTES = 1024 * 1024


def writing_options(rows: pa.Table) -> dict[str, Any]:
    """How ``pyarrow.parquet`` is to write ``rows``. It would keep eight copies of a large value: in pages, in
    the dictionary, in statistics. Where there are such values, pages are small, and only the flat columns
    without them have dictionary and statistics."""
    longest = {
        name: max(map(_longest, column.chunks))
        for name, column in zip(rows.column_names, rows.columns, strict=True)
        if column.nbytes >= _LARGE_COLUMN_BYTES
    }
    if max(longest.values(), default=0) < _LARGE_VALUE_BYTES:
        return {}
    others = [
        field.name
        for field in rows.schema
        if longest.get(field.name, 0) < _LARGE_VALUE_BYTES and not field.type.num_fields
    ]
    return {
        "use_dictionary": others,
        "write_statistics": others,
        "write_batch_size": max(1, _PAGE_BYTES // max(longest.values())),
    }


def _longest(values: pa.Array) -> int:
    """The size of the largest text or binary value, also within structs, lists and maps."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if pa.types.is_struct(kind):
        return max(map(_longest, values.flatten()), default=0)
    if pa.types.is_map(kind):
        return max(_longest(values.keys), _longest(values.items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _longest(values.flatten())
    types = pa.types
    if any(
        of(kind) for of in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    ):
        return pc.max(pc.binary_length(values)).as_py() or 0
    return 0


def place_of(folder: str, stem: str, version: int, staged: str) -> str:
    """Where the staged file with that name goes with commit ``version``: into ``folder``, "" or one that ends
    with a slash. ``stem``: what the names of the group's files begin with."""
    return f"{folder}{stem}-{version:020d}-{staged.partition('.')[0]}.parquet"


def is_place(path: str, stem: str) -> bool:
    """Whether a path in the table's folder is a place as :func:`place_of` makes it. Not that of a group whose
    id only begins like this one's."""
    name = rf"(?!{re.escape(OWN_FOLDER)}/)(?:.*/)?{re.escape(stem)}-\d{{20}}-[0-9a-f]+\.parquet"
    return re.fullmatch(name, path, re.DOTALL) is not None


def staged_name(key: MarkKey, mark: int | None) -> str:
    """A new name for a staged file, which a commit can name as long as ``mark`` is that of ``key``."""
    return f"{uuid.uuid4().hex}.{_short(key)}.{-1 if mark is None else mark}{STAGED_SUFFIX}"


def left_behind(staged: Iterable[str], marks: Mapping[MarkKey, int]) -> list[str]:
    """Which staged files no commit can name any more, by their names alone: a file that is still written
    cannot be told from one whose writer has died. ``marks``: read after the files were listed."""
    known = {_short(key): mark for key, mark in marks.items()}
    left = []
    for name in staged:
        match = re.fullmatch(rf"[0-9a-f]+\.([0-9a-f]+)\.(-?\d+){re.escape(STAGED_SUFFIX)}", name)
        if match and known.get(match[1], -1) > int(match[2]):
            left.append(name)
    return left


def _short(key: MarkKey) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(key)).hex


@dataclass(frozen=True)
class Commit:
    """``marks``: those that it moves. ``files``: (name in the staging folder, path in the table's folder); a
    file that is there is replaced. ``schema``: the table's from now on, as text; "": as before. ``removed``:
    paths in the table's folder of files that are no longer part of the table."""

    marks: Mapping[MarkKey, int]
    files: tuple[tuple[str, str], ...] = ()
    schema: str = ""
    removed: tuple[str, ...] = ()


class LogFiles(Protocol):
    """The files of a log, by name. The methods raise OSError."""

    @property
    def address(self) -> str:
        """Where they are, for messages."""
        ...

    def names(self) -> list[str]:
        """All that are there. Raises FileNotFoundError if the log's folder is gone."""
        ...

    def read(self, name: str, most_bytes: int) -> bytes:
        """A file, or its first ``most_bytes``. Raises FileNotFoundError."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Makes a file as a whole; False: the name is taken. Of several calls for a name one makes it."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Makes a file as a whole, in place of one that is there."""
        ...

    def remove(self, names: Collection[str]) -> None:
        """Removes files, if they are there."""
        ...


class TableFiles(Protocol):
    """The files of a table: those that readers see, named by their path below the table's folder (place), and
    staged ones, named by their name. The methods raise OSError unless they say otherwise."""

    @property
    def address(self) -> str:
        """The table's, for messages."""
        ...

    @property
    def log(self) -> LogFiles:
        """Those of its log."""
        ...

    @property
    def rewrites_in_place(self) -> bool:
        """Whether ``put_in_place`` takes a place that has a file already, whose readers then see the new
        one."""
        ...

    def prepare(self) -> None:
        """Called when the log has no commit: whether it can have one. Raises SinkError."""
        ...

    def stage(self, files: Iterable[tuple[str, str, pa.Table]]) -> None:
        """Writes staged files: name, folder of the place that it will get, rows. They last when it returns,
        and each folder can have files."""
        ...

    def unstage(self, name: str) -> None:
        """Removes a staged file, if it is there."""
        ...

    def staged(self) -> list[str]:
        """The names of the staged files."""
        ...

    def put_in_place(
        self, commits: Sequence[Commit], empty: Callable[[], pa.Table], *, are_new: bool = False
    ) -> set[str]:
        """Shows readers what is in ``commits``: takes away the files that they remove, and puts the staged
        ones in their place.

        Any process may do so, several times and late: a file that is no longer staged is in its place, or a
        later commit has removed it from there. ``empty``: the table's columns, without rows. ``are_new``:
        this process has just made them. Returns the places whose file is neither there nor staged.
        """
        ...

    def places(self, stem: str) -> list[str]:
        """The places of the group whose files begin with ``stem``."""
        ...

    def source(self, place: str) -> Any:
        """A visible file as pyarrow.parquet reads it."""
        ...

    def show_schema(self, data: bytes) -> None:
        """Makes `SCHEMA_FILE`, unless it is there as it is to be."""
        ...

    def probe(self) -> None:
        """Does what a commit does, under names that begin with a dot, and leaves nothing. Raises
        SinkError."""
        ...

    def error(self, what: str, exc: OSError) -> SinkError:
        """What to raise where the sink cannot do ``what`` because of ``exc``."""
        ...
