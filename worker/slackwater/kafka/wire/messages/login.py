"""Logging in by SASL (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from slackwater.kafka.wire.schema import (
    ARRAY,
    BYTES,
    INT16,
    INT64,
    STRING,
    Request,
    Response,
    f,
)


class SaslHandshakeResponse(Response, versions=(0, 1)):
    error_code: int = f(INT16, default=0)
    mechanisms: list[str] = f(ARRAY(STRING), factory=list)


class SaslHandshakeRequest(
    Request[SaslHandshakeResponse], api_key=17, response=SaslHandshakeResponse, versions=(0, 1)
):
    mechanism: str = f(STRING, default="")


class SaslAuthenticateResponse(Response, versions=(0, 2), flexible=2):
    error_code: int = f(INT16, default=0)
    error_message: str | None = f(STRING, nullable=0, default="")
    auth_bytes: bytes = f(BYTES, default=b"")
    session_lifetime_ms: int = f(INT64, since=1, default=0)


class SaslAuthenticateRequest(
    Request[SaslAuthenticateResponse],
    api_key=36,
    response=SaslAuthenticateResponse,
    versions=(0, 2),
    flexible=2,
):
    auth_bytes: bytes = f(BYTES, default=b"")

    def __repr__(self) -> str:
        return "SaslAuthenticateRequest(auth_bytes=hidden)"
