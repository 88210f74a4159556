"""The operator's metrics. A reconciliation hands over all figures of its group at once; they replace the ones
before.

A figure that is not known is left out: a series that is missing can be told from one that is zero. The
series of a deleted group vanish. A scrape gives the figures of the last reconciliations; it computes nothing.

The groups' series are written by hand: of 1000 groups with 12 partitions they are 85 000 lines, for which
prometheus_client's families take four times as long (0.8 s). The operator's own few are prometheus_client's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

PREFIX = "slackwater_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GroupName = tuple[str, str]
"""(namespace, name); `kubernetes.store.Key` is one."""
Labels = tuple[str, ...]
Partition = tuple[str, int]
"""(topic, number); `slackwater.kafka.TopicPartition` is one."""


@dataclass(frozen=True, kw_only=True)
class GroupFigures:
    """All gauges of a group, from its last reconciliation. None, or a key that is missing: not known.

    Attributes:
        lag_records: of each partition.
        lag_seconds: of each partition: the age of its oldest record that is not committed.
        produced_per_second: of all partitions.
        consumed_per_second: of all workers.
        capacity_per_second: of one worker.
        predicted_drain_seconds: until the lag is gone at these rates.
        partitions: how many.
        members: in the group, as the broker says.
        orphaned_members: whose worker is gone for good.
        pods: by `desired`, `existing`, `ready`.
        state: Kafka's: `Stable`, `PreparingRebalance`, ...; empty: not known.
        generation: of the group.
        scale_workers: by `raw`, `capped`, `applied`.
        scale_held: what damps the step; empty: nothing.
        scale_at_max: whether the cap is maxReplicas.
        restart_phase_seconds: (pod, phase) of the last restart.
        restart_budget_ratio: by pod: its gap as a share of the session.
        takeover_phase_seconds: (pod, phase) of the last takeover.
        takeover_pause_seconds: by pod: the longest that a partition got no rows in its last takeover.
        rollout_pods: by revision.
        rollout_phase: `Idle`, `Rolling`, ...; empty: none.
        rollout_phase_transitions: that phase -> when it began, in s since 1970.
        rollout_steps: how many spec.rollout.steps has, while a rollout is at them.
        rollout_steps_completed: how many of them are complete.
        rollout_analysis: result of the present step's last measurement: `successful`, `failed`,
            `inconclusive`; empty: none.
        maintenance_successes: by table: when its last successful maintenance ended, in s since 1970.
        maintenance_failures: by table: how many runs have failed since then.
        conditions: type -> `True`, `False` or `Unknown`.
        condition_transitions: (type, status, reason) -> when the status last changed, in s since 1970.
    """

    lag_records: Mapping[Partition, float] = field(default_factory=dict)
    lag_seconds: Mapping[Partition, float] = field(default_factory=dict)
    produced_per_second: float | None = None
    consumed_per_second: float | None = None
    capacity_per_second: float | None = None
    predicted_drain_seconds: float | None = None
    partitions: int | None = None
    members: int | None = None
    orphaned_members: int | None = None
    pods: Mapping[str, float] = field(default_factory=dict)
    state: str = ""
    generation: int | None = None
    scale_workers: Mapping[str, float] = field(default_factory=dict)
    scale_held: str = ""
    scale_at_max: bool | None = None
    restart_phase_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    restart_budget_ratio: Mapping[str, float] = field(default_factory=dict)
    takeover_phase_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    takeover_pause_seconds: Mapping[str, float] = field(default_factory=dict)
    rollout_pods: Mapping[str, float] = field(default_factory=dict)
    rollout_phase: str = ""
    rollout_phase_transitions: Mapping[str, float] = field(default_factory=dict)
    rollout_steps: int | None = None
    rollout_steps_completed: int | None = None
    rollout_analysis: str = ""
    maintenance_successes: Mapping[str, float] = field(default_factory=dict)
    maintenance_failures: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    condition_transitions: Mapping[tuple[str, str, str], float] = field(default_factory=dict)


# name -> (help, labels after namespace and group)
_GAUGES: dict[str, tuple[str, Labels]] = {
    "group_lag_records": ("Records behind the group's committed offset.", ("topic", "partition")),
    "group_lag_seconds": ("Age of the oldest record that is not committed.", ("topic", "partition")),
    "group_produced_per_second": ("Records produced a second to the group's partitions.", ()),
    "group_consumed_per_second": ("Records committed a second by the group.", ()),
    "group_capacity_per_second": ("Records that one worker can commit a second, as measured.", ()),
    "group_predicted_drain_seconds": ("Time until the lag is gone at the present rates.", ()),
    "group_partitions": ("Partitions of the group's topics.", ()),
    "group_members": ("Members of the group, as the broker says.", ()),
    "group_orphaned_members": ("Static members whose worker is gone for good.", ()),
    "group_pods": ("Pods of the group.", ("state",)),
    "group_state": ("1 for the state that the broker gives for the group.", ("state",)),
    "group_generation": ("The group's generation (epoch with the consumer protocol).", ()),
    "scale_workers": ("Workers by stage of the scaling decision.", ("stage",)),
    "scale_held": ("1 for what holds the next step.", ("damping",)),
    "scale_at_max": ("1 where maxReplicas is what limits the group.", ()),
    "restart_phase_seconds": ("Phases of each pod's last restart.", ("pod", "phase")),
    "restart_budget_ratio": ("Gap of each pod's last restart as a share of its session.", ("pod",)),
    "operator_takeover_phase_seconds": ("Phases of each pod's last takeover.", ("pod", "phase")),
    "operator_takeover_pause_seconds": (
        "The longest that a partition got no rows in each pod's last takeover.",
        ("pod",),
    ),
    "rollout_pods": ("Pods by revision of their template.", ("revision",)),
    "rollout_phase": ("1 for the phase that the rolling restart is in.", ("phase",)),
    "rollout_phase_transition_time_seconds": ("Unix time at which this phase began.", ("phase",)),
    "rollout_steps": ("Steps of spec.rollout.steps, while a rollout is at them.", ()),
    "rollout_steps_completed": ("Steps of spec.rollout.steps that are complete.", ()),
    "rollout_analysis": ("1 for the result of the analysis's last measurement.", ("result",)),
    "maintenance_last_success_time_seconds": (
        "Unix time of each table's last successful maintenance.",
        ("table",),
    ),
    "maintenance_failures": ("Runs of each table's maintenance that have failed since then.", ("table",)),
    "condition": ("1 for the status of each condition.", ("type", "status")),
    "condition_transition_time_seconds": (
        "Unix time of the last change of each condition's status.",
        ("type", "status", "reason"),
    ),
}
_GROUP_COUNTERS: dict[str, tuple[str, Labels]] = {
    "group_rebalances": ("Rebalances (epochs with the consumer protocol) by their cause.", ("cause",)),
    "group_unowned_partition_seconds": ("Partitions times seconds without an owner.", ()),
    "decisions": ("Decisions by kind and what they did.", ("kind", "action")),
    "operator_takeovers": ("Takeovers by how they went.", ("outcome",)),
}
REVIEW_RESULTS = ("admitted", "refused", "failed")
TAKEOVER_OUTCOMES = ("asked", "forced", "restarted", "fallback", "stopped")
REBALANCE_CAUSES = ("scale", "rollout", "topics", "unplanned")
_REBALANCE_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 45.0, 90.0, 300.0)
_RECONCILE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class _Histogram:
    """Counts by bucket; `bounds` are the upper ends."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        at = next((i for i, bound in enumerate(self._bounds) if value <= bound), len(self._bounds))
        self._counts[at] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """The cumulative counts of the buckets, as in Prometheus' format."""
        sums, so_far = [], 0
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            so_far += count
            sums.append((bound, float(so_far)))
        return sums


