"""Explains a ConsumerGroup: its state, its decisions, and what would have to change for other decisions.

A pure function of the resource as the API server returns it: its spec and its status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater.times import age, duration
from slackwater_operator.api.times import time_ms
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup, parse
from slackwater_operator.api.v1alpha1.spec.rollout_steps import Step
from slackwater_operator.api.v1alpha1.status.values import mapping, number, objects
from slackwater_operator.api.v1alpha1.yaml_file import ResourceError
from slackwater_operator.model.group import Terms, terms
from slackwater_operator.policies.conditions import WELL
from slackwater_operator.policies.resource_policies import scaling_policy
from slackwater_operator.policies.scaling.types import AWAITS_REVISION
from slackwater_operator.policies.scaling.what_if import scaling_otherwise

_ALWAYS_SHOWN = "Ready"
UNCONFIRMED_AFTER_MS = 300_000
"""An operator that runs confirms a status at least every three minutes."""


@dataclass(frozen=True)
class Explanation:
    """An explanation, as lines of text.

    Attributes:
        title: the group.
        state: its state.
        decisions: the last scaling decision with its figures, then the last decisions, newest first.
        otherwise: what would have to change for another decision.
    """

    title: str
    state: tuple[str, ...]
    decisions: tuple[str, ...]
    otherwise: tuple[str, ...]

    def lines(self) -> list[str]:
        """All lines, with headings."""
        parts = (("State", self.state), ("Decisions", self.decisions), ("Otherwise", self.otherwise))
        result = [self.title]
        for heading, lines in parts:
            if lines:
                result += ["", f"{heading}:", *(f"  {line}" for line in lines)]
        return result


def explain(resource: Mapping[str, Any], now_ms: int) -> Explanation:
    """Explains a ConsumerGroup.

    Args:
        resource: the object; `metadata`, `spec` and `status` are read, and missing fields are left out.
        now_ms: wall clock, to say how long ago something was.
    """
    metadata, status = mapping(resource.get("metadata")), mapping(resource.get("status"))
    group, wrong = _read(resource)
    name = f"{metadata.get('namespace') or 'default'}/{metadata.get('name') or '?'}"
    kafka = f", Kafka group {group.group_id}" if group is not None else ""
    state = [wrong] if wrong else []
    if status.keys() <= {"observedGeneration"}:  # the CRD's default
        status = {}
        state.append(
            "no status yet: the operator has not processed this resource; check that it runs and "
            "watches this namespace"
        )
    if old := unconfirmed(status, now_ms):
        state.append(old)
    otherwise: list[str] = []
    if group is not None and status:
        otherwise = [
            *_when_scaled(group, status, now_ms),
            *_when_rolled(group, status),
            *_when_rewound(status),
        ]
    state += [*_figures(status, terms_by_spec(resource).generation), *_rollout(status, metadata, now_ms)]
    return Explanation(
        f"ConsumerGroup {name}{kafka}",
        (*state, *_conditions(status, metadata, now_ms, state)),
        (*_scaling(status, now_ms), *_history(status, now_ms)),
        tuple(otherwise),
    )


def terms_by_spec(resource: Mapping[str, Any]) -> Terms:
    """What the numbers of a ConsumerGroup's status are called, by its spec."""
    kafka = mapping(mapping(resource.get("spec")).get("kafka"))
    return terms(consumer_protocol=kafka.get("groupProtocol") == "Consumer")


def unconfirmed(status: Mapping[str, Any], now_ms: int) -> str:
    """That the status is old, and what to do; "" while it is confirmed. `now_ms`: wall clock."""
    confirmed_ms = time_ms(status.get("lastConfirmedTime"))
    if confirmed_ms is None or now_ms - confirmed_ms < UNCONFIRMED_AFTER_MS:
        return ""
    return (
        f"this status is {age(confirmed_ms, now_ms)} old: no operator looks at the group; check that it runs "
        "and watches this namespace"
    )


