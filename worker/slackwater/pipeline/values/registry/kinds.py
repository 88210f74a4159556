"""Values of several kinds, such as the events of one topic or the tables of a database: each has the schema
of a subject of its own, or is a record of one subject's union.

Which kind a value is of is told by the name of the record that it was written as. The schema's id alone does
not tell it: each version has another one.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.pipeline.values.registry.client import (
    MAX_SCHEMAS,
    UNKNOWN_FOR_MS,
    NotRegisteredError,
    Registered,
    Registry,
    SchemasById,
)
from slackwater.pipeline.values.registry.following import Decoder
from slackwater.pipeline.values.registry.wire import HEADER_BYTES, WireFormatError, schema_ids, zigzag
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from slackwater.runtime.config.value_config import RegistryConfig

_SUBJECT = "value.registry.subject"
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
log = logging.getLogger(__name__)
MakeDecoder = Callable[[Registry], Decoder]


class ValueKind(NamedTuple):
    """One kind of values. ``record``: the full name of its record."""

    record: str
    decoder: Decoder


def kinds_decoder(config: RegistryConfig, registry: Registry, make: MakeDecoder) -> KindsDecoder:
    """The decoder of the kinds that ``config`` names.

    ``make``: a decoder of one kind, by a registry whose subject has its schema. Raises ConfigError that names
    the field, and what ``make`` and the registry's calls raise.
    """
    return KindsDecoder(
        {name: partial(_kind, name, registry, subject, make) for name, subject in config.subjects.items()},
        registry,
    )


def _kind(name: str, registry: Registry, subject: str, make: MakeDecoder) -> ValueKind | None:
    """The kind of a subject's values; None: the subject is not there."""
    field, of_kind = f"value.registry.subjects[{name}]", registry.of_subject(subject)
    try:
        records = _subject_records(of_kind)
        if len(records) != 1 or not records[0]:
            raise ConfigError(
                f"the schema of {subject} is no record, so that no value can be told to be of it", field=field
            )
        return ValueKind(records[0], make(of_kind))
    except NotRegisteredError as exc:
        log.warning("%s: %s; its values are decoded when it is there", field, exc.problem)
        return None
    except ConfigError as exc:
        exact = field if exc.field == _SUBJECT else exc.field
        raise ConfigError(exc.problem, file=exc.file, field=exact) from None


def union_decoder(registry: Registry, make: MakeDecoder) -> KindsDecoder | None:
    """The decoder of the records of the subject's union, each by its name without the namespace; None: the
    schema is no union of several records. Otherwise as :func:`kinds_decoder`."""
    records = [record for record in _subject_records(registry) if record]
    if len(records) < 2:
        return None
    names = [record.rpartition(".")[2] for record in records]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ConfigError(
            f"has a union with two records {twice}; give each a subject, and name them in subjects",
            field=_SUBJECT,
        )
    return KindsDecoder(
        {
            name: partial(_of_record, registry, record, make)
            for name, record in zip(names, records, strict=True)
        },
        registry,
    )


def _of_record(registry: Registry, record: str, make: MakeDecoder) -> ValueKind:
    return ValueKind(record, make(registry.of_record(record)))


