"""SASL mechanisms without I/O: each computes the client's next message from the broker's.

PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677), OAUTHBEARER (RFC 7628, with Kafka's KIP-255 and KIP-342).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Protocol

from slackwater.kafka.untrusted import json_object, one_line

LEAST_ITERATIONS = 4096
"""RFC 7677 demands as many; Kafka's brokers and its Java client take no fewer."""
MOST_ITERATIONS = 1_000_000
"""About half a second of work. Kafka's own tools store 16 384 at most; a broker that asks for more than
this is not one, and would keep the client busy."""

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<count>[1-9][0-9]{0,9})(,.*)?"
)
_SERVER_FINAL = re.compile(r"(?P<kind>[ev])=(?P<value>[^,]+)(,.*)?")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


class SaslProblem(Exception):
    """The exchange has failed; the message says why, without secrets."""


class Mechanism(Protocol):
    """One login. ``start`` gives the first message; ``step`` takes the broker's and gives the next, or
    ``None`` when the login is complete. Raises :class:`SaslProblem`.
    """

    def start(self) -> bytes: ...

    def step(self, challenge: bytes) -> bytes | None: ...


class Plain:
    """Sends user name and password in clear text: for connections that TLS protects."""

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username or "\0" in password:
            raise SaslProblem("PLAIN does not allow a NUL character in user name or password")
        self._message = f"\0{username}\0{password}".encode()

    def start(self) -> bytes:
        return self._message

    def step(self, challenge: bytes) -> None:
        if challenge:
            raise SaslProblem("the broker sent a challenge, which PLAIN does not have")


class Scram:
    """Proves the password without sending it, and requires the same proof from the broker.

    ``nonce``: printable ASCII without a comma, fresh for each login and not to be guessed. Like Kafka, it
    takes name and password as they are, without SASLprep. ``step`` may take tens of milliseconds.
    """

    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        self._hash = _HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={name},r={nonce}"
        self._signature: bytes | None = None
        self._verified = False

    def start(self) -> bytes:
        return f"n,,{self._first}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        try:
            text = challenge.decode()
        except UnicodeDecodeError:
            raise SaslProblem("the broker's SCRAM message is not UTF-8") from None
        if self._signature is None:
            return self._prove(text)
        if self._verified:
            raise SaslProblem("the broker continued after the end of SCRAM")
        self._verify(text, self._signature)
        self._verified = True
        return None

    def _prove(self, server_first: str) -> bytes:
        match = _SERVER_FIRST.fullmatch(server_first)
        if match is None:
            raise SaslProblem("the broker's first SCRAM message is invalid")
        nonce, count = match["nonce"], int(match["count"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslProblem("the broker's SCRAM nonce does not begin with this client's")
        if not LEAST_ITERATIONS <= count <= MOST_ITERATIONS:
            raise SaslProblem(
                f"the broker requires {count} iterations of SCRAM; allowed are {LEAST_ITERATIONS} to "
                f"{MOST_ITERATIONS}: store the user's password again with a number in that range"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, _base64(match["salt"]), count)
        without_proof = f"c=biws,r={nonce}"  # biws: "n,,", no channel binding
        message = f"{self._first},{server_first},{without_proof}".encode()
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        proof = bytes(a ^ b for a, b in zip(client_key, self._hmac(stored_key, message), strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _verify(self, server_final: str, signature: bytes) -> None:
        match = _SERVER_FINAL.fullmatch(server_final)
        if match is None:
            raise SaslProblem("the broker's last SCRAM message is invalid")
        if match["kind"] == "e":
            raise SaslProblem(f"the broker refused: {one_line(match['value'])}")
        if not hmac.compare_digest(_base64(match["value"]), signature):
            raise SaslProblem(
                "the broker's signature is wrong: it does not know this password, and may be an impostor"
            )

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SaslProblem("the broker's SCRAM message contains text that is not base64") from None


class OAuthBearer:
    """Sends a token. ``extensions``: SASL extensions for the broker (KIP-342)."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        if not isinstance(token, str) or not token or not token.isascii() or any(c <= " " for c in token):
            raise SaslProblem("the token provider returned no token, or one with invalid characters")
        if not isinstance(extensions, Mapping):
            raise SaslProblem(f"the token provider returned SASL extensions that are no dict: {extensions!r}")
        for name, value in extensions.items():
            texts = isinstance(name, str) and isinstance(value, str)
            good = texts and _EXTENSION_NAME.fullmatch(name) and _EXTENSION_VALUE.fullmatch(value)
            if not good or name == "auth":
                raise SaslProblem(
                    f"the token provider returned a SASL extension {name!r} that cannot be sent"
                )
        pairs = "".join(f"\x01{name}={value}" for name, value in extensions.items())
        self.token = token
        self._message = f"n,,\x01auth=Bearer {token}{pairs}\x01\x01".encode()
        self._refused = ""

    def start(self) -> bytes:
        return self._message

    def step(self, challenge: bytes) -> bytes | None:
        if self._refused:
            raise SaslProblem(self._refused)
        if not challenge:
            return None
        # RFC 7628, 3.2.3: a refusal comes as JSON, and is to be answered before it becomes an error.
        self._refused = f"the broker refused the token: {_status(challenge)}"
        return b"\x01"

    @property
    def refusal(self) -> str:
        """Why the broker refused the token; empty if it did not."""
        return self._refused


def _status(challenge: bytes) -> str:
    try:
        return one_line(json_object(challenge)["status"])
    except (ValueError, KeyError):
        return "no reason given"
