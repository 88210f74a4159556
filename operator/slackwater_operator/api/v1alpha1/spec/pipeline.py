"""spec.pipeline of a ConsumerGroup: how records are processed, their values decoded, and where rows go."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from slackwater import fields
from slackwater.fields import FieldError, Rule, required, spec
from slackwater.runtime.config.pipeline_config import PipelineConfig
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
from slackwater.runtime.config.value_config import (
    ValueSchema,
    registry_subject,
    registry_subjects,
    registry_version,
    value_faults,
)
from slackwater_operator.api.v1alpha1.spec.kafka import SECRET

_IMAGE = r"[a-zA-Z0-9][a-zA-Z0-9._:/@-]*"
_URL = r"https?://[A-Za-z0-9._-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?"
_URLS = rf"{_URL}(, ?{_URL}){{0,9}}"
_HTTPS = r"https://[^,]+(, ?https://[^,]+)*"

_ONLY_HTTPS = "requires https; write url with https://"


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A schema registry with Confluent's REST API."""

    RULES: ClassVar[list[Rule]] = [
        Rule(
            f"self.url.matches(r'^({_HTTPS})$') || !has(self.{name})",
            _ONLY_HTTPS,
            f".{name}",
        )
        for name in ("caSecret", "clientCertificateSecret")
    ]

    url: str = required(
        "url",
        fields.text(pattern=_URLS, example="https://registry.kafka.svc:8081", max_length=2048),
        "The address of the schema registry, with its base path if it has one; several are separated by "
        "commas. Without user name and password: see credentialsSecret.",
    )
    subject: str | None = registry_subject()
    subjects: dict[str, str] = registry_subjects()
    version: str = registry_version()
    credentials_secret: str = spec(
        "credentialsSecret",
        fields.text(pattern=SECRET, example="registry-user", max_length=253),
        "The Secret with the keys username and password, for HTTP basic authentication.",
        absent="",
    )
    ca_secret: str = spec(
        "caSecret",
        fields.text(pattern=SECRET, example="registry-ca", max_length=253),
        "The Secret with the key ca.crt: the CA certificates (PEM) that the registry's certificate is "
        "verified against. Defaults to the CAs that the image trusts.",
        absent="",
    )
    client_certificate_secret: str = spec(
        "clientCertificateSecret",
        fields.text(pattern=SECRET, example="registry-client", max_length=253),
        "The Secret with the keys tls.crt and tls.key: the worker's client certificate.",
        absent="",
    )


@dataclass(frozen=True)
class Value(ValueSchema):
    """How the values, or the keys, of records are decoded."""

    registry: Registry | None = spec(
        "registry",
        fields.nested(Registry),
        "The schema registry of the values, which are in Confluent's wire format then. Without it, values "
        "have no header.",
    )


def check_value(value: Value, column: str) -> None:
    """Refuses fields that exclude or need each other, as the CEL rules do.

    Args:
        value: the section.
        column: `value` or `key`, which it is for.

    Raises:
        FieldError: names the field.
    """
    path, registry = f"spec.pipeline.{column}", value.registry
    for name, problem in value_faults(value, registry):
        raise FieldError(f"{path}.{name}", problem)
    if registry is None or all(url.strip().startswith("https://") for url in registry.url.split(",")):
        return
    if registry.ca_secret:
        raise FieldError(f"{path}.registry.caSecret", _ONLY_HTTPS)
    if registry.client_certificate_secret:
        raise FieldError(f"{path}.registry.clientCertificateSecret", _ONLY_HTTPS)


@dataclass(frozen=True, kw_only=True)
class Pipeline(PipelineConfig):
    """How records are processed."""

    image: str = spec(
        "image",
        fields.text(pattern=_IMAGE, example="registry.example/flights:1.4", max_length=512),
        "The workers' image: Slackwater's worker image with your handler added. Defaults to the operator's "
        "--worker-image. A local run ignores it.",
        absent="",
    )
    value: Value | None = spec(
        "value",
        fields.nested(Value),
        "How the values of records are decoded. Without it, the handler gets their bytes.",
    )
    key: Value | None = spec(
        "key",
        fields.nested(Value),
        "How the keys of records are decoded, as value has it. Without it, the handler gets their bytes.",
    )

    @property
    def decoded(self) -> dict[str, Value]:
        """The columns that are decoded, each with how."""
        columns = {"value": self.value, "key": self.key}
        return {column: given for column, given in columns.items() if given is not None}


def check_sink(sink: SinkConfig, path: str) -> None:
    """Refuses what the CEL rules refuse of a section of the resource: also credentials among the options,
    which the worker's file may have.

    Args:
        sink: the section.
        path: its path in the resource.

    Raises:
        FieldError: names the field.
    """
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
