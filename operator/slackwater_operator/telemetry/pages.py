"""The operator's pages for people: its groups (`GET /`), and each of them (`GET /groups/NAMESPACE/NAME`).

Pure functions of the resources and of what the workers report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slackwater.runtime.telemetry.html import (
    Cell,
    Section,
    Text,
    page,
    paragraphs,
    path_of,
    table,
)
from slackwater.times import ago, duration
from slackwater_operator.api.times import time_ms
from slackwater_operator.model.worker_status import WorkerStatus
from slackwater_operator.policies.conditions import WELL
from slackwater_operator.policies.explanations import explain, terms_by_spec

Resource = Mapping[str, Any]


def overview_page(operator: str, *, leads: bool, resources: Iterable[Resource], now_ms: int) -> bytes:
    """All groups.

    Args:
        operator: this process's identity.
        leads: whether it decides; else another replica does.
        resources: the ConsumerGroups.
        now_ms: wall clock.
    """
    rows = [_overview(resource, now_ms) for resource in sorted(resources, key=_names)]
    lead = [f"{operator} {'leads' if leads else 'waits: another replica of the operator leads'}"]
    columns = ("Namespace", "Name", "Ready", "Since", "Workers", "Lag", "Generation or epoch", "Why")
    sections = [table(f"ConsumerGroups: {len(rows)}", columns, rows), _for_programs()]
    return page("Slackwater operator", lead, sections, now_ms)


def group_page(resource: Resource, workers: Mapping[str, WorkerStatus | None], now_ms: int) -> bytes:
    """A group: its conditions, decisions and workers.

    Args:
        resource: the ConsumerGroup.
        workers: what its workers reported last, by pod; None: a pod did not answer.
        now_ms: wall clock.
    """
    explanation = explain(resource, now_ms)
    status = resource.get("status") or {}
    heads = tuple(f"{condition['type']}=" for condition in status.get("conditions", ()))
    sections = [
        # The conditions follow as a table.
        paragraphs("State", [line for line in explanation.state if not line.startswith(heads)]),
        _conditions(status, now_ms),
        _workers(workers, terms_by_spec(resource).generation),
        paragraphs("Decisions, latest first", explanation.decisions or [Text("none", "dim")]),
        paragraphs("What would change them", explanation.otherwise or [Text("nothing to say", "dim")]),
        _for_programs(),
    ]
    return page(explanation.title, [Text("All groups", link="/")], sections, now_ms)


def _names(resource: Resource) -> tuple[str, str]:
    metadata = resource["metadata"]
    return str(metadata.get("namespace", "")), str(metadata["name"])


def _overview(resource: Resource, now_ms: int) -> list[Cell]:
    namespace, name = _names(resource)
    status = resource.get("status") or {}
    ready = next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), None)
    return [
        namespace,
        Text(name, link=path_of("groups", namespace, name)),
        _verdict(ready) if ready else Text("not known", "busy"),
        ago(time_ms(ready["lastTransitionTime"]), now_ms) if ready else "",
        f"{status.get('readyReplicas', 0)} of {status.get('desiredReplicas', '?')} ready",
        status.get("lag"),
        status.get("generation"),
        str(ready["message"]) if ready else "the operator has not written a status yet",
    ]


def _verdict(condition: Mapping[str, Any]) -> Text:
    state, well = str(condition["status"]), WELL.get(condition["type"])
    if well is None:
        return Text(state, "busy" if state == "True" else "")
    return Text(state, "well" if state == well else "busy" if state == "Unknown" else "bad")


def _conditions(status: Mapping[str, Any], now_ms: int) -> Section:
    rows: list[list[Cell]] = [
        [
            str(condition["type"]),
            _verdict(condition),
            ago(time_ms(condition["lastTransitionTime"]), now_ms),
            str(condition["reason"]),
            str(condition["message"]),
        ]
        for condition in status.get("conditions", ())
    ]
    return table("Conditions", ("Condition", "Status", "Since", "Reason", "Message"), rows)


def _workers(workers: Mapping[str, WorkerStatus | None], term: str) -> Section:
    rows = [_worker(pod, worker) for pod, worker in sorted(workers.items())]
    columns = ("Pod", "Phase", term.title(), "Partitions", "Lag", "Pause at its last restart", "Trouble")
    return table(f"Workers: {len(rows)}", columns, rows)


def _worker(pod: str, worker: WorkerStatus | None) -> list[Cell]:
    if worker is None:
        return [pod, Text("did not answer", "bad"), None, None, None, "", ""]
    tone = "well" if worker.running else "bad" if worker.phase == "failed" else "busy"
    trouble = worker.error or "; ".join(stopped.message for stopped in worker.stopped)
    return [
        pod,
        Text(worker.phase, tone),
        worker.generation if worker.generation >= 0 else None,
        len(worker.assignment),
        sum(worker.lag.values()) if worker.lag else None,
        duration(worker.last_gap_ms) if worker.last_gap_ms is not None else "",
        Text(trouble, "bad"),
    ]


def _for_programs() -> Section:
    return paragraphs("For programs", [Text(path, link=path) for path in ("/metrics", "/readyz", "/healthz")])
