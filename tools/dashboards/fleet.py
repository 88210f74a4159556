"""The dashboard of all groups: which of them needs a look, and is the operator itself well."""

from __future__ import annotations

from tools.dashboards import conditions
from tools.dashboards.panels import Board, Column, Kind, Mark, Panel, Query, Row, Unit, Variable
from tools.dashboards.promql import CAUSES, CLUSTER, IN_CLUSTER, steps_of

WHERE = f'{IN_CLUSTER}, namespace=~"$namespace"'
EACH = "namespace, group"
READY = 'type="Ready"'
UNPLANNED = 'cause="unplanned"'
# Workers export a leader of the same name, with the label group.
LEADER = f'slackwater_leader{{{IN_CLUSTER}, group=""}}'
NAMED = "{{namespace}}/{{group}}"


def _metric(name: str, more: str = "") -> str:
    return f"slackwater_{name}{{{WHERE}{', ' if more else ''}{more}}}"


def _each(name: str, more: str = "") -> str:
    """By group: while leaders change, two operators may be scraped."""
    return f"max by ({EACH}) ({_metric(name, more)})"


def _own(name: str) -> str:
    """Of the operator itself, not of its groups."""
    return f"slackwater_{name}{{{IN_CLUSTER}}}"


def _lag() -> str:
    return f"sum by ({EACH}) (max by ({EACH}, topic, partition) ({_metric('group_lag_records')}))"


def _condition(kind: str, *, good: str = "True") -> str:
    return f"{_metric('condition', f'type={chr(34)}{kind}{chr(34)}, status!={chr(34)}{good}{chr(34)}')}"


def _count(expr: str) -> str:
    # Without a group in that condition there is no series, and the count is 0.
    return f"count(max by ({EACH}) ({expr})) or vector(0)"


_RATE = Unit.RECORDS_PER_SECOND
_RESTART_STEPS = ((None, "green"), (0.6, "orange"), (0.9, "red"))


def _group_board(labels: str) -> str:
    """URL of a group's dashboard; `labels` is Grafana's variable with the labels of what was clicked."""
    named = f"var-namespace=${{{labels}.namespace}}&var-group=${{{labels}.group}}"
    chosen = "${datasource:queryparam}&${cluster:queryparam}"
    return f"/d/slackwater-group?{chosen}&{named}&${{__url_time_range}}"


_OF_ROW, _OF_SERIES = _group_board("__data.fields"), _group_board("__field.labels")

