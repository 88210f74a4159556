"""What spec.pipeline.sink of a ConsumerGroup refuses beyond `sink_faults`."""

from __future__ import annotations

import re

from slackwater.fields import FieldError
from slackwater.runtime.config.sink_config import (
    CREDENTIAL,
    IS_CREDENTIAL,
    NO_CREDENTIAL,
    SIZE_AND_AGE,
    URL_WITH_PASSWORD,
    SinkConfig,
    sink_faults,
    waits_for_size_alone,
)


def check_sink(sink: SinkConfig) -> None:
    """Refuses what the CEL rules refuse of the resource's section: also credentials among the options, which
    the worker's file may have.

    Raises:
        FieldError: names the field.
    """
    path = "spec.pipeline.sink"
    for name, problem in sink_faults(sink):
        raise FieldError(f"{path}.{name}", problem)
    if waits_for_size_alone(sink):
        raise FieldError(f"{path}.targetFileSize", SIZE_AND_AGE)
    if sink.schema:
        _check_schema(sink.schema, f"{path}.schema")
    for name, value in sink.options.items():
        if not re.fullmatch(NO_CREDENTIAL, name) and re.fullmatch(CREDENTIAL, name, re.ASCII):
            raise FieldError(f"{path}.options[{name}]", IS_CREDENTIAL)
        if re.fullmatch(URL_WITH_PASSWORD, value, re.ASCII):
            raise FieldError(f"{path}.options[{name}]", f"is a URL with a password, which {IS_CREDENTIAL}")


def _check_schema(schema: str, path: str) -> None:
    # Here: it loads Arrow, which most resources do not need.
    from slackwater.pipeline.values.ddl import SchemaTextError, parse

    try:
        parse(schema)
    except SchemaTextError as exc:
        raise FieldError(path, str(exc)) from None
