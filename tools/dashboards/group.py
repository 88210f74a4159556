"""The dashboard of one group: does it keep up, does it stay still, and why is it as large as it is.

`group` in the operator's metrics is the ConsumerGroup's name. Workers carry it as `consumergroup` (by the
PodMonitor's relabelling), since their own `group` is Kafka's group.id.
"""

from __future__ import annotations

from tools.dashboards.panels import Board, Kind, Mark, Panel, Query, Row, Variable

OPERATOR = 'namespace="$namespace", group="$group"'
# Of a name that both export: the operator's, which outlives the worker.
NOT_WORKERS = 'consumergroup=""'
UNPLANNED = 'cause="unplanned"'
WORKERS = 'namespace="$namespace", consumergroup="$group"'

GREEN, YELLOW, ORANGE, RED, BLUE, GREY = (
    "green",
    "yellow",
    "orange",
    "red",
    "blue",
    "text",
)
# Kafka's names of a group's states (GroupState in Kafka 4; Empty has no members, Dead is gone).
_STATES = (
    ("Stable", GREEN),
    ("PreparingRebalance", ORANGE),
    ("CompletingRebalance", YELLOW),
    ("Empty", GREY),
    ("Dead", RED),
)
_PLANNED, _UNPLANNED = 10, 20


def _operator(name: str, more: str = "") -> str:
    return f"slackwater_{name}{{{OPERATOR}{', ' if more else ''}{more}}}"


def _worker(name: str, more: str = "") -> str:
    return f"slackwater_{name}{{{WORKERS}{', ' if more else ''}{more}}}"


def _one(name: str, more: str = "") -> str:
    """A figure of the group: while leaders change, two operators may be scraped."""
    return f"max({_operator(name, more)})"


def _by(labels: str, name: str, more: str = "") -> str:
    return f"max by ({labels}) ({_operator(name, more)})"


def _state_number() -> str:
    # The metric is 1 for the present state only, so the largest product is that state's number.
    states = (_operator("group_state", f'state="{name}"') + f" * {at}" for at, (name, _) in _numbered())
    return "max(" + " or ".join(states) + ")"


def _numbered() -> list[tuple[int, tuple[str, str]]]:
    return list(enumerate(_STATES, start=1))


def _rebalanced(causes: str, number: int) -> str:
    happened = f"increase({_operator('group_rebalances_total', causes)}[$__rate_interval])"
    return f"(sum({happened}) > bool 0) * {number}"


_NOW = Row(
    "Now",
    (
        Panel(
            "Lag",
            "Records after the committed offsets, over all partitions.",
            Kind.STAT,
            (Query(f"sum({_by('topic, partition', 'group_lag_records')})"),),
            span=4,
        ),
        Panel(
            "Oldest record",
            "Age of the oldest uncommitted record.",
            Kind.STAT,
            (Query(_one("group_lag_seconds")),),
            unit="s",
            span=4,
        ),
        Panel(
            "Predicted drain",
            "Time until the lag is worked off at the current rates. Empty while the lag grows.",
            Kind.STAT,
            (Query(_one("group_predicted_drain_seconds")),),
            unit="s",
            span=4,
        ),
        Panel(
            "Unplanned rebalances",
            "Rebalances within the selected time range that neither scaling nor a rollout caused.",
            Kind.STAT,
            (Query(f"sum(increase({_operator('group_rebalances_total', UNPLANNED)}[$__range]))"),),
            span=4,
            steps=((None, GREEN), (0.5, RED)),
        ),
        Panel(
            "Longest restart as a share of the session timeout",
            "The longest of the workers' last restarts, relative to session.timeout.ms. At 100 % or more "
            "the group rebalances.",
            Kind.STAT,
            (Query(_one("restart_budget_ratio")),),
            unit="percentunit",
            span=4,
            steps=((None, GREEN), (0.6, ORANGE), (1.0, RED)),
        ),
        Panel(
            "Orphaned members",
            "Static members without a pod: their partitions are not consumed.",
            Kind.STAT,
            (Query(_one("group_orphaned_members")),),
            span=4,
            steps=((None, GREEN), (1, RED)),
        ),
    ),
)

_LAG = Row(
    "Lag",
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
            unit="s",
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
            unit="rps",
        ),
        Panel(
            "Predicted drain",
            "Time until the lag is worked off at the rates of that time. A gap means that the lag grew "
            "or was unknown.",
            Kind.LINES,
            (Query(_one("group_predicted_drain_seconds"), "drain"),),
            unit="s",
        ),
    ),
)

_STILL = Row(
    "Stability",
    (
        Panel(
            "Group state and rebalances",
            "The group's state as the broker reports it, and its rebalances: planned (scaling or a "
            "rollout) or unplanned.",
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
        ),
        Panel(
            "Rebalances by cause",
            "Per graph interval.",
            Kind.BARS,
            (
                Query(
                    f"sum by (cause) (increase({_operator('group_rebalances_total')}[$__rate_interval]))",
                    "{{cause}}",
                ),
            ),
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
            unit="s",
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
            "Generation",
            "Increases with each rebalance. A restart within the session timeout does not change it.",
            Kind.LINES,
            (
                Query(_one("group_generation"), "broker"),
                Query(f"max by (instance) ({_worker('generation')})", "{{instance}}"),
            ),
        ),
    ),
)

