"""The tables, as Markdown (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.rollouts.outcome import Figures

MAIN = (
    "way to roll", "rebalances", "partition-seconds without a consumer", "worst pause of a partition",
    "peak lag, records", "handled twice", "time to done",
)  # fmt: skip
DETAILS = (
    "way to roll", "a partition's worst pause, median", "pause at a change of process, median",
    "lost", "twice in the output", "quiet: worst pause", "quiet: partition-seconds a minute", "quiet: lag",
    "CPU, quiet", "CPU, rolling",
)  # fmt: skip


def main_table(figures: Sequence[Figures]) -> str:
    """The comparison."""
    rows = [
        (
            f"({one.key}) {one.title}",
            str(one.rebalances),
            f"{one.unserved_s:.1f}",
            duration(one.worst_ms),
            f"{one.peak_lag:,}",
            f"{one.twice:,}",
            f"{one.done_s:.0f} s",
        )
        for one in figures
    ]
    return markdown(MAIN, rows)


def details(figures: Sequence[Figures], normal_ms: float) -> str:
    """What helps to judge it; ``normal_ms``: the longest pause that counts as normal."""
    rows = [
        (
            f"({one.key})",
            duration(one.typical_ms),
            duration(one.handover_ms),
            f"{one.lost:,}",
            f"{one.repeated:,}",
            duration(one.quiet_worst_ms),
            f"{one.quiet_unserved_s:.2f}",
            f"{one.quiet_lag:,}",
            f"{one.quiet_busy:.0%}",
            f"{one.busy:.0%}",
        )
        for one in figures
    ]
    return f"A pause counts from {duration(normal_ms)} on.\n\n{markdown(DETAILS, rows)}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; all columns but the first are aligned to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def duration(ms: float) -> str:
    """``85 ms``, ``1.25 s``, ``12.5 s``."""
    if ms < 999.5:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.2f} s" if ms < 9_995 else f"{ms / 1000:.1f} s"
