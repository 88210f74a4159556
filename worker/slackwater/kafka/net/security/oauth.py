"""OAUTHBEARER's client credentials: fetches tokens over HTTPS (RFC 6749, section 4.4; Java's KIP-768)."""

from __future__ import annotations

import base64
import contextlib
import http
import http.client
import math
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, urlencode, urlsplit

from slackwater.kafka.errors import (
    AuthenticationError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationError,
    SslAuthenticationError,
)
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.security.files import Credentials, read_line
from slackwater.kafka.net.security.settings import SSL, Security, SecurityProblem
from slackwater.kafka.net.security.tls import TlsContexts
from slackwater.kafka.untrusted import json_object, one_line


class TokenEndpoint(NamedTuple):
    """A token endpoint. ``target``: path and query, as the request has it. As text it is without the query,
    which may have something secret in it.
    """

    tls: bool
    host: str
    port: int
    target: str

    @property
    def default_port(self) -> bool:
        """Whether the port is the one of its scheme."""
        return self.port == (443 if self.tls else 80)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.default_port else f":{self.port}"
        return f"http{'s' if self.tls else ''}://{host}{port}{self.target.partition('?')[0]}"


def endpoint_of(url: str) -> TokenEndpoint:
    """Parses a URL. Raises :class:`SecurityProblem`, without the URL in it, if the URL must not be used."""
    if not url.isascii() or any(c <= " " or c == "\x7f" for c in url):
        raise SecurityProblem(
            "<token_endpoint_url> contains characters that are invalid in a URL; percent-encode them"
        )
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError as exc:
        raise SecurityProblem(f"<token_endpoint_url> is not a URL: {exc}") from None
    if parts.scheme not in ("https", "http") or not host:
        raise SecurityProblem("<token_endpoint_url> must be a URL of the form https://HOST/PATH")
    if "@" in parts.netloc:
        raise SecurityProblem(
            "<token_endpoint_url> has a user in it: set <client_id> and <client_secret> instead"
        )
    if parts.fragment:
        raise SecurityProblem("<token_endpoint_url> has a fragment (#): leave it out (RFC 6749, 3.2)")
    if parts.scheme == "http" and not _is_this_machine(host):
        raise SecurityProblem(
            f"<token_endpoint_url> is http:// to {host}: the secret would be sent in clear text; use "
            "https:// (http:// is allowed for localhost only)"
        )
    tls = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return TokenEndpoint(tls, host, port or (443 if tls else 80), target)


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


MAX_ANSWER_BYTES = 1024 * 1024
"""A larger answer is not read to its end. Tokens have a few kilobytes."""
_USED_SHARE = 0.8
"""Of a token's life; Java's ``sasl.login.refresh.window.factor``."""
_MOST_TEXT = 200


class Granted(NamedTuple):
    """A token and how many seconds it is used."""

    token: str
    usable_s: float

    def __repr__(self) -> str:
        return f"Granted(usable_s={self.usable_s})"


def basic(who: Credentials, *, encoded: bool) -> str:
    """The header ``Authorization`` (RFC 7617), as Java makes it."""
    parts = [who.username, who.password]
    if encoded:
        parts = [_form_encoded(part) for part in parts]
    return f"Basic {base64.b64encode(':'.join(parts).encode()).decode()}"


def _form_encoded(text: str) -> str:
    # As java.net.URLEncoder: "*" stays, "~" does not.
    return quote_plus(text, safe="*").replace("~", "%7E")


