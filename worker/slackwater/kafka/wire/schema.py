"""Declares a message once; every version's encoder and decoder come from the declaration.

A message is a class whose fields are annotated attributes made by :func:`f`::

    class HeartbeatRequest(Request[HeartbeatResponse], api_key=12, response=HeartbeatResponse,
                           versions=(0, 4), flexible=4):
        group_id: str = f(STRING, default="")
        group_instance_id: str | None = f(STRING, since=3, nullable=3, default=None)

A field outside the version that is encoded is left out, and reads back as its default. A field
that carries meaning that must not be lost (``ignorable=False``) raises :class:`EncodeError`
instead when it is not at its default.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Self, TypeVar, dataclass_transform

from slackwater.kafka.wire.errors import DecodeError, EncodeError
from slackwater.kafka.wire.primitives import Buffer, Reader, Writer

NEVER = 0x7FFF
"""A version number that no message reaches."""

_Read = Callable[[Reader], Any]
_Write = Callable[[Writer, Any], None]
_ReadBody = Callable[[Reader, int], Any]


class Type:
    """A wire type: how a value is read and written, by flexibility and nullability."""

    def __init__(self, name: str) -> None:
        self.name = name

    def codec(self, version: int, flexible: bool, nullable: bool) -> tuple[_Read, _Write]:
        """The reader and the writer of this type at one version."""
        read = getattr(Reader, self.name)
        write = getattr(Writer, self.name)
        return read, write

    def least_bytes(self, version: int, flexible: bool) -> int:
        """The size of the smallest value in a frame."""
        return _FIXED_BYTES[self.name]

    def object_bytes(self, version: int, flexible: bool) -> int:
        """The memory of a value, without its bytes and elements."""
        return _OBJECT_BYTES[self.name]


_FIXED_BYTES = {"boolean": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uuid": 16}
_OBJECT_BYTES = {
    "boolean": 0, "int8": 32, "int16": 32, "int32": 32, "int64": 48, "uuid": 144,
    "string": 80, "bytes": 48, "records": 240, "array": 64,
}  # fmt: skip
"""In CPython, rounded up to the allocator's block sizes."""


class _Sized(Type):
    """A type with a length in front, where -1 (compact: 0) stands for null.

    ``size``: the type of the length in plain versions. The functions handle what follows it.
    """

    def __init__(self, name: str, size: str, read_body: _ReadBody, write_body: _Write) -> None:
        super().__init__(name)
        self._size, self._read_body, self._write_body = size, read_body, write_body

    def least_bytes(self, version: int, flexible: bool) -> int:
        return _least_sized_bytes(self._size, flexible)

    def codec(self, version: int, flexible: bool, nullable: bool) -> tuple[_Read, _Write]:
        read = _sized_reader(self.name, self._size, self._read_body, flexible, nullable)
        return read, _sized_writer(self.name, self._size, self._write_body, flexible, nullable)


class _String(Type):
    """Text: the length in front is that of its UTF-8 bytes."""

    def least_bytes(self, version: int, flexible: bool) -> int:
        return _least_sized_bytes("int16", flexible)

    def codec(self, version: int, flexible: bool, nullable: bool) -> tuple[_Read, _Write]:
        write_null = _null_writer(self.name, "int16", flexible, nullable)

        def write(writer: Writer, value: Any) -> None:
            if value is None:
                write_null(writer)
            else:
                writer.text(value, compact=flexible)

        return _sized_reader(self.name, "int16", Reader.text, flexible, nullable), write


class ARRAY(Type):
    """An array of a primitive type or of a :class:`Struct`."""

    def __init__(self, item: Type | type[Struct]) -> None:
        super().__init__("array")
        self._item = item

    def least_bytes(self, version: int, flexible: bool) -> int:
        return _least_sized_bytes("int32", flexible)

    def codec(self, version: int, flexible: bool, nullable: bool) -> tuple[_Read, _Write]:
        read_item, write_item = _codec_of(self._item, version, flexible, nullable=False)
        least_bytes = self._item.least_bytes(version, flexible)
        object_bytes = self._item.object_bytes(version, flexible)
        if not least_bytes:
            raise TypeError(f"elements of no size in an array, at version {version}: {self._item}")

        def read_items(reader: Reader, size: int) -> list[Any]:
            return [read_item(reader) for _ in range(reader.count(size, least_bytes, object_bytes))]

        def write_items(writer: Writer, value: Any) -> None:
            for item in value:
                write_item(writer, item)

        read = _sized_reader(self.name, "int32", read_items, flexible, nullable)
        return read, _sized_writer(self.name, "int32", write_items, flexible, nullable)


