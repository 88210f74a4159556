"""Who may ask for a takeover: signatures, their time, and nonces that count once."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from slackwater.runtime.takeover.signing import (
    WINDOW_MS,
    Unauthorized,
    Verifier,
    check_answer,
    read_key,
    sign_answer,
    sign_request,
    target_of,
)
from tests.support.workers.fakes import START_MS, VirtualClock

KEY, OTHER_KEY = b"k" * 32, b"j" * 32
NONCE, OTHER_NONCE = "0123456789abcdef" * 2, "f" * 32
BODY = b'{"predecessor":""}'
TARGET = target_of("flights-b-3", "1" * 32)


def signed(*, key: bytes = KEY, now_ms: int = START_MS, nonce: str = NONCE, target: str = TARGET) -> str:
    return sign_request(key, "POST", "/takeover", BODY, now_ms=now_ms, nonce=nonce, target=target)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def verifier(clock: VirtualClock) -> Verifier:
    return Verifier(KEY, clock, TARGET)


def test_the_signature_is_what_the_design_says() -> None:
    text = "\n".join(["POST", "/takeover", str(START_MS), NONCE, hashlib.sha256(BODY).hexdigest(), TARGET])
    expected = hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest()
    assert signed() == f"SLACKWATER-HMAC ts={START_MS},nonce={NONCE},sig={expected}"
    answer = "\n".join(["answer", NONCE, "202", hashlib.sha256(b"{}").hexdigest()])
    assert sign_answer(KEY, NONCE, 202, b"{}") == hmac.new(KEY, answer.encode(), hashlib.sha256).hexdigest()


def test_a_signed_request_is_taken_and_its_nonce_told(verifier: Verifier) -> None:
    assert verifier.verify("POST", "/takeover", BODY, signed()) == NONCE


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("DELETE", "/takeover", BODY), ("POST", "/handover", BODY), ("POST", "/takeover", BODY + b" ")],
)
def test_a_signature_holds_for_its_request_alone(
    verifier: Verifier, method: str, path: str, body: bytes
) -> None:
    with pytest.raises(Unauthorized, match="not by this group's key"):
        verifier.verify(method, path, body, signed())


@pytest.mark.parametrize(
    "target", ["", target_of("flights-a-3", "1" * 32), target_of("flights-b-3", "2" * 32)],
    ids=["nobody", "another pod", "the same pod before its restart"],
)  # fmt: skip
def test_a_request_for_another_process_is_refused(verifier: Verifier, target: str) -> None:
    with pytest.raises(Unauthorized, match="not for this pod's process|names no process"):
        verifier.verify("POST", "/takeover", BODY, signed(target=target))
    assert verifier.verify("POST", "/takeover", BODY, signed()) == NONCE


def test_a_worker_of_before_tells_no_process_and_takes_what_names_nobody(clock: VirtualClock) -> None:
    assert target_of("flights-b-3", "") == ""
    assert Verifier(KEY, clock, "").verify("POST", "/takeover", BODY, signed(target="")) == NONCE


def test_another_key_is_refused(verifier: Verifier) -> None:
    with pytest.raises(Unauthorized, match="not by this group's key"):
        verifier.verify("POST", "/takeover", BODY, signed(key=OTHER_KEY))


def test_a_signature_covers_its_time_and_its_nonce(verifier: Verifier) -> None:
    for old, new in ((f"ts={START_MS}", f"ts={START_MS + 1}"), (f"nonce={NONCE}", f"nonce={OTHER_NONCE}")):
        with pytest.raises(Unauthorized, match="not by this group's key"):
            verifier.verify("POST", "/takeover", BODY, signed().replace(old, new))
    assert verifier.verify("POST", "/takeover", BODY, signed()), "a refused one has used nothing up"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Basic dXNlcjpwYXNz",
        "SLACKWATER-HMAC",
        f"SLACKWATER-HMAC ts=-1,nonce={NONCE},sig={'0' * 64}",
        f"SLACKWATER-HMAC ts=1,nonce={NONCE.upper()},sig={'0' * 64}",
        f"SLACKWATER-HMAC ts=1,nonce={NONCE},sig={'0' * 63}",
        f"SLACKWATER-HMAC ts=1,nonce={NONCE},sig={'ü' * 64}",
        f"SLACKWATER-HMAC ts={'9' * 400},nonce={NONCE},sig={'0' * 64}",
        f"SLACKWATER-HMAC ts=\uff11,nonce={NONCE},sig={'0' * 64}",
    ],
)
def test_what_is_no_signature_is_refused(verifier: Verifier, header: str | None) -> None:
    with pytest.raises(Unauthorized, match="not signed|Authorization must be"):
        verifier.verify("POST", "/takeover", BODY, header)


@pytest.mark.parametrize(("off_ms", "words"), [(-WINDOW_MS, "ago"), (WINDOW_MS, "ahead")])
def test_a_signature_holds_for_a_minute(verifier: Verifier, off_ms: int, words: str) -> None:
    assert verifier.verify("POST", "/takeover", BODY, signed(now_ms=START_MS + off_ms))
    further = START_MS + off_ms + (1 if off_ms > 0 else -1)
    with pytest.raises(Unauthorized, match=f"1 min {words}"):
        verifier.verify("POST", "/takeover", BODY, signed(now_ms=further, nonce=OTHER_NONCE))


def test_a_nonce_counts_once_for_as_long_as_its_time_is_taken(
    verifier: Verifier, clock: VirtualClock
) -> None:
    ahead = signed(now_ms=START_MS + WINDOW_MS)
    verifier.verify("POST", "/takeover", BODY, ahead)
    for passed in (0, WINDOW_MS, 2 * WINDOW_MS):
        clock.now = passed
        with pytest.raises(Unauthorized, match="was made before"):
            verifier.verify("POST", "/takeover", BODY, ahead)
    clock.now = 2 * WINDOW_MS + 1
    with pytest.raises(Unauthorized, match="1 min ago"):
        verifier.verify("POST", "/takeover", BODY, ahead)
    later = signed(now_ms=START_MS + 2 * WINDOW_MS + 1)
    assert verifier.verify("POST", "/takeover", BODY, later) == NONCE, "the key's owner may draw it again"


def test_who_has_no_key_fills_no_memory(verifier: Verifier) -> None:
    for number in range(100):
        with pytest.raises(Unauthorized):
            verifier.verify("POST", "/takeover", BODY, signed(key=OTHER_KEY, nonce=f"{number:032x}"))
    assert verifier._nonces == {}


def test_an_answer_is_checked_with_all_that_it_covers() -> None:
    signature = sign_answer(KEY, NONCE, 200, BODY)
    assert check_answer(KEY, NONCE, 200, BODY, signature)
    assert not check_answer(OTHER_KEY, NONCE, 200, BODY, signature)
    assert not check_answer(KEY, OTHER_NONCE, 200, BODY, signature), "the answer to another request"
    assert not check_answer(KEY, NONCE, 202, BODY, signature)
    assert not check_answer(KEY, NONCE, 200, BODY + b" ", signature)
    assert not check_answer(KEY, NONCE, 200, BODY, "")
    assert not check_answer(KEY, NONCE, 200, BODY, "ü")
    assert not check_answer(KEY, NONCE, 200, BODY, signed().rpartition("sig=")[2]), "a request's"


def test_a_key_must_have_32_bytes_in_hex() -> None:
    assert read_key(f" {'0f' * 32}\n") == b"\x0f" * 32
    assert len(read_key("0f" * 40)) == 40
    for text in ("", "0f" * 31, "zz" * 32, "0f" * 31 + "0"):
        with pytest.raises(ValueError, match="32 random bytes in hex"):
            read_key(text)
