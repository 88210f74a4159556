"""One client per (API, error code): meets the error at the dev broker, and is watched at what it does then.

A walk has a client id of its own, to which its faults are narrowed and by which its requests are found in the
broker's log; so all walks run side by side against one broker on one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from slackwater.devbroker import DevBroker, Fault
from slackwater.devbroker.network.request_log import LoggedRequest
from slackwater.kafka import AsyncConsumer, TopicPartition
from slackwater.kafka.error_hints import hint
from slackwater.kafka.errors import KafkaError, for_code
from slackwater.kafka.protocol.actions import Action
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.support.waiting import WAIT_S

TOPIC = "walked"
RECORDS = 20
BACKOFF_MS = 40
HEARTBEAT_MS = 150
TP = TopicPartition(TOPIC, 0)


@dataclass(frozen=True)
class Case:
    """A pair, the action that the table has for it, and where in the answer the error stands."""

    api: str
    code: E
    action: Action
    by_partition: bool = False
    drop: str | None = None
    """In place of an error: the connection is closed ``before`` or ``after`` the request was handled."""

    @property
    def id(self) -> str:
        if self.drop is not None:
            return f"{self.api}-dropped-{self.drop}"
        place = "-of-a-partition" if self.by_partition else ""
        return f"{self.api}-{self.code.name}{place}-{self.action.name}"


@dataclass
class RecordingListener:
    """A rebalance listener that notes what it is told."""

    events: list[tuple[str, list[TopicPartition]]] = field(default_factory=list)

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.events.append(("revoked", list(revoked)))

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.events.append(("assigned", list(assigned)))

    def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        self.events.append(("lost", list(lost)))

    def kinds(self) -> list[str]:
        return [kind for kind, partitions in self.events if partitions]


class Walk:
    """What a case's client does, as the broker sees it and as its user does."""

    def __init__(self, broker: DevBroker, case: Case, number: int) -> None:
        self.broker, self.case = broker, case
        self.name = f"walk-{number}"
        self.requests: list[LoggedRequest] = []
        self.news = asyncio.Event()
        self.listener = RecordingListener()
        self.errors: list[BaseException] = []
        self.values = 0
        self._polling: asyncio.Task[None] | None = None

    @property
    def place(self) -> tuple[str | None, int | None]:
        """The topic and partition that the case's error stands at; ``None``: at the top."""
        return (TOPIC, 0) if self.case.by_partition else (None, None)

    # -- the broker's side -------------------------------------------------------------------------

    def note(self, request: LoggedRequest) -> None:
        self.requests.append(request)
        self.news.set()

    def fault(
        self, api: str = "", code: E | None = None, topic: str | None = None, partition: int | None = None
    ) -> int:
        """Puts the case's error (or another) in the client's way, once; gives the fault's id."""
        own = not api and code is None
        rule = Fault(
            api=api or self.case.api,
            drop=self.case.drop if own else None,
            error=(None if self.case.drop else self.case.code) if own else code,
            client_id=self.name,
            times=1,
            topic=topic,
            partition=partition,
        )
        return self.broker.faults.add(rule).id

    async def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Waits until something is true, looking at each request and each step of the client."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not (value := condition()):
                    self.news.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await self.news.wait()
                return value
        except TimeoutError:
            asked = [f"{s.number}:{s.api}{'!' if s.fault else ''}" for s in self.requests[-25:]]
            raise AssertionError(
                f"{what}: not seen; asked {asked}, told {self.listener.events}, errors {self.errors}"
            ) from None

    async def hit(self, fault: int) -> LoggedRequest:
        """The request that ran into a fault."""

        def find() -> LoggedRequest | None:
            return next((request for request in self.requests if request.fault == fault), None)

        request: LoggedRequest = await self.until(
            find, f"{self.case.api} that runs into {self.case.code.name}"
        )
        return request

    def after(self, mark: LoggedRequest, api: str, **fields: Any) -> list[LoggedRequest]:
        """Requests to an API behind ``mark``, with these plain fields."""
        return [
            request
            for request in self.requests
            if request.number > mark.number
            and request.api == api
            and all(request.fields.get(name) == value for name, value in fields.items())
        ]

    async def next(self, mark: LoggedRequest, api: str, **fields: Any) -> LoggedRequest:
        """The first such request, waited for."""
        requests = await self.until(
            lambda: self.after(mark, api, **fields), f"{api} {fields} after the error"
        )
        first: LoggedRequest = requests[0]
        return first

    async def again(self, mark: LoggedRequest) -> LoggedRequest:
        """The same request again, not before the back-off (less a fifth of jitter, and grain) is over."""
        repeated = await self.next(mark, mark.api)
        assert repeated.at_ms - mark.at_ms >= 0.7 * BACKOFF_MS, "sent again without a back-off"
        return repeated

    async def silence(self, *apis: str) -> None:
        """None of these requests comes any more, for several heartbeats' time."""
        came: list[str] = []
        # What was on its way when the user was told may still come in, on a busy machine for a while.
        for _ in range(3):
            mark = self.requests[-1]
            await asyncio.sleep(4 * HEARTBEAT_MS / 1000)
            came = [request.api for api in apis for request in self.after(mark, api)]
            if not came:
                return
        raise AssertionError(f"still asked: {came}")

    # -- the user's side ---------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def consumer(self, *, group: bool = True, **more: Any) -> AsyncIterator[AsyncConsumer]:
        """A consumer that has begun, and is closed at the end."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.broker.bootstrap,
            "client_id": self.name,
            "group_id": self.name if group else None,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "retry_backoff_ms": BACKOFF_MS,
            "retry_backoff_max_ms": 4 * BACKOFF_MS,
            "reconnect_backoff_ms": BACKOFF_MS,
            "fetch_max_wait_ms": 60,
            "default_api_timeout_ms": 60_000,
            **more,
        }
        if options.get("group_protocol") != "consumer":
            options |= {"session_timeout_ms": 30_000, "heartbeat_interval_ms": HEARTBEAT_MS}
        consumer = AsyncConsumer(**options)
        await consumer.start()
        try:
            yield consumer
        finally:
            if self._polling is not None:
                self._polling.cancel()
                await asyncio.gather(self._polling, return_exceptions=True)
            await consumer.stop(autocommit=False)

    def poll(self, consumer: AsyncConsumer) -> None:
        """Polls from now on, in the background; what is raised is kept, and polling goes on."""
        self._polling = asyncio.create_task(self._poll(consumer))

    async def _poll(self, consumer: AsyncConsumer) -> None:
        while True:
            try:
                for records in (await consumer.poll(100)).values():
                    self.values += len(records)
            except KafkaError as exc:
                self.errors.append(exc)
                await asyncio.sleep(0.02)
            self.news.set()

    @contextlib.asynccontextmanager
    async def member(self, *, static: bool = True, **more: Any) -> AsyncIterator[AsyncConsumer]:
        """A member of a group of its own that is settled and has read all there is."""
        instance = f"{self.name}-i" if static else None
        async with self.consumer(group_instance_id=instance, **more) as consumer:
            consumer.subscribe([TOPIC], listener=self.listener)
            self.poll(consumer)
            await self.until(
                lambda: self.values >= RECORDS and consumer.membership().state == "stable", "a settled member"
            )
            self.listener.events.clear()
            yield consumer

    async def raised(self, kind: type[BaseException] | None = None) -> BaseException:
        """What ``poll()`` raises: an error of the case's code, or of ``kind``."""
        wanted = kind or type(for_code(self.case.code))

        def find() -> BaseException | None:
            return next((error for error in self.errors if isinstance(error, wanted)), None)

        raised: BaseException = await self.until(find, f"poll() that raises {wanted.__name__}")
        self.check_message(raised)
        return raised

    def check_message(self, error: BaseException) -> None:
        """In the message: the code's name, what it is about (API, topic or group), and what to do."""
        text = str(error)
        assert self.case.code.name in text, text
        if self.case.action is Action.FATAL:
            advice = hint(self.case.code, self.case.api)
            assert advice in text, text
            assert advice or "set " in text or "raise " in text or "Choose " in text, text
        if self.case.action is not Action.FENCED:
            assert self.case.api in text, text
        assert TOPIC in text or self.name in text or self.case.api in ("InitProducerId", "Fetch"), text
