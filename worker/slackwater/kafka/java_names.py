"""Java's option names, and the options that this client does not support.

Every name of Kafka 4.4's ConsumerConfig is one of: a field of ``ConsumerConfig``, one of
``net.security.options``, or in :data:`NOT_HERE` with the reason. A test walks Java's list.
"""

from __future__ import annotations

import codecs
import importlib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from slackwater.kafka.errors import KafkaConfigurationError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NotHere:
    """An option that changes nothing here. ``accepts``: the values (as text, lower case) that may be given;
    ``None``: any, with a note in the log. ``why``: the reason, for the note or the refusal."""

    why: str
    accepts: tuple[str, ...] | None = None


_JVM = "there is no Java security provider here; OpenSSL does TLS"
_GSSAPI = "Kerberos (GSSAPI) is not supported; use SCRAM-SHA-512 or OAUTHBEARER"
_LOGIN = "a login is made for each connection, and renewed as the broker asks (KIP-368)"
_OAUTH = "tokens come from client credentials or from sasl_oauth_token_provider"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
_HANDLERS = tuple(f"{_PACKAGE}.{prefix}oauthbearerlogincallbackhandler" for prefix in ("", "secured."))
_RETRIEVERS = tuple(f"{_PACKAGE}.{prefix}jwtretriever" for prefix in ("default", "clientcredentials"))
_VALIDATORS = tuple(f"{_PACKAGE}.{prefix}jwtvalidator" for prefix in ("default", "client"))
_SHARE = "it is for share consumers (KIP-932), which are not supported"
_METRICS = "metrics() returns the metrics; no reporters are called"

NOT_HERE: dict[str, NotHere] = {
    "bootstrap.controllers": NotHere(
        "controllers answer to admin tools only; set bootstrap.servers to brokers", ("",)
    ),
    "bootstrap.resolve.timeout.ms": NotHere("names of bootstrap.servers are resolved at each connection"),
    "config.providers": NotHere("values are used literally; resolve them first", ("", "[]")),
    "enable.metrics.push": NotHere("metrics are not pushed to brokers (KIP-714)"),
    "metadata.cluster.check.enable": NotHere(
        "a broker is not asked whether it is of the cluster (KIP-1242)", ("", "false")
    ),
    "metric.reporters": NotHere(_METRICS, ("", "[]", "org.apache.kafka.common.metrics.jmxreporter")),
    "metrics.recording.level": NotHere(_METRICS),
    "share.acknowledgement.mode": NotHere(_SHARE),
    "share.acquire.mode": NotHere(_SHARE),
    "socket.connection.setup.timeout.max.ms": NotHere(
        "each attempt may take socket.connection.setup.timeout.ms; what grows is the pause between them"
    ),
    "security.providers": NotHere(_JVM, ("",)),
    "sasl.client.callback.handler.class": NotHere(f"a Java class; {_OAUTH}", ("",)),
    "sasl.login.callback.handler.class": NotHere(f"a Java class; {_OAUTH}", ("", *_HANDLERS)),
    "sasl.oauthbearer.jwt.retriever.class": NotHere(f"a Java class; {_OAUTH}", ("", *_RETRIEVERS)),
    "sasl.oauthbearer.jwt.validator.class": NotHere("the broker checks the token", ("", *_VALIDATORS)),
    **dict.fromkeys(
        [
            "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms",
            "sasl.login.retry.backoff.max.ms", "sasl.login.retry.backoff.ms",
        ],
        NotHere("it is for the token endpoint, and there is no sasl.oauthbearer.token.endpoint.url"),
    ),
    "sasl.login.class": NotHere(f"a Java class; {_LOGIN}", ("",)),
    **dict.fromkeys(
        [
            "sasl.kerberos.kinit.cmd", "sasl.kerberos.min.time.before.relogin",
            "sasl.kerberos.service.name", "sasl.kerberos.ticket.renew.jitter",
            "sasl.kerberos.ticket.renew.window.factor",
        ],
        NotHere(_GSSAPI, ("",)),
    ),
    **dict.fromkeys(
        [
            "sasl.login.refresh.buffer.seconds", "sasl.login.refresh.min.period.seconds",
            "sasl.login.refresh.window.factor", "sasl.login.refresh.window.jitter",
        ],
        NotHere(_LOGIN),
    ),
    **dict.fromkeys(
        [
            "sasl.oauthbearer.allow.unverified.audience", "sasl.oauthbearer.allow.unverified.issuer",
            "sasl.oauthbearer.assertion.algorithm", "sasl.oauthbearer.assertion.claim.aud",
            "sasl.oauthbearer.assertion.claim.exp.seconds", "sasl.oauthbearer.assertion.claim.iss",
            "sasl.oauthbearer.assertion.claim.jti.include", "sasl.oauthbearer.assertion.claim.nbf.seconds",
            "sasl.oauthbearer.assertion.claim.sub", "sasl.oauthbearer.assertion.file",
            "sasl.oauthbearer.assertion.private.key.file",
            "sasl.oauthbearer.assertion.private.key.passphrase",
            "sasl.oauthbearer.assertion.template.file", "sasl.oauthbearer.clock.skew.seconds",
            "sasl.oauthbearer.expected.audience", "sasl.oauthbearer.expected.issuer",
            "sasl.oauthbearer.jwks.endpoint.refresh.ms",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "sasl.oauthbearer.jwks.endpoint.url",
            "sasl.oauthbearer.scope.claim.name", "sasl.oauthbearer.sub.claim.name",
        ],
        NotHere(_OAUTH, ("", "false")),
    ),
    "ssl.cipher.suites": NotHere("OpenSSL uses other cipher names; set ssl_ciphers", ("", "[]")),
    "ssl.engine.factory.class": NotHere(f"a Java class; {_JVM}", ("",)),
    "ssl.keymanager.algorithm": NotHere(_JVM),
    "ssl.trustmanager.algorithm": NotHere(_JVM),
    "ssl.provider": NotHere(_JVM),
    "ssl.secure.random.implementation": NotHere(_JVM),
    "ssl.truststore.password": NotHere("a PEM file of certificates has no password", ("",)),
    "ssl.keystore.password": NotHere("the password of a PEM key is ssl.key.password", ("",)),
}  # fmt: skip

