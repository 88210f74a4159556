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
            "Records behind the committed offsets, of all partitions.",
            Kind.STAT,
            (Query(f"sum({_by('topic, partition', 'group_lag_records')})"),),
            span=4,
        ),
        Panel(
            "Oldest record",
            "Age of the oldest record that is not committed.",
            Kind.STAT,
            (Query(_one("group_lag_seconds")),),
            unit="s",
            span=4,
        ),
        Panel(
            "Predicted drain",
            "Time until the lag is gone at the rates of now. Empty while the lag grows.",
            Kind.STAT,
            (Query(_one("group_predicted_drain_seconds")),),
            unit="s",
            span=4,
        ),
        Panel(
            "Unplanned rebalances",
            "In the time shown: neither a scale step nor a rollout asked for them.",
            Kind.STAT,
            (Query(f"sum(increase({_operator('group_rebalances_total', UNPLANNED)}[$__range]))"),),
            span=4,
            steps=((None, GREEN), (0.5, RED)),
        ),
        Panel(
            "Longest restart, of its session",
            "The gap of the slowest last restart against session.timeout.ms. "
            "From 100 % on the group rebalances.",
            Kind.STAT,
            (Query(_one("restart_budget_ratio")),),
            unit="percentunit",
            span=4,
            steps=((None, GREEN), (0.6, ORANGE), (1.0, RED)),
        ),
        Panel(
            "Orphaned members",
            "Static members whose pod is gone for good: nobody reads their partitions.",
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
            "Records behind the committed offset. One hot row: a partition that more workers don't help.",
            Kind.HEATMAP,
            (Query(_by("topic, partition", "group_lag_records"), "{{topic}}-{{partition}}"),),
        ),
        Panel(
            "Lag in seconds by partition",
            "Age of the oldest record that is not committed.",
            Kind.HEATMAP,
            (Query(_by("topic, partition", "group_lag_seconds"), "{{topic}}-{{partition}}"),),
            unit="s",
        ),
        Panel(
            "Throughput",
            "What is produced and committed. The capacity is what all workers could commit, "
            "as measured while there was lag.",
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
            "Time until the lag is gone at the rates of then. A gap: it grows, or is not known.",
            Kind.LINES,
            (Query(_one("group_predicted_drain_seconds"), "drain"),),
            unit="s",
        ),
    ),
)

_STILL = Row(
    "Does it stay still?",
    (
        Panel(
            "Group state and rebalances",
            "The broker's state of the group, and when it rebalanced: planned (a "
            "scale "
            "step, a rollout) or unplanned.",
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
            "Each within the interval drawn.",
            Kind.BARS,
            (
                Query(
                    f"sum by (cause) (increase({_operator('group_rebalances_total')}[$__rate_interval]))",
                    "{{cause}}",
                ),
            ),
        ),
        Panel(
            "Time of a rebalance",
            "From the first member that joins to the last that is served.",
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
            "Partition-seconds a second: 2 means that two partitions are read by nobody.",
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
            "Moves with each rebalance; a restart within the session leaves it.",
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
            "Each pod's last restart against the session",
            "Phases as shares of session.timeout.ms: drain, "
            "replace "
            "(pod gone to process started), join, first record. The axis ends where the session "
            "does.",
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
            "What the operator counts against spec.rollout.sessionBudget: from the "
            "process's "
            "end to its successor's join.",
            Kind.GAUGES,
            (Query(_by("pod", "restart_budget_ratio"), "{{pod}}"),),
            unit="percentunit",
            limit=1,
            steps=((None, GREEN), (0.6, ORANGE), (0.9, RED)),
        ),
        Panel(
            "Pods by revision",
            "During a rollout the new revision's share grows pod by pod.",
            Kind.STACKED,
            (Query(_by("revision", "rollout_pods"), "{{revision}}"),),
        ),
        Panel(
            "Rollout",
            "The phase that the rolling restart is in.",
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
            "Phases of the last one: drain (the predecessor finishes its batch and commits), answer, "
            "join, first record. Only strategy Takeover has them.",
            Kind.MATRIX,
            (Query(f"max by (pod, phase) ({_worker('takeover_phase_seconds')})"),),
            unit="s",
            row="pod",
            column="phase",
        ),
        Panel(
            "Pause by partition",
            "From the predecessor's last commit to the successor's first record, at each partition's last "
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
            "asked: the predecessor handed over; forced: it was not there or did not answer, and was fenced; "
            "restarted: it had to end first; fallback: its successor was not ready in time; stopped: the "
            "rollout was given up.",
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
            "Of its partitions the one that stood still the longest.",
            Kind.GAUGES,
            (Query(_by("pod", "operator_takeover_pause_seconds"), "{{pod}}"),),
            unit="s",
            steps=((None, GREEN), (0.25, ORANGE), (1.0, RED)),
        ),
        Panel(
            "Takeovers as the workers count them",
            "Of the pods that there are. refused: the predecessor would not hand over yet; taken_back: the "
            "successor died, and the predecessor took the membership back.",
            Kind.LINES,
            (Query(f"sum by (outcome) ({_worker('takeovers_total')})", "{{outcome}}"),),
        ),
        Panel(
            "Standbys",
            "Pods that are ready to take over, or have handed over and are about to go. One for seconds "
            "during a rollout; one that stays waits for something.",
            Kind.LINES,
            (Query(f"""sum({_worker("phase", 'phase="standby"')})""", "standby"),),
        ),
    ),
)

_SCALE = Row(
    "Why this many workers?",
    (
        Panel(
            "Scaling decision",
            "raw: what the lag and the rates ask for; capped: within the partitions, "
            "minReplicas "
            "and maxReplicas; applied: what was done.",
            Kind.LINES,
            (Query(_by("stage", "scale_workers"), "{{stage}}"),),
        ),
        Panel(
            "What holds the next step",
            "The damping of the decision, such as settling, share or window: see docs/decisions.md.",
            Kind.STACKED,
            (
                Query(_by("damping", "scale_held"), "{{damping}}"),
                Query(_one("scale_at_max"), "at maxReplicas"),
            ),
        ),
        Panel(
            "Members, pods, partitions",
            "Members without a pod are orphans; more pods than partitions idle.",
            Kind.LINES,
            (
                Query(_one("group_members"), "members"),
                Query(_by("state", "group_pods"), "pods {{state}}"),
                Query(_one("group_partitions"), "partitions"),
            ),
        ),
        Panel(
            "Decisions",
            "By kind and action, a minute.",
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
            "Records handled",
            "Committed batches only, by worker.",
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
            "transform is your handler (with Spark: its job); the others are Slackwater's: "
            "arrow, stage, reading, "
            "writing, ready, published.",
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
            "Records a second that the handler marked in _error, or that the worker rejected because a batch "
            "failed with them.",
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
            "An even spread differs by one.",
            Kind.LINES,
            (Query(f"max by (instance) ({_worker('assigned_partitions')})", "{{instance}}"),),
        ),
        Panel(
            "Commit time, p95",
            "Until the broker's answer.",
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
            "running is where it should be.",
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