_FIRST = Row(
    "",
    (
        Panel(
            "Groups",
            "ConsumerGroups that the operator manages.",
            Kind.STAT,
            (Query(f"count(max by ({EACH}) ({_metric('condition', READY)}))"),),
            span=3,
            decimals=0,
        ),
        Panel(
            "Degraded",
            "Groups with a problem; the condition's message describes it and what to do.",
            Kind.STAT,
            (Query(_count(_condition("Degraded", good="False"))),),
            span=3,
            decimals=0,
            steps=((None, "green"), (1, "red")),
        ),
        Panel(
            "Not ready",
            "Groups that are not stable or lack workers.",
            Kind.STAT,
            (Query(_count(_condition("Ready"))),),
            span=3,
            decimals=0,
            steps=((None, "green"), (1, "orange")),
        ),
        Panel(
            "Lag unknown",
            "Groups that are neither scaled nor restarted because their lag is unknown.",
            Kind.STAT,
            (Query(_count(_condition("LagKnown"))),),
            span=3,
            decimals=0,
            steps=((None, "green"), (1, "red")),
        ),
        Panel(
            "Unplanned",
            "Rebalances (epochs with the consumer protocol) of all groups within the selected time range "
            "that neither scaling nor a rollout caused.",
            Kind.STAT,
            (Query(f"round(sum(increase({_metric('group_rebalances_total', UNPLANNED)}[$__range])))"),),
            span=3,
            decimals=0,
            steps=((None, "green"), (1, "orange"), (3, "red")),
        ),
        Panel(
            "Lag of all groups",
            "Records after the committed offsets.",
            Kind.STAT,
            (Query(f"sum({_lag()})"),),
            span=3,
        ),
        Panel(
            "Oldest record",
            "Age of the oldest uncommitted record of any group.",
            Kind.STAT,
            (Query(f"max({_each('group_lag_seconds')})"),),
            unit=Unit.SECONDS,
            span=3,
        ),
        Panel(
            "Workers",
            "Members of all groups.",
            Kind.STAT,
            (Query(f"sum({_each('group_members')})"),),
            span=3,
            decimals=0,
        ),
        Panel(
            "Groups by state",
            "The worst first; sort by any column. State is the worst of the group's conditions. A click on "
            "the group opens its dashboard.",
            Kind.TABLE,
            columns=(
                Column("namespace", width=120),
                Column("group", link=_OF_ROW),
                Column("state", conditions.level(EACH, WHERE), names=conditions.LEVELS, width=85),
                Column("lag", _lag(), decimals=0, width=90),
                Column("oldest record", _each("group_lag_seconds"), unit=Unit.SECONDS, width=115),
                Column("produced", _each("group_produced_per_second"), unit=_RATE, width=105),
                Column("committed", _each("group_consumed_per_second"), unit=_RATE, width=105),
                Column("drained in", _each("group_predicted_drain_seconds"), unit=Unit.SECONDS, width=95),
                Column("members", _each("group_members"), decimals=0, width=90),
                Column("desired", _each("group_pods", 'state="desired"'), decimals=0, width=75),
                Column("partitions", _each("group_partitions"), decimals=0, width=85),
                Column(
                    "at max",
                    _each("scale_at_max"),
                    names=((0, "-", "transparent"), (1, "max", "orange")),
                    width=70,
                ),
                Column(
                    "unplanned",
                    f"round(sum by ({EACH}) (increase("
                    f"{_metric('group_rebalances_total', UNPLANNED)}[$__range])))",
                    decimals=0,
                    steps=((None, "text"), (1, "orange"), (3, "red")),
                    width=90,
                ),
                Column(
                    "restart / session",
                    _each("restart_budget_ratio"),
                    unit=Unit.SHARE,
                    decimals=0,
                    steps=_RESTART_STEPS,
                    width=140,
                ),
            ),
            sort="state",
            span=24,
            height=11,
        ),
        Panel(
            "Lag",
            "The twenty groups with the most lag.",
            Kind.LINES,
            (Query(f"topk(20, {_lag()})", NAMED),),
            height=9,
            link=_OF_SERIES,
        ),
        Panel(
            "Oldest record",
            "Age of the oldest uncommitted record, for the twenty groups with the oldest.",
            Kind.LINES,
            (Query(f"topk(20, {_each('group_lag_seconds')})", NAMED),),
            unit=Unit.SECONDS,
            height=9,
            link=_OF_SERIES,
        ),
    ),
)

_REBALANCES = Row(
    "Rebalances and restarts",
    (
        Panel(
            "Rebalances by cause",
            "Sum over all groups, per graph interval; epochs with the consumer protocol.",
            Kind.BARS,
            (Query(steps_of("cause", _metric("group_rebalances_total")), "{{cause}}"),),
            decimals=0,
            colours=CAUSES,
        ),
        Panel(
            "Unplanned rebalances by group",
            "Within the selected time range.",
            Kind.GAUGES,
            (
                Query(
                    f"round(sum by ({EACH}) (increase("
                    f"{_metric('group_rebalances_total', UNPLANNED)}[$__range])))",
                    NAMED,
                ),
            ),
            decimals=0,
            steps=((None, "green"), (1, "orange"), (3, "red")),
            link=_OF_SERIES,
        ),
        Panel(
            "Partitions without an owner",
            "Partition-seconds per second, by group.",
            Kind.LINES,
            (
                Query(
                    f"sum by ({EACH}) (rate({_metric('group_unowned_partition_seconds_total')}"
                    "[$__rate_interval]))",
                    NAMED,
                ),
            ),
            link=_OF_SERIES,
        ),
        Panel(
            "Longest restart as a share of the session timeout",
            "By group.",
            Kind.GAUGES,
            (Query(_each("restart_budget_ratio"), NAMED),),
            unit=Unit.SHARE,
            decimals=0,
            limit=1,
            steps=_RESTART_STEPS,
            link=_OF_SERIES,
        ),
    ),
)

