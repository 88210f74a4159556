"""The dashboard of all groups: which of them needs a look, and is the operator itself well."""

from __future__ import annotations

from tools.dashboards.panels import Board, Kind, Panel, Query, Row, Variable

WHERE = 'namespace=~"$namespace"'
EACH = "namespace, group"
READY = 'type="Ready"'
UNPLANNED = 'cause="unplanned"'
NAMED = "{{namespace}}/{{group}}"


def _metric(name: str, more: str = "") -> str:
    return f"slackwater_{name}{{{WHERE}{', ' if more else ''}{more}}}"


def _each(name: str, more: str = "") -> str:
    """By group: while leaders change, two operators may be scraped."""
    return f"max by ({EACH}) ({_metric(name, more)})"


def _lag() -> str:
    return f"sum by ({EACH}) (max by ({EACH}, topic, partition) ({_metric('group_lag_records')}))"


def _condition(kind: str, *, good: str = "True") -> str:
    return f"{_metric('condition', f'type={chr(34)}{kind}{chr(34)}, status!={chr(34)}{good}{chr(34)}')}"


def _count(expr: str) -> str:
    # Without a group in that condition there is no series, and the count is 0.
    return f"count(max by ({EACH}) ({expr})) or vector(0)"


_GROUPS = Row(
    "Groups",
    (
        Panel(
            "Groups",
            "ConsumerGroups that the operator manages.",
            Kind.STAT,
            (Query(f"count(max by ({EACH}) ({_metric('condition', READY)}))"),),
            span=4,
        ),
        Panel(
            "Not ready",
            "Groups that are not stable or lack workers.",
            Kind.STAT,
            (Query(_count(_condition("Ready"))),),
            span=4,
            steps=((None, "green"), (1, "orange")),
        ),
        Panel(
            "Degraded",
            "Groups with a problem; the condition's message describes it and what to do.",
            Kind.STAT,
            (Query(_count(_condition("Degraded", good="False"))),),
            span=4,
            steps=((None, "green"), (1, "red")),
        ),
        Panel(
            "Lag unknown",
            "Groups that are neither scaled nor restarted because their lag is unknown.",
            Kind.STAT,
            (Query(_count(_condition("LagKnown"))),),
            span=4,
            steps=((None, "green"), (1, "red")),
        ),
        Panel("Lag of all groups", "Records.", Kind.STAT, (Query(f"sum({_lag()})"),), span=4),
        Panel(
            "Workers", "Members of all groups.", Kind.STAT, (Query(f"sum({_each('group_members')})"),), span=4
        ),
        Panel(
            "Groups",
            "Sort by any column.",
            Kind.TABLE,
            (
                Query(_lag(), "lag"),
                Query(_each("group_lag_seconds"), "oldest record, s"),
                Query(_each("group_produced_per_second"), "produced/s"),
                Query(_each("group_consumed_per_second"), "committed/s"),
                Query(_each("group_predicted_drain_seconds"), "drain, s"),
                Query(_each("group_members"), "members"),
                Query(_each("group_pods", 'state="desired"'), "desired"),
                Query(_each("group_partitions"), "partitions"),
                Query(_each("scale_at_max"), "at max"),
                Query(_each("restart_budget_ratio"), "restart, of session"),
            ),
            span=24,
            row=EACH.replace(" ", ""),
        ),
    ),
)

_OVER_TIME = Row(
    "Over time",
    (
        Panel(
            "Lag", "The twenty groups with the most lag.", Kind.LINES, (Query(f"topk(20, {_lag()})", NAMED),)
        ),
        Panel(
            "Oldest record",
            "Age of the oldest uncommitted record, for the twenty groups with the oldest.",
            Kind.LINES,
            (Query(f"topk(20, {_each('group_lag_seconds')})", NAMED),),
            unit="s",
        ),
        Panel(
            "Rebalances by cause",
            "Sum over all groups, per graph interval.",
            Kind.BARS,
            (
                Query(
                    f"sum by (cause) (increase({_metric('group_rebalances_total')}[$__rate_interval]))",
                    "{{cause}}",
                ),
            ),
        ),
        Panel(
            "Unplanned rebalances by group",
            "Within the selected time range.",
            Kind.GAUGES,
            (
                Query(
                    f"sum by ({EACH}) (increase({_metric('group_rebalances_total', UNPLANNED)}[$__range]))",
                    NAMED,
                ),
            ),
            steps=((None, "green"), (0.5, "orange"), (3, "red")),
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
        ),
        Panel(
            "Longest restart as a share of the session timeout",
            "By group.",
            Kind.GAUGES,
            (Query(_each("restart_budget_ratio"), NAMED),),
            unit="percentunit",
            limit=1,
            steps=((None, "green"), (0.6, "orange"), (0.9, "red")),
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
            (Query("sum(slackwater_leader)"),),
            span=6,
            steps=((None, "red"), (1, "green"), (2, "red")),
        ),
        Panel(
            "Replicas scraped",
            "Includes standby replicas.",
            Kind.STAT,
            (Query("count(slackwater_leader)"),),
            span=6,
        ),
        Panel(
            "Failed reconciliations",
            "Within the selected time range; the operator's log contains the reasons.",
            Kind.STAT,
            (Query("sum(increase(slackwater_reconcile_errors_total[$__range]))"),),
            span=6,
            steps=((None, "green"), (0.5, "orange")),
        ),
        Panel(
            "Failed requests to Kafka",
            "Within the selected time range, by cluster.",
            Kind.STAT,
            (Query("sum by (cluster) (increase(slackwater_observe_errors_total[$__range]))", "{{cluster}}"),),
            span=6,
            steps=((None, "green"), (0.5, "orange")),
        ),
        Panel(
            "Reconciliation time",
            "Time of one reconciliation of one group.",
            Kind.LINES,
            tuple(
                Query(
                    f"histogram_quantile({q}, sum by (le) (rate(slackwater_reconcile_seconds_bucket"
                    "[$__rate_interval])))",
                    f"p{round(q * 100)}",
                )
                for q in (0.5, 0.99)
            ),
            unit="s",
        ),
        Panel(
            "Reconciliations",
            "Reconciliations per second.",
            Kind.LINES,
            (Query("sum(rate(slackwater_reconcile_seconds_count[$__rate_interval]))", "reconciliations"),),
            unit="ops",
        ),
        Panel(
            "Time to observe a cluster",
            "Time to observe all groups of a cluster once.",
            Kind.LINES,
            (Query("max by (cluster) (slackwater_observe_seconds)", "{{cluster}}"),),
            unit="s",
        ),
        Panel(
            "Decisions",
            "By kind and action, per minute.",
            Kind.BARS,
            (
                Query(
                    f"sum by (kind, action) (rate({_metric('decisions_total')}[$__rate_interval])) * 60",
                    "{{kind}} {{action}}",
                ),
            ),
        ),
    ),
)

BOARD = Board(
    uid="slackwater-fleet",
    title="Slackwater / Fleet",
    about="All ConsumerGroups, and the operator that manages them.",
    variables=(
        Variable("namespace", "Namespace", "label_values(slackwater_condition, namespace)", many=True),
    ),
    rows=(_GROUPS, _OVER_TIME, _OPERATOR),
    links=(("Group", "/d/slackwater-group"),),
)
