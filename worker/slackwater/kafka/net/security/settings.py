"""Connection security settings: the protocol, TLS, and SASL.

:class:`Security` is a plain value. ``Cluster(security=...)``, and with it every consumer, producer and admin,
opens its connections with these settings (``connect.py``); ``options.py`` reads them from kafka-python's and
Java's option names.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from slackwater.kafka.errors import KafkaConfigurationError

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER = MECHANISMS = (
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "OAUTHBEARER",
)


@runtime_checkable
class TokenProvider(Protocol):
    """Provides tokens for OAUTHBEARER; kafka-python's ``AbstractTokenProvider`` is one.

    ``token()`` is called at each login, on a separate thread, and may block. It may have a method
    ``extensions() -> dict[str, str]``: SASL extensions (KIP-342) to send along.
    """

    def token(self) -> str: ...


class SecurityProblem(KafkaConfigurationError):
    """Options that cannot be combined.

    ``text`` writes an option as ``<field>`` of :class:`Security`; the message uses its name in ``names``.
    """

    def __init__(self, text: str, names: Mapping[str, str] | None = None) -> None:
        self.text = text
        super().__init__(_FIELD.sub(lambda match: (names or {}).get(match[1], match[1]), text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How connections to a cluster are secured. ``repr`` shows no secret.

    ``protocol``: ``PLAINTEXT``, ``SSL``, ``SASL_PLAINTEXT``, ``SASL_SSL``.

    For the two with TLS:
        ``ca``: the authorities that brokers' certificates are checked against; without it the system's.
        ``cert``, ``key``: this client's certificate (its chain, the client's own first) and private key,
        for brokers that ask for one. ``key`` may be left out if it is in the same PEM as ``cert``.
        Each of the three is PEM text (it has ``-----BEGIN``) or the path of a PEM file; a file is read for
        each new connection. ``key_password`` opens an encrypted key.
        ``crl``: path of a PEM file with revoked certificates. ``ciphers``: OpenSSL's list, for TLS 1.2.
        ``check_hostname=False`` takes any name in the broker's certificate; the certificate itself is
        checked all the same. ``ssl_context`` replaces all of these.

    For the two with SASL:
        ``mechanism``: ``PLAIN``, ``SCRAM-SHA-256``, ``SCRAM-SHA-512``, ``OAUTHBEARER``.
        ``username``, ``password``; or ``username_file``, ``password_file``, which are read at each login
        (a line end after the value is not part of it).
        ``token_provider``: a :class:`TokenProvider`, for OAUTHBEARER; ``ClientCredentials`` of
        ``oauth.py`` is one.

    ``retry_refused``: what to do when a broker refuses the login, or a certificate is not accepted.
    ``False``: it is final, as in Java, and raises :class:`AuthenticationError`. ``True``: it is treated like
    an unreachable broker and retried with growing pauses, at once when a file has changed. Use it for
    credentials in files that are rotated.

    Raises :class:`KafkaConfigurationError` for options that cannot be combined.
    """

    protocol: str = PLAINTEXT
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    username_file: str | os.PathLike[str] | None = None
    password_file: str | os.PathLike[str] | None = None
    token_provider: TokenProvider | None = field(default=None, repr=False)
    ca: str | os.PathLike[str] | None = field(default=None, repr=False)
    cert: str | os.PathLike[str] | None = field(default=None, repr=False)
    key: str | os.PathLike[str] | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    crl: str | os.PathLike[str] | None = None
    ciphers: str | None = None
    check_hostname: bool = True
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    retry_refused: bool = False

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_tls()
        self._check_sasl()

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol in (SSL, SASL_SSL)

    @property
    def sasl(self) -> bool:
        """Whether connections log in by SASL."""
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)

    def _given(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    def _check_choices(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise SecurityProblem(f"<protocol>={self.protocol!r}: write one of {', '.join(PROTOCOLS)}")
        for name in self._given(_TEXTS):
            value = getattr(self, name)
            if not isinstance(value, (str, os.PathLike)):
                raise SecurityProblem(f"<{name}> must be text, not {type(value).__name__}")
            if value == "" and name != "password":
                raise SecurityProblem(f"<{name}> is empty: set it, or leave it out")
        if not isinstance(self.check_hostname, bool):
            raise SecurityProblem("<check_hostname> must be True or False")

    def _check_tls(self) -> None:
        given = self._given(_OF_TLS)
        if given and not self.tls:
            better = SASL_SSL if self.sasl else SSL
            raise SecurityProblem(
                f"<{given[0]}> cannot be used with <protocol>={self.protocol}, which does not encrypt: set "
                f"<protocol> to {better}, or leave <{given[0]}> out"
            )
        if self.ssl_context is not None and len(given) > 1:
            raise SecurityProblem(f"<ssl_context> replaces <{given[0]}>: set one of the two")
        if self.key is not None and self.cert is None:
            raise SecurityProblem("<key> is set without <cert>: add the certificate that belongs to the key")
        if self.key_password is not None and self.cert is None:
            raise SecurityProblem("<key_password> is set without <cert>: there is no key to decrypt")

    def _check_sasl(self) -> None:
        given = self._given(_OF_SASL)
        if not self.sasl:
            if given:
                better = SASL_SSL if self.tls else f"{SASL_SSL} or {SASL_PLAINTEXT}"
                raise SecurityProblem(
                    f"<{given[0]}> cannot be used with <protocol>={self.protocol}, which does not log in: "
                    f"set <protocol> to {better}, or leave <{given[0]}> out"
                )
            return
        if self.mechanism not in MECHANISMS:
            what = "<mechanism> is missing" if self.mechanism is None else f"<mechanism>={self.mechanism!r}"
            kerberos = " (Kerberos is not supported)" if self.mechanism in (None, "GSSAPI") else ""
            known = ", ".join(MECHANISMS)
            raise SecurityProblem(f"{what}: <protocol>={self.protocol} logs in by one of {known}{kerberos}")
        if self.mechanism == OAUTHBEARER:
            self._check_oauth()
        else:
            self._check_password()

    def _check_oauth(self) -> None:
        given = self._given(_OF_PASSWORD)
        if given:
            raise SecurityProblem(f"<{given[0]}> cannot be used with <mechanism>=OAUTHBEARER: leave it out")
        if not isinstance(self.token_provider, TokenProvider):
            raise SecurityProblem(
                "<mechanism>=OAUTHBEARER needs <token_provider>: an object with a method token() -> str "
                "(or <token_endpoint_url> and client credentials)"
            )

    def _check_password(self) -> None:
        if self.token_provider is not None:
            raise SecurityProblem(
                f"<token_provider> cannot be used with <mechanism>={self.mechanism}: leave it out, or set "
                "<mechanism> to OAUTHBEARER"
            )
        for value, file in (("username", "username_file"), ("password", "password_file")):
            given = self._given((value, file))
            if len(given) == 2:
                raise SecurityProblem(f"<{value}> and <{file}> are both set: set one of the two")
            if not given:
                raise SecurityProblem(
                    f"<{value}> is missing: <mechanism>={self.mechanism} needs it (or <{file}>)"
                )


_FIELD = re.compile(r"<(\w+)>")
_OF_TLS = ("ca", "cert", "key", "key_password", "crl", "ciphers", "ssl_context")
_OF_PASSWORD = ("username", "password", "username_file", "password_file")
_OF_SASL = ("mechanism", *_OF_PASSWORD, "token_provider")
_TEXTS = (*_OF_PASSWORD, "ca", "cert", "key", "key_password", "crl", "ciphers")

PLAIN_TEXT = Security()
"""Neither encrypted nor logged in: the default."""
