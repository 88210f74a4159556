"""The schema of a query: the columns of Spark's own Kafka source; a decoded value or key has fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from slackwater.pipeline.datasource.options import OptionError
from slackwater.runtime.interfaces import ERROR_COLUMN

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def spark_schema(names: Iterable[str], decoded: Mapping[str, pa.StructType]) -> StructType:
    """``names`` with their types. ``decoded``: those of decoded columns, which come with ``_error``."""
    types = _TYPES | {name: from_arrow_type(kind) for name, kind in decoded.items()}
    fields = [StructField(name, types[name]) for name in names]
    if decoded:
        fields.append(StructField(ERROR_COLUMN, StringType()))
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of the Arrow batches that Spark expects for ``schema``."""
    return to_arrow_schema(schema, timezone="UTC")


def check_schema(given: StructType, own: StructType) -> None:
    """Raises OptionError where the query was given another schema than the source has."""
    if given.simpleString() != own.simpleString():
        raise OptionError(
            "schema",
            f"cannot be set: the schema is {own.simpleString()}, by the options columns, includeHeaders, "
            "value.* and key.*; remove schema(...), or start the query again if a registry has changed it",
        )
