"""Opens connections as a :class:`Security` says: TLS, then the login; and holds back after a refusal."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import secrets
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

from slackwater.kafka.errors import (
    AuthenticationError,
    KafkaConnectionError,
    KafkaError,
    RefusedForNowError,
    SaslAuthenticationError,
    UnsupportedVersionError,
)
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.connection import Connect, Connection, TlsFailure, address
from slackwater.kafka.net.connection_settings import ConnectionSettings
from slackwater.kafka.net.connection_setup import open_connection
from slackwater.kafka.net.outages import Outages
from slackwater.kafka.net.security.files import Credentials, read_line
from slackwater.kafka.net.security.oauth import ClientCredentials
from slackwater.kafka.net.security.sasl import Mechanism, OAuthBearer, Plain, SaslProblem, Scram
from slackwater.kafka.net.security.settings import OAUTHBEARER, PLAIN, Security, TokenProvider
from slackwater.kafka.net.security.tls import Material, TlsContexts, explain
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

log = logging.getLogger(__name__)

REFUSED_BACKOFF_MS = 1_000
REFUSED_BACKOFF_MAX_MS = 10_000
"""Short against a session of 45 s: the broker may get the new password later than the file."""
_SESSION_SHARE = (0.85, 0.95)
"""When to log in again, as a share of the time that a login counts: Java's window and jitter (KIP-368)."""


def connector(security: Security, rng: random.Random) -> Connect:
    """What opens connections by ``security``. ``rng`` spreads logins; nonces come from the system's."""
    if security.tls or security.sasl:
        return SecureConnect(security, rng)
    return open_connection


class _NotKept:
    """A token provider that this does not keep alive."""

    def __init__(self, provider: TokenProvider) -> None:
        self._provider = weakref.ref(provider)

    def _get(self) -> TokenProvider:
        provider = self._provider()
        if provider is None:
            raise KafkaConnectionError("the client was dropped, and its token provider with it")
        return provider

    def token(self) -> str:
        return self._get().token()

    def extensions(self) -> dict[str, str]:
        make = getattr(self._get(), "extensions", None)
        made: dict[str, str] = {} if make is None else make()
        return made


def kept_by_client(security: Security) -> Security:
    """``security`` for a client's event loop, which would keep the client where its token provider refers to
    it: the client has to hold ``security`` itself."""
    provider = security.token_provider
    if provider is None or isinstance(provider, ClientCredentials):
        return security
    try:
        return replace(security, token_provider=_NotKept(provider))
    except TypeError:  # its class has __slots__ and no __weakref__
        return security


_Presented = tuple[Material | None, Credentials | None, Credentials | None]
"""What a broker may refuse: certificate, user, and the client that its token is made for."""


@dataclass(slots=True)
class _Refusal:
    presented: _Presented | None
    error: AuthenticationError
    failures: int
    until: float