def _read(resource: Mapping[str, Any]) -> tuple[ConsumerGroup | None, str]:
    try:
        return parse(resource, name="the resource"), ""
    except ResourceError as error:
        return None, f"the spec is invalid: {error}"


def _figures(status: Mapping[str, Any], generation: str) -> list[str]:
    result = []
    pods = [
        f"{status[field]} {text}"
        for field, text in (("desiredReplicas", "wanted"), ("replicas", "there"), ("readyReplicas", "ready"))
        if isinstance(status.get(field), int)
    ]
    if pods:
        result.append(f"workers: {', '.join(pods)}")
    group = []
    if isinstance(status.get("members"), int):
        group.append(f"{status['members']} members")
    if isinstance(status.get("generation"), int) and status["generation"] >= 0:
        group.append(f"{generation} {status['generation']}")
    if status:
        lag = status.get("lag")
        group.append(f"lag about {lag:,}" if isinstance(lag, int) else "lag not known")
    if group:
        result.append(f"Kafka: {', '.join(group)}")
    return result


def _rollout(status: Mapping[str, Any], metadata: Mapping[str, Any], now_ms: int) -> list[str]:
    rollout = mapping(status.get("rollout"))
    phase = rollout.get("phase")
    if not phase:
        return []
    revision = f"revision {status['revision']}: " if status.get("revision") else ""
    since = f" for {_age(now_ms, rollout.get('since'))}" if _age(now_ms, rollout.get("since")) else ""
    reason = f" ({rollout['reason']})" if rollout.get("reason") else ""
    result = [f"{revision}{phase}{since}{reason}"]
    measured = mapping(rollout.get("step")).get("message")
    if measured:
        result.append(f"the last measurement of the analysis: {measured}")
    if rollout.get("expectedRebalance"):
        result.append(f"it causes a rebalance: {rollout['expectedRebalance']}")
    for restart in objects(rollout.get("underWay")):
        took = _age(now_ms, restart.get("sinceMs"))
        result.append(f"{restart.get('name')} is restarting{f', for {took}' if took else ''}")
    result += _moving(rollout, metadata, now_ms)
    failed = mapping(rollout.get("failed"))
    if failed.get("hash"):
        result.append(
            f"revision {failed['hash']} failed and will not be tried again: {failed.get('reason') or '?'}"
        )
    return result


def _moving(rollout: Mapping[str, Any], metadata: Mapping[str, Any], now_ms: int) -> list[str]:
    """The two StatefulSets of a rollout by takeover, and the takeover in progress: member, direction and
    progress."""
    source, target, moving = rollout.get("fromSet"), rollout.get("toSet"), mapping(rollout.get("moving"))
    if not source or not target:
        return []
    result = [f"workers move from StatefulSet {source} to {target}"]
    ordinal = moving.get("ordinal")
    if not isinstance(ordinal, int):
        return result
    member = f"{metadata.get('name') or '?'}-{ordinal}"
    since, asked = _age(now_ms, moving.get("sinceMs")), _age(now_ms, moving.get("toldMs"))
    if moving.get("by") == "restart":
        how = (
            f"{member} moves by restart: {source}-{ordinal} stops before {target}-{ordinal} starts consuming"
        )
    else:
        how = f"{target}-{ordinal} takes over {member} from {source}-{ordinal}"
    after = f", for {since}" if since else ""
    return [*result, f"{how}{after}{f'; asked to take over {asked} ago' if asked else ''}"]


def _conditions(
    status: Mapping[str, Any], metadata: Mapping[str, Any], now_ms: int, before: Sequence[str]
) -> list[str]:
    """The conditions that report a problem, and Ready. A message stands once: not where the lines `before`
    have it, or another condition's message does."""
    shown = []
    for condition in objects(status.get("conditions")):
        kind, holds = str(condition.get("type")), str(condition.get("status"))
        if kind == _ALWAYS_SHOWN or WELL.get(kind, holds) != holds:
            shown.append(condition)
    messages = [str(condition.get("message")) for condition in shown]
    result = []
    for at, (condition, message) in enumerate(zip(shown, messages, strict=True)):
        longer = [other for other in messages[at + 1 :] if len(other) > len(message)]
        stands = any(message in text for text in (*before, *messages[:at], *longer))
        since = _age(now_ms, time_ms(condition.get("lastTransitionTime")))
        ago = f" (for {since})" if since else ""
        head = f"{condition.get('type')}={condition.get('status')} {condition.get('reason')}{ago}"
        result.append(head if stands else f"{head}: {message}")
    observed, wanted = status.get("observedGeneration"), metadata.get("generation")
    if isinstance(observed, int) and isinstance(wanted, int) and observed < wanted:
        result.append("the newest spec has not been looked at yet")
    return result


