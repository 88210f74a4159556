"""The dashboard of one group. Its first screen says whether it is well, and if not, why and since when.

`group` in the operator's metrics is the ConsumerGroup's name. Workers carry it as `consumergroup` (by the
PodMonitor's relabelling), since their own `group` is Kafka's group.id.
"""

from __future__ import annotations

from tools.dashboards import conditions
from tools.dashboards.panels import Board, Column, Kind, Mark, Panel, Query, Row, Unit, Variable
from tools.dashboards.promql import CAUSES, CLUSTER, IN_CLUSTER, steps_of

_NAMESPACE = f'{IN_CLUSTER}, namespace="$namespace"'
OPERATOR = f'{_NAMESPACE}, group="$group"'
# Of a name that both export: the operator's, which outlives the worker.
NOT_WORKERS = 'consumergroup=""'
UNPLANNED = 'cause="unplanned"'
DESIRED = 'state="desired"'
WORKERS = f'{_NAMESPACE}, consumergroup="$group"'

GREEN, YELLOW, ORANGE, RED, BLUE, PURPLE, GREY = (
    "green",
    "yellow",
    "orange",
    "red",
    "blue",
    "purple",
    "text",
)
# Kafka's names of a group's states (GroupState in Kafka 4; Empty has no members, Dead is gone).
_STATES = (
    ("Stable", GREEN),
    ("PreparingRebalance", ORANGE),
    ("CompletingRebalance", YELLOW),
    ("Assigning", ORANGE),
    ("Reconciling", YELLOW),
    ("Empty", GREY),
    ("Dead", RED),
)
_PLANNED, _UNPLANNED = 10, 20
_ROLLOUT = (
    ("Idle", GREEN),
    ("Preflight", YELLOW),
    ("Rolling", BLUE),
    ("Paused", GREY),
    ("Refused", RED),
    ("Stopped", RED),
    ("RollingBack", ORANGE),
)
"""The rollout's phases and their colours."""
_ANALYSIS = (("successful", GREEN), ("inconclusive", YELLOW), ("failed", RED))
"""The results of a measurement and their colours."""


def _operator(name: str, more: str = "") -> str:
    return f"slackwater_{name}{{{OPERATOR}{', ' if more else ''}{more}}}"


def _worker(name: str, more: str = "") -> str:
    return f"slackwater_{name}{{{WORKERS}{', ' if more else ''}{more}}}"


def _one(name: str, more: str = "") -> str:
    """A figure of the group: while leaders change, two operators may be scraped."""
    return f"max({_operator(name, more)})"


def _by(labels: str, name: str, more: str = "") -> str:
    return f"max by ({labels}) ({_operator(name, more)})"


def _rate(labels: str, counter: str) -> str:
    """Of the workers' counters."""
    return f"sum by ({labels}) (rate({_worker(counter)}[$__rate_interval]))"


def _state_number() -> str:
    # The metric is 1 for the present state only, so the largest product is that state's number.
    states = (_operator("group_state", f'state="{name}"') + f" * {at}" for at, (name, _) in _numbered())
    return "max(" + " or ".join(states) + ")"


def _phase_number() -> str:
    phases = (
        _operator("rollout_phase", f'phase="{name}"') + f" * {at}"
        for at, (name, _) in enumerate(_ROLLOUT, start=1)
    )
    return "max(" + " or ".join(phases) + ")"


def _analysis_number() -> str:
    results = (
        _operator("rollout_analysis", f'result="{name}"') + f" * {at}"
        for at, (name, _) in enumerate(_ANALYSIS, start=1)
    )
    return "max(" + " or ".join(results) + ")"


def _numbered() -> list[tuple[int, tuple[str, str]]]:
    return list(enumerate(_STATES, start=1))


def _rebalanced(causes: str, number: int) -> str:
    happened = steps_of("", _operator("group_rebalances_total", causes))
    return f"({happened} > bool 0) * {number}"


def _scaled() -> str:
    """1 where another number of workers is wanted than at the step before, by the new number."""
    wanted = _operator("group_pods", DESIRED)
    before = f"max({wanted} offset $__interval)"
    return (
        f'count_values("workers", max({wanted})) '
        f'unless on (workers) count_values("workers", {before}) and on () {before}'
    )