def granted(body: bytes) -> Granted:
    """Reads a successful answer. Raises ``ValueError`` with the problem, but without any of its content."""
    if len(body) > MAX_ANSWER_BYTES:
        raise ValueError(
            f"the response is larger than {MAX_ANSWER_BYTES} bytes; check that this is the token endpoint"
        )
    answer = _json_object(body)
    if answer is None:
        raise ValueError("the response is not a JSON object; check that this is the token endpoint")
    token, kind = answer.get("access_token"), answer.get("token_type", "bearer")
    if not isinstance(token, str) or not token:
        raise ValueError("the response has no access_token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise ValueError("the response's token_type is not Bearer")
    return Granted(token, _USED_SHARE * _life_s(answer.get("expires_in")))


def _life_s(given: Any) -> float:
    if given is None:
        return 0.0
    try:
        life_s = math.nan if isinstance(given, bool) else float(given)  # some servers write it in quotes
    except (TypeError, ValueError, OverflowError):
        life_s = math.nan
    if not math.isfinite(life_s) or life_s < 0:
        raise ValueError("the response's expires_in is not a number of seconds")
    return life_s


def refusal(status: int, body: bytes, who: Credentials, encoded: bool) -> str:
    """Describes an answer without a token; removes the secret from the text if the server repeats it."""
    name = http.HTTPStatus(status).phrase if status in http.HTTPStatus._value2member_map_ else ""
    answer = _json_object(body[:MAX_ANSWER_BYTES]) or {}
    said = [answer[name] for name in ("error", "error_description") if isinstance(answer.get(name), str)]
    text = one_line(_without(": ".join(said), who, encoded), _MOST_TEXT)
    hint = ""
    if 300 <= status < 400:
        hint = "; it redirects, which is not followed: set token_endpoint_url to the final URL"
    elif status in (400, 401, 403):
        hint = "; check client id, secret and scope"
    return f"the server answered {status} {name}".rstrip() + (f" ({text})" if text else "") + hint


def _without(text: str, who: Credentials, encoded: bool) -> str:
    secret = who.password
    forms = {secret, quote(secret, safe=""), quote_plus(secret), _form_encoded(secret)}
    forms |= {base64.b64encode(secret.encode()).decode(), basic(who, encoded=encoded).removeprefix("Basic ")}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        return json_object(body)
    except ValueError:
        return None


_TRY_LATER = (408, 429)
"""Refusals that are temporary, not about the client (RFC 9110, 15.5.9; RFC 6585, 4)."""


class _State:
    """Mutable state: the token in use, and the request in progress."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: tuple[str, float] | None = None
        self.under_way: Future[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """A :class:`~.security.TokenProvider` that asks an authorization server for tokens.

    ``token_endpoint_url``: where tokens come from: ``https://``; ``http://`` for this machine alone.
        The server is asked directly (no proxy), and sends nobody elsewhere (no redirects).
    ``client_id``; ``client_secret``, or ``client_secret_file``, which is read for each new token (a line end
        after the value is not part of it). They are sent in the header, by HTTP Basic.
    ``scope``: of the token to ask for. ``sasl_extensions``: SASL extensions for the broker (KIP-342).
    ``urlencode_header``: id and secret are URL-encoded before base64, as RFC 6749 (2.3.1) has it; servers
        that do not expect that are the rule, so Java's default (``sasl.oauthbearer.header.urlencode``,
        KIP-1139) is ``False``.
    ``endpoint_ca``: PEM text, or the path of a PEM file, with the authorities that the server's certificate
        is checked against; without it the system's. Its host name is always checked.
    ``connect_timeout_ms``, ``read_timeout_ms``: limits for one attempt: TCP; and from there to the end of the
        answer. ``timeout_ms``: for one token altogether, with all attempts and pauses; below the clients'
        10 s for a connection, so that the error shows the reason. (The look-up of the host name is not
        limited.)
    ``retry_backoff_ms``, ``retry_backoff_max_ms``: the first and the longest pause between attempts.

    A token serves all connections of this object for 80 % of its life (Java's
    ``sasl.login.refresh.window.factor``); without ``expires_in`` in the answer, a new one is requested at
    each login. Threads that ask at the same time share one request.

    Raises :class:`KafkaConfigurationError` for options that cannot be combined. ``repr`` shows no secret.
    """

    token_endpoint_url: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    client_secret_file: str | os.PathLike[str] | None = None
    scope: str | None = None
    urlencode_header: bool = False
    endpoint_ca: str | os.PathLike[str] | None = field(default=None, repr=False)
    sasl_extensions: Mapping[str, str] = field(default_factory=dict, hash=False)
    connect_timeout_ms: float = 5_000
    read_timeout_ms: float = 5_000
    timeout_ms: float = 8_000
    retry_backoff_ms: float = 100
    retry_backoff_max_ms: float = 10_000
    rng: random.Random = field(default_factory=random.Random, repr=False, compare=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    _endpoint: TokenEndpoint = field(init=False, repr=False, compare=False)
    _state: _State = field(init=False, repr=False, compare=False, default_factory=_State)

    def __post_init__(self) -> None:
        for name in ("token_endpoint_url", "client_id", "client_secret", "scope"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise SecurityProblem(f"<{name}> must be text, and not empty")
        if (self.client_secret is None) == (self.client_secret_file is None):
            both = self.client_secret is not None
            raise SecurityProblem(
                "<client_secret> and <client_secret_file> are both set: set one of the two"
                if both
                else "<client_secret> is missing: the client credentials need it (or <client_secret_file>)"
            )
        if not isinstance(self.urlencode_header, bool):
            raise SecurityProblem("<urlencode_header> must be True or False")
        if ":" in self.client_id and not self.urlencode_header:
            raise SecurityProblem(
                "<client_id> has a colon, which HTTP Basic cannot send: set <urlencode_header> to "
                "True, if the server decodes it"
            )
        extensions = self.sasl_extensions
        if not isinstance(extensions, Mapping) or not all(
            isinstance(text, str) for pair in extensions.items() for text in pair
        ):
            raise SecurityProblem("<sasl_extensions> must be a dict of text to text")
        self._check_times()
        object.__setattr__(self, "_endpoint", endpoint_of(self.token_endpoint_url))
        if self.endpoint_ca is not None and not self._endpoint.tls:
            raise SecurityProblem("<endpoint_ca> cannot be used with an http:// <token_endpoint_url>")

    def _check_times(self) -> None:
        names = ("connect_timeout_ms", "read_timeout_ms", "timeout_ms")
        for name in (*names, "retry_backoff_ms", "retry_backoff_max_ms"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
                raise SecurityProblem(f"<{name}> must be a number of milliseconds")
            if value < 0 or (value == 0 and name in names):
                raise SecurityProblem(f"<{name}>={value} is too short")

    # -- what a login asks for -----------------------------------------------------------------------

    def token(self) -> str:
        """A valid token; blocks for at most ``timeout_ms``.

        Raises :class:`SaslAuthenticationError` when the server refuses, or answers with what is no token;
        :class:`SslAuthenticationError` when its certificate is not accepted;
        :class:`KafkaConnectionError` when it cannot be reached, or fails, for all of that time.
        """
        state = self._state
        with state.lock:
            if state.kept is not None and self.clock() < state.kept[1]:
                return state.kept[0]
            asked, mine = state.under_way, state.under_way is None
            if asked is None:
                asked = state.under_way = Future()
        if not mine:
            return self._result_of(asked)
        try:
            asked_at = self.clock()
            token = self._ask_until(asked_at + self.timeout_ms / 1000)
        except BaseException as exc:
            with state.lock:
                state.under_way = None
            asked.set_exception(exc)
            raise
        with state.lock:
            state.kept = token.token, asked_at + token.usable_s
            state.under_way = None
        asked.set_result(token.token)
        return token.token

    def extensions(self) -> dict[str, str]:
        """The SASL extensions to send along."""
        return dict(self.sasl_extensions)

    def refused(self, token: str) -> None:
        """Drops a token that a broker has refused: the next login requests a new one."""
        with self._state.lock:
            if self._state.kept is not None and self._state.kept[0] == token:
                self._state.kept = None

    def read(self) -> Credentials:
        """Reads the current id and secret. Raises :class:`SaslAuthenticationError` that names the file."""
        file, secret = self.client_secret_file, self.client_secret
        if file is not None:
            secret = read_line("client_secret", file)
        assert secret is not None, "checked when made"
        return Credentials(self.client_id, secret)

    @staticmethod
    def _result_of(asked: Future[str]) -> str:
        try:
            return asked.result()
        except KafkaError as exc:
            # A new one for each thread: an exception that is raised in many mixes up their tracebacks.
            raise type(exc)(str(exc)) from None

    # -- the request ---------------------------------------------------------------------------------

    def _ask_until(self, deadline: float) -> Granted:
        backoff = Backoff(self.retry_backoff_ms, self.retry_backoff_max_ms, self.rng)
        failures = 0
        while True:
            try:
                return self._ask(deadline)
            except AuthenticationError:
                raise
            except _NotNowError as exc:
                failures += 1
                pause_s = backoff.delay_ms(failures) / 1000
                if not exc.again or self.clock() + pause_s >= deadline:
                    tries = f" ({failures} attempts)" if failures > 1 else ""
                    raise KafkaConnectionError(f"{self._where}: {exc}{tries}") from None
            time.sleep(pause_s)

    @property
    def _where(self) -> str:
        return f"no token from {self._endpoint}"

    def _ask(self, deadline: float) -> Granted:
        who = self.read()
        status, body = self._exchange(who, deadline)
        if status >= 500 or status in _TRY_LATER:
            raise _NotNowError(refusal(status, body, who, self.urlencode_header), again=status >= 500)
        if status != 200:
            said = refusal(status, body, who, self.urlencode_header)
            raise SaslAuthenticationError(f"{self._where} for client {self.client_id!r}: {said}")
        try:
            return granted(body)
        except ValueError as exc:
            raise SaslAuthenticationError(f"{self._where}: {exc}") from None

    def _exchange(self, who: Credentials, deadline: float) -> tuple[int, bytes]:
        """One request. Gives the status, and up to one byte more of the body than is taken."""
        context = self._context()
        left_ms = max(1.0, (deadline - self.clock()) * 1000)
        connect_ms = min(self.connect_timeout_ms, left_ms)
        connection = _connection(self._endpoint, connect_ms)
        try:
            left_ms = max(1.0, min(self.read_timeout_ms, (deadline - self.clock()) * 1000))
            limit = _TimeLimit(connection, left_ms)
            try:
                with limit:
                    return self._send(connection, context, who)
            except ssl.SSLCertVerificationError as exc:
                raise self._not_trusted(exc) from None
            except (OSError, http.client.HTTPException) as exc:
                if limit.over or isinstance(exc, TimeoutError):
                    raise _NotNowError(f"no complete response within {left_ms:.0f} ms") from None
                # The text may contain parts of the answer: use only its type and the system's message.
                words = getattr(exc, "strerror", None) or getattr(exc, "reason", None) or type(exc).__name__
                raise _NotNowError(f"the connection failed: {words}") from None
        finally:
            connection.close()

    def _send(
        self, connection: http.client.HTTPConnection, context: ssl.SSLContext | None, who: Credentials
    ) -> tuple[int, bytes]:
        if context is not None:
            connection.sock = context.wrap_socket(connection.sock, server_hostname=self._endpoint.host)
        form = {"grant_type": "client_credentials"}
        if self.scope is not None:
            form["scope"] = self.scope
        headers = {
            "Accept": "application/json",
            "Authorization": basic(who, encoded=self.urlencode_header),
            "Content-Type": "application/x-www-form-urlencoded",
            "Connection": "close",
        }
        connection.request("POST", self._endpoint.target, urlencode(form).encode(), headers)
        answer = connection.getresponse()
        body = answer.read(MAX_ANSWER_BYTES + 1)
        if answer.length and len(body) <= MAX_ANSWER_BYTES:
            raise http.client.IncompleteRead(b"", answer.length)
        return answer.status, body

    def _context(self) -> ssl.SSLContext | None:
        if not self._endpoint.tls:
            return None
        made = TlsContexts(Security(protocol=SSL, ca=self.endpoint_ca))
        try:
            return made.of(made.read())
        except AuthenticationError as exc:
            raise SslAuthenticationError(f"{self._where}: {exc}") from None

    def _not_trusted(self, exc: ssl.SSLCertVerificationError) -> SslAuthenticationError:
        ours = "the system's authorities" if self.endpoint_ca is None else "the endpoint's own authorities"
        return SslAuthenticationError(
            f"{self._where}: its certificate is not accepted ({exc.verify_message}); check the name in "
            f"token_endpoint_url, and {ours} (endpoint_ca, sasl_oauth_cafile)"
        )


class _NotNowError(Exception):
    """A temporary failure; ``again``: may be retried within this call."""

    def __init__(self, text: str, *, again: bool = True) -> None:
        super().__init__(text)
        self.again = again


def _connection(endpoint: TokenEndpoint, timeout_ms: float) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_ms / 1000)
    try:
        connection.connect()
    except TimeoutError:
        raise _NotNowError(f"no connection within {timeout_ms:.0f} ms") from None
    except (OSError, ValueError) as exc:
        raise _NotNowError(f"no connection: {getattr(exc, 'strerror', None) or exc}") from None
    if not endpoint.default_port:
        return connection
    connection.default_port = endpoint.port  # else Host has the port, which not every server expects
    return connection


class _TimeLimit:
    """Closes a connection at its deadline: a socket's own timeout is per read, not for all."""

    def __init__(self, connection: http.client.HTTPConnection, limit_ms: float) -> None:
        # A duplicate of the handle: the connection closes its own, and the number may be another's then.
        self._handle = connection.sock.dup()
        connection.sock.settimeout(limit_ms / 1000)
        self._timer = threading.Timer(limit_ms / 1000, self._end)
        self._timer.daemon = True
        self.over = False

    def _end(self) -> None:
        self.over = True
        with contextlib.suppress(OSError):  # it may have ended already
            self._handle.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        self._timer.join()
        self._handle.close()
