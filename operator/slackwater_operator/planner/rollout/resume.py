"""Decides whether workers may start where none run, while another revision than theirs is wanted.

Without workers, nothing is gained by starting the former revision just before the wanted one replaces it. The
former revision may be the reason why the workers were stopped: its handler is faulty, or its brokers are the
ones that the group leaves.
"""

from __future__ import annotations

from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.rollout.revision import Chosen, leaves_kafka


def held_at_zero(context: PlanningContext, chosen: Chosen) -> str:
    """Why no worker starts with the template that the StatefulSet has, in words; "" if workers may start.

    Nothing starts on the brokers of another Kafka than the one that the spec names, whatever becomes of the
    preflight. On the same Kafka the start waits for the first preflight of the wanted revision. If that
    fails, the former revision starts, as it goes on where workers run.
    """
    snapshot = context.snapshot
    there, revision = snapshot.statefulset, snapshot.revision
    if there is None or revision is None or there.template == revision.hash or chosen.template is not None:
        return ""
    if leaves_kafka(snapshot):
        assert snapshot.running is not None
        return f"no worker starts on the former brokers ({snapshot.running.bootstrap_servers})"
    if chosen.preparing:
        return "no worker starts before the preflight of the new revision has passed"
    return ""
