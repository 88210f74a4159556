"""The successor's side of a takeover: asks its predecessor for the handover, or takes over without it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from slackwater.kafka.errors import KafkaError
from slackwater.runtime.takeover.group_observer import GroupObserver, MemberView
from slackwater.runtime.takeover.http_client import NoAnswer, Reply, Unreachable, Unsigned
from slackwater.runtime.takeover.messages import HandoverAnswer, HandoverRequest
from slackwater.runtime.telemetry.timings import TakeoverRecord
from slackwater.runtime.worker_context import MainLoop, TakeoverContext, WorkerContext

UNREACHABLE_MS = 2_000.0
"""For how long a predecessor that takes no connection is tried."""
AGAIN_MS = 100.0
LOOK_AGAIN_MS = 200.0


@dataclass(frozen=True)
class TakeoverOutcome:
    """``answer``: the predecessor's; ``refused``: why there is no takeover; neither: take over without."""

    answer: HandoverAnswer | None = None
    refused: str = ""


class TakeoverAttempt:
    """One order to take over from a predecessor."""

    def __init__(
        self,
        context: WorkerContext,
        takeover_context: TakeoverContext,
        observer: GroupObserver,
        loop: MainLoop,
        record: TakeoverRecord,
        *,
        predecessor: str,
        target: str,
        address: str,
    ) -> None:
        """``predecessor``: its ``host:port``. ``target``: who requests to it are signed for, "": not known.
        ``address``: where this worker answers.
        """
        self._context, self._takeover_context, self._observer, self._loop, self._record = (
            context,
            takeover_context,
            observer,
            loop,
            record,
        )
        self._clock, self._predecessor, self._target = context.clock, predecessor, target
        self._deadline_ms = context.config.takeover_deadline_ms
        self._request = HandoverRequest(context.instance, context.pod, address, self._deadline_ms)
        self._may_wait = False
        """Whether the predecessor may be waiting for this worker's join."""
        self.member = MemberView(context.instance)
        """The last look at the group."""

    def run(self) -> TakeoverOutcome:
        """Requests the handover, in twice the deadline at most. An exception withdraws the request."""
        try:
            unsettled = self._until_stable()
            outcome = TakeoverOutcome(refused=unsettled) if unsettled else self._ask()
        except BaseException:
            self.withdraw()
            raise
        if outcome.refused:
            self._may_wait = False
        return outcome

    def withdraw(self) -> None:
        """Withdraws the request, if the predecessor may be waiting. Takes two seconds at most."""
        if self._may_wait:
            self._may_wait = False
            self._takeover_context.peers.withdraw(self._predecessor, self._context.pod)

    # ---- until the group is at rest

    def _until_stable(self) -> str:
        """Waits until the group is Stable with the member in it. Returns why it is not; "" where it is."""
        deadline = self._clock.mono_ms() + self._deadline_ms
        while True:
            try:
                member: MemberView = self._loop.wait_for(
                    self._takeover_context.watcher.submit(partial(self._observer.observe, offsets=False))
                )
                self.member = member
                if member.stable:
                    return ""
                why = f"the group is {member.state}" if member.taken else "the member is not in the group"
            except KafkaError as exc:
                why = f"the state of the group cannot be read: {exc}"
            if self._clock.mono_ms() >= deadline:
                return f"{why}, for {self._deadline_ms} ms"
            self._pause(LOOK_AGAIN_MS)

    def _pause(self, ms: float) -> None:
        until = self._clock.mono_ms() + ms
        self._loop.until(lambda: self._clock.mono_ms() >= until)

    # ---- the request

    def _ask(self) -> TakeoverOutcome:
        began = self._clock.mono_ms()
        self._request = replace(self._request, trace=self._record.asked())
        while True:
            left = began + self._deadline_ms - self._clock.mono_ms()
            try:
                if left <= 0:
                    raise NoAnswer(f"{self._predecessor} has not answered within {self._deadline_ms} ms")
                return self._read(self._post(left))
            except Unsigned as exc:
                return TakeoverOutcome(refused=str(exc))
            except NoAnswer as exc:
                return self._without(exc)
            except Unreachable as exc:
                if self._clock.mono_ms() - began >= min(UNREACHABLE_MS, self._deadline_ms):
                    return self._without(exc)
            self._pause(AGAIN_MS)

    def _post(self, timeout_ms: float) -> Reply:
        self._may_wait = True
        self._record.posts()
        handover = self._takeover_context.peers.handover
        post = partial(handover, self._predecessor, self._request, timeout_ms, self._target)
        reply: Reply = self._loop.wait_for(self._takeover_context.caller.submit(post))
        return reply

    def _read(self, reply: Reply) -> TakeoverOutcome:
        if reply.status == 503:
            raise NoAnswer(f"{self._predecessor}: {reply.document.get('error')}")
        if reply.status != 200:
            return TakeoverOutcome(
                refused=f"{self._predecessor}: {reply.document.get('error') or reply.status}"
            )
        try:
            answer = HandoverAnswer.parse(reply.document)
        except ValueError as exc:
            return TakeoverOutcome(refused=f"{self._predecessor} sent an invalid response: {exc}")
        self._record.answered(answer)
        return TakeoverOutcome(answer)

    def _without(self, why: Exception) -> TakeoverOutcome:
        self._context.log.line(f"takes over without a response: {why}")
        return TakeoverOutcome()
