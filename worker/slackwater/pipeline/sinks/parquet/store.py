"""The files of a table in an object store: S3, Google Cloud Storage or Azure.

A store has no rename. What it has is a write that succeeds only if the name is free, and of several at once
for one name only one does. Commits are made by that, and files are put in their place by it:

- a place goes from absent to a file, once, by such a write, and
- from a file to an empty Parquet file without rows, when a rewind has removed it; never back.

So it does not matter how often, how late or in which order processes do what the log says: a copy that
arrives after its file was removed finds the place taken, by the empty file.
"""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.sinks.parquet.files import OWN_FOLDER, SCHEMA_FILE, is_place, writing_options
from slackwater.pipeline.sinks.parquet.store_options import StoreAddress
from slackwater.runtime.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore.store import ObjectStore

    from slackwater.pipeline.sinks.parquet.files import Commit

PART_BYTES = 8 << 20
"""A file is sent in parts of this size while it is written, ``PARTS_AT_ONCE`` at a time."""
PARTS_AT_ONCE = 3
ROW_GROUP_BYTES = 64 << 20
"""The most bytes of rows, as Arrow has them, in a row group of a file."""
_FEW, _LOOK_UPS_AT_ONCE = 4, 16
"""Requests for sizes that are made one after the other; and how many of more are made at once."""
_TRIES = 5
"""To put a file in its place, while the store says neither that it is there nor that it is not."""


