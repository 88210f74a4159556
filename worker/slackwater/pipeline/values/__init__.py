"""Typed values: what turns the bytes of records into a column of structs, by format.

Importing this package loads neither Arrow nor a format's library. The configuration is plain data and can be
pickled; a decoder cannot, because it may hold connections: make one in each process.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from slackwater.runtime.config.value_config import LATEST
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.runtime.config.value_config import ValueConfig

__all__ = ["ValueDecoder", "decode", "make_decoder"]


class ValueDecoder(Protocol):
    """Decodes values of one format. Used by one thread at a time."""

    @property
    def type(self) -> pa.StructType:
        """Of the decoded values. All fields are nullable, because a null value is a null struct. It may get
        more fields, and wider types, with each call of :meth:`decode`."""

    def decode(self, values: pa.BinaryArray) -> tuple[pa.StructArray, Mapping[int, str]]:
        """The decoded values, and for each row that cannot be decoded the reason in one line.

        A rejected row is null in the array; a null value is null and has no reason. The cost is linear in the
        bytes, whatever they are. Raises ``WorkerError`` where the schema registry cannot be used: nothing is
        known about the values then.
        """

    def close(self) -> None:
        """Closes connections."""


def make_decoder(
    config: ValueConfig,
    *,
    timeout_ms: float,
    start_timeout_ms: float,
    column: str = "value",
    follows: bool = True,
) -> ValueDecoder:
    """The decoder that ``config`` describes, ready for use.

    ``timeout_ms``: how long one call of ``decode`` waits for the registry; ``start_timeout_ms``: how long
    this call does; ``column``: ``value``, or ``key`` for keys; ``follows``: whether the latest version of a
    subject's schema is followed while values are decoded, or the one of now stays. Raises ``ConfigError``
    that names the field for a schema that cannot be used or a package that is missing, and ``StartError``
    where the registry does not answer.
    """
    registry = None
    if config.registry is not None:
        from slackwater.pipeline.values.registry.client import Registry

        registry = Registry(config.registry, timeout_ms=timeout_ms)
    try:
        return _make(config, registry, start_timeout_ms, column, follows=follows)
    except BaseException as exc:
        if registry is not None:
            registry.close()
        if isinstance(exc, ConfigError) and exc.field.startswith("value."):
            field = f"{column}.{exc.field.removeprefix('value.')}"
            raise ConfigError(exc.problem, file=exc.file, field=field) from None
        raise


def decode(
    decoder: ValueDecoder, column: str, content: pa.BinaryArray
) -> tuple[pa.StructArray, dict[int, str]]:
    """As ``decoder.decode``; a reason names ``column``, ``value`` or ``key``. Raises as that does."""
    decoded, rejected = decoder.decode(content)
    return decoded, {row: reason.replace(" value:", f" {column}:", 1) for row, reason in rejected.items()}


def _make(
    config: ValueConfig, registry: Registry | None, start_timeout_ms: float, column: str, *, follows: bool
) -> ValueDecoder:
    if registry is None or config.registry is None:
        return _of_format(config, registry, column)
    registry.begin(start_timeout_ms, starting=True)
    given = config.registry

    def decoder_by(by: Registry) -> ValueDecoder:
        if not follows or not (given.subject or given.subjects) or given.version != LATEST:
            return _of_format(config, by, column)
        from slackwater.pipeline.values.registry.following import FollowingDecoder

        return FollowingDecoder(partial(_of_format, config, by, column), by)

    if given.subjects:
        from slackwater.pipeline.values.registry.kinds import kinds_decoder

        return kinds_decoder(given, registry, decoder_by)
    if config.format == "avro" and given.subject:
        from slackwater.pipeline.values.registry.kinds import union_decoder

        return union_decoder(registry, decoder_by) or decoder_by(registry)
    return decoder_by(registry)


def _of_format(
    config: ValueConfig, registry: Registry | None, column: str, before: Any = None
) -> ValueDecoder:
    """``before``: the decoder that this one follows; None: there is none."""
    if config.format == "debezium":
        if registry is not None:
            from slackwater.pipeline.values.debezium import avro

            return avro.avro_decoder(config, registry, column, before)
        from slackwater.pipeline.values.debezium import json

        return json.json_decoder(config, column)
    if config.format == "json":
        from slackwater.pipeline.values.json import json_decoder

        return json_decoder(config, registry, before)
    if config.format == "avro":
        from slackwater.pipeline.values.avro import avro_decoder

        return avro_decoder(config, registry, before)
    from slackwater.pipeline.values.protobuf import protobuf_decoder

    return protobuf_decoder(config, registry)


if TYPE_CHECKING:
    from slackwater.pipeline.values.registry.client import Registry