class _Group:
    """The metrics of one group."""

    def __init__(self) -> None:
        self.figures = GroupFigures()
        self.counters: dict[str, dict[Labels, float]] = {name: defaultdict(float) for name in _GROUP_COUNTERS}
        # From 0 on: Prometheus sees no increase in a series that begins with its first count.
        self.counters["group_rebalances"].update(dict.fromkeys([(cause,) for cause in REBALANCE_CAUSES], 0.0))
        self.counters["group_unowned_partition_seconds"][()] = 0.0
        self.counters["operator_takeovers"].update(
            dict.fromkeys([(outcome,) for outcome in TAKEOVER_OUTCOMES], 0.0)
        )
        self.rebalance_seconds = _Histogram(_REBALANCE_BUCKETS)


class OperatorMetrics(Collector):
    """The operator's metrics. Written on the loop, read by a scrape on any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._groups: dict[GroupName, _Group] = {}
        self._reconciliations = _Histogram(_RECONCILE_BUCKETS)
        self._turn_errors = 0
        self._observe_seconds: dict[str, float] = {}
        self._observe_errors: dict[str, float] = defaultdict(float)
        self._leader = False
        self._watches_refused: dict[str, Labels] = {}
        self._reviews = dict.fromkeys(REVIEW_RESULTS, 0.0)
        self._admission_certificate_ends_s: float | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)
        # Its CPU time, memory and open files.
        ProcessCollector(namespace=PREFIX + "operator", registry=self.registry)

    # --- of a group --------------------------------------------------------------------------------------

    def show(self, group: GroupName, figures: GroupFigures) -> None:
        """Replaces all gauges of the group."""
        with self._lock:
            self._of(group).figures = figures

    def forget(self, group: GroupName) -> None:
        """Removes the series of a group that is gone."""
        with self._lock:
            self._groups.pop(group, None)

    def rebalanced(self, group: GroupName, cause: str, seconds: float | None = None) -> None:
        """Counts a rebalance.

        Args:
            group: whose.
            cause: `scale`, `rollout`, `topics` or `unplanned`.
            seconds: how long it took; None where that is not known.
        """
        with self._lock:
            held = self._of(group)
            held.counters["group_rebalances"][(cause,)] += 1
            if seconds is not None:
                held.rebalance_seconds.observe(seconds)

    def unowned(self, group: GroupName, partition_seconds: float) -> None:
        """Adds partitions times seconds without an owner."""
        with self._lock:
            self._of(group).counters["group_unowned_partition_seconds"][()] += partition_seconds

    def decided(self, group: GroupName, kind: str, action: str) -> None:
        """Counts a decision: `decided(key, "scale", "up")`."""
        with self._lock:
            self._of(group).counters["decisions"][(kind, action)] += 1

    def taken_over(self, group: GroupName, outcome: str) -> None:
        """Counts a takeover.

        Args:
            group: whose.
            outcome: `asked` (its predecessor handed over), `forced` (it was not there, or did not answer),
                `restarted` (it ended first), `fallback` (it is to go by a restart), or `stopped` (the
                rollout was given up with it).
        """
        with self._lock:
            self._of(group).counters["operator_takeovers"][(outcome,)] += 1

    # --- of the operator ----------------------------------------------------------------------------------

    def reconciled(self, seconds: float, *, failed: bool = False) -> None:
        """A reconciliation of a group took that long, in s."""
        with self._lock:
            self._reconciliations.observe(seconds)
            self._turn_errors += failed

    def observed(self, cluster: str, seconds: float, *, errors: int = 0) -> None:
        """One round of observation of a Kafka cluster took that long; `errors` requests of it failed."""
        with self._lock:
            self._observe_seconds[cluster] = seconds
            self._observe_errors[cluster] += errors

    def forget_cluster(self, cluster: str) -> None:
        """Removes the series of a cluster that no group uses any more."""
        with self._lock:
            self._observe_seconds.pop(cluster, None)
            self._observe_errors.pop(cluster, None)

    def leading(self, leads: bool) -> None:
        """Whether this process leads."""
        self._leader = leads

    def watch_refused(self, namespace: str, refused: tuple[str, str] | None) -> None:
        """What cannot be read in a namespace ("": in all), as (access, reason); None: all can be."""
        with self._lock:
            self._watches_refused.pop(namespace, None)
            if refused is not None:
                self._watches_refused[namespace] = (namespace or "*", *refused)

    def reviewed(self, result: str) -> None:
        """Counts a ConsumerGroup that the admission webhook was asked about.

        Args:
            result: `admitted`, `refused`, or `failed` (admitted, because the check failed).
        """
        with self._lock:
            self._reviews[result] += 1

    def admission_certificate(self, ends_ms: int) -> None:
        """The certificate that the admission webhook serves ends then (ms since 1970)."""
        self._admission_certificate_ends_s = ends_ms / 1000

    # --- read ---------------------------------------------------------------------------------------------

    def text(self) -> bytes:
        """Everything in Prometheus' text format. Takes tenths of a second for 1000 groups: use a thread."""
        with self._lock:
            groups = dict(self._groups)
            families = [*_counters(groups), _histograms(groups)]
        families += _gauges({key: group.figures for key, group in groups.items()})
        return b"".join([*families, generate_latest(self.registry)])

    def describe(self) -> list[Metric]:
        """Nothing: the names are known, and the registry need not collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The operator's own metrics, without the groups'."""
        with self._lock:
            own = list(self._own())
        yield from own

    def _of(self, group: GroupName) -> _Group:
        return self._groups.setdefault(group, _Group())

    def _own(self) -> Iterator[Metric]:
        times = HistogramMetricFamily(PREFIX + "reconcile_seconds", "Time of a reconciliation of a group.")
        times.add_metric([], self._reconciliations.buckets(), self._reconciliations.total)
        yield times
        yield CounterMetricFamily(
            PREFIX + "reconcile_errors", "Turns that ended in an error.", value=self._turn_errors
        )
        seconds = GaugeMetricFamily(
            PREFIX + "observe_seconds", "Time of the last look at a Kafka cluster.", labels=["kafka_cluster"]
        )
        errors = CounterMetricFamily(
            PREFIX + "observe_errors", "Requests to a Kafka cluster that failed.", labels=["kafka_cluster"]
        )
        for cluster, value in self._observe_seconds.items():
            seconds.add_metric([cluster], value)
        for cluster, count in self._observe_errors.items():
            errors.add_metric([cluster], count)
        yield seconds
        yield errors
        reviews = CounterMetricFamily(
            PREFIX + "admission_reviews",
            "ConsumerGroups that the admission webhook checked.",
            labels=["result"],
        )
        for result, count in self._reviews.items():
            reviews.add_metric([result], count)
        yield reviews
        if self._admission_certificate_ends_s is not None:
            yield GaugeMetricFamily(
                PREFIX + "admission_certificate_end_time_seconds",
                "Unix time at which the admission webhook's certificate ends.",
                value=self._admission_certificate_ends_s,
            )
        refused = GaugeMetricFamily(
            PREFIX + "watch_refused",
            "1 for a namespace whose objects cannot all be read (*: all).",
            labels=["namespace", "access", "reason"],
        )
        for labels in self._watches_refused.values():
            refused.add_metric(labels, 1.0)
        yield refused
        yield GaugeMetricFamily(PREFIX + "leader", "1 where this process leads.", value=float(self._leader))