def _least_sized_bytes(size: str, flexible: bool) -> int:
    return 1 if flexible else _FIXED_BYTES[size]


def _sized_reader(name: str, size_type: str, read_body: _ReadBody, flexible: bool, nullable: bool) -> _Read:
    read_size = getattr(Reader, size_type)

    def read(reader: Reader) -> Any:
        size = reader.uvarint() - 1 if flexible else read_size(reader)
        if size >= 0:
            return read_body(reader, size)
        if size == -1 and nullable:
            return None
        raise DecodeError(f"{name} of length {size} at byte {reader.pos}")

    return read


def _sized_writer(name: str, size_type: str, write_body: _Write, flexible: bool, nullable: bool) -> _Write:
    write_size = getattr(Writer, size_type)
    write_null = _null_writer(name, size_type, flexible, nullable)

    def write(writer: Writer, value: Any) -> None:
        if value is None:
            write_null(writer)
            return
        if flexible:
            writer.uvarint(len(value) + 1)
        else:
            write_size(writer, len(value))
        write_body(writer, value)

    return write


def _null_writer(name: str, size_type: str, flexible: bool, nullable: bool) -> Callable[[Writer], None]:
    write_size = getattr(Writer, size_type)

    def write_null(writer: Writer) -> None:
        if not nullable:
            raise EncodeError(f"{name} must not be None at this version")
        writer.uvarint(0) if flexible else write_size(writer, -1)

    return write_null


BOOL = Type("boolean")
INT8 = Type("int8")
INT16 = Type("int16")
INT32 = Type("int32")
INT64 = Type("int64")
UUID_T = Type("uuid")
STRING = _String("string")
BYTES = _Sized("bytes", "int32", lambda reader, size: bytes(reader.raw(size)), Writer.raw)
RECORDS = _Sized("records", "int32", Reader.raw, Writer.raw)


class Field:
    """One declared field. ``since``, ``until``, ``nullable``: versions, inclusive."""

    __slots__ = ("default", "factory", "ignorable", "name", "nullable", "since", "tag", "type", "until")

    def __init__(self, type_: Type | type[Struct], **options: Any) -> None:
        self.name = ""
        self.type = type_
        self.since: int = options["since"]
        self.until: int = options["until"]
        self.nullable: int = options["nullable"]
        self.tag: int | None = options["tag"]
        self.ignorable: bool = options["ignorable"]
        self.factory: Callable[[], Any] | None = options["factory"]
        self.default = options["default"]

    def present(self, version: int) -> bool:
        return self.since <= version <= self.until

    def make_default(self) -> Any:
        return self.factory() if self.factory else self.default


def f(
    type_: Type | type[Struct],
    *,
    since: int = 0,
    until: int = NEVER,
    nullable: int = NEVER,
    tag: int | None = None,
    ignorable: bool = True,
    default: Any = None,
    factory: Callable[[], Any] | None = None,
) -> Any:
    """Declares a field; ``nullable`` is the first version at which it may be ``None``."""
    return Field(
        type_,
        since=since,
        until=until,
        nullable=nullable,
        tag=tag,
        ignorable=ignorable,
        default=default,
        factory=factory,
    )


@dataclass_transform(kw_only_default=True, field_specifiers=(f,))
class Struct:
    """A group of fields. Every field has a default, given by keyword to the constructor."""

    __slots__ = ("__dict__",)

    _fields: ClassVar[tuple[Field, ...]] = ()
    _codecs: ClassVar[dict[tuple[int, bool], tuple[_Read, _Write]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = [(name, value) for name, value in vars(cls).items() if isinstance(value, Field)]
        for name, field in own:
            field.name = name
            delattr(cls, name)
        cls._fields = (*cls._fields, *(field for _, field in own))
        cls._codecs = {}

    def __init__(self, **values: Any) -> None:
        own = self.__dict__
        for field in self._fields:
            name = field.name
            own[name] = values.pop(name) if name in values else field.make_default()
        if values:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(values))}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.__dict__.items())})"

    @classmethod
    def codec(cls, version: int, flexible: bool) -> tuple[_Read, _Write]:
        """The reader and the writer of this struct at one version (cached)."""
        made = cls._codecs.get((version, flexible))
        if made is None:
            made = cls._codecs[version, flexible] = _struct_codec(cls, version, flexible)
        return made

    @classmethod
    def least_bytes(cls, version: int, flexible: bool) -> int:
        """The size of the smallest value in a frame."""
        present = [field for field in cls._fields if field.present(version) and field.tag is None]
        return flexible + sum(
            1
            if version >= field.nullable and not isinstance(field.type, Type)
            else field.type.least_bytes(version, flexible)
            for field in present
        )

    @classmethod
    def object_bytes(cls, version: int, flexible: bool) -> int:
        """The memory of a value, without the bytes and elements of its fields."""
        fields = dict.fromkeys(field.name for field in cls._fields)
        own = sys.getsizeof(cls.__new__(cls)) + sys.getsizeof(fields)
        return own + sum(
            field.type.object_bytes(version, flexible)
            for field in cls._fields
            if field.factory is not None or field.present(version)
        )