_OPERATOR = Row(
    "The operator",
    (
        Panel(
            "Leaders",
            "Must be exactly one.",
            Kind.STAT,
            (Query(f"sum({LEADER})"),),
            span=6,
            decimals=0,
            steps=((None, "red"), (1, "green"), (2, "red")),
        ),
        Panel(
            "Replicas scraped",
            "Includes standby replicas.",
            Kind.STAT,
            (Query(f"count({LEADER})"),),
            span=6,
            decimals=0,
        ),
        Panel(
            "Failed reconciliations",
            "Within the selected time range; the operator's log contains the reasons.",
            Kind.STAT,
            (Query(f"round(sum(increase({_own('reconcile_errors_total')}[$__range])))"),),
            span=6,
            decimals=0,
            steps=((None, "green"), (1, "orange")),
        ),
        Panel(
            "Failed requests to Kafka",
            "Within the selected time range, by cluster.",
            Kind.STAT,
            (
                Query(
                    f"round(sum by (kafka_cluster) (increase({_own('observe_errors_total')}[$__range])))",
                    "{{kafka_cluster}}",
                ),
            ),
            span=6,
            decimals=0,
            steps=((None, "green"), (1, "orange")),
        ),
        Panel(
            "Reconciliation time",
            "Time of one reconciliation of one group.",
            Kind.LINES,
            tuple(
                Query(
                    f"histogram_quantile({q}, sum by (le) (rate({_own('reconcile_seconds_bucket')}"
                    "[$__rate_interval])))",
                    f"p{round(q * 100)}",
                )
                for q in (0.5, 0.99)
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            "Reconciliations",
            "Reconciliations per second.",
            Kind.LINES,
            (Query(f"sum(rate({_own('reconcile_seconds_count')}[$__rate_interval]))", "reconciliations"),),
            unit=Unit.OPERATIONS_PER_SECOND,
        ),
        Panel(
            "CPU cores of the operator",
            "CPU cores in use, by pod. An operator at its limit reacts late.",
            Kind.LINES,
            (
                Query(
                    f"sum by (pod) (rate({_own('operator_process_cpu_seconds_total')}[$__rate_interval]))",
                    "{{pod}}",
                ),
            ),
            unit=Unit.PLAIN,
        ),
        Panel(
            "Memory of the operator",
            "Resident memory, by pod.",
            Kind.LINES,
            (
                Query(
                    f"max by (pod) ({_own('operator_process_resident_memory_bytes')})",
                    "{{pod}}",
                ),
            ),
            unit=Unit.BYTES,
        ),
        Panel(
            "Time to observe a cluster",
            "Time to observe all groups of a cluster once.",
            Kind.LINES,
            (Query(f"max by (kafka_cluster) ({_own('observe_seconds')})", "{{kafka_cluster}}"),),
            unit=Unit.SECONDS,
        ),
        Panel(
            "Decisions",
            "By kind and action, per graph interval.",
            Kind.BARS,
            (
                Query(
                    steps_of("kind, action", _metric("decisions_total"), begins_at_one=True),
                    "{{kind}} {{action}}",
                ),
            ),
            decimals=0,
        ),
    ),
)

BOARD = Board(
    uid="slackwater-fleet",
    title="Slackwater / Fleet",
    about="All ConsumerGroups, and the operator that manages them.",
    variables=(
        CLUSTER,
        Variable(
            "namespace",
            "Namespace",
            f"label_values(slackwater_condition{{{IN_CLUSTER}}}, namespace)",
            many=True,
        ),
    ),
    rows=(_FIRST, _REBALANCES, _OPERATOR),
    marks=(
        Mark(
            "unplanned rebalances",
            steps_of(EACH, _metric("group_rebalances_total", UNPLANNED)) + " > 0",
            "red",
            "unplanned rebalance of {{namespace}}/{{group}}",
        ),
    ),
)