_RESTARTS = Row(
    "Restarts",
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
            unit="percentunit",
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
            unit="percentunit",
            limit=1,
            steps=((None, GREEN), (0.6, ORANGE), (0.9, RED)),
        ),
        Panel(
            "Pods by revision",
            "During a rollout the share of the new revision grows pod by pod.",
            Kind.STACKED,
            (Query(_by("revision", "rollout_pods"), "{{revision}}"),),
        ),
        Panel(
            "Rollout",
            "The current phase of the rollout.",
            Kind.STACKED,
            (Query(_by("phase", "rollout_phase"), "{{phase}}"),),
        ),
    ),
)

_TAKEOVERS = Row(
    "Takeovers",
    (
        Panel(
            "Each pod's last takeover",
            "Phases of the last takeover: drain (the predecessor finishes its batch and commits), answer, "
            "join, first record. Only with strategy Takeover.",
            Kind.MATRIX,
            (Query(f"max by (pod, phase) ({_worker('takeover_phase_seconds')})"),),
            unit="s",
            row="pod",
            column="phase",
        ),
        Panel(
            "Pause by partition",
            "From the predecessor's last commit to the successor's first record, for each partition's last "
            "takeover.",
            Kind.LINES,
            (
                Query(
                    f"max by (topic, partition) ({_worker('takeover_pause_seconds')})",
                    "{{topic}}-{{partition}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Takeovers by outcome",
            "asked: the predecessor handed over. forced: it did not respond and was fenced. restarted: it "
            "had to stop first. fallback: its successor was not ready in time. stopped: the rollout was "
            "stopped.",
            Kind.BARS,
            (
                Query(
                    f"sum by (outcome) (increase({_operator('operator_takeovers_total')}[$__rate_interval]))",
                    "{{outcome}}",
                ),
            ),
        ),
        Panel(
            "Longest pause of each pod's last takeover",
            "The longest pause among the pod's partitions.",
            Kind.GAUGES,
            (Query(_by("pod", "operator_takeover_pause_seconds"), "{{pod}}"),),
            unit="s",
            steps=((None, GREEN), (0.25, ORANGE), (1.0, RED)),
        ),
        Panel(
            "Takeovers as counted by the workers",
            "Counts of the current pods. refused: the predecessor could not hand over yet. taken_back: the "
            "successor failed, and the predecessor resumed its membership.",
            Kind.LINES,
            (Query(f"sum by (outcome) ({_worker('takeovers_total')})", "{{outcome}}"),),
        ),
        Panel(
            "Standbys",
            "Pods that are ready to take over, or have handed over and will stop. During a rollout one pod "
            "appears for seconds; a pod that remains is waiting.",
            Kind.LINES,
            (Query(f"""sum({_worker("phase", 'phase="standby"')})""", "standby"),),
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
            "The damping of the decision, such as settling, share or window; see docs/decisions.md.",
            Kind.STACKED,
            (
                Query(_by("damping", "scale_held"), "{{damping}}"),
                Query(_one("scale_at_max"), "at maxReplicas"),
            ),
        ),
        Panel(
            "Members, pods, partitions",
            "Members without a pod are orphaned. Pods beyond the number of partitions are idle.",
            Kind.LINES,
            (
                Query(_one("group_members"), "members"),
                Query(_by("state", "group_pods"), "pods {{state}}"),
                Query(_one("group_partitions"), "partitions"),
            ),
        ),
        Panel(
            "Decisions",
            "By kind and action, per minute.",
            Kind.BARS,
            (
                Query(
                    f"sum by (kind, action) (rate({_operator('decisions_total')}[$__rate_interval])) * 60",
                    "{{kind}} {{action}}",
                ),
            ),
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
            (
                Query(
                    f"sum by (instance) (rate({_worker('records_in_total')}[$__rate_interval]))",
                    "{{instance}}",
                ),
            ),
            unit="rps",
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
            unit="s",
        ),
        Panel(
            "Dead letters",
            "Records per second that the handler marked in _error, or that the worker rejected because "
            "their batch failed.",
            Kind.LINES,
            (
                Query(
                    f"sum by (topic) (rate({_worker('records_dead_total')}[$__rate_interval]))", "{{topic}}"
                ),
                Query(
                    f"sum by (topic) (rate({_worker('records_rejected_total')}[$__rate_interval]))",
                    "{{topic}}, rejected by the worker",
                ),
            ),
            unit="rps",
        ),
        Panel(
            "Partitions by worker",
            "In a balanced assignment the numbers differ by at most one.",
            Kind.LINES,
            (Query(f"max by (instance) ({_worker('assigned_partitions')})", "{{instance}}"),),
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
            unit="s",
        ),
        Panel(
            "Phase of each worker",
            "In normal operation all workers are in phase running.",
            Kind.STACKED,
            (Query(f"sum by (phase) ({_worker('phase')})", "{{phase}}"),),
        ),
    ),
)

BOARD = Board(
    uid="slackwater-group",
    title="Slackwater / Group",
    about="One ConsumerGroup: lag, rebalances, restarts and takeovers, decisions and reasons.",
    variables=(
        Variable("namespace", "Namespace", "label_values(slackwater_condition, namespace)"),
        Variable("group", "Group", 'label_values(slackwater_condition{namespace="$namespace"}, group)'),
    ),
    rows=(_NOW, _LAG, _STILL, _RESTARTS, _TAKEOVERS, _SCALE, _WORKERS),
    marks=(
        Mark(
            "unplanned rebalances",
            f"sum(increase({_operator('group_rebalances_total', UNPLANNED)}[$__rate_interval])) > 0",
            RED,
        ),
    ),
    links=(("Fleet", "/d/slackwater-fleet"),),
)
