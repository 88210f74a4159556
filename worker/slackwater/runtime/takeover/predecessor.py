"""The predecessor's side of a takeover: drain, commit, answer, and wait for the fence.

Until it is fenced it is the member and polls with all partitions paused, so that the group does not notice.
If its successor does not join, it resumes its work.
"""

from __future__ import annotations

from functools import partial

from slackwater.runtime.call_threads import Task
from slackwater.runtime.delivery.loop import SLICE_MS, Delivery
from slackwater.runtime.errors import FencedError
from slackwater.runtime.shutdown import Stopping
from slackwater.runtime.takeover.http_handler import PendingHandover, TakeoverRequests
from slackwater.runtime.takeover.messages import HandedOver, HandoverAnswer
from slackwater.runtime.takeover.roles import PROBE_EVERY_MS, RoleEvent, Roles, Unfenced
from slackwater.runtime.telemetry.takeover_trace import HandoverTrace
from slackwater.runtime.worker_context import MainLoop, TakeoverContext, WorkerContext

DRAIN_SHARE = 0.8
"""Of the successor's deadline: the answer must reach it before."""


class Handover:
    """Hands over, as often as it is asked to."""

    def __init__(
        self,
        context: WorkerContext,
        takeover_context: TakeoverContext,
        requests: TakeoverRequests,
        loop: MainLoop,
        roles: Roles,
        stopping: Stopping,
    ) -> None:
        self._context, self._takeover_context, self._requests, self._loop = (
            context,
            takeover_context,
            requests,
            loop,
        )
        self._roles, self._stopping, self._clock = roles, stopping, context.clock
        self.given: HandedOver | None = None
        """The successor that was answered, and that will fence this process."""

    def run(self, delivery: Delivery, asked: PendingHandover) -> bool:
        """Answers ``asked``, and waits until the successor has joined or will not join.

        Returns whether the worker is to end as it is: a stop was requested after the answer. False: it
        goes on. Raises FencedError when the successor has joined: after the answer, or at its deadline.
        """
        self.given = None
        if not delivery.settled:
            self._requests.refuse_handovers("the group is not stable, as far as this worker knows")
            self._requests.accept_handovers()
            return False
        self.given = HandedOver(asked.request.by, asked.request.address)
        self._roles.take(RoleEvent.ASKED)
        self._loop.enter("handing-over")
        trace = HandoverTrace(
            self._context.tracing,
            self._clock,
            member=self._context.instance,
            pod=self._context.status.pod,
            by=asked.request.by,
            request=asked.request.trace,
        )
        try:
            ends = self._answer_and_wait(delivery, asked, trace)
        except FencedError:
            trace.end("handed over")
            raise
        except BaseException as exc:
            trace.end("failed", f"{type(exc).__name__}: {exc}")
            raise
        trace.end("stopped" if ends else "resumed")
        return ends

    def _answer_and_wait(self, delivery: Delivery, asked: PendingHandover, trace: HandoverTrace) -> bool:
        try:
            answer = self._drain(delivery, asked)
        except BaseException as exc:
            asked.refuse(f"the handover failed: {type(exc).__name__}: {exc}")
            raise
        if self._requests.withdrawn:
            asked.refuse("it was withdrawn")
            return self._go_on(delivery, "its successor has withdrawn")
        asked.answer(answer)
        trace.answered()
        self._context.events.emit(
            "handover",
            by=asked.request.by,
            generation=answer.generation,
            offsets_count=len(answer.offsets),
            drain_took_ms=answer.committed_ms - answer.drain_ms,
        )
        return self._wait(delivery, asked)

    def _drain(self, delivery: Delivery, asked: PendingHandover) -> HandoverAnswer:
        began = self._clock.wall_ms()
        delivery.drain(min(self._context.config.drain_timeout_ms, asked.request.deadline_ms * DRAIN_SHARE))
        now = self._clock.mono_ms()
        return HandoverAnswer(
            self._context.status.generation,
            delivery.offsets_for_successor(),
            began,
            self._clock.wall_ms(),
            delivery.unserved_ms(now),
            max(0, round(now - asked.received_ms)),
            self._clock.mono_id(),
            round(now),
        )

    def _wait(self, delivery: Delivery, asked: PendingHandover) -> bool:
        """Polls until the broker says that another process is the member, or the successor will not join."""
        unfenced = Unfenced(self._clock.mono_ms(), asked.request.deadline_ms)
        probe = partial(self._takeover_context.peers.alive, asked.request.address)
        probing: Task | None = None
        probed_ms = -float("inf")
        while not self._stopping.count:
            delivery.step(SLICE_MS)
            now = self._clock.mono_ms()
            if probing is None and now - probed_ms >= PROBE_EVERY_MS:
                probed_ms, probing = now, self._takeover_context.caller.submit(probe)
            elif probing is not None and probing.wait(0):
                unfenced.silence.probed(probing.result(), probed_ms)
                probing = None
            unfenced.withdrawn = self._requests.withdrawn
            reason = unfenced.due(now)
            if reason and delivery.commits.still_owner():
                return self._go_on(delivery, reason)
        return True

    def _go_on(self, delivery: Delivery, reason: str) -> bool:
        """The successor has not joined: resumes work."""
        self.given = None
        self._roles.take(RoleEvent.KEPT)
        delivery.release()
        self._loop.enter("running")
        self._requests.accept_handovers()
        self._context.metrics.count("takeovers", ("taken_back",))
        self._context.events.emit("took_back", reason=reason)
        self._context.log.line(f"resumes its work: {reason}")
        return False
