"""The windows of the metrics: what Java's stats give for the same values at the same times."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st

from slackwater.kafka.metrics.sensors import (
    HOUR_MS,
    Sensor,
    SensorMaker,
    average_and_maximum,
    meter_of_events,
    meter_of_values,
    seconds_ago,
)


def test_nothing_recorded() -> None:
    sensor = Sensor()
    assert math.isnan(sensor.average(5))
    assert math.isnan(sensor.maximum(5))
    assert math.isnan(sensor.minimum(5))
    assert sensor.rate(5) == sensor.frequency(5) == 0
    assert (sensor.count, sensor.total) == (0, 0)


def test_figures_of_one_window() -> None:
    sensor = Sensor(2, 30_000)
    for now, value in ((0, 4.0), (100, 10.0), (29_999, 1.0)):
        sensor.record(value, now)
    assert (sensor.average(29_999), sensor.maximum(29_999), sensor.minimum(29_999)) == (5.0, 10.0, 1.0)
    assert (sensor.value, sensor.count, sensor.total) == (1.0, 3, 15.0)


def test_a_rate_counts_one_window_at_least() -> None:
    """As Java: a burst right at the start is no rate of thousands."""
    sensor = Sensor(2, 30_000)
    sensor.record(60, 1_000)
    assert sensor.rate(1_000) == 60 / 30
    assert sensor.rate(11_000) == 60 / 40
    assert sensor.frequency(11_000) == 1 / 40


def test_old_samples_end() -> None:
    sensor = Sensor(2, 30_000)
    sensor.record(100, 0)
    sensor.record(2, 30_000)
    assert sensor.maximum(59_999) == 100
    assert sensor.maximum(60_000) == 2
    assert sensor.average(89_999) == 2
    assert math.isnan(sensor.average(90_000))
    assert sensor.rate(90_000) == 0
    assert sensor.total == 102, "totals are for ever"


def test_a_sample_that_reaches_into_the_window_is_kept() -> None:
    sensor = Sensor(2, 10)
    for now in (0, 9, 12, 20, 23):
        sensor.record(now, now)
    # Samples began at 0, 12 and 23; the first had its last value at 9.
    assert sensor.minimum(28) == 0
    assert sensor.minimum(29) == 12


def test_rates_per_hour() -> None:
    sensor = SensorMaker().hourly()
    for now in (0, 1_000, 2_000):
        sensor.record(1, now)
    assert sensor.frequency(2_000, HOUR_MS) == 3 * HOUR_MS / (HOUR_MS + 2_000)


@given(
    values=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 99)), min_size=1, max_size=60),
    samples=st.integers(1, 4),
    window=st.integers(1, 30),
)
def test_figures_are_of_the_recent_values(values: list[tuple[int, int]], samples: int, window: int) -> None:
    sensor, now, history = Sensor(samples, window), 0, []
    for gap, value in values:
        now += gap
        sensor.record(value, now)
        history.append((now, value))
    recent = [value for at, value in history if now - at < samples * window]
    # Nothing younger than the windows is missed, and nothing older than one window more counts.
    reached = [value for at, value in history if now - at < (samples + 1) * window]
    assert max(recent) <= sensor.maximum(now) <= max(reached)
    assert min(reached) <= sensor.minimum(now) <= min(recent)
    assert sensor.minimum(now) <= sensor.average(now) <= sensor.maximum(now)
    assert sensor.count == len(values)


def test_names() -> None:
    sensor = Sensor()
    sensor.record(8, 0)
    assert average_and_maximum("x", sensor, 0) == {"x-avg": 8, "x-max": 8}
    assert meter_of_values("x", sensor, 0) == {"x-rate": 8 / 30, "x-total": 8}
    assert meter_of_events("x", sensor, 0) == {"x-rate": 1 / 30, "x-total": 1}
    assert seconds_ago(-1, 5_000) == -1
    assert seconds_ago(1_001, 5_000) == 3
