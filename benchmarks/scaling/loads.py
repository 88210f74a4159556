"""The loads that the rules are compared on. All are deterministic."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from benchmarks.scaling.group import Load

MINUTE = 60.0
HOUR = 3_600.0

Rate = Callable[[float], float]


def noisy(rate: Rate, seed: int) -> Rate:
    """The rate with a tenth of noise each second."""
    return lambda second: rate(second) * random.Random(f"{seed} {second}").uniform(0.9, 1.1)


def flat(per_s: float) -> Rate:
    return lambda second: per_s


def sine(minutes: float, low: float, high: float) -> Rate:
    middle, swing = (low + high) / 2, (high - low) / 2
    return lambda second: middle - swing * math.cos(2 * math.pi * second / (minutes * MINUTE))


def square(minutes: float, low: float, high: float) -> Rate:
    """Half of each period at each of the two rates."""
    return lambda second: high if second % (minutes * MINUTE) >= minutes * MINUTE / 2 else low


def ramp(per_s_from: float, per_s_to: float, over_s: float, begin_s: float = 10 * MINUTE) -> Rate:
    return lambda second: per_s_from + (per_s_to - per_s_from) * min(max(second - begin_s, 0) / over_s, 1)


def spikes(rate: Rate, per_s: float, seed: int, hours: float = 6.0) -> Rate:
    """About six spikes an hour of 10 to 20 s, at times that do not repeat."""
    source = random.Random(seed)
    windows = []
    second = 0.0
    while second < hours * HOUR:
        second += source.uniform(5 * MINUTE, 15 * MINUTE)
        windows.append((second, second + source.uniform(10, 20)))
    return lambda at: rate(at) + (per_s if any(begin <= at < end for begin, end in windows) else 0.0)


def daily(low: float, high: float) -> Rate:
    """Least at 4 in the morning, most in the late afternoon, with a second peak at noon."""

    def rate(second: float) -> float:
        hour = second / HOUR % 24
        day = (1 - math.cos(2 * math.pi * (hour - 4) / 24)) / 2
        noon = 0.25 * math.exp(-((hour - 12) ** 2) / 2)
        return low + (high - low) * min(day * 0.85 + noon, 1.0)

    return rate


def outage(begin_s: float, end_s: float) -> Callable[[int, float], bool]:
    """Nobody reads from then to then, as when the sink is away."""
    return lambda worker, second: begin_s <= second < end_s


def dead(number: int, begin_s: float, end_s: float) -> Callable[[int, float], bool]:
    """This worker reads nothing from then to then, though it remains a member."""
    return lambda worker, second: worker == number and begin_s <= second < end_s


def hot(partitions: int, share: float) -> tuple[float, ...]:
    """One partition with this share of the records."""
    return (share, *([(1 - share) / (partitions - 1)] * (partitions - 1)))


LOADS = [
    Load("flat, 0.3 workers", noisy(flat(30), 1)),
    Load("flat, 3.5 workers", noisy(flat(350), 2)),
    Load("flat, 5.2 workers", noisy(flat(520), 3)),
    Load("flat, 9 workers", noisy(flat(900), 4)),
    Load("sine of 5 min", noisy(sine(5, 100, 700), 5)),
    Load("sine of 5 min, spikes", spikes(noisy(sine(5, 100, 700), 6), 1_500, 6), hours=6),
    Load("sine of 20 min", noisy(sine(20, 100, 700), 7)),
    Load("sine of 20 min, spikes", spikes(noisy(sine(20, 100, 700), 8), 1_500, 8), hours=6),
    Load("square, 2 x 2.5 min", noisy(square(5, 150, 700), 9)),
    Load("square, 2 x 10 min", noisy(square(20, 150, 700), 10)),
    Load("flat, spikes", spikes(noisy(flat(150), 11), 1_500, 11), hours=6),
    Load("ramp up in 30 min", noisy(ramp(50, 900, 30 * MINUTE), 12)),
    Load("ramp down in 30 min", noisy(ramp(900, 50, 30 * MINUTE), 13)),
    Load("a day", noisy(daily(40, 800), 14), hours=24),
    Load("a day, spikes", spikes(noisy(daily(40, 800), 15), 1_500, 15, hours=24), hours=24),
    Load("one hot partition", noisy(flat(350), 16), weights=hot(24, 0.35)),
    Load("a dead consumer", noisy(flat(350), 17), stopped=dead(0, 30 * MINUTE, 40 * MINUTE)),
    Load("an outage of 5 min", noisy(flat(350), 18), stopped=outage(30 * MINUTE, 35 * MINUTE)),
]