def _gauges(groups: Mapping[GroupName, GroupFigures]) -> Iterator[bytes]:
    lines: dict[str, list[str]] = {name: [] for name in _GAUGES}
    for group, figures in groups.items():
        base = _base(group)
        for name, values, value in samples(figures):
            lines[name].append(_line(PREFIX + name, base, _GAUGES[name][1], values, value))
    for name, (text, _) in _GAUGES.items():
        yield _family(PREFIX + name, text, "gauge", lines.pop(name))


def _counters(groups: Mapping[GroupName, _Group]) -> Iterator[bytes]:
    for name, (text, labels) in _GROUP_COUNTERS.items():
        full = f"{PREFIX}{name}_total"
        lines = [
            _line(full, _base(key), labels, values, count)
            for key, group in groups.items()
            for values, count in group.counters[name].items()
        ]
        yield _family(full, text, "counter", lines)


def _histograms(groups: Mapping[GroupName, _Group]) -> bytes:
    name = PREFIX + "group_rebalance_seconds"
    lines: list[str] = []
    for key, group in groups.items():
        base, buckets = _base(key), group.rebalance_seconds.buckets()
        lines += [_line(f"{name}_bucket", base, ("le",), (bound,), count) for bound, count in buckets]
        lines.append(_line(f"{name}_count", base, (), (), buckets[-1][1]))
        lines.append(_line(f"{name}_sum", base, (), (), group.rebalance_seconds.total))
    return _family(name, "Time of a rebalance (of an epoch with the consumer protocol).", "histogram", lines)