def _unplanned() -> str:
    return f"round(sum(increase({_operator('group_rebalances_total', UNPLANNED)}[$__range])))"


_RESTART_STEPS = ((None, GREEN), (0.6, ORANGE), (0.9, RED))

_FIRST = Row(
    "",
    (
        Panel(
            "State",
            "The worst of the group's conditions, as below. pending: workers start, or the group rebalances "
            "or rolls. problem: a person is needed.",
            Kind.STAT,
            (Query(conditions.level("", OPERATOR)),),
            span=3,
            names=conditions.LEVELS,
            empty="unknown",
        ),
        Panel(
            "Lag",
            "Records after the committed offsets, over all partitions.",
            Kind.STAT,
            (Query(f"sum({_by('topic, partition', 'group_lag_records')})"),),
            span=3,
        ),
        Panel(
            "Oldest record",
            "Age of the oldest uncommitted record.",
            Kind.STAT,
            (Query(_one("group_lag_seconds")),),
            unit=Unit.SECONDS,
            span=3,
        ),
        Panel(
            "Drained in",
            "Time until the lag is worked off at the current rates. Empty while the lag grows.",
            Kind.STAT,
            (Query(_one("group_predicted_drain_seconds")),),
            unit=Unit.SECONDS,
            span=3,
            empty="-",
        ),
        Panel(
            "Workers missing",
            "Workers that are wanted and are not members of the group.",
            Kind.STAT,
            (Query(f"clamp_min({_one('group_pods', DESIRED)} - {_one('group_members')}, 0)"),),
            span=3,
            decimals=0,
            steps=((None, GREEN), (1, ORANGE)),
        ),
        Panel(
            "Unplanned",
            "Rebalances (epochs with the consumer protocol) within the selected time range that neither "
            "scaling nor a rollout caused.",
            Kind.STAT,
            (Query(_unplanned()),),
            span=3,
            decimals=0,
            steps=((None, GREEN), (1, ORANGE), (3, RED)),
        ),
        Panel(
            "Dead letters",
            "Share of the records of the last five minutes that went to the dead-letter topic.",
            Kind.STAT,
            (
                Query(
                    f"sum(rate({_worker('records_dead_total')}[5m])) "
                    f"/ (sum(rate({_worker('records_in_total')}[5m])) > 0)"
                ),
            ),
            unit=Unit.SHARE,
            span=3,
            steps=((None, GREEN), (0.01, ORANGE), (0.1, RED)),
            empty="-",
        ),
        Panel(
            "Restart / session",
            "The longest of the workers' last restarts, as a share of session.timeout.ms. From 100 % on a "
            "restart causes a rebalance.",
            Kind.STAT,
            (Query(_one("restart_budget_ratio")),),
            unit=Unit.SHARE,
            span=3,
            decimals=0,
            steps=_RESTART_STEPS,
            empty="-",
        ),
        Panel(
            "Conditions",
            "The worst first. since: when the status last changed. kubectl describe cg has the messages; "
            "docs/reference/conditions.md explains each reason.",
            Kind.TABLE,
            columns=(
                Column("type", width=105),
                Column("state", conditions.level("type", OPERATOR), names=conditions.LEVELS, width=85),
                Column("status", width=75),
                Column("reason"),
                Column(
                    "since",
                    f"{_by('type, status, reason', 'condition_transition_time_seconds')} * 1000",
                    unit=Unit.AGE,
                    width=145,
                ),
            ),
            sort="state",
            span=10,
            height=11,
        ),
        Panel(
            "Conditions over time",
            "notice: suspended, a step of scaling is delayed, or a partition alone needs more than one "
            "worker. pending: see the tile State.",
            Kind.STATES,
            (Query(conditions.level("type", OPERATOR), "{{type}}"),),
            span=14,
            height=11,
            names=conditions.LEVELS,
        ),
        Panel(
            "Lag",
            "Records after the committed offsets, by topic.",
            Kind.STACKED,
            (
                Query(
                    f"sum by (topic) ({_by('topic, partition', 'group_lag_records')})",
                    "{{topic}}",
                ),
            ),
            span=8,
            height=9,
        ),
        Panel(
            "Throughput",
            "Records produced and committed. Capacity is what all workers can commit, as measured while "
            "there was lag.",
            Kind.LINES,
            (
                Query(_one("group_produced_per_second"), "produced"),
                Query(_one("group_consumed_per_second"), "committed"),
                Query(f"{_one('group_capacity_per_second')} * {_one('group_members')}", "capacity"),
            ),
            unit=Unit.RECORDS_PER_SECOND,
            span=8,
            height=9,
            colours=(("produced", BLUE), ("committed", GREEN), ("capacity", GREY)),
        ),
        Panel(
            "Workers",
            "needed: what lag and rates require, before limits. wanted: the number that was set. members: "
            "in the Kafka group.",
            Kind.LINES,
            (
                Query(_one("scale_workers", 'stage="raw"'), "needed"),
                Query(_one("group_pods", DESIRED), "wanted"),
                Query(_one("group_members"), "members"),
            ),
            span=8,
            height=9,
            colours=(("needed", GREY), ("wanted", BLUE), ("members", GREEN)),
        ),
    ),
)