# kafka-python's options that change nothing here: how its own threads, sockets and metrics are set up.
KEYWORDS_NOT_HERE: dict[str, NotHere] = {
    "api_version_auto_timeout_ms": NotHere("versions are agreed within the request timeout"),
    "max_in_flight_requests_per_connection": NotHere("one fetch at a time is under way to each broker"),
    "metrics_enabled": NotHere("sensors are always kept; they cost next to nothing"),
    "metric_group_prefix": NotHere("the names of the metrics are Java's"),
    "selector": NotHere("asyncio does the I/O"),
}


_PYTHON_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class PythonName:
    """``module:name`` of Python, in the option ``option``.

    Options can be what somebody else wrote, such as a ConsumerGroup's properties, and who checks them must
    not run that: only a consumer loads the names of its own. Raises :class:`KafkaConfigurationError` for a
    text of another form.
    """

    option: str
    text: str

    def __post_init__(self) -> None:
        if not _PYTHON_NAME.fullmatch(self.text):
            raise KafkaConfigurationError(f"{self.option}: {self.text!r} is not of the form module:name")

    def load(self) -> Any:
        """What it names. Raises :class:`KafkaConfigurationError` where it cannot be imported."""
        module, _, attribute = self.text.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as exc:
            raise KafkaConfigurationError(f"{self.option}: {self.text!r} cannot be imported: {exc}") from exc


def loaded(value: Any) -> Any:
    """What a :class:`PythonName` names; any other value as it is."""
    return value.load() if isinstance(value, PythonName) else value


SERIALIZATION = "org.apache.kafka.common.serialization."
"""The package of Java's serializers and deserializers."""
_SERDE = re.compile(r"Serdes\$(?!List)(\w+)Serde")
FIXED_BYTES = {"Short": 2, "Integer": 4, "Float": 4, "Long": 8, "Double": 8, "UUID": 36}
"""Of which Java's lists hold the items without their sizes."""


def encoding_of(name: str, properties: Mapping[str, Any]) -> str:
    """The encoding of Java's String(De)serializer that the property ``name`` names, by Python's name:
    ``value.deserializer.encoding``, or ``deserializer.encoding`` for both; UTF-8 without one.

    Raises :class:`KafkaConfigurationError` for an encoding that Python does not know.
    """
    general = f"{name.partition('.')[2]}.encoding"
    own = f"{name}.encoding"
    option = own if properties.get(own) is not None else general
    encoding = properties.get(option)
    try:
        return codecs.lookup("utf-8" if encoding is None else str(encoding).strip()).name
    except LookupError:
        raise KafkaConfigurationError(f"{option}={encoding}: Python has no such encoding") from None


def inner_kind(name: str, properties: Mapping[str, Any]) -> str:
    """What Java's List(De)serializer, which the property ``name`` names, has in its lists: ``Integer`` for
    ``Serdes$IntegerSerde``. Raises :class:`KafkaConfigurationError` where no such class is named."""
    option = f"default.list.{name.partition('.')[0]}.serde.inner"
    text = str(properties.get(option) or "").strip()
    inner = _SERDE.fullmatch(text.removeprefix(SERIALIZATION))
    if inner is None:
        raise KafkaConfigurationError(
            f"{option}={text}: {name} is for lists; name the class of their items, such as Serdes$StringSerde"
        )
    return inner[1]


LISTS_AND_TEXTS = frozenset(
    f"{prefix}{kind}.encoding" for kind in ("serializer", "deserializer") for prefix in ("", "key.", "value.")
) | frozenset(f"default.list.{kind}.serde.{what}" for kind in ("key", "value") for what in ("inner", "type"))
"""Java's properties of the two, which are none of the client."""


def java_name(keyword: str) -> str:
    """The dotted name of a keyword."""
    return keyword.replace("_", ".")


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that is not known, with the nearest one that is."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"unknown {what} {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def pass_over(name: str, value: Any, option: NotHere) -> None:
    """Notes that an option has no effect. Raises :class:`KafkaConfigurationError` for a value it must not
    have here."""
    text = "" if value is None else str(value).strip()
    if option.accepts is None:
        log.info("%s=%s has no effect: %s", name, value, option.why)
    elif text and text.lower() not in option.accepts:
        raise KafkaConfigurationError(f"{name}={text} is not supported: {option.why}")


def parse(name: str, value: Any, kind: str) -> Any:
    """A property's text as its option's type (``kind``: the annotation of the field)."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise KafkaConfigurationError(f"{name} must be true or false, not {value!r}")
        return text.lower() == "true"
    if kind in ("int", "float", "int | None"):
        try:
            return float(text) if kind == "float" else int(text)
        except ValueError:
            raise KafkaConfigurationError(f"{name} must be a number, not {value!r}") from None
    if name in ("partition.assignment.strategy", "interceptor.classes"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text
