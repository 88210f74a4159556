"""One turn of a group: the world in, a plan out. Pure."""

from __future__ import annotations

from slackwater_operator.build.names import statefulset
from slackwater_operator.decide.conditions import Trouble
from slackwater_operator.decide.topics import TOPIC_MISSING, said_of_missing
from slackwater_operator.reconcile.deletion import end, wanted_finalizers
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.group_id import note_group_id
from slackwater_operator.reconcile.look import look
from slackwater_operator.reconcile.lost_log import tell_lost
from slackwater_operator.reconcile.members import open_gates, remove_orphans
from slackwater_operator.reconcile.objects import (
    apply_around,
    apply_sets,
    clean_up,
    mend_secret,
    note_foreign,
)
from slackwater_operator.reconcile.plan import Action, Plan, SetFinalizers, WriteStatus
from slackwater_operator.reconcile.revision import choose, forget_failure
from slackwater_operator.reconcile.rolling import roll
from slackwater_operator.reconcile.scaling import decide_replicas, fill_replicas, replicas_now
from slackwater_operator.reconcile.status import but_figures, status_of, status_of_trouble
from slackwater_operator.reconcile.takeover import take_over, takes_over, tell_orphans
from slackwater_operator.reconcile.world import World

STEADY_MS = 60_000
"""How long a group that nothing happens to may go without a turn."""

HINDERED_MS = 5_000
"""The same for one whose group.id somebody else has: that one's end is no event of this one."""


def turn(world: World) -> Plan:
    """Decides what is to be done now.

    The status comes first among the actions: what it says is going to be done may be found undone by the next
    turn, but nothing is done that no status tells of.
    """
    if world.deleting:
        return end(world)
    if world.group is None or world.revision is None:
        trouble = Trouble("InvalidSpec", world.error)
        status = status_of_trouble(
            {**world.status, "observedGeneration": world.generation},
            world.memory.conditions,
            world.generation,
            trouble,
            world.now_ms,
        )
        return Plan(_written(world, status), status, wake_ms=world.now_ms + STEADY_MS)
    draft = Draft.of(world, look(world))
    finalizers = wanted_finalizers(world)
    if finalizers is not None:
        draft.acts.append(SetFinalizers(finalizers))
    tell_lost(draft)
    if not (note_foreign(draft) or note_group_id(draft)):
        _work(draft)
    return _plan(draft)


def _tell_topics(draft: Draft) -> None:
    """Tells what has changed about the topics, and what is missing."""
    for change in draft.world.measured.topic_changes:
        draft.decided("topics", change.action, change.message)
        draft.report(change.reason, change.message, warning=change.warning)
    missing = draft.world.kafka.missing if draft.world.kafka is not None else ()
    if missing:
        draft.trouble(TOPIC_MISSING, said_of_missing(missing))


def _work(draft: Draft) -> None:
    _tell_topics(draft)
    forget_failure(draft)
    apply_around(draft)
    chosen = choose(draft)
    replicas = decide_replicas(draft)
    if draft.world.statefulset is None and chosen.template is not None:
        name = statefulset(draft.world.name, next(iter(draft.spans)))
        draft.tell("Created", f"StatefulSet {name} with {replicas} workers")
    at = len(draft.acts)
    removal = remove_orphans(draft, replicas)
    draft.takes_over = takes_over(draft, chosen)
    if draft.takes_over:
        take_over(draft, chosen, removal)
    else:
        roll(draft, chosen, removal)
    draft.acts[at:at] = apply_sets(draft, chosen.template)
    mend_secret(draft)
    tell_orphans(draft)
    open_gates(draft)
    clean_up(draft)
    fill_replicas(draft)


def _plan(draft: Draft) -> Plan:
    world, unsettled = draft.world, draft.look.unsettled
    status = status_of(draft)
    busy = draft.busy or bool(draft.acts) or (bool(unsettled) and not draft.hindered)
    return Plan(
        actions=_actions(draft, status),
        status=status,
        needs_fresh=draft.needs_fresh,
        busy=busy,
        settled=world.statefulset is not None and not unsettled,
        unsettled=unsettled,
        step=draft.step,
        decision=draft.scaling,
        replicas=replicas_now(world),
        unplanned=draft.unplanned,
        taken_over=tuple(draft.taken_over),
        orphans=draft.look.strangers,
        wake_ms=draft.wake_ms if busy else _next_ms(draft),
    )


def _next_ms(draft: Draft) -> int:
    """When to look again at the latest while nothing is under way."""
    steady_ms = draft.world.now_ms + (HINDERED_MS if draft.hindered else STEADY_MS)
    return steady_ms if draft.due_ms is None else min(steady_ms, draft.due_ms)


def _actions(draft: Draft, status: dict[str, object]) -> tuple[Action, ...]:
    """The status first (write-ahead); where only figures have changed in it, after what is more urgent."""
    written = _written(draft.world, status)
    if but_figures(status) == but_figures(draft.world.status):
        return (*draft.news, *draft.acts, *written, *draft.events)
    return (*written, *draft.news, *draft.acts, *draft.events)


def _written(world: World, status: dict[str, object]) -> tuple[Action, ...]:
    return (WriteStatus(status),) if status != world.status else ()
