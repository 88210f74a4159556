"""A token request's header, and what the answer says; without I/O (RFC 6749, sections 2.3.1, 5.1, 5.2)."""

from __future__ import annotations

import base64
import http
import math
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

from slackwater.kafka.net.security.files import Credentials
from slackwater.kafka.untrusted import json_object, one_line

MAX_ANSWER_BYTES = 1024 * 1024
"""A larger answer is not read to its end. Tokens have a few kilobytes."""
_USED_SHARE = 0.8
"""Of a token's life; Java's ``sasl.login.refresh.window.factor``."""
_MOST_TEXT = 200


class Granted(NamedTuple):
    """A token, and for how many seconds it is handed out."""

    token: str
    usable_s: float

    def __repr__(self) -> str:
        return f"Granted(usable_s={self.usable_s})"


def basic(who: Credentials, *, encoded: bool) -> str:
    """The header ``Authorization`` (RFC 7617), as Java makes it."""
    parts = [who.username, who.password]
    if encoded:
        parts = [_form_encoded(one) for one in parts]
    return f"Basic {base64.b64encode(':'.join(parts).encode()).decode()}"


def _form_encoded(text: str) -> str:
    # As java.net.URLEncoder: "*" stays, "~" does not.
    return quote_plus(text, safe="*").replace("~", "%7E")


def granted(body: bytes) -> Granted:
    """Reads the answer to a request that went well. Raises ``ValueError`` that says what is wrong with it,
    without anything of it."""
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
    """What an answer that brings no token says, without the secret, should the server repeat it."""
    name = http.HTTPStatus(status).phrase if status in http.HTTPStatus._value2member_map_ else ""
    answer = _json_object(body[:MAX_ANSWER_BYTES]) or {}
    said = [answer[one] for one in ("error", "error_description") if isinstance(answer.get(one), str)]
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
