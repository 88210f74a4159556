"""Where a Delta table is: its address, the storage options, and what an error of deltalake means."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.reasons import advice_of, reason_of, store_advice
from slackwater.runtime.errors import ConfigError, RecordsError, SinkError, WorkerError

if TYPE_CHECKING:
    from deltalake.fs import DeltaStorageHandler

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "hdfs")
DEFAULTS = {"connect_timeout": "5s", "timeout": "30s", "max_retries": "4", "retry_timeout": "60s"}
"""Storage options that the user may set otherwise: no call may wait for minutes."""
_PIECE = 4 << 20
"""Larger files are read with two more requests."""
_LARGE = 1 << 40
_UNKNOWN = (
    r"Unsupported table features|Feature '.*' is not supported|Table features must be specified|"
    "catalog-managed table"
)
_ADVICE = (
    (
        _UNKNOWN,
        "deltalake does not support them: have Spark write the table (engine: spark, sink.format: spark, "
        "sink.sparkFormat: delta), or remove them (ALTER TABLE ... DROP FEATURE)",
    ),
    (r"No space left|quota", "free some space or give the sink another path"),
    (
        r"Permission denied|Read-only file system|Operation not permitted",
        "give this user the right to write there",
    ),
)
_LAST_ADVICE = (
    (
        r"Cast error: value .* out of range|is too large to store in a Decimal",
        "a sum does not fit its column",
    ),
    (r"Not a directory|File exists|Path does not exist", "give the sink a path that is a folder"),
)


class DeltaStore:
    """``path`` and storage ``options`` as a user gives them. Raises ConfigError for what cannot be used."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        _check_safe(options, "sink.options")
        _check_safe(os.environ, "environment")
        self.address = _uri(path)
        self.title = f"the Delta table {self.address}"
        self.options = {**DEFAULTS, **{_option(name): value for name, value in options.items()}}
        self._secrets = [
            value for value in options.values() if len(value) > 3 and value.lower() not in ("true", "false")
        ]

    def files(self) -> DeltaFiles:
        """The files below the table's folder."""
        return DeltaFiles(self)

    @contextlib.contextmanager
    def without_traces(self, name: str) -> Iterator[None]:
        """Removes, at the end of the block, the folder ``name`` below the table's, and folders above it that
        were not there before. Raises OSError if it cannot."""
        if "://" in self.address:
            from deltalake.fs import DeltaStorageHandler

            yield
            DeltaStorageHandler(self.address, self.options).delete_dir(name)
            return
        folder = Path(self.address)
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            yield
        finally:
            shutil.rmtree(folder / name, ignore_errors=True)
            for path in missing:
                with contextlib.suppress(OSError):
                    path.rmdir()

    def error(self, what: str, exc: BaseException) -> WorkerError:
        """What to raise where the sink cannot do ``what`` because of ``exc``; to be raised ``from None``, as
        ``exc`` may tell storage options."""
        reason = self.reason(exc)
        if "Invalid data found" in reason:  # The rest of the message shows rows.
            return RecordsError(
                f"{self.title} does not take the rows: a value breaks a constraint of the "
                "table, or a column that must not be null lacks a value"
            )
        advice = advice_of(_ADVICE, reason) or store_advice(reason) or advice_of(_LAST_ADVICE, reason)
        return SinkError(f"the sink cannot {what} {self.title}: {reason}{'; ' + advice if advice else ''}")

    def is_final(self, exc: BaseException) -> bool:
        """Whether no other try of a commit can succeed: deltalake does not know what the table demands."""
        return re.search(_UNKNOWN, self.reason(exc)) is not None

    def reason(self, exc: BaseException | None) -> str:
        """The message on one line, without backtrace, colours and storage options."""
        return reason_of(exc, self._secrets, until="\n   0: ")


class DeltaFiles:
    """Reads files below a table's folder. Raises FileNotFoundError for one that is missing, and OSError."""

    def __init__(self, store: DeltaStore) -> None:
        self._uri, self._options = store.address, store.options

    def reader(self, paths: Iterable[str]) -> Callable[[str], bytes]:
        """A function that reads each of ``paths``, once or several times, also by several threads at once."""
        if "://" not in self._uri:
            return lambda path: (Path(self._uri) / path).read_bytes()
        from deltalake.fs import DeltaStorageHandler

        # deltalake asks for a file's size with the interpreter's lock held: no thread could send a heartbeat
        # while a store does not answer. With a size that is known it does not ask; it may be too large.
        handler = DeltaStorageHandler(self._uri, self._options, dict.fromkeys(paths, _LARGE))
        return lambda path: self._read(handler, path)

    def _read(self, handler: DeltaStorageHandler, path: str) -> bytes:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        content = bytes(handler.open_input_file(path).read(_PIECE))
        if len(content) < _PIECE:
            return content
        size = PyFileSystem(handler).get_file_info(path).size
        return bytes(DeltaStorageHandler(self._uri, self._options, {path: size}).open_input_file(path).read())

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder. In a store it holds the interpreter's lock meanwhile."""
        if "://" not in self._uri:
            with contextlib.suppress(FileNotFoundError):
                return [path.name for path in (Path(self._uri) / folder).iterdir()]
            return []
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import FileSelector, PyFileSystem

        files = PyFileSystem(DeltaStorageHandler(self._uri, self._options))
        return [info.base_name for info in files.get_file_info(FileSelector(folder, allow_not_found=True))]


def _uri(path: str) -> str:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", path)
    if scheme is None or path.startswith("file:///"):
        local = str(Path(path.removeprefix("file://")).absolute())
        if "%" in local:
            raise ConfigError(
                f"{local} contains %, which deltalake cannot read: rename it", field="sink.path"
            )
        return local
    if scheme[1] in SCHEMES and re.match(r"[a-z0-9]+://[^/]+", path):
        return path.rstrip("/")
    raise ConfigError(
        f"{path} cannot hold a Delta table: give a folder, file:///..., or an address that begins with "
        f"{', '.join(f'{name}://' for name in SCHEMES)}",
        field="sink.path",
    )


def _option(name: str) -> str:
    """The name of a storage option as deltalake has it."""
    return name.lower() if name.lower() in DEFAULTS else name


def _check_safe(settings: Mapping[str, str], field: str) -> None:
    """Raises ConfigError for an option with which commits replace each other. deltalake takes options from
    the environment, too."""
    for name, value in settings.items():
        if name.lower().endswith("allow_unsafe_rename") and value.lower() not in ("", "0", "false"):
            raise ConfigError(
                f"{name} must not be set: with it, two workers can make the same commit, and rows are lost",
                field=field,
            )
