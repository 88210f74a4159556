"""The operator's metrics as a scrape reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from slackwater_operator.telemetry.metrics import (
    REBALANCE_CAUSES,
    TAKEOVER_OUTCOMES,
    GroupFigures,
    OperatorMetrics,
)

FLIGHTS = ("ns", "flights")
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(metrics: OperatorMetrics) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def of(series: Series, name: str) -> dict[str, float]:
    """The series of that name of the group, by the values of their other labels."""
    return {
        "/".join(value for label, value in labels if label not in ("namespace", "group")): value
        for (key, labels), value in series.items()
        if key == name and ("group", "flights") in labels and ("namespace", "ns") in labels
    }


FULL = GroupFigures(
    lag_records={("t", 0): 5, ("t", 1): 0},
    lag_seconds={("t", 0): 1.5},
    produced_per_second=10,
    consumed_per_second=9,
    capacity_per_second=4,
    predicted_drain_seconds=7,
    partitions=2,
    members=3,
    orphaned_members=1,
    pods={"desired": 3, "existing": 3, "ready": 2},
    state="Stable",
    generation=12,
    scale_workers={"raw": 2.4, "capped": 3, "applied": 3},
    scale_held="settling",
    scale_at_max=True,
    restart_phase_seconds={("flights-0", "drain"): 0.5},
    restart_budget_ratio={"flights-0": 0.2},
    takeover_phase_seconds={("flights-b-0", "join"): 0.005},
    takeover_pause_seconds={"flights-b-0": 0.021},
    rollout_pods={"abc": 2, "def": 1},
    rollout_phase="Rolling",
    rollout_phase_transitions={"Rolling": 1_700_000_100.0},
    rollout_steps=3,
    rollout_steps_completed=1,
    rollout_analysis="successful",
    maintenance_successes={"lake.orders": 1_700_000_200.0},
    maintenance_failures={"lake.orders": 2.0},
    conditions={"Ready": "True", "Degraded": "Unknown"},
    condition_transitions={("Ready", "True", "Settled"): 1_700_000_000.0},
)


def test_every_figure_has_its_series() -> None:
    metrics = OperatorMetrics()
    metrics.show(FLIGHTS, FULL)
    series = scraped(metrics)
    expected = {
        "group_lag_records": {"0/t": 5, "1/t": 0},
        "group_lag_seconds": {"0/t": 1.5},
        "group_produced_per_second": {"": 10},
        "group_consumed_per_second": {"": 9},
        "group_capacity_per_second": {"": 4},
        "group_predicted_drain_seconds": {"": 7},
        "group_partitions": {"": 2},
        "group_members": {"": 3},
        "group_orphaned_members": {"": 1},
        "group_pods": {"desired": 3, "existing": 3, "ready": 2},
        "group_state": {"Stable": 1},
        "group_generation": {"": 12},
        "scale_workers": {"raw": 2.4, "capped": 3, "applied": 3},
        "scale_held": {"settling": 1},
        "scale_at_max": {"": 1},
        "restart_phase_seconds": {"drain/flights-0": 0.5},
        "restart_budget_ratio": {"flights-0": 0.2},
        "operator_takeover_phase_seconds": {"join/flights-b-0": 0.005},
        "operator_takeover_pause_seconds": {"flights-b-0": 0.021},
        "rollout_pods": {"abc": 2, "def": 1},
        "rollout_phase": {"Rolling": 1},
        "rollout_phase_transition_time_seconds": {"Rolling": 1_700_000_100},
        "rollout_steps": {"": 3},
        "rollout_steps_completed": {"": 1},
        "rollout_analysis": {"successful": 1},
        "maintenance_last_success_time_seconds": {"lake.orders": 1_700_000_200},
        "maintenance_failures": {"lake.orders": 2},
        "condition": {"True/Ready": 1, "Unknown/Degraded": 1},
        "condition_transition_time_seconds": {"Settled/True/Ready": 1_700_000_000},
    }
    assert {name: of(series, f"slackwater_{name}") for name in expected} == expected


def test_unknown_figures_are_missing_and_not_zero() -> None:
    metrics = OperatorMetrics()
    metrics.show(FLIGHTS, FULL)
    metrics.show(FLIGHTS, GroupFigures(members=0))
    series = scraped(metrics)
    assert of(series, "slackwater_group_members") == {"": 0}
    mine = {name for (name, labels) in series if ("group", "flights") in labels}
    counters = {name for name in mine if "rebalance" in name or name.endswith("_total")}
    assert mine - counters == {"slackwater_group_members"}


def test_counters_begin_at_zero() -> None:
    """Prometheus sees no increase in a series that begins with its first count."""
    metrics = OperatorMetrics()
    metrics.show(FLIGHTS, GroupFigures())
    series = scraped(metrics)
    assert of(series, "slackwater_group_rebalances_total") == dict.fromkeys(REBALANCE_CAUSES, 0)
    assert of(series, "slackwater_group_unowned_partition_seconds_total") == {"": 0}
    assert of(series, "slackwater_operator_takeovers_total") == dict.fromkeys(TAKEOVER_OUTCOMES, 0)
    metrics.taken_over(FLIGHTS, "asked")
    assert of(scraped(metrics), "slackwater_operator_takeovers_total")["asked"] == 1


def test_a_group_that_is_gone_takes_its_series_with_it() -> None:
    metrics = OperatorMetrics()
    metrics.show(FLIGHTS, FULL)
    metrics.show(("ns", "other"), FULL)
    metrics.rebalanced(FLIGHTS, "scale", 2.0)
    metrics.forget(FLIGHTS)
    series = scraped(metrics)
    assert {dict(labels).get("group") for _, labels in series} == {"other", None}


def test_counters_and_histograms_are_exported() -> None:
    metrics = OperatorMetrics()
    for cause, seconds in (("scale", 2.0), ("scale", 30.0), ("unplanned", None)):
        metrics.rebalanced(FLIGHTS, cause, seconds)
    metrics.unowned(FLIGHTS, 1.5)
    metrics.unowned(FLIGHTS, 2.0)
    metrics.decided(FLIGHTS, "scale", "up")
    metrics.decided(FLIGHTS, "scale", "up")
    series = scraped(metrics)
    assert of(series, "slackwater_group_rebalances_total") == {
        "scale": 2, "rollout": 0, "topics": 0, "unplanned": 1,
    }  # fmt: skip
    assert of(series, "slackwater_group_rebalance_seconds_count") == {"": 2}
    assert of(series, "slackwater_group_rebalance_seconds_sum") == {"": 32}
    assert of(series, "slackwater_group_rebalance_seconds_bucket")["2.5"] == 1
    assert of(series, "slackwater_group_rebalance_seconds_bucket")["+Inf"] == 2
    assert of(series, "slackwater_group_unowned_partition_seconds_total") == {"": 3.5}
    assert of(series, "slackwater_decisions_total") == {"up/scale": 2}


def test_the_metrics_of_the_operator_itself_are_exported() -> None:
    metrics = OperatorMetrics()
    metrics.reconciled(0.002)
    metrics.reconciled(0.2, failed=True)
    metrics.observed("kafka:9092", 0.05)
    metrics.observed("kafka:9092", 0.07, errors=2)
    metrics.leading(True)
    series = scraped(metrics)
    cluster = (("kafka_cluster", "kafka:9092"),)
    assert series["slackwater_reconcile_seconds_count", ()] == 2
    assert series["slackwater_reconcile_errors_total", ()] == 1
    assert series["slackwater_observe_seconds", cluster] == 0.07
    assert series["slackwater_observe_errors_total", cluster] == 2
    assert series["slackwater_leader", ()] == 1
    metrics.forget_cluster("kafka:9092")
    metrics.leading(False)
    series = scraped(metrics)
    assert ("slackwater_observe_seconds", cluster) not in series
    assert series["slackwater_leader", ()] == 0


def test_labels_are_escaped_and_values_are_prometheus_own() -> None:
    metrics = OperatorMetrics()
    odd = 'a"b\\c\nd\u00e9'
    metrics.show(
        FLIGHTS, GroupFigures(rollout_pods={odd: 1}, predicted_drain_seconds=float("inf"), members=10**12)
    )
    series = scraped(metrics)
    assert of(series, "slackwater_rollout_pods") == {odd: 1}
    assert of(series, "slackwater_group_predicted_drain_seconds") == {"": float("inf")}
    assert of(series, "slackwater_group_members") == {"": 10**12}


def test_reviews_are_counted_and_the_certificate_has_an_end_where_there_is_one() -> None:
    metrics = OperatorMetrics()
    metrics.reviewed("refused")
    series = scraped(metrics)
    counted = {
        dict(labels)["result"]: count
        for (name, labels), count in series.items()
        if name == "slackwater_admission_reviews_total"
    }
    assert counted == {"admitted": 0, "refused": 1, "failed": 0}
    assert ("slackwater_admission_certificate_end_time_seconds", ()) not in series
    metrics.admission_certificate(1_800_000_000_500)
    assert scraped(metrics)["slackwater_admission_certificate_end_time_seconds", ()] == 1_800_000_000.5


def test_a_namespace_that_cannot_be_read_has_a_series_until_it_can_be() -> None:
    metrics = OperatorMetrics()
    metrics.watch_refused("wb", ("list pods", "Forbidden"))
    metrics.watch_refused("", ("list jobs.batch", "Forbidden"))
    series = [key for key in scraped(metrics) if key[0] == "slackwater_watch_refused"]
    assert [dict(labels)["namespace"] for _, labels in series] == ["wb", "*"]
    assert dict(series[0][1]) == {"namespace": "wb", "access": "list pods", "reason": "Forbidden"}
    for namespace in ("wb", ""):
        metrics.watch_refused(namespace, None)
    assert not [key for key in scraped(metrics) if key[0] == "slackwater_watch_refused"]


def test_each_metric_family_appears_once_with_its_type() -> None:
    metrics = OperatorMetrics()
    metrics.admission_certificate(0)
    metrics.show(FLIGHTS, FULL)
    metrics.show(("ns", "other"), FULL)
    types = [line.split()[2:] for line in metrics.text().decode().splitlines() if line.startswith("# TYPE")]
    names = [name for name, _ in types]
    assert len(names) == len(set(names)) == 48
    assert ["slackwater_group_rebalances_total", "counter"] in types
    assert ["slackwater_group_rebalance_seconds", "histogram"] in types
