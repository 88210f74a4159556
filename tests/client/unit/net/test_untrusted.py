"""What comes from outside, read with limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slackwater.kafka.untrusted import flag, json_object, one_line, text, whole
from slackwater.runtime.delivery.partition import CommitNote
from slackwater.runtime.takeover.messages import HandoverAnswer, HandoverRequest, decode


def test_one_line_stays_one_line() -> None:
    assert one_line("flights-3 é 日本") == "flights-3 é 日本"
    assert one_line("a\r\nb\t\x1b[31m\x00\x7f\x85\u2028\u202e\ud800") == (
        r"a\r\nb\t\x1b[31m\x00\x7f\x85\u2028\u202e\ud800"
    )
    assert one_line("x" * 600) == "x" * 497 + "..."
    assert one_line(ValueError("a\nb"), 100) == r"a\nb"
    assert one_line("\n" * 10_000_000, 5) == r"\n..."


def test_json_as_others_write_it() -> None:
    document = {"a": [1, -2.5, None, True, "é"], "b": {"c": 2**63 - 1}, "d": -(2**63 - 1), "e": 1e300}
    assert json_object(json.dumps(document)) == document
    assert json_object(json.dumps(document).encode()) == document


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"{", "not JSON"),
        (b"null", "must be a JSON object"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "1e999"),
        (b'{"a": -1e999}', "-1e999"),
        (b'{"a": 9223372036854775808}', "too large"),
        (b'{"a": ' + b"9" * 100_000 + b"}", "too large"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 100_000, "nested too deeply"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_json_that_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        json_object(body)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("value", [None, True, 1.0, "1", [], {}, 10**400, -1, 11])
def test_what_is_no_figure(value: Any) -> None:
    with pytest.raises(ValueError, match="lag must be"):
        whole(value, "lag", 0, 10)


def test_text_and_flags() -> None:
    assert (whole(10, "n", 0, 10), text("a", "t", 1), flag(False, "f")) == (10, "a", False)
    for value in (7, None, "ab", b"a"):
        with pytest.raises(ValueError, match="^t "):
            text(value, "t", 1)
    for value in (1, None, "true"):
        with pytest.raises(ValueError, match="^f must be true or false"):
            flag(value, "f")


@pytest.mark.parametrize(
    "metadata",
    [
        "[" * 4_000,
        '{"at": 1, "instance": ' + "[" * 4_000,
        '{"at": 1, "instance": "i", "letters": [Infinity, 1]}',
        '{"at": 1, "instance": "i", "letters": [1e999, 1]}',
        '{"at": 1e5, "instance": "i"}',
        '{"at": 10000000000000000, "instance": "i"}',
        '{"at": -1, "instance": "i"}',
        '{"at": ' + "9" * 4_000 + ', "instance": "i"}',
    ],
    ids=lambda value: value[:45],
)
def test_another_clients_commit_metadata_is_no_note(metadata: str) -> None:
    assert CommitNote.decode(metadata) is None


REQUEST = {"instance": "i", "by": "b", "address": "h:1", "deadline_ms": 1}
ANSWER = {"generation": 1, "offsets": {"t-0": [1, ""]}, "drain_ms": 1, "committed_ms": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"deadline_ms": 10**16},
        {"deadline_ms": 0},
        {"address": "0.0.0.0:²"},
        {"address": "h:²"},
        {"by": "b" * 2_000},
    ],
)
def test_a_request_for_the_handover_that_is_none(change: dict[str, Any]) -> None:
    assert HandoverRequest.read(json.dumps(REQUEST).encode(), "h")
    with pytest.raises(ValueError, match=r"."):
        HandoverRequest.read(json.dumps({**REQUEST, **change}).encode(), "h")


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 2**31},
        {"generation": -2},
        {"drain_ms": -1},
        {"committed_ms": 10**16},
        {"offsets": {"t-²": [1, ""]}},
        {"offsets": {"t-99999999999": [1, ""]}},
        {"offsets": {"t-0": [-1, ""]}},
        {"offsets": {"t-0": [True, ""]}},
        {"offsets": {"t-0": [1, "", 2]}},
        {"offsets": {"t-0": {}}},
        {"offsets": []},
    ],
)
def test_an_answer_to_it_that_is_none(change: dict[str, Any]) -> None:
    assert HandoverAnswer.parse(decode(json.dumps(ANSWER).encode()))
    with pytest.raises(ValueError, match=r"."):
        HandoverAnswer.parse(decode(json.dumps({**ANSWER, **change}).encode()))
