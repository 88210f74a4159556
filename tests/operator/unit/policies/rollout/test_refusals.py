"""The back-off of what the API server refuses, and what people are told of it."""

from __future__ import annotations

import pytest

from slackwater_operator.controller.execution.refusals import LONGEST_ANSWER, note, problem
from slackwater_operator.kubernetes.errors import KubeError, from_answer
from slackwater_operator.policies.backoff import LONGEST_MS, PERSISTS_AFTER, Refusals, delay_ms

SUBJECT = "apply StatefulSet flights"
NOW = 1_795_000_000_000


def test_the_delay_doubles_up_to_the_cap() -> None:
    assert [delay_ms(attempts, 1.0) for attempts in (1, 2, 3, 6, 7, 1_000)] == [
        1_000, 2_000, 4_000, 32_000, LONGEST_MS, LONGEST_MS,
    ]  # fmt: skip
    assert [delay_ms(attempts, 0.0) for attempts in (1, 2, 1_000)] == [500, 1_000, LONGEST_MS / 2]


def answer(status: int, message: str, reason: str = "Invalid", *, retry_after_s: float = 0.0) -> KubeError:
    body = {"kind": "Status", "reason": reason, "message": message}
    return from_answer(status, body, "PATCH /apis/apps/v1/x", retry_after_s=retry_after_s)


def refuse(refusals: Refusals, error: KubeError, now_ms: int) -> tuple[str, str] | None:
    return note(refusals, SUBJECT, error, now_ms=now_ms, jitter=1.0)


def test_a_refusal_is_news_once_and_is_held_for_longer_and_longer() -> None:
    refusals, now, held = Refusals(), NOW, []
    for _ in range(8):
        news = refuse(refusals, answer(422, "spec.x: Invalid value"), now)
        assert (news is not None) == (not held)
        due = refusals.next_due_ms(now)
        assert due is not None
        held.append(due - now)
        assert refusals.held(SUBJECT, now_ms=due - 1) is not None
        assert refusals.held(SUBJECT, now_ms=due) is None
        assert refusals.held("apply Service flights", now_ms=now) is None, "others go on"
        now = due
    assert held == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    refusals.accepted(SUBJECT)
    assert refusals.problems == ()
    assert refusals.next_due_ms(now) is None


def test_an_edit_tries_at_once_and_shows_it_until_it_is_healed() -> None:
    refusals = Refusals()
    for number in range(6):
        refuse(refusals, answer(422, "spec.x"), NOW + number)
    refusals.try_now()
    assert refusals.held(SUBJECT, now_ms=NOW + 6) is None
    assert refusals.problems
    assert refuse(refusals, answer(422, "spec.x"), NOW + 7) is None
    assert refusals.next_due_ms(NOW) == NOW + 7 + 1_000, "the back-off begins anew"


def test_one_that_another_holds_up_is_not_what_is_waited_for() -> None:
    """After an edit all are due at once; where the first is refused again, the others are not even asked."""
    refusals = Refusals()
    for subject in (SUBJECT, "apply ConfigMap flights"):
        note(refusals, subject, answer(422, "spec.x"), now_ms=NOW, jitter=1.0)
    refusals.try_now()
    assert refusals.next_due_ms(NOW + 1) is None
    note(refusals, "apply ConfigMap flights", answer(422, "spec.x"), now_ms=NOW + 1, jitter=1.0)
    assert refusals.next_due_ms(NOW + 1) == NOW + 1 + 1_000


def test_another_reason_is_news_again() -> None:
    refusals = Refusals()
    assert refuse(refusals, answer(422, "spec.x"), NOW) is not None
    quota = answer(403, 'pods "x" is forbidden: exceeded quota: q, used: pods=1', "Forbidden")
    news = refuse(refusals, quota, NOW + 1)
    assert news is not None
    assert news[0] == "QuotaExceeded"
    used = answer(403, 'pods "x" is forbidden: exceeded quota: q, used: pods=2', "Forbidden")
    assert refuse(refusals, used, NOW + 2) is None, "a figure in the message is no news"
    assert "used: pods=2" in refusals.problems[0][1]


@pytest.mark.parametrize(("status", "reason"), [(409, "Conflict"), (500, "InternalError"), (404, "NotFound")])
def test_what_may_pass_is_shown_only_when_it_persists(status: int, reason: str) -> None:
    refusals = Refusals()
    shown = []
    for number in range(PERSISTS_AFTER + 1):
        error = answer(status, "failed calling webhook", reason)
        shown.append(refuse(refusals, error, NOW + number) is not None)
    assert shown == [*[False] * (PERSISTS_AFTER - 1), True, False]
    assert "failed calling webhook" in refusals.problems[0][1]


def test_a_server_that_says_when_to_come_back_is_obeyed_up_to_the_cap() -> None:
    refusals = Refusals()
    refuse(refusals, answer(429, "too many", "TooManyRequests", retry_after_s=7.0), NOW)
    assert refusals.next_due_ms(NOW) == NOW + 7_000
    refuse(refusals, answer(429, "too many", "TooManyRequests", retry_after_s=7e9), NOW)
    assert refusals.next_due_ms(NOW) == NOW + LONGEST_MS


def test_a_clock_that_was_put_back_holds_nothing_for_long() -> None:
    refusals = Refusals()
    refuse(refusals, answer(422, "spec.x"), NOW)
    assert refusals.held(SUBJECT, now_ms=NOW - 3_600_000) is None


def test_what_is_no_longer_wanted_is_forgotten() -> None:
    refusals = Refusals()
    refuse(refusals, answer(422, "spec.x"), NOW)
    refusals.keep({SUBJECT})
    assert refusals.problems
    refusals.keep({"apply Service flights"})
    assert refusals.problems == ()


@pytest.mark.parametrize(
    ("status", "message", "reason", "advice"),
    [
        (422, "spec.x: Invalid value", "Refused", "correct what the API server reports"),
        (413, "Request entity too large: limit is 3145728", "Refused", "correct what the API server reports"),
        (403, 'cannot patch resource "jobs"', "Forbidden", "rbac.create"),
        (403, "exceeded quota: q", "QuotaExceeded", "ResourceQuota"),
        (403, "failed quota: q: must specify limits.cpu", "QuotaExceeded", "ResourceQuota"),
        (403, 'violates PodSecurity "restricted:latest"', "Refused", "Pod Security"),
        (400, 'admission webhook "x" denied the request: no', "Refused", "admission policy"),
        (403, "because it is being terminated", "Refused", "namespace is being deleted"),
        (500, "failed to convert new object (x): quantities must match", "Refused", "spec.template"),
    ],
)
def test_each_refusal_names_the_object_and_what_to_do(
    status: int, message: str, reason: str, advice: str
) -> None:
    result, report = problem(SUBJECT, answer(status, message))
    assert result == reason
    assert report.startswith("the API server refused to apply StatefulSet flights (")
    assert message in report
    assert "PATCH" not in report
    assert advice in report


def test_a_long_answer_is_cut() -> None:
    _, message = problem(SUBJECT, answer(422, "x\n" * 100_000))
    assert len(message) < LONGEST_ANSWER + 200
    assert "\n" not in message
