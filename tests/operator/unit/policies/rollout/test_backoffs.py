"""What has failed, each tried again after a back-off of its own."""

from __future__ import annotations

import pytest

from slackwater_operator.policies.backoff import LONGEST_MS, Backoffs


def failed(backoff: Backoffs[str], times: int, *, now_ms: int = 0, longest_ms: int = LONGEST_MS) -> None:
    for _ in range(times):
        backoff.failed("remove a", "no answer", now_ms=now_ms, jitter=1.0, longest_ms=longest_ms)


def test_the_wait_doubles_up_to_the_cap() -> None:
    for times, wait_ms in ((1, 1_000), (2, 2_000), (5, 16_000), (7, 60_000), (100, 60_000)):
        backoff = Backoffs[str]()
        failed(backoff, times)
        assert backoff.next_due_ms(0) == wait_ms
        assert backoff.held("remove a", now_ms=wait_ms - 1) == "no answer"
        assert backoff.held("remove a", now_ms=wait_ms) is None
    backoff = Backoffs[str]()
    failed(backoff, 7, longest_ms=10_000)
    assert backoff.next_due_ms(0) == 10_000


def test_another_act_does_not_wait() -> None:
    backoff = Backoffs[str]()
    failed(backoff, 3)
    assert backoff.held("remove a, b", now_ms=0) is None


@pytest.mark.parametrize("wanted", [True, False])
def test_what_was_done_or_is_not_wanted_any_more_begins_anew(wanted: bool) -> None:
    backoff = Backoffs[str]()
    failed(backoff, 5)
    if wanted:
        backoff.done("remove a")
    else:
        backoff.keep(["remove b"])
    assert backoff.next_due_ms(0) is None
    failed(backoff, 1)
    assert backoff.next_due_ms(0) == 1_000


def test_an_edit_and_a_clock_that_is_put_back_end_the_wait() -> None:
    backoff = Backoffs[str]()
    failed(backoff, 7, now_ms=10**9)
    assert backoff.held("remove a", now_ms=0) is None
    backoff.try_now()
    assert backoff.held("remove a", now_ms=10**9) is None
    failed(backoff, 1, now_ms=10**9)
    assert backoff.next_due_ms(10**9) == 10**9 + 1_000
