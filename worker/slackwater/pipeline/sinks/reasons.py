"""The text of another library's error, to be shown to a user: on one line, and without secrets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from urllib.parse import quote

MOST_TEXT = 600
_STORE_ADVICE = (
    (r"NoSuchBucket|bucket does not exist|ContainerNotFound", "create the bucket, or correct sink.path"),
    (
        r"(?<![\w./-])40[13](?![\w/-]|\.\d)|"
        r"AccessDenied|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|credential|token req",
        "check the credentials (environment or sink.options) and their rights to read, write and list there",
    ),
    (r"timed? ?out|connect|dns|error sending request", "check that the store can be reached from here"),
)
_HIDDEN = "***"
_URL_AND_TIME = re.compile(r"(?:\w+://|\*\*\*)[^\s\"<>]*(?: in [\d.]+\w+)?")
"""What a message names beside its cause: a table may be called 403, and a request may have taken 403.1µs. The
address of a store is hidden where it is an option."""
_QUERY_SECRET = re.compile(r"([?&](?:sig|[\w-]*(?:signature|token|credential))=)[^&\s]+", re.IGNORECASE)


def reason_of(exc: BaseException | None, secrets: Collection[str] = (), *, until: str = r"\Z") -> str:
    """The message of ``exc``, at most 600 characters. ``secrets``: texts to leave out. ``until``: a regular
    expression; the message ends where it matches."""
    text = re.sub(r"\x1b\[[0-9;]*m|↳", "", str(exc) or type(exc).__name__)
    text = " ".join(re.split(until, text, maxsplit=1)[0].split())
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN).replace(quote(secret, safe=""), _HIDDEN)
    text = _QUERY_SECRET.sub(r"\1***", text)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}..."


def store_advice(reason: str) -> str:
    """What to do where an object store does not do what it is asked, by the message; "": nothing is known."""
    return advice_of(_STORE_ADVICE, reason)


def advice_of(rules: Iterable[tuple[str, str]], reason: str) -> str:
    """The advice of the first of ``rules`` (regular expression, advice) that ``reason`` matches beside the
    URLs in it; "": none."""
    cause = _URL_AND_TIME.sub("", reason)
    return next((advice for pattern, advice in rules if re.search(pattern, cause, re.IGNORECASE)), "")
