"""Signatures of takeover requests and of their answers.

HMAC-SHA256 (RFC 2104) with the group's key. A request's signature covers method, path, time, nonce, body, and
the process that it is for (its pod's name, and a random token of its start): so it cannot be used for another
request, in another pod or after a restart. Its time limits how long it can be replayed, and within that time
a nonce counts once. An answer's covers the request's nonce, so that an answer of before does
not do. Nothing is encrypted: none of it is secret. Pure: times and nonces come in as arguments.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
from pathlib import Path

from slackwater.clock import Clock
from slackwater.runtime.config.worker_config import TakeoverConfig
from slackwater.runtime.errors import ConfigError
from slackwater.times import duration

KEY_BYTES = 32
"""The least length of a key: that of SHA-256's output (RFC 2104, section 3)."""
SCHEME = "SLACKWATER-HMAC"
ANSWER_HEADER = "Slackwater-Signature"
WINDOW_MS = 60_000
"""How far the clocks of two machines may be apart, and how long a request's nonce is remembered."""

_HEADER = re.compile(
    rf"{SCHEME} ts=(?P<ts>[0-9]{{1,15}}),nonce=(?P<nonce>[0-9a-f]{{32}}),sig=(?P<sig>[0-9a-f]{{64}})"
)
_PROCESS = re.compile("[0-9a-f]{32}")


class Unauthorized(Exception):
    """A request that is refused. The message says why, and reveals nothing of the key."""


def read_key(text: str) -> bytes:
    """The key in a key file's ``text``: at least 32 bytes in hex, with white space around.

    Raises ValueError, which says what to do.
    """
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        raise ValueError(
            f"holds no key: it must be {KEY_BYTES} random bytes in hex ({2 * KEY_BYTES} digits), as "
            f"`openssl rand -hex {KEY_BYTES}` makes them"
        )
    return key


def load_key(config: TakeoverConfig, file: str) -> bytes:
    """The key in ``config.key_file``. Raises ConfigError, which names ``file`` and says what to do."""
    try:
        text = Path(config.key_file).read_text(encoding="ascii")
    except OSError as exc:
        problem = (
            f"{config.key_file} cannot be read: {exc.strerror or exc}; put the group's key there (a pod: the "
            "Secret GROUP-takeover), or leave takeover out"
        )
        raise ConfigError(problem, file=file, field="takeover.keyFile") from None
    except UnicodeDecodeError:
        text = ""
    try:
        return read_key(text)
    except ValueError as exc:
        raise ConfigError(f"{config.key_file} {exc}", file=file, field="takeover.keyFile") from None


def target_of(pod: str, process: str) -> str:
    """Who a request is for: a pod by its name, and the token of its process (``process`` in GET /status).

    "" where there is no token: a worker of an older version takes requests that name no process.
    Raises ValueError where ``process`` is no token.
    """
    if process and not _PROCESS.fullmatch(process):
        raise ValueError("process must be 32 lower-case hex digits")
    return f"{pod}/{process}" if process else ""


def sign_request(
    key: bytes, method: str, path: str, body: bytes, *, now_ms: int, nonce: str, target: str
) -> str:
    """The ``Authorization`` header of a request.

    ``now_ms``: wall clock. ``nonce``: 32 lower-case hex digits, never used before. ``target``: of
    :func:`target_of`.
    """
    signature = _request_signature(key, method, path, body, str(now_ms), nonce, target)
    return f"{SCHEME} ts={now_ms},nonce={nonce},sig={signature}"


def sign_answer(key: bytes, nonce: str, status: int, body: bytes) -> str:
    """The ``Slackwater-Signature`` header of the answer to the request with that ``nonce``."""
    return _mac(key, "answer", nonce, str(status), _digest(body))


def check_answer(key: bytes, nonce: str, status: int, body: bytes, signature: str) -> bool:
    """Whether an answer with that status and body was signed with ``key`` for the request with ``nonce``."""
    return hmac.compare_digest(sign_answer(key, nonce, status, body), _plain(signature))


class Verifier:
    """Checks requests. Any thread may call it. Only nonces of requests that were signed are kept, for as long
    as their time is taken, so that nobody without the key can fill the memory.
    """

    def __init__(self, key: bytes, clock: Clock, target: str) -> None:
        """``target``: who requests must be for, of :func:`target_of`."""
        self._key, self._clock, self._target = key, clock, target
        self._nonces: dict[str, int] = {}
        """Nonce -> until when (wall clock, ms) a request with it would be taken."""
        self._lock = threading.Lock()

    def verify(self, method: str, path: str, body: bytes, header: str | None) -> str:
        """Checks the ``Authorization`` header of a request. Returns its nonce, for :func:`sign_answer`.

        Raises :class:`Unauthorized`.
        """
        if not header:
            raise Unauthorized(f"the request is not signed ({SCHEME})")
        match = _HEADER.fullmatch(_plain(header).strip())
        if match is None:
            raise Unauthorized(
                f"the header Authorization must be {SCHEME} ts=<ms>,nonce=<32 hex>,sig=<64 hex>"
            )
        ts, nonce = match["ts"], match["nonce"]
        expected = _request_signature(self._key, method, path, body, ts, nonce, self._target)
        if not hmac.compare_digest(expected, match["sig"]):
            if hmac.compare_digest(
                _request_signature(self._key, method, path, body, ts, nonce, ""), match["sig"]
            ):
                raise Unauthorized(
                    "the signature names no process, as those of older versions; upgrade the operator before "
                    "the workers' image"
                )
            raise Unauthorized("the signature is not by this group's key, or not for this pod's process")
        self._use(match["nonce"], int(match["ts"]))
        return match["nonce"]

    def _use(self, nonce: str, at_ms: int) -> None:
        now = self._clock.wall_ms()
        if abs(now - at_ms) > WINDOW_MS:
            raise Unauthorized(
                f"the request was signed {duration(abs(now - at_ms))} {'ago' if now > at_ms else 'ahead'}; "
                "the machines' clocks must agree to a minute"
            )
        with self._lock:
            for old in [used for used, until in self._nonces.items() if until < now]:
                del self._nonces[old]
            if nonce in self._nonces:
                raise Unauthorized("the request was made before (its nonce is used)")
            self._nonces[nonce] = at_ms + WINDOW_MS


def _request_signature(
    key: bytes, method: str, path: str, body: bytes, ts: str, nonce: str, target: str
) -> str:
    return _mac(key, method, path, ts, nonce, _digest(body), *([target] if target else []))


def _mac(key: bytes, *parts: str) -> str:
    return hmac.new(key, "\n".join(parts).encode(), hashlib.sha256).hexdigest()


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _plain(text: str) -> str:
    """``text`` where it is ASCII, which compare_digest() needs; else what no signature is equal to."""
    return text if text.isascii() else ""
