"""Reads Java's ``sasl.jaas.config``: the login modules of PLAIN, SCRAM and OAUTHBEARER."""

from __future__ import annotations

import re
from typing import NamedTuple

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.net.security.settings import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512

_MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": (PLAIN,),
    "org.apache.kafka.common.security.scram.ScramLoginModule": (SCRAM_SHA_256, SCRAM_SHA_512),
}
_TOKENS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_EXTENSION = "extension_"
_FLAGS = {"required", "requisite", "sufficient", "optional"}
_TOKEN = re.compile(
    r"""\s*(?: "(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>(?:[^'\\]|\\.)*)' | (?P<sign>[=;])
    | (?P<word>[^\s"'=;]+) )""",
    re.X | re.S,
)
_FORM = 'write it as MODULE required username="NAME" password="PASSWORD";'


class JaasLogin(NamedTuple):
    """The content of a configuration. ``mechanisms``: those that its module supports."""

    username: str
    password: str
    mechanisms: tuple[str, ...]

    def __repr__(self) -> str:
        return f"JaasLogin(username={self.username!r}, mechanisms={self.mechanisms})"


class JaasClient(NamedTuple):
    """What a configuration of OAuthBearerLoginModule says: nothing, since Kafka 4.1, where the client stands
    in properties; or the client. ``mechanisms``: those that its module is for.
    """

    client_id: str | None
    client_secret: str | None
    scope: str | None
    extensions: dict[str, str]
    mechanisms: tuple[str, ...] = (OAUTHBEARER,)

    def __repr__(self) -> str:
        return f"JaasClient(client_id={self.client_id!r}, scope={self.scope!r})"


def parse(text: str) -> JaasLogin | JaasClient:
    """Reads ``MODULE required username="..." password="...";``, or the same with what a client for tokens
    has: ``clientId``, ``clientSecret``, ``scope`` and ``extension_NAME`` (KIP-768).

    Raises :class:`KafkaConfigurationError` that says what is wrong, without the text: it has a password.
    """
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != ";" or tokens[1].lower() not in _FLAGS:
        raise KafkaConfigurationError(f"sasl.jaas.config has an invalid format: {_FORM}")
    module, options = tokens[0], _options(tokens[2:-1])
    if module == _TOKENS:
        return _client(options)
    if module not in _MODULES:
        known = ", ".join(_MODULES)
        raise KafkaConfigurationError(f"sasl.jaas.config: {module} is not supported; supported are {known}")
    for name in options:
        if name not in ("username", "password"):
            raise KafkaConfigurationError(
                f"sasl.jaas.config: the option {name} is not supported; username and password are"
            )
    for name in ("username", "password"):
        if name not in options:
            raise KafkaConfigurationError(f"sasl.jaas.config: the option {name} is missing; {_FORM}")
    return JaasLogin(options["username"], options["password"], _MODULES[module])


def _client(options: dict[str, str]) -> JaasClient:
    extensions = {}
    for name, value in options.items():
        if name.startswith(_EXTENSION):
            extensions[name.removeprefix(_EXTENSION)] = value
        elif name.startswith("unsecured"):
            raise KafkaConfigurationError(
                f"sasl.jaas.config: {name} makes unsecured tokens, which are for tests; pass "
                "sasl_oauth_token_provider, an object that makes them, instead"
            )
        elif name not in ("clientId", "clientSecret", "scope"):
            hint = "; the endpoint's authorities are sasl.oauth.cafile" if name.startswith("ssl.") else ""
            raise KafkaConfigurationError(
                f"sasl.jaas.config: the option {name} is not supported; clientId, clientSecret, scope and "
                f"extension_NAME are{hint}"
            )
    return JaasClient(options.get("clientId"), options.get("clientSecret"), options.get("scope"), extensions)


class _Sign(str):
    """``=`` or ``;`` outside of quotes."""

    __slots__ = ()


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise KafkaConfigurationError("sasl.jaas.config: a quotation mark is not closed")
        quoted = match["double"] if match["double"] is not None else match["single"]
        if quoted is not None:
            tokens.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.S))
        else:
            tokens.append(_Sign(match["sign"]) if match["sign"] else match["word"])
        position = match.end()
    return tokens


def _options(tokens: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for at in range(0, len(tokens), 3):
        part = tokens[at : at + 3]
        if len(part) < 3 or not isinstance(part[1], _Sign) or part[1] != "=" or isinstance(part[2], _Sign):
            problem = "holds more than one login module" if ";" in tokens else "has an invalid format"
            raise KafkaConfigurationError(f"sasl.jaas.config {problem}: {_FORM}")
        options[part[0]] = part[2]
    return options