class SecureConnect:
    """Opens connections by one :class:`Security`, for one event loop.

    Files are read for each connection. What a broker has refused is not presented to it again before a
    pause that doubles from 1 s to 10 s is over; other credentials are, at once.
    """

    def __init__(
        self,
        security: Security,
        rng: random.Random,
        *,
        make_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        self._security = security
        self._rng = rng
        self._make_nonce = make_nonce
        self._tls = TlsContexts(security)
        self._backoff = Backoff(REFUSED_BACKOFF_MS, REFUSED_BACKOFF_MAX_MS, rng)
        self._refusals: dict[str, _Refusal] = {}

    async def __call__(self, host: str, port: int, settings: ConnectionSettings) -> Connection:
        """As :func:`open_connection`. Raises :class:`AuthenticationError` too, or in its place
        :class:`RefusedForNowError` where the Security says ``retry_refused``.
        """
        where = address(host, port)
        presented: _Presented | None = None
        try:
            presented = self._read()
            self._hold_back(where, presented)
            connection = await self._open(host, port, settings, presented)
        except AuthenticationError as exc:
            raise self._refused(where, presented, exc, settings.outages) from exc
        if self._refusals.pop(where, None) is not None:
            settings.outages.worked(log, f"the login at {where}")
        return connection

    def _read(self) -> _Presented:
        wanted = self._security
        material = self._tls.read() if wanted.tls and wanted.ssl_context is None else None
        credentials = read_credentials(wanted) if wanted.sasl and wanted.mechanism != OAUTHBEARER else None
        provider = wanted.token_provider
        client = provider.read() if isinstance(provider, ClientCredentials) else None
        return material, credentials, client

    async def _open(
        self, host: str, port: int, settings: ConnectionSettings, presented: _Presented
    ) -> Connection:
        wanted = self._security
        material, credentials, _ = presented
        tls = wanted.ssl_context
        if tls is None and material is not None:
            tls = self._tls.of(material)
        login = _Login(wanted, credentials, self._rng, self._make_nonce) if wanted.sasl else None
        try:
            return await open_connection(host, port, settings, tls=tls, login=login)
        except TlsFailure as failure:
            raise explain(failure, host, address(host, port), wanted) from failure

    def _hold_back(self, where: str, presented: _Presented) -> None:
        known = self._refusals.get(where)
        if known is None or known.presented != presented:
            return
        if asyncio.get_running_loop().time() < known.until:
            raise known.error

    def _refused(
        self, where: str, presented: _Presented | None, error: AuthenticationError, outages: Outages
    ) -> AuthenticationError:
        known = self._refusals.get(where)
        now = asyncio.get_running_loop().time()
        again = known is not None and known.presented == presented
        if known is not None and again and now < known.until and str(known.error) == str(error):
            return self._as_asked(error)
        failures = known.failures + 1 if known is not None and again else 1
        delay_ms = self._backoff.delay_ms(failures)
        until = now + delay_ms / 1000
        self._refusals[where] = _Refusal(presented, error, failures, until)
        if self._security.retry_refused:
            message = f"{error}; next attempt in {delay_ms / 1000:.0f} s, or when a file has changed"
            outages.failed(log, f"the login at {where}", message, logging.WARNING, cause=str(error))
        return self._as_asked(error)

    def _as_asked(self, error: AuthenticationError) -> AuthenticationError:
        # A new one each time: an exception that is raised again and again collects tracebacks.
        return RefusedForNowError(str(error)) if self._security.retry_refused else type(error)(str(error))


# -- the login -------------------------------------------------------------------------------------


def read_credentials(wanted: Security) -> Credentials:
    """Name and password as they are now. Raises :class:`SaslAuthenticationError` that names the file."""
    username = (
        wanted.username if wanted.username_file is None else read_line("username", wanted.username_file)
    )
    password = (
        wanted.password if wanted.password_file is None else read_line("password", wanted.password_file)
    )
    assert username is not None, "Security has checked that"
    assert password is not None, "Security has checked that"
    return Credentials(username, password)


class _Login:
    """Logs one connection in, again and again, always as the same user."""

    def __init__(
        self,
        wanted: Security,
        credentials: Credentials | None,
        rng: random.Random,
        make_nonce: Callable[[], str],
    ) -> None:
        self._wanted = wanted
        self._credentials = credentials
        self._rng = rng
        self._make_nonce = make_nonce

    async def __call__(self, connection: Connection) -> float:
        """See :data:`~.connection.Login`. Raises :class:`SaslAuthenticationError`."""
        if connection.logins and self._credentials is not None:
            now = read_credentials(self._wanted)
            if now.username != self._credentials.username:
                # A broker takes no other user on the same connection (KIP-368).
                raise KafkaConnectionError(f"the user is another one now: {now.username!r}")
            self._credentials = now
        try:
            mechanism = await self._mechanism()
            await self._handshake(connection)
            return await self._exchange(connection, mechanism)
        except SaslProblem as problem:
            raise self._refusal(connection, str(problem)) from None

    async def _mechanism(self) -> Mechanism:
        wanted, credentials = self._wanted, self._credentials
        assert wanted.mechanism is not None
        if credentials is None:
            return await self._token()
        if wanted.mechanism == PLAIN:
            return Plain(credentials.username, credentials.password)
        return Scram(wanted.mechanism, credentials.username, credentials.password, self._make_nonce())

    async def _token(self) -> OAuthBearer:
        provider = self._wanted.token_provider
        assert provider is not None
        loop = asyncio.get_running_loop()
        try:
            token = await loop.run_in_executor(None, provider.token)
            extensions = getattr(provider, "extensions", None)
            more = await loop.run_in_executor(None, extensions) if extensions is not None else {}
        except KafkaError:
            raise
        except (Exception, SystemExit) as exc:
            # Not a refusal: whoever gives tokens may be away for a moment, like a broker.
            raise KafkaConnectionError(f"the token provider gave no token: {exc!r}") from exc
        return OAuthBearer(token, more)

    async def _handshake(self, connection: Connection) -> None:
        name = self._wanted.mechanism or ""
        if connection.version_of(m.SaslHandshakeRequest) < 1:
            raise UnsupportedVersionError(f"the broker at {connection.address} is older than Kafka 1.0")
        answer = await connection.request(m.SaslHandshakeRequest(mechanism=name))
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(answer.mechanisms) or "none"
            raise SaslAuthenticationError(
                f"{connection.address}: the broker does not support login by {name} here; it offers {offered}"
            )
        if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            other = "SSL" if self._wanted.tls else "PLAINTEXT"
            raise SaslAuthenticationError(
                f"{connection.address}: the broker requires no login at this port: set protocol to "
                f"{other}, or use the port of another listener"
            )
        if answer.error_code:
            raise self._refusal(connection, ErrorCode.name_of(answer.error_code))

    async def _exchange(self, connection: Connection, mechanism: Mechanism) -> float:
        loop = asyncio.get_running_loop()
        message: bytes | None = mechanism.start()
        lifetime_ms = 0
        while message is not None:
            answer = await connection.request(m.SaslAuthenticateRequest(auth_bytes=message))
            if answer.error_code:
                if isinstance(mechanism, OAuthBearer):
                    self._forget(mechanism.token)
                said = answer.error_message or ErrorCode.name_of(answer.error_code)
                raise self._refusal(connection, getattr(mechanism, "refusal", "") or said)
            lifetime_ms = answer.session_lifetime_ms
            # On a thread: SCRAM's hashing would hold up the heartbeats of this loop.
            message = await loop.run_in_executor(None, mechanism.step, answer.auth_bytes)
        return lifetime_ms * self._rng.uniform(*_SESSION_SHARE) if lifetime_ms > 0 else math.inf

    def _forget(self, token: str) -> None:
        provider = self._wanted.token_provider
        if isinstance(provider, ClientCredentials):
            provider.refused(token)

    def _refusal(self, connection: Connection, said: str) -> SaslAuthenticationError:
        wanted = self._wanted
        if self._credentials is None:
            who, check = "", "what the token provider gives"
        else:
            who = f" of user {self._credentials.username!r}"
            files = [str(os.fspath(file)) for file in (wanted.username_file, wanted.password_file) if file]
            check = f"user name and password{' in ' if files else ''}{' and '.join(files)}"
        check += f", and that the broker has this user for {wanted.mechanism}"
        return SaslAuthenticationError(
            f"{connection.address}: the login{who} by {wanted.mechanism} failed: {said}; check {check}"
        )