_LAG = Row(
    "Lag and throughput by partition and topic",
    (
        Panel(
            "Lag by partition",
            "Records after the committed offset. A single partition with lag does not benefit from "
            "more workers.",
            Kind.HEATMAP,
            (Query(_by("topic, partition", "group_lag_records"), "{{topic}}-{{partition}}"),),
        ),
        Panel(
            "Lag in seconds by partition",
            "Age of the oldest uncommitted record.",
            Kind.HEATMAP,
            (Query(_by("topic, partition", "group_lag_seconds"), "{{topic}}-{{partition}}"),),
            unit=Unit.SECONDS,
        ),
        Panel(
            "Records by topic",
            "Records of committed batches.",
            Kind.STACKED,
            (Query(_rate("topic", "records_in_total"), "{{topic}}"),),
            unit=Unit.RECORDS_PER_SECOND,
            span=8,
        ),
        Panel(
            "Bytes by topic",
            "Size of these records, uncompressed.",
            Kind.STACKED,
            (Query(_rate("topic", "bytes_in_total"), "{{topic}}"),),
            unit=Unit.BYTES_PER_SECOND,
            span=8,
        ),
        Panel(
            "Drained in",
            "Time until the lag is worked off at the rates of that time. A gap means that the lag grew "
            "or was unknown.",
            Kind.LINES,
            (Query(_one("group_predicted_drain_seconds"), "drain"),),
            unit=Unit.SECONDS,
            span=8,
        ),
    ),
)

