"""The ruler of `benchmarks/rollouts`: pauses, what counts of them, records handled twice, lag, rebalances."""

from __future__ import annotations

import pytest

from benchmarks.rollouts.measure import (
    Handled,
    LagSample,
    Pause,
    Published,
    Span,
    calm_since,
    ending_in,
    handled_again,
    handovers,
    normal_ms,
    pauses,
    peak_lag,
    quantile,
    rebalances,
    without_consumer_s,
    worst_by_partition,
)


def test_a_pause_is_from_file_to_file_of_the_same_partition() -> None:
    stored = {0: [0.0] * 10, 1: [0.0] * 10}
    all_pauses = pauses([Published(100, 0, 0), Published(130, 1, 0), Published(150, 0, 4)], stored)
    assert all_pauses == [Pause(0, 100, 150)]
    assert all_pauses[0].ms == 50


def test_a_pause_begins_when_there_is_a_record_to_handle() -> None:
    stored = {0: [0.0, 900.0]}
    assert pauses([Published(100, 0, 0), Published(1000, 0, 1)], stored) == [Pause(0, 900, 1000)]


def test_a_record_from_the_future_makes_no_negative_pause() -> None:
    """The producer's clock and the file system's differ by a tick."""
    assert pauses([Published(100, 0, 0), Published(104, 0, 1)], {0: [0.0, 106.0]})[0].ms == 0


def test_files_may_come_in_any_order_and_a_replay_ends_a_pause() -> None:
    stored = {0: [0.0] * 10}
    all_pauses = pauses([Published(300, 0, 5), Published(100, 0, 0), Published(200, 0, 0)], stored)
    assert [(pause.begin_ms, pause.end_ms) for pause in all_pauses] == [(100, 200), (200, 300)]


def test_pauses_count_from_normal_on_and_then_wholly() -> None:
    all_pauses = [Pause(0, 0, 100), Pause(1, 0, 101), Pause(1, 101, 2101)]
    assert without_consumer_s(all_pauses, 100) == pytest.approx(2.101)
    assert without_consumer_s(all_pauses, 2000) == 0, "a pause that is just as long as normal is normal"
    assert worst_by_partition(all_pauses) == {0: 100, 1: 2000}


def test_pauses_belong_to_the_span_that_they_end_in() -> None:
    all_pauses = [Pause(0, 0, 99), Pause(0, 99, 100), Pause(0, 150, 200), Pause(0, 200, 201)]
    assert ending_in(all_pauses, Span(100, 200)) == all_pauses[1:3]


def test_normal_leaves_the_longest_thousandth_out() -> None:
    quiet = [Pause(0, 0, 10)] * 999 + [Pause(0, 0, 5000)]
    assert normal_ms(quiet) == 10
    assert normal_ms([*quiet, Pause(0, 0, 5000)]) == 5000
    assert normal_ms(quiet, floor_ms=100) == 100
    assert normal_ms([]) == 0


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.75, 3.0), (1.0, 4.0)]
)
def test_a_quantile_is_one_of_the_values(share: float, expected: float) -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == expected


def test_records_given_again_count_each_time() -> None:
    handled = [Handled(1, 0, 0, 9), Handled(2, 0, 10, 19), Handled(3, 0, 5, 12), Handled(4, 0, 12, 20)]
    assert handled_again(handled, 0) == 8 + 8
    assert handled_again(list(reversed(handled)), 4) == 8, "only those from then on, held against all before"
    assert handled_again(handled, 5) == 0


def test_records_of_other_partitions_and_those_behind_a_hole_are_not_the_same() -> None:
    handled = [Handled(1, 0, 0, 9), Handled(2, 1, 0, 9), Handled(3, 0, 20, 29), Handled(4, 0, 10, 19)]
    assert handled_again(handled, 0) == 0
    assert handled_again([*handled, Handled(5, 0, 8, 21)], 0) == 14


def test_handovers_are_the_pauses_in_which_another_process_begins() -> None:
    handled = [
        Handled(10, 0, 0, 1, "a"),
        Handled(20, 0, 2, 3, "a"),
        Handled(80, 0, 4, 5, "b"),
        Handled(90, 0, 6, 7, "b"),
        Handled(15, 1, 0, 1, "b"),
    ]
    all_pauses = [Pause(0, 12, 22), Pause(0, 22, 82), Pause(0, 82, 92), Pause(1, 5, 85)]
    assert handovers(handled, all_pauses) == [Pause(0, 22, 82)]


def sample(at_ms: float, lag: int | None, state: str = "Stable", members: int = 3) -> LagSample:
    return LagSample(at_ms, lag, state, members)


def test_peak_lag_is_of_the_span_and_passes_over_what_is_not_known() -> None:
    samples = [sample(0, 900), sample(10, 5), sample(20, None), sample(30, 7), sample(40, 800)]
    assert peak_lag(samples, Span(10, 30)) == 7
    assert peak_lag(samples, Span(15, 25)) == 0


def test_rebalances_are_the_generations_since_the_one_before() -> None:
    stored = [(5.0, 3), (1.0, 1), (12.0, 3), (15.0, 5), (40.0, 6)]
    assert rebalances(stored, Span(10, 20)) == 2, "4 was not stored, and was gone through"
    assert rebalances(stored, Span(10, 12)) == 0, "the same generation stored again is none"
    assert rebalances(stored, Span(10, 40)) == 3


def test_calm_is_a_row_of_samples_that_are_all_as_wanted() -> None:
    calm = [sample(at_ms, 10) for at_ms in (100, 300, 500)]
    assert calm_since(calm, members=3, lag=10, count=3) == 100
    assert calm_since(calm, members=3, lag=10, count=2) == 300
    assert calm_since(calm, members=3, lag=10, count=4) is None, "not seen for long enough"
    assert calm_since(calm, members=3, lag=9, count=3) is None
    assert calm_since(calm, members=4, lag=10, count=3) is None
    for bad in (sample(700, None), sample(700, 1, "PreparingRebalance"), sample(700, 11)):
        assert calm_since([*calm, bad], members=3, lag=10, count=3) is None
