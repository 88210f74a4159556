"""The format ``json``: UTF-8 text with one object each, by a schema in Spark's notation or a registry's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slackwater.pipeline.values import ddl
from slackwater.pipeline.values.json_blocks import MAX_BLOCK_BYTES, BlockReader, NotCertainError
from slackwater.pipeline.values.json_rows import ValueRejectedError, row_reader
from slackwater.pipeline.values.registry.wire import payloads
from slackwater.pipeline.values.settings import schema_text
from slackwater.pipeline.values.types import array_of, nullable, with_added_nullable
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from slackwater.pipeline.values.registry.client import Registry
    from slackwater.runtime.config.value_config import ValueConfig

BLOCKS = (8192, 256)
"""How many values are read at once; a block with a bad one is cut into those of the next size. So no value is
read more than four times."""


def json_decoder(
    config: ValueConfig, registry: Registry | None, before: JsonDecoder | None = None
) -> JsonDecoder:
    """``before``: the decoder that this one follows. Fields that it lacks may be missing in values of earlier
    schemas. Raises ConfigError for a schema that cannot be used, and what the registry's calls raise."""
    if config.schema is not None or config.schema_file is not None:
        text, field = schema_text(config)
        try:
            return JsonDecoder(ddl.parse(text), registry, config.timestamp_unit)
        except ddl.SchemaTextError as exc:
            raise ConfigError(str(exc), field=field) from None
    from slackwater.pipeline.values.json_schema import struct_of

    assert registry is not None  # the configuration's check
    registered = registry.subject_schema("JSON")
    try:
        type_ = struct_of(registered.text, registered.references)
        if before is not None:
            type_ = with_added_nullable(type_, before.declared)
        return JsonDecoder(type_, registry, config.timestamp_unit)
    except ddl.SchemaTextError as exc:
        raise ConfigError(
            f"{registered.name} cannot be used: {exc}", field="value.registry.subject"
        ) from None


class JsonDecoder:
    """Decodes JSON as ``type_``. With ``registry`` each value has the wire format's header before it.
    ``unit``: as of :func:`~slackwater.pipeline.values.json_rows.row_reader`."""

    def __init__(
        self, type_: pa.StructType, registry: Registry | None = None, unit: str | None = None
    ) -> None:
        self.declared, self.type = type_, nullable(type_)
        self._registry = registry
        self._blocks, self._row = BlockReader(type_, unit), row_reader(type_, unit)

    def decode(self, values: pa.BinaryArray) -> tuple[pa.StructArray, Mapping[int, str]]:
        """See :class:`~slackwater.pipeline.values.ValueDecoder`."""
        rejected: dict[int, str] = {}
        if self._registry is not None:
            values = payloads(values, rejected, "JSON")
        if not values.null_count:
            return self._decode(values, 0, 0, rejected), rejected
        at_fault: dict[int, str] = {}
        decoded = self._decode(values.drop_null(), 0, 0, at_fault)
        rows = [row for row, valid in enumerate(values.is_valid().to_pylist()) if valid]
        indices: list[int | None] = [None] * len(values)
        for index, row in enumerate(rows):
            indices[row] = index
        rejected.update({rows[index]: reason for index, reason in at_fault.items()})
        return decoded.take(pa.array(indices, pa.int64())), rejected

    def _decode(self, values: pa.BinaryArray, first: int, level: int, bad: dict[int, str]) -> pa.StructArray:
        """``values``, of which the first is row ``first``, in blocks of ``level`` of :data:`BLOCKS`."""
        size = BLOCKS[level]
        arrays = []
        for start in range(0, len(values), size):
            block = values.slice(start, size)
            try:
                if block.nbytes > MAX_BLOCK_BYTES:
                    raise NotCertainError("too large")
                arrays.append(self._blocks.read(block))
            except NotCertainError:
                if level + 1 < len(BLOCKS) and self._blocks.supported:
                    arrays.append(self._decode(block, first + start, level + 1, bad))
                else:
                    arrays.append(self._one_by_one(block, first + start, bad))
        return pa.concat_arrays(arrays) if arrays else pa.array([], self.type)

    def _one_by_one(self, values: pa.BinaryArray, first: int, bad: dict[int, str]) -> pa.StructArray:
        rows: list[dict[str, Any] | None] = []
        for row, value in enumerate(values.to_pylist(), first):
            try:
                rows.append(self._row(value))
            except ValueRejectedError as exc:
                bad[row] = f"JSON value: {exc}"
                rows.append(None)
        unfit: dict[int, str] = {}
        array = array_of(rows, self.type, unfit, lambda text: f"JSON value: {text}")
        bad.update({first + at: reason for at, reason in unfit.items()})
        return array

    def close(self) -> None:
        """Closes the connections to the registry."""
        if self._registry is not None:
            self._registry.close()