def _codec_of(
    type_: Type | type[Struct], version: int, flexible: bool, *, nullable: bool
) -> tuple[_Read, _Write]:
    if isinstance(type_, Type):
        return type_.codec(version, flexible, nullable)
    codec = type_.codec(version, flexible)
    return _nullable(*codec) if nullable else codec


def _nullable(read: _Read, write: _Write) -> tuple[_Read, _Write]:
    """The codec of a struct that may be null: a byte in front says whether it is there (KIP-893)."""

    def read_value(reader: Reader) -> Any:
        return None if reader.int8() < 0 else read(reader)

    def write_value(writer: Writer, value: Any) -> None:
        writer.int8(-1 if value is None else 1)
        if value is not None:
            write(writer, value)

    return read_value, write_value


def _struct_codec(cls: type[Struct], version: int, flexible: bool) -> tuple[_Read, _Write]:
    plain: list[tuple[str, _Read, _Write]] = []
    tagged: dict[int, tuple[str, _Read, _Write]] = {}
    absent = [field for field in cls._fields if not field.present(version)]
    strict = [field for field in absent if not field.ignorable]
    for field in cls._fields:
        if field.present(version):
            read, write = _codec_of(field.type, version, flexible, nullable=version >= field.nullable)
            if field.tag is None:
                plain.append((field.name, read, write))
            elif flexible:
                tagged[field.tag] = (field.name, read, write)
    missing = [*absent, *(field for field in cls._fields if field.tag is not None)]
    constants = {field.name: field.default for field in missing if field.factory is None}
    made_anew = [(field.name, field.factory) for field in missing if field.factory is not None]
    defaults = {field.name: field.make_default for field in cls._fields}
    fields_of = {field.name: field for field in cls._fields}
    steps = _steps([(fields_of[name], read, write) for name, read, write in plain])

    def read_struct(reader: Reader) -> Struct:
        made = cls.__new__(cls)
        values = made.__dict__
        for names, layout, read, _ in steps:
            if layout is None:
                values[names[0]] = read(reader)
            else:
                values.update(zip(names, reader.several(layout), strict=True))
        if constants:
            values.update(constants)
        for name, factory in made_anew:
            values[name] = factory()
        if flexible:
            _read_tagged(reader, tagged, values)
        return made

    def write_struct(writer: Writer, value: Struct) -> None:
        values = value.__dict__
        for field in strict:
            if values[field.name] != field.make_default():
                raise EncodeError(f"{cls.__name__}.{field.name} cannot be sent at version {version}")
        for names, layout, _, write in steps:
            if layout is None:
                _write_field(cls, writer, write, names[0], values[names[0]])
                continue
            try:
                writer.several(layout, tuple([values[name] for name in names]))
            except struct.error:  # one by one, so that the error names the field
                for name, _, write_field in plain:
                    if name in names:
                        _write_field(cls, writer, write_field, name, values[name])
        if flexible:
            _write_tagged(writer, tagged, values, defaults)

    return read_struct, write_struct


_Step = tuple[tuple[str, ...], struct.Struct | None, _Read, _Write]
"""Fields read together: their names; the layout of several integers, or None and one field's codec."""


