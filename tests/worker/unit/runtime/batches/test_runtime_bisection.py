"""Which records a batch fails with: the search, against handlers that fail in known ways."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from slackwater.runtime.delivery.bisection import (
    ALWAYS,
    SelectionFault,
    SizeFaultError,
    TooManyFaultsError,
    limit,
    search,
)

Fails = Callable[[Sequence[int]], bool]


def run(count: int, fails: Fails, most: int | None = None) -> tuple[list[int], int]:
    """The records at fault, and how many trials it took to find them."""
    assert fails(range(count))
    steps = search(count, SelectionFault("the batch"), limit(count) if most is None else most)
    verdict: SelectionFault | None = None
    trials = 0
    passed: Sequence[int] = []
    while True:
        try:
            tried = next(steps) if trials == 0 else steps.send(verdict)
        except StopIteration as stop:
            bad = sorted(stop.value)
            rest = [record for record in range(count) if record not in stop.value]
            assert not rest or not fails(rest), "what is left passes together"
            return bad, trials
        trials += 1
        assert list(tried) == sorted(set(tried)), "in the batch's order, each once"
        verdict = SelectionFault(f"of {len(tried)}") if fails(tried) else None
        passed = passed if verdict else tried


def alone(*bad: int) -> Fails:
    """Each of ``bad`` fails whatever it is with."""
    return lambda tried: not set(bad).isdisjoint(tried)


def of_two_types(*text: int) -> Fails:
    """Records of two types in a column: either passes by itself, not with one of the other type."""
    return lambda tried: len({record in text for record in tried}) > 1


@pytest.mark.parametrize("kind", [alone, of_two_types])
@pytest.mark.parametrize("count", [3, 4, 7, 10, 100, 1000])
def test_one_bad_record_is_found_anywhere(count: int, kind: Callable[..., Fails]) -> None:
    for bad in sorted({0, 1, count // 2, count - 2, count - 1}):
        failing, trials = run(count, kind(bad))
        assert failing == [bad]
        assert trials <= 4 * (math.log2(count) + 1) + 4


def test_a_single_bad_record_needs_one_trial() -> None:
    assert run(1, alone(0)) == ([0], 1)


def test_a_few_records_may_all_be_bad() -> None:
    assert run(ALWAYS, lambda tried: True)[0] == list(range(ALWAYS))


def test_the_type_of_the_first_of_two_records_decides() -> None:
    assert run(2, of_two_types(0))[0] == [1]


@pytest.mark.parametrize("seed", range(60))
def test_bad_records_of_both_kinds_are_found_within_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(20, 3000)
    text = rng.sample(range(count), rng.randint(0, min(5, count // 20)))
    broken = rng.sample(range(count), rng.randint(0 if text else 1, min(5, count // 20 + 1)))
    mixed, lonely = of_two_types(*text), alone(*broken)
    failing, trials = run(count, lambda tried: mixed(tried) or lonely(tried))
    assert failing == sorted({*text, *broken})
    assert trials <= 4 * len(failing) * (math.log2(count) + 1) + 3 * len(failing) + 1


@pytest.mark.parametrize(("count", "most"), [(11, 10), (1000, 100), (100_000, 100)])
def test_a_handler_that_always_fails_is_found_out_soon(count: int, most: int) -> None:
    assert limit(count) == most
    calls = 0

    def fails(tried: Sequence[int]) -> bool:
        nonlocal calls
        calls += 1
        return True

    with pytest.raises(TooManyFaultsError, match=f"more than {most} records fail") as raised:
        run(count, fails)
    assert raised.value.first.reason.startswith("of ")
    assert calls <= 4 * most


def test_records_that_a_fault_names_are_rejected_with_their_own_reasons_however_many() -> None:
    named, other = {record: f"reason {record}" for record in range(0, 1000, 2)}, 501
    steps = search(1000, SelectionFault("the batch", reasons=named), limit(1000))
    tried, trials = next(steps), 1
    try:
        while True:
            tried, trials = steps.send(SelectionFault("not named") if other in tried else None), trials + 1
    except StopIteration as end:
        faults = end.value
    assert {record: fault.reason for record, fault in faults.items()} == named | {other: "not named"}
    assert trials <= 4 * (math.log2(1000) + 1) + 5


@pytest.mark.parametrize("fails_again", [True, False])
def test_records_that_are_all_named_at_once_are_tried_once_more(fails_again: bool) -> None:
    fault = SelectionFault("the batch", reasons={0: "zero", 1: "one"})
    steps = search(2, fault, limit(2))
    assert list(next(steps)) == [0, 1]
    with pytest.raises(StopIteration) as end:
        steps.send(fault if fails_again else None)
    faults = {record: found.reason for record, found in end.value.value.items()}
    assert faults == ({0: "zero", 1: "one"} if fails_again else {})


def test_two_types_that_are_as_frequent_are_no_fault_of_records() -> None:
    with pytest.raises(TooManyFaultsError):
        run(1000, of_two_types(*range(0, 1000, 2)))


def test_a_batch_that_is_too_large_is_no_fault_of_records() -> None:
    with pytest.raises(SizeFaultError):
        run(1000, lambda tried: len(tried) > 700)


def test_what_passes_when_it_is_tried_again_is_not_at_fault() -> None:
    calls = 0

    def fails(tried: Sequence[int]) -> bool:
        nonlocal calls
        calls += 1
        return calls <= 6 and 5 in tried

    assert run(8, fails)[0] == []


@pytest.mark.parametrize(("count", "most"), [(1, 10), (99, 10), (150, 15), (1000, 100), (50_000, 100)])
def test_the_number_of_bad_records_is_limited(count: int, most: int) -> None:
    assert limit(count) == most
