"""The decoders of values and keys of a process: made once, since they may have connections to a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from slackwater.pipeline.datasource.options import OptionError
from slackwater.pipeline.values import make_decoder
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from slackwater.pipeline.values import ValueDecoder
    from slackwater.runtime.config.value_config import ValueConfig

REGISTRY_TIMEOUT_MS = 60_000
"""How long a task waits for a schema registry that does not answer, before it fails."""
_MAX_DECODERS = 8
_decoders: dict[tuple[str, ValueConfig], ValueDecoder] = {}


def decoded_type(column: str, config: ValueConfig) -> pa.StructType:
    """The type of a decoded column. Raises OptionError; StartError where a registry does not answer."""
    decoder = _make(column, config)
    try:
        return decoder.type
    finally:
        decoder.close()


def opened_decoder(column: str, config: ValueConfig, schema: pa.Schema) -> ValueDecoder:
    """The decoder of this process for ``column``.

    Raises OptionError where it has other fields than the query's ``schema``, and as :func:`decoded_type`.
    """
    decoder = _decoders.get((column, config))
    if decoder is None:
        decoder = _make(column, config)
        while len(_decoders) >= _MAX_DECODERS:
            _decoders.pop(next(iter(_decoders))).close()
        _decoders[column, config] = decoder
    planned = [field.name for field in schema.field(column).type]
    if [field.name for field in decoder.type] != planned:
        raise OptionError(
            f"{column}.registry.version",
            "must be a number here: the registry's latest schema has changed since the query was planned. "
            "Set it, or start the query again",
        )
    return decoder


def _make(column: str, config: ValueConfig) -> ValueDecoder:
    try:
        return make_decoder(
            config,
            timeout_ms=REGISTRY_TIMEOUT_MS,
            start_timeout_ms=REGISTRY_TIMEOUT_MS,
            column=column,
            follows=False,
        )
    except ConfigError as exc:
        raise OptionError(exc.field or f"{column}.format", f"cannot be used: {exc.problem}") from None
