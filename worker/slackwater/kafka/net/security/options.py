"""Reads a :class:`Security` from kafka-python 3's keywords, Java's dotted names, and our own options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.net.security import jaas as security_jaas
from slackwater.kafka.net.security.oauth import ClientCredentials
from slackwater.kafka.net.security.settings import OAUTHBEARER, PLAIN_TEXT, Security, SecurityProblem

KEYWORDS: dict[str, str] = {
    "security_protocol": "protocol",
    "sasl_mechanism": "mechanism",
    "sasl_plain_username": "username",
    "sasl_plain_password": "password",
    "sasl_oauth_token_provider": "token_provider",
    "ssl_cafile": "ca",
    "ssl_certfile": "cert",
    "ssl_keyfile": "key",
    "ssl_password": "key_password",
    "ssl_crlfile": "crl",
    "ssl_ciphers": "ciphers",
    "ssl_check_hostname": "check_hostname",
    "ssl_context": "ssl_context",
    # Ours: read at each login.
    "sasl_username_file": "username_file",
    "sasl_password_file": "password_file",
}
"""kafka-python's name (and ours) of each option -> field of :class:`Security`."""

OAUTH_KEYWORDS: dict[str, str] = {
    "sasl_oauth_token_endpoint_url": "token_endpoint_url",
    "sasl_oauth_client_id": "client_id",
    "sasl_oauth_client_secret": "client_secret",
    "sasl_oauth_client_secret_file": "client_secret_file",
    "sasl_oauth_scope": "scope",
    "sasl_oauth_header_urlencode": "urlencode_header",
    "sasl_oauth_cafile": "endpoint_ca",
    "sasl_oauth_extensions": "sasl_extensions",
    "sasl_login_connect_timeout_ms": "connect_timeout_ms",
    "sasl_login_read_timeout_ms": "read_timeout_ms",
    "sasl_login_retry_backoff_ms": "retry_backoff_ms",
    "sasl_login_retry_backoff_max_ms": "retry_backoff_max_ms",
}
"""Our name of each option -> field of :class:`ClientCredentials`, which they make a token provider of."""

OPTIONS = (*KEYWORDS, *OAUTH_KEYWORDS, "sasl_jaas_config", "security")
"""All options of :func:`from_keywords`."""

_BY_KEYWORD = {field: keyword for keyword, field in {**KEYWORDS, **OAUTH_KEYWORDS}.items()}

JAVA_NAMES: dict[str, str] = {
    "protocol": "security.protocol",
    "mechanism": "sasl.mechanism",
    "username": "username in sasl.jaas.config",
    "password": "password in sasl.jaas.config",
    "username_file": "sasl.username.file",
    "password_file": "sasl.password.file",
    "token_provider": "sasl_oauth_token_provider",
    "token_endpoint_url": "sasl.oauthbearer.token.endpoint.url",
    "client_id": "sasl.oauthbearer.client.credentials.client.id",
    "client_secret": "sasl.oauthbearer.client.credentials.client.secret",
    "client_secret_file": "sasl.oauth.client.secret.file",
    "scope": "sasl.oauthbearer.scope",
    "urlencode_header": "sasl.oauthbearer.header.urlencode",
    "endpoint_ca": "sasl.oauth.cafile",
    "sasl_extensions": "extension_NAME in sasl.jaas.config",
    "connect_timeout_ms": "sasl.login.connect.timeout.ms",
    "read_timeout_ms": "sasl.login.read.timeout.ms",
    "retry_backoff_ms": "sasl.login.retry.backoff.ms",
    "retry_backoff_max_ms": "sasl.login.retry.backoff.max.ms",
    "ca": "ssl.truststore.location",
    "cert": "ssl.keystore.location",
    "key": "ssl.keystore.key",
    "key_password": "ssl.key.password",
    "check_hostname": "ssl.endpoint.identification.algorithm",
}
"""Field of :class:`Security` -> Java's name of it, for messages."""