class StoreError(OSError):
    """The store has refused a request, or not answered it. Not: the name is missing, or taken."""


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raises FileNotFoundError, FileExistsError or StoreError for what obstore raises."""
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        yield
    except AlreadyExistsError as exc:
        raise FileExistsError(str(exc)) from exc
    except FileNotFoundError as exc:
        if "NoSuchBucket" in str(exc) or "ContainerNotFound" in str(exc):
            raise StoreError(str(exc)) from exc
        raise
    except (BaseError, OSError) as exc:
        raise StoreError(str(exc)) from exc


class Objects:
    """The objects below an address, by their path. The methods raise FileNotFoundError and StoreError."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._opened: ObjectStore | None = None

    @property
    def _store(self) -> ObjectStore:
        """It is opened by the first request: obstore takes 30 ms to load."""
        if self._opened is None:
            self._opened = self._address.open()
        return self._opened

    def get(self, path: str) -> bytes:
        """An object's content."""
        import obstore

        with _errors():
            return bytes(obstore.get(self._store, path).bytes())

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """A part of it."""
        import obstore

        with _errors():
            return bytes(obstore.get_range(self._store, path, start=start, length=length))

    def size(self, path: str) -> int | None:
        """Its size in bytes; None: there is none."""
        import obstore

        try:
            with _errors():
                return int(obstore.head(self._store, path)["size"])
        except FileNotFoundError:
            return None

    def put(self, path: str, data: bytes) -> None:
        """Makes an object, in place of one that is there."""
        import obstore

        with _errors():
            obstore.put(self._store, path, data, use_multipart=False)

    def create(self, path: str, data: bytes) -> None:
        """Makes an object. Raises FileExistsError if the path is taken."""
        import obstore

        with _errors():
            obstore.put(self._store, path, data, mode="create")

    def upload(self, path: str, write: Callable[[io.RawIOBase], None]) -> None:
        """Makes an object of what ``write`` writes to a file, in parts. It is there when all of it is."""
        import obstore

        with _errors():
            writer = obstore.open_writer(
                self._store, path, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
            write(_Upload(writer))
            writer.close()

    def copy_to_free(self, source: str, target: str) -> None:
        """Copies an object, within the store if it does that at once. Raises FileExistsError if ``target`` is
        taken, FileNotFoundError if ``source`` is missing, or the store no longer knows of the copy."""
        import obstore

        if self._address.copies_later:
            self.create(target, self.get(source))
            return
        with _errors():
            obstore.copy(self._store, source, target, overwrite=False)

    def list(self, below: str) -> list[str]:
        """The paths below a folder."""
        import obstore

        with _errors():
            return [meta["path"] for page in obstore.list(self._store, below or None) for meta in page]

    def delete(self, paths: Collection[str]) -> None:
        """Those that are there."""
        import obstore

        if paths:
            with _errors(), contextlib.suppress(FileNotFoundError):
                obstore.delete(self._store, list(paths))


class LogObjects:
    """The files of a log below the path ``folder``."""

    def __init__(self, objects: Objects, folder: str, address: str) -> None:
        self._objects, self._folder = objects, folder
        self.address = f"{address}/{folder}"

    def names(self) -> list[str]:
        """Those that are there; a store has no folders that could be gone."""
        return [path.rpartition("/")[2] for path in self._objects.list(self._folder)]

    def read(self, name: str, most_bytes: int) -> bytes:
        """Raises FileNotFoundError."""
        path = f"{self._folder}/{name}"
        size = self._objects.size(path)
        if size is None:
            raise FileNotFoundError(path)
        if size > most_bytes:
            return self._objects.get_range(path, 0, most_bytes)
        return self._objects.get(path)

    def create(self, name: str, data: bytes) -> bool:
        """By a conditional put. If that is refused, the object may be this one: its answer was lost, and the
        request was tried again."""
        path = f"{self._folder}/{name}"
        try:
            self._objects.create(path, data)
        except FileExistsError:
            try:
                return self._objects.get(path) == data
            except FileNotFoundError:  # a checkpoint has removed it
                return False
        return True

    def replace(self, name: str, data: bytes) -> None:
        """By a put."""
        self._objects.put(f"{self._folder}/{name}", data)

    def remove(self, names: Collection[str]) -> None:
        """Those that are there."""
        self._objects.delete([f"{self._folder}/{name}" for name in names])


class Store:
    """A table in an object store. ``stem``: what the names of the group's files begin with."""

    rewrites_in_place = False

    def __init__(self, address: StoreAddress, stem: str) -> None:
        self._address, self._objects = address, Objects(address)
        self.address = address.url
        own = f"{OWN_FOLDER}/{stem}"
        self._staging = f"{own}/staging"
        self._looked_up = False
        self.log = LogObjects(self._objects, f"{own}/log", address.url)

    def prepare(self) -> None:
        """Raises SinkError if the store does not refuse to write to a name that is taken."""
        self.probe()

    def stage(self, files: Iterable[tuple[str, str, pa.Table]]) -> None:
        """Each is sent while it is written."""
        import pyarrow.parquet as pq

        for name, _, rows in files:
            # Parquet keeps a row group in memory until it is complete.
            group = max(1, rows.num_rows * ROW_GROUP_BYTES // max(rows.nbytes, ROW_GROUP_BYTES))
            write = partial(pq.write_table, rows, row_group_size=group, **writing_options(rows))
            self._objects.upload(f"{self._staging}/{name}", write)

    def unstage(self, name: str) -> None:
        """If it is there."""
        self._objects.delete([f"{self._staging}/{name}"])

    def staged(self) -> list[str]:
        """Sorted."""
        return [path.rpartition("/")[2] for path in self._objects.list(self._staging)]

    def put_in_place(
        self, commits: Sequence[Commit], empty: Callable[[], pa.Table], *, are_new: bool = False
    ) -> set[str]:
        """By copies to names that are free. Of files that are not staged any more it is looked up once
        whether they are in their place: in the first of the commits of others."""
        files = [file for commit in commits for file in commit.files]
        removed = [place for commit in commits for place in commit.removed]
        if removed:
            import pyarrow.parquet as pq

            content = io.BytesIO()
            pq.write_table(empty(), content)
            for place in removed:
                self._objects.put(place, content.getvalue())
        missing: set[str] = set()
        if files and not are_new:
            left = set(self.staged())
            if not self._looked_up:
                missing |= self._missing([place for name, place in files if name not in left])
                self._looked_up = True
            files = [(name, place) for name, place in files if name in left]
        return missing | {place for name, place in files if not self._put(name, place)}

    def _missing(self, places: Sequence[str]) -> set[str]:
        if len(places) <= _FEW:
            return {place for place in places if self._objects.size(place) is None}
        with ThreadPoolExecutor(_LOOK_UPS_AT_ONCE) as pool:
            sizes = pool.map(self._objects.size, places)
            return {place for place, size in zip(places, sizes, strict=True) if size is None}

    def _put(self, name: str, place: str) -> bool:
        """Whether the file is in its place now."""
        staged = f"{self._staging}/{name}"
        for last in [False] * (_TRIES - 1) + [True]:
            try:
                self._objects.copy_to_free(staged, place)
            except FileExistsError:
                pass
            except FileNotFoundError:
                # Either the staged file is gone, because another process has put it in place; or an answer of
                # the store was lost, and it no longer knows the copy.
                is_gone = self._objects.size(staged) is None
                if self._objects.size(place) is None:
                    if is_gone:
                        return False
                    if last:
                        raise
                    continue
            break
        self._objects.delete([staged])
        return True

    def places(self, stem: str) -> list[str]:
        """Found by their names."""
        return sorted(path for path in self._objects.list("") if is_place(path, stem))

    def source(self, place: str) -> Any:
        """A file that reads what is asked for."""
        return _ObjectFile(self._objects, place)

    def show_schema(self, data: bytes) -> None:
        """By a put."""
        try:
            known = self._objects.get(SCHEMA_FILE)
        except FileNotFoundError:
            known = b""
        if known != data:
            self._objects.put(SCHEMA_FILE, data)

    def probe(self) -> None:
        """Raises SinkError, also if the store does not refuse to write to a name that is taken."""
        name = f".probe-{uuid.uuid4().hex}"
        staged = f"{self._staging}/{name}"
        try:
            try:
                self._objects.upload(staged, lambda file: _write(file, b"probe"))
                self._objects.copy_to_free(staged, name)
                self._check_refused("put", lambda: self._objects.create(name, b"again"))
                self._check_refused("copy", lambda: self._objects.copy_to_free(staged, name))
            finally:
                self._objects.delete([staged, name])
        except OSError as exc:
            raise self.error(f"write to {self.address}", exc) from None

    def _check_refused(self, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        except FileExistsError:
            return
        raise SinkError(
            f"the sink cannot write to {self.address}: the store has replaced an object, although the {what} "
            "was to be refused if the name is taken (If-None-Match: *). Two workers could make the same "
            "commit, and rows would be lost. Set sink.path to a store that supports conditional writes, "
            "or to a folder"
        )

    def error(self, what: str, exc: OSError) -> SinkError:
        """With what to do."""
        return self._address.error(what, exc)


def _write(file: io.RawIOBase, data: bytes) -> None:
    file.write(data)


class _Upload(io.RawIOBase):
    """Passes on to obstore's writer what pyarrow writes. Closing it does not finish the object."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with _errors():
            for start in range(0, len(view), PART_BYTES):
                self._writer.write(bytes(view[start : start + PART_BYTES]))
        return len(view)


class _ObjectFile(io.RawIOBase):
    """An object that is read in ranges. Raises FileNotFoundError when it is first read."""

    def __init__(self, objects: Objects, path: str) -> None:
        self._objects, self._path = objects, path
        self._at = 0
        self._known_size: int | None = None

    @property
    def _size(self) -> int:
        if self._known_size is None:
            self._known_size = self._objects.size(self._path)
            if self._known_size is None:
                raise FileNotFoundError(self._path)
        return self._known_size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size if whence == io.SEEK_END else 0)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._at)
        if length <= 0:
            return 0
        data = self._objects.get_range(self._path, self._at, length)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
