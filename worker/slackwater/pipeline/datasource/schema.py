"""The schema of a query: the columns of Spark's own Kafka source; a decoded value has fields."""

from __future__ import annotations

from collections.abc import Iterable

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


def spark_schema(names: Iterable[str], value: pa.StructType | None) -> StructType:
    """``names`` with their types. ``value``: that of the decoded values, which come with ``_error``."""
    types = dict(_TYPES)
    if value is not None:
        types["value"] = from_arrow_type(value)
    fields = [StructField(name, types[name]) for name in names]
    if value is not None:
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
            f"cannot be set: the schema is {own.simpleString()}, by the options columns, includeHeaders "
            "and value.*; remove schema(...), or start the query again if a schema registry has changed it",
        )