def _family(name: str, text: str, kind: str, lines: list[str]) -> bytes:
    return "\n".join([f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines, ""]).encode()


def _base(group: GroupName) -> str:
    return f'namespace="{_escaped(group[0])}",group="{_escaped(group[1])}"'


def _line(name: str, base: str, labels: Labels, values: Labels, value: float) -> str:
    more = "".join([f',{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True)])
    return f"{name}{{{base}{more}}} {_number(value)}"


def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escaped(value: str) -> str:
    """A label's value, escaped for the text format 0.0.4."""
    if value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
        return value
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def samples(figures: GroupFigures) -> Iterator[tuple[str, Labels, float]]:
    """(name, labels after namespace and group, value) of every gauge that is known."""
    for name, by_partition in (
        ("group_lag_records", figures.lag_records),
        ("group_lag_seconds", figures.lag_seconds),
    ):
        for (topic, number), value in by_partition.items():
            yield name, (topic, str(number)), value
    for name, figure in _single(figures):
        if figure is not None:
            yield name, (), float(figure)
    for name, by_label in (
        ("group_pods", figures.pods),
        ("scale_workers", figures.scale_workers),
        ("restart_budget_ratio", figures.restart_budget_ratio),
        ("operator_takeover_pause_seconds", figures.takeover_pause_seconds),
        ("rollout_pods", figures.rollout_pods),
        ("rollout_phase_transition_time_seconds", figures.rollout_phase_transitions),
        ("maintenance_last_success_time_seconds", figures.maintenance_successes),
        ("maintenance_failures", figures.maintenance_failures),
    ):
        for label, value in by_label.items():
            yield name, (label,), value
    for name, present in (
        ("group_state", figures.state),
        ("scale_held", figures.scale_held),
        ("rollout_phase", figures.rollout_phase),
        ("rollout_analysis", figures.rollout_analysis),
    ):
        if present:
            yield name, (present,), 1.0
    for (pod, phase), value in figures.restart_phase_seconds.items():
        yield "restart_phase_seconds", (pod, phase), value
    for (pod, phase), value in figures.takeover_phase_seconds.items():
        yield "operator_takeover_phase_seconds", (pod, phase), value
    for condition, status in figures.conditions.items():
        yield "condition", (condition, status), 1.0
    for labels, value in figures.condition_transitions.items():
        yield "condition_transition_time_seconds", labels, value


def _single(figures: GroupFigures) -> tuple[tuple[str, float | None], ...]:
    return (
        ("group_produced_per_second", figures.produced_per_second),
        ("group_consumed_per_second", figures.consumed_per_second),
        ("group_capacity_per_second", figures.capacity_per_second),
        ("group_predicted_drain_seconds", figures.predicted_drain_seconds),
        ("group_partitions", figures.partitions),
        ("group_members", figures.members),
        ("group_orphaned_members", figures.orphaned_members),
        ("group_generation", figures.generation),
        ("scale_at_max", figures.scale_at_max),
        ("rollout_steps", figures.rollout_steps),
        ("rollout_steps_completed", figures.rollout_steps_completed),
    )
