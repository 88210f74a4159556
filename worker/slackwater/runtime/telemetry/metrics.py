"""What a worker counts, as plain numbers that cost nothing to keep, and their Prometheus form.

``prometheus_client`` is imported at the first scrape: its import (about 50 ms) would lengthen the
restart gap of a returning worker.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Labels = tuple[str, ...]

_COUNTERS = {
    "records_in": ("Records polled, in batches that were committed.", ("topic", "partition")),
    "bytes_in": (
        "Size of the records polled, uncompressed, in batches that were committed.",
        ("topic", "partition"),
    ),
    "records_out": ("Rows written by the sink, in batches that were committed.", ("topic", "partition")),
    "table_rows": ("Rows written by this process to each of a group's several tables.", ("table",)),
    "records_dead": ("Records written to the dead-letter topic.", ("topic", "partition")),
    "records_skipped": (
        "Offsets skipped because the log no longer has their records; cause retention: the log begins later.",
        ("topic", "partition", "cause"),
    ),
    "batches": ("Batches by result: committed, or abandoned to another owner or a replay.", ("result",)),
    "records_rejected": (
        "Dead letters of records that the handler or the sink failed on, so that the worker rejected them.",
        ("topic", "partition"),
    ),
    "rebalances": (
        "Generations (epochs with the consumer protocol) joined: joined, follow_up or returned.",
        ("kind",),
    ),
    "handler_failures": ("Calls of the handler that raised.", ()),
    "refreshes": ("Calls of the handler's function refresh, by result: ok, failed.", ("result",)),
    "unserved_seconds": (
        "Time from a partition's last commit, by any worker, to its first records in this worker; in a "
        "takeover from its last rows to its first rows.",
        ("topic", "partition"),
    ),
    "commit_failures": ("Commits that were refused or not confirmed.", ("kind",)),
    "takeovers": (
        "Takeovers by outcome: asked, forced (without an answer), taken_back, refused.",
        ("outcome",),
    ),
    "process_cpu_seconds": (
        "CPU time by process: worker, or jvm (of Spark in this worker).",
        ("process",),
    ),
    "jvm_gc_seconds": ("Time that the JVM has spent in garbage collections.", ()),
}
_GAUGES = {
    "lag_records": ("Records in the partition behind the committed offset.", ("topic", "partition")),
    "lag_seconds": (
        "Time since the partition has had records that are not committed.",
        ("topic", "partition"),
    ),
    "assigned_partitions": ("Partitions this worker owns.", ()),
    "stopped_partitions": (
        "Partitions this worker owns and has stopped reading until a person sets an offset, by reason.",
        ("reason",),
    ),
    "generation": (
        "The group's generation (epoch with the consumer protocol) as this worker knows it; -1: no member.",
        (),
    ),
    "leader": ("1 where this worker is the group's leader.", ()),
    "phase": ("1 for the phase the worker is in.", ("phase",)),
    "restart_gap_seconds": ("Longest time from a last commit to the first records after a restart.", ()),
    "restart_gap_session_ratio": ("The restart gap as a share of the session timeout.", ()),
    "restart_phase_seconds": (
        "Time of this worker's return by phase: drain, replace, join, first_record.",
        ("phase",),
    ),
    "takeover_phase_seconds": (
        "Time of this worker's last takeover by phase: drain, answer, join, first_record, write.",
        ("phase",),
    ),
    "takeover_pause_seconds": (
        "From the predecessor's last rows of the partition to this worker's first, or until now, in its last "
        "takeover.",
        ("topic", "partition"),
    ),
    "session_timeout_seconds": ("The member's session.timeout.ms.", ()),
    "process_resident_memory_bytes": (
        "Resident memory by process: worker, jvm, or children (all others that the worker has started).",
        ("process",),
    ),
    "memory_limit_bytes": ("The container's limit of memory.", ()),
    "jvm_heap_bytes": (
        "The JVM's heap: used (as of its last garbage collection, or later), committed.",
        ("kind",),
    ),
}
_HISTOGRAMS = {
    "batch_phase_seconds": ("Time of a batch by phase.", ("phase",)),
    "commit_seconds": ("Time of a commit until the broker's answer.", ()),
    "poll_interval_seconds": ("Time between two polls.", ()),
    "rebalance_seconds": ("Time of a rebalance for this worker, until it has its partitions.", ()),
}
_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


TAKEOVER_OUTCOMES = ("asked", "forced", "taken_back", "refused")
_FROM_ZERO = {
    "refreshes": [("ok",), ("failed",)],
    "takeovers": [(outcome,) for outcome in TAKEOVER_OUTCOMES],
}
"""Series that are there from the start: ``rate()`` does not see the first step of one that begins with 1."""


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        at = next((i for i, bound in enumerate(_BUCKETS) if value <= bound), len(_BUCKETS))
        self.counts[at] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        sums, so_far = [], 0
        for bound, count in zip([*map(str, _BUCKETS), "+Inf"], self.counts, strict=True):
            so_far += count
            sums.append((bound, float(so_far)))
        return sums


class Metrics:
    """A worker's numbers. Any thread may read and write.

    Names are the keys above: without the prefix ``slackwater_``, and for counters without ``_total``.
    """

    def __init__(self, *, group: str, instance: str) -> None:
        self._constant = {"group": group, "instance": instance}
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {
            name: dict.fromkeys(_FROM_ZERO.get(name, ()), 0.0) for name in (*_COUNTERS, *_GAUGES)
        }
        self._histograms: dict[str, dict[Labels, _Histogram]] = {name: {} for name in _HISTOGRAMS}

    def count(self, name: str, labels: Labels = (), by: float = 1) -> None:
        """Adds to a counter."""
        assert name in _COUNTERS
        with self._lock:
            series = self._values[name]
            series[labels] = series.get(labels, 0) + by

    def set(self, name: str, value: float, labels: Labels = ()) -> None:
        """Sets a gauge."""
        assert name in _GAUGES
        with self._lock:
            self._values[name][labels] = value

    def replace(self, name: str, values: Mapping[Labels, float]) -> None:
        """Sets all series of a gauge; others disappear."""
        assert name in _GAUGES
        with self._lock:
            self._values[name] = dict(values)

    def observe(self, name: str, seconds: float, labels: Labels = ()) -> None:
        """Adds to a histogram."""
        with self._lock:
            self._histograms[name].setdefault(labels, _Histogram()).observe(seconds)

    def value(self, name: str, labels: Labels = ()) -> float:
        """A counter's or gauge's value; 0 where it has none."""
        with self._lock:
            return self._values[name].get(labels, 0)

    def series(self, name: str) -> dict[Labels, float]:
        """All series of a counter or gauge."""
        with self._lock:
            return dict(self._values[name])

    def total(self, name: str) -> float:
        """The sum over all series of a counter."""
        with self._lock:
            return sum(self._values[name].values())

    def counts(self) -> dict[str, int]:
        """What the operator judges a revision by, since the process began: for /status."""
        return {
            "records": int(self.total("records_in")),
            "dead_letters": int(self.total("records_dead")),
            "handler_failures": int(self.total("handler_failures")),
        }

    def render(self) -> bytes:
        """The Prometheus text format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return bytes(generate_latest(registry))

    # The method makes this a collector in the registry's eyes.
    def collect(self) -> Iterator[Metric]:
        """For Prometheus' registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        from slackwater.runtime.telemetry import processes

        usage = processes.usage()
        with self._lock:
            values = {name: dict(series) for name, series in self._values.items()} | usage
            histograms = {
                name: {labels: (h.cumulative(), h.total) for labels, h in series.items()}
                for name, series in self._histograms.items()
            }
        constant = list(self._constant.values())

        def family(kind: Any, name: str, described: tuple[str, Labels]) -> Any:
            return kind(f"slackwater_{name}", described[0], labels=[*self._constant, *described[1]])

        for kind, names in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, described in names.items():
                metric = family(kind, name, described)
                for labels, value in values[name].items():
                    metric.add_metric([*constant, *labels], value)
                yield metric
        for name, described in _HISTOGRAMS.items():
            metric = family(HistogramMetricFamily, name, described)
            for labels, (buckets, total) in histograms[name].items():
                metric.add_metric([*constant, *labels], buckets=buckets, sum_value=total)
            yield metric
