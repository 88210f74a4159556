"""Schemas that the configuration holds or names a file of."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from slackwater.runtime.config.value_config import ValueConfig

MAX_FILE_BYTES = 16 << 20


def schema_text(config: ValueConfig) -> tuple[str, str]:
    """The schema as text, and the field that it comes from. Raises ConfigError."""
    if config.schema_file is None:
        return config.schema or "", "value.schema"
    data, field = _read(config.schema_file)
    try:
        return data.decode(), field
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{config.schema_file} is not UTF-8 text (byte {exc.start})", field=field) from None


def schema_bytes(config: ValueConfig) -> tuple[bytes, str]:
    """The schema as bytes, in base64 where it is not in a file, and the field. Raises ConfigError."""
    if config.schema_file is not None:
        return _read(config.schema_file)
    try:
        return base64.b64decode("".join((config.schema or "").split()), validate=True), "value.schema"
    except ValueError:
        raise ConfigError(
            "is not base64: give the output of protoc --include_imports --descriptor_set_out in base64, or "
            "its file as schemaFile",
            field="value.schema",
        ) from None


def _read(name: str) -> tuple[bytes, str]:
    field = "value.schemaFile"
    try:
        with Path(name).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise ConfigError(f"{name} cannot be read: {exc.strerror or exc}", field=field) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{name} is larger than {MAX_FILE_BYTES >> 20} MiB", field=field)
    return data, field