def _scaling(status: Mapping[str, Any], now_ms: int) -> list[str]:
    """The last scaling decision: raw, cap, damping, applied, reason."""
    scaling = mapping(status.get("scaling"))
    if not isinstance(scaling.get("applied"), int):
        return []
    raw, capped = scaling.get("raw"), scaling.get("capped")
    steps = [f"raw {raw:.1f}" if isinstance(raw, int | float) else "raw not known"]
    if isinstance(capped, int):
        by = f" by {scaling['cap']}" if scaling.get("cap") else ""
        steps.append(f"capped {capped}{by}")
    held = f" (held: {scaling['damping']})" if scaling.get("damping") else ""
    steps.append(f"applied {scaling['applied']}{held}")
    result = [f"scaling: {' -> '.join(steps)}: {scaling.get('reason') or '?'}"]
    step = mapping(scaling.get("lastStep"))
    if "before" in step and "after" in step:
        ago = _age(now_ms, step.get("at"))
        took = step.get("tookMs")
        cost = f", took {duration(took)}" if isinstance(took, int) else ""
        result.append(f"last step: {step['before']} to {step['after']}{f', {ago} ago' if ago else ''}{cost}")
    return result


def _history(status: Mapping[str, Any], now_ms: int) -> list[str]:
    result = []
    for decision in reversed(objects(status.get("decisions"))):
        ago = _age(now_ms, decision.get("at"))
        when = f"{ago} ago" if ago else "at some time"
        result.append(f"{when}: {decision.get('kind')} {decision.get('action')}: {decision.get('reason')}")
    return result


def _when_scaled(group: ConsumerGroup, status: Mapping[str, Any], now_ms: int) -> list[str]:
    policy = scaling_policy(group)
    replicas = status.get("desiredReplicas", status.get("replicas"))
    if group.spec.suspend:
        return ["workers run again when spec.suspend is false"]
    if not policy.automatic:
        return ["the number of workers changes when spec.replicas changes (kubectl scale, an HPA, KEDA)"]
    if not isinstance(replicas, int):
        return []
    answers = scaling_otherwise(policy, mapping(status.get("scaling")), replicas, now_ms)
    return answers + _not_obeyed(group, replicas)


def _not_obeyed(group: ConsumerGroup, replicas: int) -> list[str]:
    """That a number of workers in the spec has no effect, where a user may expect one."""
    asked, scaling = group.spec.replicas, group.spec.scaling
    if asked is None or asked == replicas or scaling is None:
        return []
    targets = {"catchUp": scaling.catch_up_ms, "lagPerReplica": scaling.lag_per_replica}
    given = " and ".join(f"spec.scaling.{name}" for name, value in targets.items() if value is not None)
    count = "1 worker" if asked == 1 else f"{asked} workers"
    return [f"{count}, as spec.replicas requests (kubectl scale, an HPA, KEDA), only without {given}"]


