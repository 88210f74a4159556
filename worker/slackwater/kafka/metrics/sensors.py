"""Windowed figures: average, maximum, minimum, rates. Pure: the time is an argument, in ms of one clock.

The windows are Java's (``org.apache.kafka.common.metrics.stats``): values are put into samples of
``window_ms``; a figure is made of the samples that had a value within the last ``samples`` windows, so it is
of the last 30 to 60 s by default. Rates divide by the time since the oldest of those samples began, and
by one whole window at least.

A sensor is written by one thread at a time and may be read from any: a reader that meets a writer may
miss the value that is just coming, no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, ItemsView
from typing import Generic, TypeVar

K = TypeVar("K")
S = TypeVar("S")

DEFAULT_SAMPLES = 2
DEFAULT_WINDOW_MS = 30_000
HOUR_MS = 3_600_000


class _Sample:
    __slots__ = ("count", "highest", "last_ms", "lowest", "start_ms", "total")

    def __init__(self, now_ms: float) -> None:
        self.start_ms = self.last_ms = now_ms
        self.count, self.total = 0, 0.0
        self.highest, self.lowest = -math.inf, math.inf


class Sensor:
    """One series of values. ``count`` and ``total``: since it was made; ``value``: the latest one."""

    __slots__ = ("_samples", "_sizes", "count", "total", "value")

    def __init__(self, samples: int = DEFAULT_SAMPLES, window_ms: int = DEFAULT_WINDOW_MS) -> None:
        self._sizes = (samples, window_ms)
        self._samples: tuple[_Sample, ...] = ()
        self.count, self.total, self.value = 0, 0.0, math.nan

    def record(self, value: float, now_ms: float) -> None:
        """Takes a value in."""
        samples, window_ms = self._sizes
        if not self._samples or now_ms - self._samples[-1].start_ms >= window_ms:
            # One more than asked for: a sample that began before the window may reach into it.
            self._samples = (*self._samples[-samples:], _Sample(now_ms))
        sample = self._samples[-1]
        sample.last_ms = now_ms
        sample.total += value
        sample.highest = max(sample.highest, value)
        sample.lowest = min(sample.lowest, value)
        sample.count += 1
        self.total += value
        self.count += 1
        self.value = value

    def _live(self, now_ms: float) -> list[_Sample]:
        samples, window_ms = self._sizes
        return [sample for sample in self._samples if now_ms - sample.last_ms < samples * window_ms]

    def average(self, now_ms: float) -> float:
        """NaN where nothing was recorded, as the maximum and minimum."""
        live = self._live(now_ms)
        count = sum(sample.count for sample in live)
        return sum(sample.total for sample in live) / count if count else math.nan

    def maximum(self, now_ms: float) -> float:
        """The highest value."""
        return max((sample.highest for sample in self._live(now_ms)), default=math.nan)

    def minimum(self, now_ms: float) -> float:
        """The lowest value."""
        return min((sample.lowest for sample in self._live(now_ms)), default=math.nan)

    def rate(self, now_ms: float, per_ms: int = 1_000) -> float:
        """What was recorded, added up, per second."""
        live = self._live(now_ms)
        return sum(sample.total for sample in live) * per_ms / self._elapsed(live, now_ms)

    def frequency(self, now_ms: float, per_ms: int = 1_000) -> float:
        """How often something was recorded, per second."""
        live = self._live(now_ms)
        return sum(sample.count for sample in live) * per_ms / self._elapsed(live, now_ms)

    def _elapsed(self, live: list[_Sample], now_ms: float) -> float:
        samples, window_ms = self._sizes
        elapsed = now_ms - min((sample.start_ms for sample in live), default=now_ms)
        missing = samples - 1 - int(elapsed // window_ms)
        return max(elapsed + max(missing, 0) * window_ms, 1)


class SensorMaker:
    """Makes sensors of one size (``metrics.num.samples``, ``metrics.sample.window.ms``)."""

    def __init__(self, samples: int = DEFAULT_SAMPLES, window_ms: int = DEFAULT_WINDOW_MS) -> None:
        self._samples, self._window_ms = samples, window_ms

    def __call__(self) -> Sensor:
        """A sensor."""
        return Sensor(self._samples, self._window_ms)

    def hourly(self) -> Sensor:
        """One with samples of an hour, for rates per hour."""
        return Sensor(self._samples, HOUR_MS)


class SensorsByKey(Generic[K, S]):
    """The same sensors for each key, such as a topic. ``make``: those of a key that is new."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._made: dict[K, S] = {}

    def of(self, key: K) -> S:
        """Those of ``key``."""
        made = self._made.get(key)
        if made is None:
            # A new dict each time: another thread may be walking the old one.
            made = self._make()
            self._made = {**self._made, key: made}
        return made

    def items(self) -> ItemsView[K, S]:
        """Each key that there is now, with its sensors."""
        return self._made.items()


Values = dict[str, float]


def average_and_maximum(name: str, sensor: Sensor, now_ms: float) -> Values:
    """``NAME-avg`` and ``NAME-max``."""
    return {f"{name}-avg": sensor.average(now_ms), f"{name}-max": sensor.maximum(now_ms)}


def meter_of_values(name: str, sensor: Sensor, now_ms: float) -> Values:
    """``NAME-rate`` and ``NAME-total`` of what was recorded."""
    return {f"{name}-rate": sensor.rate(now_ms), f"{name}-total": sensor.total}


def meter_of_events(name: str, sensor: Sensor, now_ms: float) -> Values:
    """``NAME-rate`` and ``NAME-total`` of how often something was recorded."""
    return {f"{name}-rate": sensor.frequency(now_ms), f"{name}-total": float(sensor.count)}


def seconds_ago(then_ms: float, now_ms: float) -> float:
    """Whole seconds since, as Java's gauges give them; -1 for never (``then_ms`` is below 0)."""
    return -1.0 if then_ms < 0 else float(max(0.0, now_ms - then_ms) // 1_000)
