"""The alerts: rendered by real helm, checked and tested by real promtool."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.controlplane import build
from tests.support.operator import chart, exported_metrics
from tests.support.operator.exported_metrics import known
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.parts("kubectl", "prometheus")

HERE = Path(__file__).parent
RUNBOOK = chart.ROOT / "docs" / "how-to" / "operate" / "alerts.md"


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    return chart.alerts()


def promtool(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(build.promtool()), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def written(folder: Path, rules: list[dict[str, Any]]) -> Path:
    file = folder / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "slackwater", "rules": rules}]}), encoding="utf-8")
    return file


def cases_of_the_rules() -> dict[str, Any]:
    cases: dict[str, Any] = yaml.load((HERE / "alerts.yaml").read_text(encoding="utf-8"), chart.Loader)
    return cases


def test_promtool_accepts_the_rules(rules: list[dict[str, Any]], tmp_path: Path) -> None:
    checked = promtool("check", "rules", "--lint=all", written(tmp_path, rules).name, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout


def test_each_alert_fires_when_it_should_and_only_then(rules: list[dict[str, Any]], tmp_path: Path) -> None:
    cases = cases_of_the_rules()
    cases["rule_files"] = [written(tmp_path, rules).name]
    (tmp_path / "cases.yaml").write_text(json.dumps(cases), encoding="utf-8")
    tested = promtool("test", "rules", "cases.yaml", cwd=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_each_alert_has_a_case_where_it_fires_and_one_where_it_does_not(rules: list[dict[str, Any]]) -> None:
    cases = cases_of_the_rules()
    asked = [case for test in cases["tests"] for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in rules}
    assert {case["alertname"] for case in asked if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in asked if not case.get("exp_alerts")} == names


@pytest.mark.long  # as tests/mutants: the two test the cases
def test_rules_that_fire_at_once_fail_the_cases(rules: list[dict[str, Any]], tmp_path: Path) -> None:
    broken = [{key: value for key, value in rule.items() if key != "for"} for rule in rules]
    assert broken != rules
    cases = cases_of_the_rules()
    cases["rule_files"] = [written(tmp_path, broken).name]
    (tmp_path / "cases.yaml").write_text(json.dumps(cases), encoding="utf-8")
    assert promtool("test", "rules", "cases.yaml", cwd=tmp_path).returncode != 0


@pytest.mark.long
def test_a_rule_that_never_fires_fails_the_cases(rules: list[dict[str, Any]], tmp_path: Path) -> None:
    broken = [{**rule, "expr": rule["expr"].replace("slackwater_", "slackwter_")} for rule in rules]
    cases = cases_of_the_rules()
    cases["rule_files"] = [written(tmp_path, broken).name]
    (tmp_path / "cases.yaml").write_text(json.dumps(cases), encoding="utf-8")
    assert promtool("test", "rules", "cases.yaml", cwd=tmp_path).returncode != 0


def test_each_runbook_is_written(rules: list[dict[str, Any]]) -> None:
    headings = re.findall(r"^#+ (.+)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    # As GitHub and most renderers make anchors of headings.
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    home = yaml.safe_load((chart.CHART / "Chart.yaml").read_text(encoding="utf-8"))["home"]
    assert home.startswith("https://")
    for rule in rules:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == f"{home}/docs/how-to/operate/alerts"
        assert anchor in anchors, f"docs/how-to/operate/alerts.md has no section for {rule['alert']}"


def test_thresholds_and_labels_are_taken_from_the_values() -> None:
    rules = chart.alerts(
        {
            "prometheusRule.thresholds.restartBudget": 0.5,
            "prometheusRule.alertLabels.team": "data",
            "prometheusRule.runbookUrl": "https://wiki.example/slackwater",
            "prometheusRule.disabled": ["SlackwaterDeadLetters"],
        }
    )
    by_name = {rule["alert"]: rule for rule in rules}
    assert by_name["SlackwaterRestartBudget"]["expr"].endswith("> 0.5")
    assert "SlackwaterDeadLetters" not in by_name
    for rule in rules:
        assert rule["labels"]["team"] == "data"
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["runbook_url"].startswith("https://wiki.example/slackwater#slackwater")


def test_alerts_use_only_exported_metrics(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        exported_metrics.check(chart.Asked(f"alert {rule['alert']}", rule["expr"]))


def test_every_metric_is_shown_or_has_a_reason_not_to_be() -> None:
    """``not_shown`` lists the metrics without a panel and an alert, each with the reason."""
    not_shown = {
        "slackwater_lag_records": "the operator's group_lag_records says the same, also without workers",
        "slackwater_rebalances": "as one worker sees them; the operator knows the cause",
        "slackwater_batches": "throughput is shown in records",
        "slackwater_records_out": "differs from what comes in only by what the handler drops",
        "slackwater_table_rows": "which tables a group has is its own",
        "slackwater_handler_failures": "ends in a restart, which is shown",
        "slackwater_refreshes": "whether data may be old for a while is the handler's to judge",
        "slackwater_commit_failures": "ends in a rebalance or an abandoned batch",
        "slackwater_poll_interval_seconds": "for a profile of one worker",
        "slackwater_restart_gap_seconds": "the operator's restart_phase_seconds has its parts",
        "slackwater_restart_gap_session_ratio": "the operator's restart_budget_ratio",
        "slackwater_lag_seconds": "the operator's group_lag_seconds",
        "slackwater_rebalance_seconds": "the operator's group_rebalance_seconds is of the whole group",
        "slackwater_operator_takeover_phase_seconds": "the worker's takeover_phase_seconds",
        "slackwater_operator_process_virtual_memory_bytes": "the resident memory is what counts",
        "slackwater_operator_process_start_time_seconds": "a restart shows as a gap",
        "slackwater_operator_process_open_fds": "for a profile of one operator",
        "slackwater_operator_process_max_fds": "for a profile of one operator",
        "slackwater_maintenance_failures": "the condition Degraded has them, and its alert",
        "slackwater_maintenance_last_success_time_seconds": "Degraded says when a table is not maintained",
        "slackwater_unserved_seconds": "the operator's group_unowned_partition_seconds",
    }
    shown = {s.metric for a in chart.all_expressions() for s in chart.selectors(chart.substituted(a.expr))}
    bases = {name.removesuffix(s) for name in shown for s in ("_total", "_bucket", "_count", "_sum", "")}
    exported = {
        name.removesuffix("_total").removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        for name in known()
    }
    assert exported - bases - set(not_shown) == set()