def _when_rolled(group: ConsumerGroup, status: Mapping[str, Any]) -> list[str]:
    rollout = mapping(status.get("rollout"))
    steps, step = group.spec.rollout.steps, mapping(rollout.get("step")).get("index")
    if isinstance(step, int) and 0 <= step < len(steps) and rollout.get("phase") in ("Rolling", "Paused"):
        return [_when_stepped(steps[step], step, len(steps))]
    away = ", ".join(str(restart.get("name")) for restart in objects(rollout.get("underWay")))
    if rollout.get("toSet") and rollout.get("phase") in ("Rolling", "RollingBack"):
        return _when_taken_over(rollout)
    if mapping(status.get("scaling")).get("damping") == AWAITS_REVISION:
        return _when_started(group, status, rollout.get("phase"))
    match rollout.get("phase"):
        case "Rolling":
            return [f"the rolling restart continues when {away or 'every worker'} is back in a stable group"]
        case "RollingBack":
            return [f"the rollback is complete when {away or 'every worker'} runs the previous revision"]
        case "Preflight":
            return ["the rolling restart begins when the preflight of the new revision has passed"]
        case "Paused":
            return [
                "the rolling restart continues when spec.rollout.paused (or the annotation "
                "slackwater.dev/paused) is false"
            ]
        case "Refused":
            return [
                "the rolling restart begins when restarts fit the budget: raise the session timeout or "
                "spec.rollout.sessionBudget"
            ]
        case "Stopped":
            return [
                "the revision is tried again when the spec or the annotation slackwater.dev/retry changes"
            ]
    failed = mapping(rollout.get("failed")).get("hash")
    if failed:
        return [f"revision {failed} is tried again when the annotation slackwater.dev/retry changes"]
    return ["workers are restarted when their template or the annotation slackwater.dev/restartedAt changes"]


def _when_started(group: ConsumerGroup, status: Mapping[str, Any], phase: object) -> list[str]:
    """Where no worker runs and the former revision does not start."""
    passed = "the preflight of the new revision has passed"
    result = [f"workers start when {passed}"]
    if phase == "Paused":
        paused = "spec.rollout.paused (or the annotation slackwater.dev/paused) is false"
        result = [f"workers start when {paused} and {passed}"]
    elif phase == "Stopped":
        changed = "the spec or the annotation slackwater.dev/retry has changed"
        result = [f"workers start when {changed} and {passed}"]
    former = mapping(status.get("kafka")).get("bootstrapServers")
    if former and former != group.spec.kafka.bootstrap_servers:
        result.append(f"workers start with the former revision when spec.kafka is set back to {former}")
    return result


def _when_stepped(step: Step, index: int, count: int) -> str:
    goes = f"the rollout goes on after step {index + 1} of {count} when"
    skips = "kubectl slackwater promote completes the step, kubectl slackwater abort goes back"
    if step.set_workers is not None:
        workers = step.set_workers if isinstance(step.set_workers, int) else f"{step.set_workers:.0%} of the"
        return f"{goes} {workers} workers run the revision; {skips}"
    if step.pause is not None:
        over = "its time is over" if step.pause.duration_ms is not None else "it is promoted"
        return f"{goes} {over}; {skips}"
    return f"{goes} all metrics have held for long enough; {skips}"


def _when_rewound(status: Mapping[str, Any]) -> list[str]:
    match mapping(status.get("rewind")).get("phase"):
        case "Checking":
            return ["the rewind stops the workers when its Job has checked the request"]
        case "Stopping":
            return ["the rewind's Job starts when no pod and no member is left"]
        case "Rewinding":
            return ["workers run again when the rewind's Job and its pod have ended"]
    return []


def _when_taken_over(rollout: Mapping[str, Any]) -> list[str]:
    moving, target = mapping(rollout.get("moving")), rollout.get("toSet")
    over = f"the rollout is complete when all workers are in StatefulSet {target}"
    if not isinstance(moving.get("ordinal"), int):
        return [f"the next takeover begins when all workers are in the group and it is stable; {over}"]
    pod = f"{target}-{moving['ordinal']}"
    if moving.get("toldMs"):
        return [f"the next takeover begins when {pod} has run without errors for a while; {over}"]
    ready = "runs" if moving.get("by") == "restart" else "is in standby and the group is stable"
    return [f"the takeover continues when {pod} {ready}; {over}"]


def _age(now_ms: int, at_ms: object) -> str:
    """The age of a time in the status; "" if unknown."""
    return age(number(at_ms, 1), now_ms)