_REBALANCES = Row(
    "Rebalances",
    (
        Panel(
            "Group state and rebalances",
            "The group's state as the broker reports it, and its rebalances (epochs with the consumer "
            "protocol): planned (scaling or a rollout) or unplanned.",
            Kind.STATES,
            (
                Query(_state_number(), "state"),
                Query(_rebalanced('cause!="unplanned"', _PLANNED), "planned"),
                Query(_rebalanced(UNPLANNED, _UNPLANNED), "unplanned"),
            ),
            span=24,
            names=(
                (0, "-", "transparent"),
                *((at, name, colour) for at, (name, colour) in _numbered()),
                (_PLANNED, "planned", BLUE),
                (_UNPLANNED, "unplanned", RED),
            ),
            height=6,
        ),
        Panel(
            "Rebalances by cause",
            "Per graph interval; epochs with the consumer protocol.",
            Kind.BARS,
            (Query(steps_of("cause", _operator("group_rebalances_total")), "{{cause}}"),),
            decimals=0,
            colours=CAUSES,
        ),
        Panel(
            "Duration of rebalances",
            "From the first member's join to the last member's assignment.",
            Kind.LINES,
            tuple(
                Query(
                    f"histogram_quantile({q}, sum by (le) (increase("
                    f"{_operator('group_rebalance_seconds_bucket')}[$__range])))",
                    f"p{round(q * 100)}",
                )
                for q in (0.5, 0.99)
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            "Partitions without an owner",
            "Partition-seconds per second: 2 means that two partitions have no consumer.",
            Kind.LINES,
            (
                Query(
                    f"sum(rate({_operator('group_unowned_partition_seconds_total')}[$__rate_interval]))",
                    "unowned",
                ),
            ),
        ),
        Panel(
            "Generation or epoch",
            "Increases with each rebalance; the group's epoch with the consumer protocol. A restart within "
            "the session timeout does not change it.",
            Kind.LINES,
            (
                Query(_one("group_generation"), "broker"),
                Query(f"max by (instance) ({_worker('generation')})", "{{instance}}"),
            ),
            decimals=0,
            least=None,
        ),
    ),
)

_RESTARTS = Row(
    "Restarts and rollouts",
    (
        Panel(
            "Each pod's last restart as a share of the session timeout",
            "Phases as shares of session.timeout.ms: drain, replace (from the pod's end to the process's "
            "start), join, first record. The axis ends at the session timeout.",
            Kind.MATRIX,
            (
                Query(
                    f"{_by('pod, phase', 'restart_phase_seconds', NOT_WORKERS)} / on () group_left () "
                    f"max({_worker('session_timeout_seconds')})"
                ),
            ),
            unit=Unit.SHARE,
            decimals=0,
            limit=1,
            row="pod",
            column="phase",
        ),
        Panel(
            "Session budget used",
            "What the operator counts against spec.rollout.sessionBudget: from the process's end to its "
            "replacement's join.",
            Kind.GAUGES,
            (Query(_by("pod", "restart_budget_ratio"), "{{pod}}"),),
            unit=Unit.SHARE,
            decimals=0,
            limit=1,
            steps=_RESTART_STEPS,
        ),
        Panel(
            "Pods by revision",
            "During a rollout the share of the new revision grows pod by pod.",
            Kind.STACKED,
            (Query(_by("revision", "rollout_pods"), "{{revision}}"),),
            decimals=0,
        ),
        Panel(
            "Rollout",
            "The phase of the rollout. Refused and Stopped need a person: see the condition Degraded.",
            Kind.STATES,
            (Query(_phase_number(), "rollout"),),
            names=tuple((at, name, colour) for at, (name, colour) in enumerate(_ROLLOUT, start=1)),
        ),
        Panel(
            "Steps of the rollout",
            "How many of spec.rollout.steps are complete, and how many there are. Only while a rollout is at "
            "them. In a pause or an analysis kubectl slackwater promote completes the present step.",
            Kind.LINES,
            (
                Query(_one("rollout_steps_completed"), "complete"),
                Query(_one("rollout_steps"), "all"),
            ),
            decimals=0,
            colours=(("complete", GREEN), ("all", GREY)),
            empty="No rollout was at steps",
        ),
        Panel(
            "Analysis of the rollout",
            "The last measurement of the present step. inconclusive: it had no result, so the rollout waits. "
            "failed: a metric was out of range.",
            Kind.STATES,
            (Query(_analysis_number(), "analysis"),),
            names=tuple((at, name, colour) for at, (name, colour) in enumerate(_ANALYSIS, start=1)),
            empty="No analysis was in progress",
        ),
    ),
)

_TAKEOVERS = Row(
    "Takeovers",
    (
        Panel(
            "Each pod's last takeover",
            "Phases of the last takeover: drain (the predecessor finishes its batch and commits), answer, "
            "join, first record, write (until all partitions have rows). Only with strategy Takeover.",
            Kind.MATRIX,
            (Query(f"max by (pod, phase) ({_worker('takeover_phase_seconds')})"),),
            unit=Unit.SECONDS,
            row="pod",
            column="phase",
        ),
        Panel(
            "Pause by partition",
            "From the predecessor's last rows in the sink to the successor's first, or until now, for each "
            "partition's last takeover.",
            Kind.LINES,
            (
                Query(
                    f"max by (topic, partition) ({_worker('takeover_pause_seconds')})",
                    "{{topic}}-{{partition}}",
                ),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            "Takeovers by outcome",
            "asked: the predecessor handed over. forced: it did not respond and was fenced. restarted: it "
            "had to stop first. fallback: its successor was not ready in time. stopped: the rollout was "
            "stopped.",
            Kind.BARS,
            (Query(steps_of("outcome", _operator("operator_takeovers_total")), "{{outcome}}"),),
            decimals=0,
        ),
        Panel(
            "Longest pause of each pod's last takeover",
            "The longest pause among the pod's partitions.",
            Kind.GAUGES,
            (Query(_by("pod", "operator_takeover_pause_seconds"), "{{pod}}"),),
            unit=Unit.SECONDS,
            steps=((None, GREEN), (0.25, ORANGE), (1.0, RED)),
        ),
        Panel(
            "Takeovers as counted by the workers",
            "Counts of the current pods. refused: the predecessor could not hand over yet. taken_back: the "
            "successor failed, and the predecessor resumed its membership.",
            Kind.LINES,
            (Query(f"sum by (outcome) ({_worker('takeovers_total')})", "{{outcome}}"),),
            decimals=0,
        ),
        Panel(
            "Standbys",
            "Pods that are ready to take over, or have handed over and will stop. During a rollout one pod "
            "appears for seconds; a pod that remains is waiting.",
            Kind.LINES,
            (Query(f"""sum({_worker("phase", 'phase="standby"')})""", "standby"),),
            decimals=0,
        ),
    ),
)

_SCALE = Row(
    "Scaling",
    (
        Panel(
            "Scaling decision",
            "raw: the number that lag and rates require. capped: limited by partitions, minReplicas and "
            "maxReplicas. applied: the number that was set.",
            Kind.LINES,
            (Query(_by("stage", "scale_workers"), "{{stage}}"),),
        ),
        Panel(
            "What delays the next step",
            "The damping of the decision, such as settling or window; see docs/explanation/decisions.md.",
            Kind.STACKED,
            (
                Query(_by("damping", "scale_held"), "{{damping}}"),
                Query(_one("scale_at_max"), "at maxReplicas"),
            ),
            decimals=0,
        ),
        Panel(
            "Members, pods, partitions",
            "Members without a pod are orphaned. Pods beyond the number of partitions are idle.",
            Kind.LINES,
            (
                Query(_one("group_members"), "members"),
                Query(_by("state", "group_pods"), "pods {{state}}"),
                Query(_one("group_partitions"), "partitions"),
                Query(_one("group_orphaned_members"), "orphaned members"),
            ),
            decimals=0,
        ),
        Panel(
            "Decisions",
            "By kind and action, per graph interval.",
            Kind.BARS,
            (
                Query(
                    steps_of("kind, action", _operator("decisions_total"), begins_at_one=True),
                    "{{kind}} {{action}}",
                ),
            ),
            decimals=0,
        ),
    ),
)

_WORKERS = Row(
    "Workers",
    (
        Panel(
            "Records processed",
            "Records of committed batches, by worker.",
            Kind.STACKED,
            (Query(_rate("instance", "records_in_total"), "{{instance}}"),),
            unit=Unit.RECORDS_PER_SECOND,
        ),
        Panel(
            "Batch time by phase, p95",
            "transform is your handler (with Spark: its job). The other phases are Slackwater's: arrow, "
            "staging, reading, writing, ready, publishing, published. handled: waits for another batch.",
            Kind.LINES,
            (
                Query(
                    "histogram_quantile(0.95, sum by (le, phase) (rate("
                    f"{_worker('batch_phase_seconds_bucket')}[$__rate_interval])))",
                    "{{phase}}",
                ),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            "Dead letters",
            "Records per second that the handler marked in _error, or that the worker rejected because "
            "their batch failed.",
            Kind.LINES,
            (
                Query(_rate("topic", "records_dead_total"), "{{topic}}"),
                Query(_rate("topic", "records_rejected_total"), "{{topic}}, rejected by the worker"),
            ),
            unit=Unit.RECORDS_PER_SECOND,
        ),
        Panel(
            "Partitions by worker",
            "In a balanced assignment the numbers differ by at most one.",
            Kind.LINES,
            (Query(f"max by (instance) ({_worker('assigned_partitions')})", "{{instance}}"),),
            decimals=0,
        ),
        Panel(
            "Commit time, p95",
            "From the request to the broker's response.",
            Kind.LINES,
            (
                Query(
                    "histogram_quantile(0.95, sum by (le) (rate("
                    f"{_worker('commit_seconds_bucket')}[$__rate_interval])))",
                    "commit",
                ),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            "Phase of each worker",
            "In normal operation all workers are in phase running.",
            Kind.STACKED,
            (Query(f"sum by (phase) ({_worker('phase')}) > 0", "{{phase}}"),),
            decimals=0,
        ),
    ),
)

_RESOURCES = Row(
    "CPU, memory and JVM of the workers",
    (
        Panel(
            "CPU cores",
            "CPU cores in use. jvm: Spark in the worker. At the pod's limit, batches take longer.",
            Kind.STACKED,
            (
                Query(
                    _rate("instance, process", "process_cpu_seconds_total"),
                    "{{instance}} {{process}}",
                ),
            ),
            unit=Unit.PLAIN,
        ),
        Panel(
            "Memory",
            "Resident memory. children: PySpark's Python workers and others. limit: of each container; a "
            "worker that reaches it is killed.",
            Kind.LINES,
            (
                Query(
                    f"sum by (instance) ({_worker('process_resident_memory_bytes')})",
                    "{{instance}}",
                ),
                Query(f"min({_worker('memory_limit_bytes')})", "limit"),
            ),
            unit=Unit.BYTES,
            colours=(("limit", RED),),
        ),
        Panel(
            "Memory by process",
            "Resident memory of all workers together. children: PySpark's Python workers and others.",
            Kind.STACKED,
            (
                Query(
                    f"sum by (process) ({_worker('process_resident_memory_bytes')})",
                    "{{process}}",
                ),
            ),
            unit=Unit.BYTES,
            span=8,
        ),
        Panel(
            "JVM heap",
            "used: as of the last garbage collection, or later. A floor that rises for "
            "hours is a leak. Only with Spark in the worker.",
            Kind.LINES,
            (
                Query(
                    f"max by (instance, kind) ({_worker('jvm_heap_bytes')})",
                    "{{instance}} {{kind}}",
                ),
            ),
            unit=Unit.BYTES,
            span=8,
        ),
        Panel(
            "Garbage collection",
            "Share of the time that the JVM spends in it. Above 10 %, give it more memory.",
            Kind.LINES,
            (Query(_rate("instance", "jvm_gc_seconds_total"), "{{instance}}"),),
            unit=Unit.SHARE,
            span=8,
        ),
    ),
)

BOARD = Board(
    uid="slackwater-group",
    title="Slackwater / Group",
    about="One ConsumerGroup: lag, rebalances, restarts and takeovers, decisions and reasons.",
    variables=(
        CLUSTER,
        Variable("namespace", "Namespace", f"label_values(slackwater_condition{{{IN_CLUSTER}}}, namespace)"),
        Variable("group", "Group", f"label_values(slackwater_condition{{{_NAMESPACE}}}, group)"),
    ),
    rows=(_FIRST, _LAG, _REBALANCES, _RESTARTS, _TAKEOVERS, _SCALE, _WORKERS, _RESOURCES),
    marks=(
        Mark(
            "unplanned rebalances",
            steps_of("cause", _operator("group_rebalances_total", UNPLANNED)) + " > 0",
            RED,
            "{{cause}} rebalance",
        ),
        Mark(
            "planned rebalances",
            steps_of("cause", _operator("group_rebalances_total", 'cause!="unplanned"')) + " > 0",
            BLUE,
            "rebalance: {{cause}}",
        ),
        Mark(
            "rollouts",
            _by("phase", "rollout_phase", 'phase!="Idle"'),
            PURPLE,
            "rollout: {{phase}}",
        ),
        Mark("scale steps", _scaled(), GREEN, "scaled to {{workers}} workers"),
    ),
    links=(("Fleet", "/d/slackwater-fleet?${datasource:queryparam}&${cluster:queryparam}"),),
)