class KindsDecoder:
    """Decodes to a struct with a field for each kind, all but one of which are null.

    ``makes``: by name, what makes a kind; it gives None for one whose schema is not registered yet, as of a
    table without changes. Raises what it raises, and ConfigError for two kinds of one record.
    """

    def __init__(self, makes: Mapping[str, Callable[[], ValueKind | None]], registry: Registry) -> None:
        self._makes, self._registry = makes, registry
        self._kinds: dict[str, ValueKind] = {}
        self._by_id = SchemasById(registry, _records)
        self._asked: dict[str, float] = {}
        """When kinds that are missing were last looked for because of a record's name."""
        self._look()

    def _look_for(self, records: set[str]) -> None:
        """Looks for kinds that are missing, since there are ``records`` of none."""
        if len(self._kinds) == len(self._makes):
            return
        now = time.monotonic()
        new = {name for name in records if now - self._asked.get(name, -math.inf) > UNKNOWN_FOR_MS / 1000}
        if new:
            self._look()
            self._asked = {**self._asked, **dict.fromkeys(new, now)} if len(self._asked) < MAX_SCHEMAS else {}

    def _look(self) -> None:
        """Makes the kinds that are not there yet, as far as it can."""
        made = {name: self._kinds.get(name) or make() for name, make in self._makes.items()}
        self._kinds = {name: kind for name, kind in made.items() if kind is not None}
        self._of_record: dict[str, str] = {}
        for name, kind in self._kinds.items():
            if (other := self._of_record.setdefault(kind.record, name)) != name:
                raise ConfigError(
                    f"has the record {kind.record}, which {other} has, too; remove one",
                    field=f"value.registry.subjects[{name}]",
                )

    @property
    def type(self) -> pa.StructType:
        """With the types of the kinds as they are now."""
        return pa.struct([pa.field(name, kind.decoder.type) for name, kind in self._kinds.items()])

    def decode(self, values: pa.BinaryArray) -> tuple[pa.StructArray, Mapping[int, str]]:
        """See :class:`~slackwater.pipeline.values.ValueDecoder`."""
        rejected: dict[int, str] = {}
        records: dict[int, str] = {}
        self._by_id.begin()
        for row, schema_id, value in schema_ids(values, rejected, "Avro"):
            written, reason = self._by_id.get(schema_id)
            if written is not None:
                records[row], reason = _record_of(value, written)
            if reason:
                rejected[row] = f"Avro value: {reason}"
        self._look_for(set(records.values()) - self._of_record.keys())
        rows: dict[str, list[int]] = {name: [] for name in self._kinds}
        for row, record in records.items():
            if name := self._of_record.get(record):
                rows[name].append(row)
            elif row not in rejected:
                known = ", ".join(self._of_record)
                rejected[row] = f"Avro value: is {record or 'no record'}, and the kinds are {known}"
        columns = []
        for name, kind in self._kinds.items():
            decoded, wrong = kind.decoder.decode(values.take(pa.array(rows[name], pa.int64())))
            rejected |= {rows[name][at]: reason for at, reason in wrong.items()}
            places: list[int | None] = [None] * len(values)
            for at, row in enumerate(rows[name]):
                places[row] = at
            columns.append(decoded.take(pa.array(places, pa.int64())))
        if not columns:  # no subject is registered yet
            return pa.nulls(len(values), self.type), rejected
        mask = pc.or_(values.is_null(), pa.array([row in rejected for row in range(len(values))], pa.bool_()))
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask), rejected

    def close(self) -> None:
        """Closes the connections to the registry."""
        for kind in self._kinds.values():
            kind.decoder.close()
        self._registry.close()


def _subject_records(registry: Registry) -> list[str]:
    registered = registry.subject_schema("AVRO")
    try:
        return _records(registered)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{registered.name} cannot be used: {exc}", field=_SUBJECT) from None


def _record_of(value: bytes, records: list[str]) -> tuple[str, str]:
    """The record that a value is, or "", and why it is none. ``records``: those of its writer's schema."""
    if len(records) == 1:
        return records[0], ""
    try:
        number, _ = zigzag(value, HEADER_BYTES)
        return (records[number], "") if number >= 0 else ("", f"names the type {number} of its union")
    except (WireFormatError, IndexError) as exc:
        return "", f"names no type of its union of {len(records)}: {exc}"


def _records(registered: Registered) -> list[str]:
    """The full names of the records that a schema is, or may be as a union; "" for a type that is none.
    Raises ValueError for a schema that is not Avro's."""
    if registered.kind != "AVRO":
        raise ValueError(f"it is of type {registered.kind}, not AVRO")
    schema = json.loads(registered.text)
    return [_record(branch) for branch in (schema if isinstance(schema, list) else [schema])] or [""]


def _record(schema: Any) -> str:
    """The full name of a record, or of what a schema refers to by its name; "" for other types."""
    if isinstance(schema, str):
        return "" if schema in _PRIMITIVES else schema
    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        return ""
    name, namespace = str(schema.get("name", "")), schema.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name
