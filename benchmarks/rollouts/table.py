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
    "CPU, quiet", "CPU, rolling", "start of a pod, median",
)  # fmt: skip


def main_table(figures: Sequence[Figures], what: str = MAIN[0]) -> str:
    """The comparison; ``what``: the head of its first column."""
    rows = [
        (
            f"({figure.key}) {figure.title}",
            str(figure.rebalances),
            f"{figure.unserved_s:.1f}",
            duration(figure.worst_ms),
            f"{figure.peak_lag:,}",
            f"{figure.twice:,}",
            f"{figure.done_s:.0f} s",
        )
        for figure in figures
    ]
    return markdown((what, *MAIN[1:]), rows)


def details(figures: Sequence[Figures], normal_ms: float) -> str:
    """What helps to judge it; ``normal_ms``: the longest pause that counts as normal."""
    rows = [
        (
            f"({figure.key})",
            duration(figure.typical_ms),
            duration(figure.handover_ms),
            f"{figure.lost:,}",
            f"{figure.repeated:,}",
            duration(figure.quiet_worst_ms),
            f"{figure.quiet_unserved_s:.2f}",
            f"{figure.quiet_lag:,}",
            f"{figure.quiet_busy:.0%}",
            f"{figure.busy:.0%}",
            f"{figure.start_s:.0f} s",
        )
        for figure in figures
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