def _steps(fields: list[tuple[Field, _Read, _Write]]) -> list[_Step]:
    """The fields in order; consecutive integers are one step."""
    steps: list[_Step] = []
    run: list[tuple[Field, _Read, _Write]] = []
    for field in [*fields, None]:
        if field is not None and isinstance(field[0].type, Type) and field[0].type.name in _LETTERS:
            run.append(field)
            continue
        if len(run) == 1:
            steps.append(((run[0][0].name,), None, run[0][1], run[0][2]))
        elif run:
            letters = "".join(
                _LETTERS[field.type.name] for field, _, _ in run if isinstance(field.type, Type)
            )
            names = tuple(field.name for field, _, _ in run)
            steps.append((names, struct.Struct(f">{letters}"), run[0][1], run[0][2]))
        run = []
        if field is not None:
            steps.append(((field[0].name,), None, field[1], field[2]))
    return steps


_LETTERS = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}


def _write_field(cls: type[Struct], writer: Writer, write: _Write, name: str, value: Any) -> None:
    try:
        write(writer, value)
    except EncodeError as exc:
        raise EncodeError(f"{cls.__name__}.{name}: {exc}") from exc


def _read_tagged(
    reader: Reader, tagged: dict[int, tuple[str, _Read, _Write]], values: dict[str, Any]
) -> None:
    for _ in range(reader.tag_count()):
        tag, size = reader.uvarint(), reader.uvarint()
        data = reader.raw(size)
        if tag in tagged:
            name, read, _ = tagged[tag]
            body = Reader(data, reader.room_bytes)
            values[name] = read(body)
            reader.room_bytes = body.room_bytes
            if body.remaining:
                raise DecodeError(f"{body.remaining} bytes left over in tagged field {name}")


def _write_tagged(
    writer: Writer,
    tagged: dict[int, tuple[str, _Read, _Write]],
    values: dict[str, Any],
    defaults: dict[str, Callable[[], Any]],
) -> None:
    present = [(tag, n, w) for tag, (n, _, w) in sorted(tagged.items()) if values[n] != defaults[n]()]
    writer.uvarint(len(present))
    for tag, name, write in present:
        body = Writer()
        write(body, values[name])
        data = body.getvalue()
        writer.uvarint(tag)
        writer.uvarint(len(data))
        writer.raw(data)


class Message(Struct):
    """A whole message: ``min_version``..``max_version``, flexible (KIP-482) from ``flexible``."""

    min_version: ClassVar[int] = 0
    max_version: ClassVar[int] = 0
    flexible: ClassVar[int] = NEVER

    def __init_subclass__(cls, *, versions: tuple[int, int] = (0, 0), flexible: int = NEVER) -> None:
        super().__init_subclass__()
        cls.min_version, cls.max_version = versions
        cls.flexible = flexible

    @classmethod
    def _at(cls, version: int) -> tuple[_Read, _Write]:
        if not cls.min_version <= version <= cls.max_version:
            raise EncodeError(
                f"{cls.__name__} version {version} is not in {cls.min_version}..{cls.max_version}"
            )
        return cls.codec(version, version >= cls.flexible)

    def write_to(self, writer: Writer, version: int) -> None:
        """Appends this message, encoded at ``version``, to ``writer``. Raises :class:`EncodeError`."""
        self._at(version)[1](writer, self)

    def encode(self, version: int) -> bytes:
        """This message at ``version``. Raises :class:`EncodeError`."""
        writer = Writer()
        self.write_to(writer, version)
        return writer.getvalue()

    @classmethod
    def read_from(cls, reader: Reader, version: int) -> Self:
        """Reads a message and leaves the bytes behind it. Raises :class:`DecodeError`."""
        message: Self = cls._at(version)[0](reader)
        return message

    @classmethod
    def decode(cls, data: Buffer, version: int) -> Self:
        """Reads a message that fills ``data`` to its end; bytes left over raise :class:`DecodeError`."""
        reader = Reader(data)
        message = cls.read_from(reader, version)
        if reader.remaining:
            raise DecodeError(f"{reader.remaining} bytes left over after {cls.__name__} v{version}")
        return message


class Response(Message):
    """A broker's response."""


R = TypeVar("R", bound=Response)


class Request(Message, Generic[R]):
    """A client's request: its ``api_key`` and the class of its response, at the same version."""

    api_key: ClassVar[int] = -1
    response_type: ClassVar[type[Response]] = Response

    def __init_subclass__(
        cls,
        *,
        api_key: int = -1,
        response: type[Response] = Response,
        versions: tuple[int, int] = (0, 0),
        flexible: int = NEVER,
    ) -> None:
        super().__init_subclass__(versions=versions, flexible=flexible)
        cls.api_key = api_key
        cls.response_type = response