def from_keywords(options: Mapping[str, Any]) -> tuple[Security, dict[str, Any]]:
    """Splits ``options`` into a Security, from the names in :data:`OPTIONS`, and the other options.

    ``None`` is as good as left out, as in kafka-python. ``security`` is a whole :class:`Security`, and
    excludes the others. Raises :class:`KafkaConfigurationError` that names the options.
    """
    rest = {name: value for name, value in options.items() if name not in OPTIONS}
    given = {
        KEYWORDS[name]: value for name, value in options.items() if name in KEYWORDS and value is not None
    }
    oauth = {
        OAUTH_KEYWORDS[name]: value
        for name, value in options.items()
        if name in OAUTH_KEYWORDS and value is not None
    }
    whole, jaas = options.get("security"), options.get("sasl_jaas_config")
    if whole is not None:
        if given.get("check_hostname") is True:
            del given["check_hostname"]  # kafka-python's default, written out
        if given or oauth or jaas is not None:
            other = _BY_KEYWORD[next(iter({**given, **oauth}))] if given or oauth else "sasl_jaas_config"
            raise KafkaConfigurationError(f"security and {other} are both set: put {other} into security")
        if not isinstance(whole, Security):
            raise KafkaConfigurationError(f"security must be a Security, not {type(whole).__name__}")
        return whole, rest
    if jaas is not None:
        _add_jaas(given, oauth, jaas)
    if oauth.get("urlencode_header") is False:
        del oauth["urlencode_header"]  # Java's default, written out
    if not given and not oauth:
        return PLAIN_TEXT, rest
    if isinstance(given.get("protocol"), str):
        given["protocol"] = given["protocol"].upper()  # as Java and kafka-python take it
    try:
        return (_with_tokens(given, oauth) if oauth else Security(**given)), rest
    except SecurityProblem as problem:
        raise SecurityProblem(problem.text, _BY_KEYWORD) from None


def _with_tokens(given: dict[str, Any], oauth: dict[str, Any]) -> Security:
    first = next(iter(oauth))
    mechanism = given.get("mechanism")
    if mechanism not in (None, OAUTHBEARER):
        raise SecurityProblem(
            f"<{first}> cannot be used with <mechanism>={mechanism}; leave it out, or set <mechanism> to "
            "OAUTHBEARER"
        )
    if "token_provider" in given:
        raise SecurityProblem(f"<token_provider> and <{first}> are both set: set one of the two")
    for name in ("token_endpoint_url", "client_id"):
        if name not in oauth:
            raise SecurityProblem(f"<{first}> is set without <{name}>; client credentials require both")
    try:
        return Security(**given, token_provider=ClientCredentials(**oauth))
    except SecurityProblem as problem:
        raise SecurityProblem(problem.text.replace("<token_provider>", f"<{first}>")) from None


def _add_jaas(given: dict[str, Any], oauth: dict[str, Any], text: Any) -> None:
    if not isinstance(text, str):
        raise KafkaConfigurationError(f"sasl.jaas.config must be text, not {type(text).__name__}")
    login = security_jaas.parse(text)
    mechanism = given.get("mechanism")
    if mechanism is not None and mechanism not in login.mechanisms:
        fits = " or ".join(login.mechanisms)
        raise KafkaConfigurationError(
            f"sasl.jaas.config has the login module of {fits}, but sasl.mechanism is {mechanism}: change one"
        )
    if isinstance(login, security_jaas.JaasLogin):
        _refuse_twice(given, "username", "password", "username_file", "password_file")
        given["username"], given["password"] = login.username, login.password
        return
    client = {"client_id": login.client_id, "client_secret": login.client_secret, "scope": login.scope}
    options: dict[str, Any] = {name: value for name, value in client.items() if value is not None}
    if login.extensions:
        options["sasl_extensions"] = login.extensions
    _refuse_twice(oauth, *options, *(["client_secret_file"] if "client_secret" in options else []))
    oauth.update(options)


