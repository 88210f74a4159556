"""What state a run's group is in: whether it is settled, what a rollout does, whether the run can go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.api.v1alpha1.spec.rollout_steps import Step
from slackwater_operator.api.v1alpha1.status.declaration import parse
from slackwater_operator.api.v1alpha1.status.rewind import DONE
from slackwater_operator.api.v1alpha1.status.rollout import (
    IDLE,
    PAUSED,
    PREFLIGHT,
    REFUSED,
    ROLLING,
    ROLLING_BACK,
    STOPPED,
    StepState,
)
from slackwater_operator.local.backend import LocalBackend
from slackwater_operator.local.machine.events import EXIT_BAD_CONFIG
from slackwater_operator.local.machine.worker import STANDBY, Worker
from slackwater_operator.local.report.views import RunError
from slackwater_operator.model import names
from slackwater_operator.planner.rollout.revision import PREFLIGHT_SAYS

_IN_PROGRESS = (ROLLING, ROLLING_BACK, PREFLIGHT)
_PROMOTE_OR_ABORT = "SIGUSR1 promotes the step, SIGUSR2 aborts the rollout"
_MAX_PREFLIGHTS = 2
"""How many preflights may fail because of their environment before any worker has run."""


class RolloutEnded(Exception):
    """A rollout has ended, or waits for a person, before all workers had the new revision. The message says
    why, and how to go on."""


class GroupState:
    """The group as the controller, the broker and the workers' events describe it.

    Attributes:
        group: the resource in types. The run replaces it with each edit.
    """

    def __init__(self, backend: LocalBackend, group: ConsumerGroup) -> None:
        """Reads nothing yet.

        Args:
            backend: runs the group.
            group: the resource.
        """
        self.group = group
        self._backend = backend

    @property
    def replicas(self) -> int:
        """How many workers the controller has decided on last; before that, what the resource asks for."""
        desired = self._backend.status.get("desiredReplicas")
        return int(desired) if desired is not None else self.group.initial_replicas

    @property
    def rollout(self) -> Mapping[str, Any]:
        """The status's `rollout`; empty without one."""
        return self._backend.status.get("rollout") or {}

    def moving_members(self) -> tuple[str, ...]:
        """The members that are being restarted or taken over."""
        rollout, name = self.rollout, self.group.name
        members = [names.member_of(name, str(pod.get("name"))) for pod in rollout.get("underWay") or []]
        moving = rollout.get("moving")
        if moving:
            members.append(self.group.instance_id(int(moving["ordinal"])))
        return tuple(members)

    def worker_of(self, member: str) -> Worker | None:
        """The worker that is `member` in the group; without one, a worker that is to become it."""
        workers = [worker for worker in self._backend.pods.workers if worker.name == member]
        candidates = [worker for worker in workers if not worker.stopping]
        joined = [worker for worker in candidates if worker.process is not None and worker.progress.member]
        if joined:
            return max(joined, key=lambda worker: worker.progress.joined_ms)
        return next(iter(candidates), None)

    def unread(self) -> str:
        """Which change the controller has not read yet, in words; "" if it has read all."""
        session, live = self._backend.session, self._backend.resource
        if live is None or session is None or session.plan is None or session.snapshot is None:
            return "the controller has not reconciled the group yet"
        metadata, snapshot = live["metadata"], session.snapshot
        annotations = metadata.get("annotations") or {}
        if (snapshot.generation, dict(snapshot.annotations)) != (metadata["generation"], annotations):
            return "the controller has not reconciled the change yet"
        return ""

    def unsettled(self) -> str:
        """Why the group is not settled, in words; "" when it is."""
        unread = self.unread()
        if unread:
            return unread
        session = self._backend.session
        assert session is not None
        assert session.plan is not None
        assert session.snapshot is not None
        rollout, plan = self.rollout, session.plan
        if rollout.get("phase", IDLE) in _IN_PROGRESS:
            return str(rollout.get("reason") or rollout["phase"])
        rewind = self._backend.status.get("rewind") or {}
        if rewind.get("phase", DONE) != DONE:
            return f"the rewind to {rewind.get('request')}: {rewind['phase']}"
        if not plan.settled:
            return plan.unsettled or "there are no workers yet"
        if plan.busy:
            return "the controller's last decision is being carried out"
        if plan.replicas != self.replicas:
            return f"there are {plan.replicas} of {self.replicas} workers"
        if plan.orphans:
            return f"{', '.join(plan.orphans)} is still in the group"
        if session.kafka is None or session.unanswered:
            return "the broker did not describe the group"
        workers = self._backend.pods.workers
        stopping = [worker.pod for worker in workers if worker.stopping]
        if stopping:
            return f"{', '.join(stopping)} is stopping"
        starting = [worker.pod for worker in workers if worker.progress.phase not in ("running", STANDBY)]
        if starting:
            return f"{', '.join(starting)} is not running"
        changed_ms = max((worker.progress.changed_ms for worker in workers), default=0)
        if min(session.kafka.at_ms, session.snapshot.now_ms) < changed_ms:
            session.wake.set()
            return "the last observation is older than the last change"
        return ""

    def rollout_left(self) -> str:
        """What a rollout still has to do, in words; "" when it is over.

        A pause of spec.rollout.steps that has a duration is part of the rollout, which goes on by itself.

        Raises:
            RolloutEnded: it has failed, or does not go on by itself, and nothing is in progress any more.
        """
        unread = self.unread()
        if unread:
            return unread
        rollout = self.rollout
        phase = rollout.get("phase", IDLE)
        reason = str(rollout.get("reason") or phase)
        if phase == PAUSED and not self._pause_ends() and not self.unsettled():
            at_step = not self._holds_all and self._step() is not None
            raise RolloutEnded(f"{reason} ({_PROMOTE_OR_ABORT})" if at_step else reason)
        if phase in (STOPPED, REFUSED) and not self.unsettled():
            failed = rollout.get("failed") or {}
            raise RolloutEnded(failed.get("reason") or reason)
        return "" if phase == IDLE else reason

    @property
    def _holds_all(self) -> bool:
        """Whether the user has paused the rollout as a whole, whatever its step."""
        session = self._backend.session
        return session is not None and session.snapshot is not None and session.snapshot.rollout_policy.paused

    def _step(self) -> Step | None:
        """The step of spec.rollout.steps that the rollout is at; None if it is at none."""
        state, steps = parse(StepState, self.rollout.get("step")), self.group.spec.rollout.steps
        return steps[state.index] if state is not None and state.index < len(steps) else None

    def _pause_ends(self) -> bool:
        """Whether the rollout is paused by a step for a time, after which it goes on."""
        step = self._step()
        timed = step is not None and step.pause is not None and step.pause.duration_ms is not None
        return timed and not self._holds_all

    def fatal_error(self, *, max_failures: int, logs: Path) -> RunError | None:
        """Why the run cannot go on; None while it can.

        Args:
            max_failures: how many times in a row a worker may fail without a commit.
            logs: the folder of the workers' logs, for the message.
        """
        rollout, session = self.rollout, self._backend.session
        failed = rollout.get("failed") or {}
        reason = str(failed.get("reason") or "")
        tries = rollout.get("tries") or {}
        if not reason and int(tries.get("attempts") or 0) >= _MAX_PREFLIGHTS:
            reason = str(tries.get("reason"))
        if session is not None and session.snapshot is not None and not session.snapshot.sets and reason:
            return RunError(reason.removeprefix(PREFLIGHT_SAYS))
        if rollout.get("phase", IDLE) in _IN_PROGRESS:
            return None  # the planner ends a rollout that fails, and the run continues as before
        workers = [worker for worker in self._backend.pods.workers if not worker.stopping]
        if workers and all(worker.last_exit == EXIT_BAD_CONFIG for worker in workers):
            error = next((worker.last_error for worker in workers if worker.last_error), "")
            return RunError(error or f"{workers[0].name} refused its configuration")
        for worker in workers:
            if worker.failures >= max_failures:
                error = worker.last_error or f"exit code {worker.last_exit}"
                times = f"{worker.failures} times in a row"
                log = logs / f"{worker.pod}.err"
                return RunError(f"{worker.name} failed {times}: {error} (see {log})")
        return None
