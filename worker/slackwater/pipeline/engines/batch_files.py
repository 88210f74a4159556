"""Files by which large batches go to a Spark Connect server on the worker's machine.

Of a table in a message the server makes rows on its driver, on one thread, and copies them several times. A
Parquet file is read by its tasks, column by column, and only the columns that the handler uses
(docs/design/spark.md has the measurements). The first file shows whether the server reads the worker's files:
in another container, or as another user, it does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import logging
import os
import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS_A_GROUP = 10_000
"""A task reads whole groups of rows."""
_PREFIX, _LOCK = "slackwater-batches-", "lock"

log = logging.getLogger(__name__)


def is_on_this_machine(remote: str) -> bool:
    """Whether the Connect server ``remote`` (``sc://host:port``) is reached by a loopback address."""
    host = urlsplit(remote).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class BatchFiles:
    """A folder of this process's for one file at a time, in ``parent`` (by default where Python's temporary
    files are).

    It is made for the first file, and only this user can read it. The folders of processes that were killed
    are removed then.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent
        self._folder: Path | None = None
        self._lock = -1
        self._numbers = count(1)
        self._is_read: bool | None = None
        """Whether the server reads these files; None: not known yet."""

    def write(self, spark: SparkSession, table: pa.Table) -> Path | None:
        """The file with ``table``, to be given to :func:`remove`. None: it has to go in a message, since a
        file cannot hold a column as it is, cannot be written, or is not read by the server."""
        if self._is_read is False or not _holds(table.schema):
            return None
        try:
            path = self._path()
            _write(table, path)
        except (OSError, ValueError) as exc:  # a ValueError of pyarrow's: a timestamp beyond Spark's
            log.warning("a batch goes to the Spark Connect server in a message, not in a file: %s", exc)
            return None
        if self._is_read is None:
            self._is_read = _reads(spark, path, table.num_rows)
        if not self._is_read:
            remove(path)
            return None
        return path

    def _path(self) -> Path:
        if self._folder is None:
            parent = self._parent or Path(tempfile.gettempdir())
            _remove_abandoned(parent)
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            self._lock = os.open(self._folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self._folder / f"{next(self._numbers)}.parquet"

    def close(self) -> None:
        """Removes the folder. Never raises."""
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _write(table: pa.Table, path: Path) -> None:
    """Raises OSError and ValueError, and leaves no file then."""
    import pyarrow.parquet as pq

    try:
        pq.write_table(
            table,
            path,
            row_group_size=ROWS_A_GROUP,
            compression="none",
            use_dictionary=["topic"],
            write_statistics=False,
            store_schema=False,
            # The resolution of Spark's timestamps.
            coerce_timestamps="us",
            allow_truncated_timestamps=True,
        )
    except BaseException:
        remove(path)
        raise


def read(spark: SparkSession, path: Path, schema: pa.Schema) -> DataFrame:
    """The rows of a file, in their order."""
    from pyspark.sql.pandas.types import from_arrow_schema

    reader = spark.read.schema(from_arrow_schema(schema)).option("datetimeRebaseMode", "CORRECTED")
    return reader.parquet(str(path))


def remove(path: Path) -> None:
    """Removes a file. Never raises."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _reads(spark: SparkSession, path: Path, rows: int) -> bool:
    try:
        return spark.read.parquet(str(path)).count() == rows
    except Exception as exc:
        reason = str(exc).partition("\n")[0]
        log.info("batches go to the Spark Connect server in messages: it does not read %s: %s", path, reason)
        return False


def _holds(schema: pa.Schema) -> bool:
    """Whether a file holds such a table as it is. Spark finds a file's columns by their names, in which case
    does not count."""
    distinct = len({name.lower() for name in schema.names}) == len(schema.names)
    return distinct and all(_is_kept(field.type) for field in schema)


def _is_kept(kind: pa.DataType) -> bool:
    """Whether a value of this type is the same for Spark after it was in a Parquet file."""
    from pyarrow import types

    if types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        names = {field.name.lower() for field in fields}
        return 0 < len(names) == len(fields) and all(_is_kept(field.type) for field in fields)
    if types.is_map(kind):
        return _is_kept(kind.key_type) and _is_kept(kind.item_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_dictionary(kind):
        return _is_kept(kind.value_type)
    if types.is_timestamp(kind):
        return kind.tz is not None  # one without is a time in the session's zone for createDataFrame
    tests = (
        types.is_boolean, types.is_signed_integer, types.is_float32, types.is_float64, types.is_decimal128,
        types.is_date32, types.is_string, types.is_large_string, types.is_binary, types.is_large_binary,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def _remove_abandoned(parent: Path) -> None:
    """Removes the folders whose processes have ended: nobody has their locks."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:  # another user's, or not locked yet
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(lock)