def _refuse_twice(given: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if name in given:
            raise SecurityProblem(
                f"sasl.jaas.config and <{name}> are both set: set one of the two", _BY_KEYWORD
            )


# -- Java's names ----------------------------------------------------------------------------------


def from_properties(properties: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Java's dotted names (``security.protocol``, ``sasl.*``, ``ssl.*``) as keywords of
    :func:`from_keywords`, and the other properties.

    ``sasl.username.file`` and ``sasl.password.file`` are ours. Raises :class:`KafkaConfigurationError` for
    what Java refuses (a password for a PEM store, a store given twice) and for what is not supported here
    (other stores than PEM), and says what to do.
    """
    rest = dict(properties)
    # An empty value is none, except where "" is what switches the check of names off.
    given = {
        name: value
        for name in _JAVA_PROPERTIES
        if (value := rest.pop(name, None)) not in (None, "") or (name == _IDENTIFICATION and value == "")
    }
    keywords = {keyword: given[name] for name, keyword in _PLAIN_NAMES.items() if name in given}
    for dotted in list(rest):
        keyword = dotted.replace(".", "_")
        known = keyword in KEYWORDS or (keyword in OAUTH_KEYWORDS and dotted not in _LIMITS)
        if known and isinstance(rest[dotted], str):
            keywords[keyword] = rest.pop(dotted)
    if isinstance(keywords.get("ssl_check_hostname"), str):
        keywords["ssl_check_hostname"] = _boolean("ssl.check.hostname", keywords["ssl_check_hostname"])
    _add_token_options(keywords, rest)
    if _IDENTIFICATION in given:
        keywords["ssl_check_hostname"] = _checks_names(str(given[_IDENTIFICATION]))
    _check_versions(given)
    keywords.update(_trust_store(given))
    keywords.update(_key_store(given))
    return keywords, rest


def security_from_properties(properties: Mapping[str, Any], **keywords: Any) -> Security:
    """A :class:`Security` from Java's dotted names (``security.protocol``, ``sasl.jaas.config``,
    ``ssl.truststore.location`` and so on), with kafka-python's keyword arguments on top.

    Raises :class:`KafkaConfigurationError` for properties that exclude each other, are not supported, or are
    not about security.
    """
    options, rest = from_properties(properties)
    try:
        security, unknown = from_keywords({**options, **keywords})
    except SecurityProblem as problem:
        raise SecurityProblem(problem.text, JAVA_NAMES) from None
    for name in (*rest, *unknown):
        raise KafkaConfigurationError(f"{name} is not a connection option")
    return security


_IDENTIFICATION = "ssl.endpoint.identification.algorithm"
_PLAIN_NAMES = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.jaas.config": "sasl_jaas_config",
    "sasl.username.file": "sasl_username_file",
    "sasl.password.file": "sasl_password_file",
    "ssl.key.password": "ssl_password",
    "sasl.oauthbearer.token.endpoint.url": "sasl_oauth_token_endpoint_url",
    "sasl.oauthbearer.client.credentials.client.id": "sasl_oauth_client_id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl_oauth_client_secret",
    "sasl.oauthbearer.scope": "sasl_oauth_scope",
    "sasl.oauthbearer.header.urlencode": "sasl_oauth_header_urlencode",
}
_LIMITS = (
    "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms",
    "sasl.login.retry.backoff.ms", "sasl.login.retry.backoff.max.ms",
)  # fmt: skip
"""Java's limits for a request to the token endpoint."""
_STORES = [
    f"ssl.{store}.{part}" for store in ("truststore", "keystore") for part in ("location", "type", "password")
]
_VERSIONS = ("ssl.protocol", "ssl.enabled.protocols")
_JAVA_PROPERTIES = (
    *_PLAIN_NAMES, *_STORES, *_VERSIONS, _IDENTIFICATION,
    "ssl.truststore.certificates", "ssl.keystore.certificate.chain", "ssl.keystore.key",
)  # fmt: skip


PROPERTIES = tuple(name for name in _JAVA_PROPERTIES if not name.endswith("store.password"))
"""The supported names of Java."""


def _add_token_options(keywords: dict[str, Any], rest: dict[str, Any]) -> None:
    encode = "sasl_oauth_header_urlencode"
    if isinstance(keywords.get(encode), str):
        keywords[encode] = _boolean("sasl.oauthbearer.header.urlencode", keywords[encode])
    if "sasl_oauth_token_endpoint_url" not in keywords:
        return  # the limits stay with the options that have no effect, as in Java
    for name in _LIMITS:
        value = rest.pop(name, None)
        if value in (None, ""):
            continue
        try:
            keywords[name.replace(".", "_")] = int(str(value))
        except ValueError:
            raise KafkaConfigurationError(f"{name} must be a number of milliseconds, not {value!r}") from None


def _boolean(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise KafkaConfigurationError(f"{name} must be true or false, not {value!r}")
    return value.strip().lower() == "true"


def _checks_names(algorithm: str) -> bool:
    if algorithm.strip().lower() not in ("", "https"):
        raise KafkaConfigurationError(
            f"{_IDENTIFICATION}={algorithm!r}: https checks the broker's name, empty does not"
        )
    return bool(algorithm.strip())


def _check_versions(given: Mapping[str, Any]) -> None:
    for name in _VERSIONS:
        wanted = {version.strip() for version in str(given.get(name, "TLS")).split(",")}
        if not wanted & {"TLS", "TLSv1.3"} or wanted - {"TLS", "TLSv1.2", "TLSv1.3"}:
            raise KafkaConfigurationError(
                f"{name}={given[name]}: TLS 1.2 and 1.3 are used, whichever the broker prefers; leave it out"
            )


def _store(given: Mapping[str, Any], store: str, inline: str) -> str | None:
    """The location of a store, checked as Java checks it; ``inline``: the option that replaces it."""
    location, kind = given.get(f"ssl.{store}.location"), str(given.get(f"ssl.{store}.type", "JKS")).upper()
    if location is None and inline not in given:
        return None
    if location is not None and inline in given:
        raise KafkaConfigurationError(f"ssl.{store}.location and {inline} are both set: set one of the two")
    if kind != "PEM":
        how = (
            "keytool -exportcert -rfc makes PEM of a JKS certificate, openssl pkcs12 of a PKCS12 store"
            if location is not None
            else "Java rejects it, too"
        )
        raise KafkaConfigurationError(
            f"ssl.{store}.type is {kind} (Java's default is JKS): only PEM is supported; set it to PEM. {how}"
        )
    if f"ssl.{store}.password" in given:
        raise KafkaConfigurationError(
            f"ssl.{store}.password cannot be used with ssl.{store}.type=PEM: leave it out"
            + (" (a key's is ssl.key.password)" if store == "keystore" else "")
        )
    return None if location is None else str(location)


def _trust_store(given: Mapping[str, Any]) -> dict[str, Any]:
    inline = "ssl.truststore.certificates"
    location = _store(given, "truststore", inline)
    source = location if location is not None else _wrapped(inline, given)
    return {} if source is None else {"ssl_cafile": source}


def _key_store(given: Mapping[str, Any]) -> dict[str, Any]:
    chain, key = "ssl.keystore.certificate.chain", "ssl.keystore.key"
    location = _store(given, "keystore", chain)
    if location is not None:
        if key in given:
            raise KafkaConfigurationError(f"ssl.keystore.location and {key} are both set: set one of the two")
        return {"ssl_certfile": location}
    if (chain in given) != (key in given):
        there, missing = (chain, key) if chain in given else (key, chain)
        raise KafkaConfigurationError(f"{there} is set without {missing}; set both")
    if chain not in given:
        return {}
    return {"ssl_certfile": _wrapped(chain, given), "ssl_keyfile": _wrapped(key, given)}


_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([A-Za-z0-9+/=\s]+)-----END \1-----")


def _wrapped(name: str, given: Mapping[str, Any]) -> str | None:
    """A PEM of a property, in lines: a properties file may have it in one, which Java takes, OpenSSL not."""
    if name not in given:
        return None
    text = str(given[name])
    if "-----BEGIN" not in text:
        raise KafkaConfigurationError(
            f"{name} is not PEM (-----BEGIN ...): it must contain the text, not a path"
        )

    def lines(block: re.Match[str]) -> str:
        body = re.sub(r"\s", "", block[2])
        cut = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
        return f"-----BEGIN {block[1]}-----\n{cut}\n-----END {block[1]}-----\n"

    return _BLOCK.sub(lines, text)
