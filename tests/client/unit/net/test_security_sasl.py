"""SASL's mechanisms against the RFCs' examples, and against brokers that are none."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from slackwater.kafka.net.security.sasl import (
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    OAuthBearer,
    Plain,
    SaslProblem,
    Scram,
)

NONCE = "rOprNGfwEbeRWgbNEkqO"
FULL = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="


def scram() -> Scram:
    return Scram("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_scram_sha_256_is_the_example_of_rfc_7677() -> None:
    client = scram()
    assert client.start() == f"n,,n=user,r={NONCE}".encode()
    final = client.step(f"r={FULL},s={SALT},i=4096".encode())
    assert final == f"c=biws,r={FULL},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    assert client.step(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


def test_scram_sha_512_proves_the_password_both_ways() -> None:
    """A server written from RFC 5802's formulas, which stores StoredKey and ServerKey only."""
    salt, count = b"some salt", 4096
    salted = hashlib.pbkdf2_hmac("sha512", "pässword".encode(), salt, count)
    stored_key = hashlib.sha512(hmac.digest(salted, b"Client Key", "sha512")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha512")
    client = Scram("SCRAM-SHA-512", "a=b,c", "pässword", "mine")
    first = client.start().decode()
    assert first == "n,,n=a=3Db=2Cc,r=mine"
    server_first = f"r=mineandyours,s={base64.b64encode(salt).decode()},i={count}"
    final = (client.step(server_first.encode()) or b"").decode()
    without_proof, _, proof = final.rpartition(",p=")
    message = f"{first.removeprefix('n,,')},{server_first},{without_proof}".encode()
    signature = hmac.digest(stored_key, message, "sha512")
    client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.sha512(client_key).digest() == stored_key
    verifier = base64.b64encode(hmac.digest(server_key, message, "sha512"))
    assert client.step(b"v=" + verifier) is None
    with pytest.raises(SaslProblem, match="continued after the end"):
        client.step(b"v=" + verifier)


@pytest.mark.parametrize(
    ("server_first", "says"),
    [
        (f"r={NONCE},s={SALT},i=4096", "nonce"),
        (f"r=other{FULL},s={SALT},i=4096", "nonce"),
        (f"r={FULL},s={SALT},i={LEAST_ITERATIONS - 1}", "requires 4095 iterations"),
        (f"r={FULL},s={SALT},i={MOST_ITERATIONS + 1}", "requires 1000001 iterations"),
        (f"r={FULL},s={SALT},i=99999999999999", "is invalid"),
        (f"r={FULL},s={SALT},i=-1", "is invalid"),
        (f"r={FULL},s=W22Z=aJ0,i=4096", "not base64"),
        (f"m=ext,r={FULL},s={SALT},i=4096", "is invalid"),
        (f"r={FULL},i=4096", "is invalid"),
        ("", "is invalid"),
    ],
)
def test_a_server_first_message_that_is_refused(server_first: str, says: str) -> None:
    with pytest.raises(SaslProblem, match=says):
        scram().step(server_first.encode())


def test_the_largest_count_that_is_taken_is_taken() -> None:
    assert scram().step(f"r={FULL},s={SALT},i={LEAST_ITERATIONS},x=more".encode()) is not None


@pytest.mark.parametrize(
    ("server_final", "says"),
    [
        (b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "does not know this password"),
        (b"v=", "is invalid"),
        (b"v=%%", "not base64"),
        (b"e=unknown-user", "the broker refused: unknown-user"),
        (b"e=a\nb\x1b[2J", r"the broker refused: a\\nb\\x1b\[2J"),
        (b"", "is invalid"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_broker_that_does_not_prove_itself(server_final: bytes, says: str) -> None:
    client = scram()
    client.step(f"r={FULL},s={SALT},i=4096".encode())
    with pytest.raises(SaslProblem, match=says) as raised:
        client.step(server_final)
    assert "pencil" not in str(raised.value)


def test_plain() -> None:
    plain = Plain("user", "pä:ss")
    assert plain.start() == "\0user\0pä:ss".encode()
    plain.step(b"")
    with pytest.raises(SaslProblem, match="challenge"):
        plain.step(b"what?")
    with pytest.raises(SaslProblem, match="NUL") as raised:
        Plain("user", "secr\0et")
    assert "secr" not in str(raised.value)


def test_oauthbearer_sends_token_and_extensions() -> None:
    client = OAuthBearer("abc.def", {"cluster": "lkc 1", "pool": "p"})
    assert client.start() == b"n,,\x01auth=Bearer abc.def\x01cluster=lkc 1\x01pool=p\x01\x01"
    assert client.step(b"") is None


def test_oauthbearer_answers_a_refusal_before_it_fails() -> None:
    client = OAuthBearer("abc", {})
    assert client.step(b'{"status":"invalid_token"}') == b"\x01"
    assert client.refusal == "the broker refused the token: invalid_token"
    with pytest.raises(SaslProblem, match="invalid_token"):
        client.step(b"")


@pytest.mark.parametrize("challenge", [b"no json", b"[]", b"{}", b"\xff"])
def test_a_refusal_in_another_form(challenge: bytes) -> None:
    client = OAuthBearer("abc", {})
    assert client.step(challenge) == b"\x01"
    assert "no reason given" in client.refusal


@pytest.mark.parametrize(
    ("token", "extensions"),
    [
        ("", {}),
        ("a\x01b", {}),
        ("tökén", {}),
        (b"a", {}),
        (None, {}),
        ("a", {"auth": "b"}),
        ("a", {"k1": "b"}),
        ("a", {"k": "\x01"}),
        ("a", {"k": 1}),
        ("a", None),
    ],
)
def test_tokens_that_cannot_be_sent(token: Any, extensions: Any) -> None:
    with pytest.raises(SaslProblem, match="token provider"):
        OAuthBearer(token, extensions)
