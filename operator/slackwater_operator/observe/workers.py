"""What the workers say of themselves: GET /status of each pod, at the same time, each in bounded time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp

from slackwater.kafka.structs import TopicPartition

TIMEOUT_S = 1.0
LARGEST_BYTES = 4 * 1024 * 1024
"""A longer answer is none of a worker's: some 40 000 partitions would make one."""
CONNECTIONS = 200
"""How many pods are asked at the same time."""

log = logging.getLogger(__name__)


class PodAddress(NamedTuple):
    """Where a worker answers."""

    name: str
    ip: str
    port: int


@dataclass(frozen=True)
class RestartTimes:
    """When what happened at a worker's last return: wall clock of the machine it happened on, ms.

    None: not yet, or not known.

    Attributes:
        drain_ms: the process before began to drain.
        served_until_ms: that process's last commit.
        started_ms: this process began.
        joined_ms: it was in the group.
        first_record_ms: all partitions that it had got by then were served again.
    """

    drain_ms: int | None = None
    served_until_ms: int | None = None
    started_ms: int | None = None
    joined_ms: int | None = None
    first_record_ms: int | None = None


@dataclass(frozen=True)
class WorkerStatus:
    """A worker's /status. Times are wall clock, ms.

    Attributes:
        phase: as in docs/design/README.md, "Worker".
        generation: the group generation that it joined last, -1 before.
        member_id: Kafka's id of this incarnation.
        is_leader: whether it leads the group, as far as it knows.
        assignment: the partitions it holds.
        lag: records behind the committed offset, of the partitions where that is known.
        error: what has failed, "" if nothing has.
        started_ms: when its process began.
        joined_ms: when it was in the group first, None before.
        waiting_since_ms: since when it has been warm and waits to join, None when it does not.
        running_since_ms: since when it has been in phase `running`, None when it is not.
        last_gap_ms: how long its slowest partition was not served around its last restart, None if unknown.
        restart: the moments of that restart; None: the first process of its name, as far as it knows.
        returned: whether its last join was a return without a rebalance.
        generations: the last generations it joined, oldest first: (generation, whether it was the second half
            of a cooperative rebalance, when).
        rebalance_ms: when its last rebalance began and ended for it; the end is None while it goes on.
    """

    phase: str
    generation: int = -1
    member_id: str = ""
    is_leader: bool = False
    assignment: frozenset[TopicPartition] = frozenset()
    lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    error: str = ""
    started_ms: int | None = None
    joined_ms: int | None = None
    waiting_since_ms: int | None = None
    running_since_ms: int | None = None
    last_gap_ms: int | None = None
    restart: RestartTimes | None = None
    returned: bool = False
    generations: tuple[tuple[int, bool, int], ...] = ()
    rebalance_ms: tuple[int, int | None] | None = None

    @property
    def running(self) -> bool:
        """Whether it is in the group and handles records."""
        return self.phase == "running" and self.generation >= 0

    @property
    def served_until_ms(self) -> int | None:
        """The last commit of the process before this one, where that is known."""
        return self.restart.served_until_ms if self.restart is not None else None


def parse_status(document: Any) -> WorkerStatus:
    """A status from the JSON of /status; what an older worker doesn't tell is at its default.

    Raises:
        ValueError: it is no status.
    """
    try:
        gap, restart = document.get("last_gap"), document.get("restart")
        rebalance = document.get("rebalance")
        return WorkerStatus(
            phase=str(document["phase"]),
            generation=int(document["generation"]),
            member_id=str(document.get("member_id", "")),
            is_leader=bool(document.get("is_leader", False)),
            assignment=frozenset(TopicPartition(str(t), int(n)) for t, n in document["assignment"]),
            lag={_partition(name): int(lag) for name, lag in document.get("lag", {}).items()},
            error=str(document.get("error", "")),
            started_ms=_ms(document.get("started_ms")),
            joined_ms=_ms(document.get("joined_ms")),
            waiting_since_ms=_ms(document.get("waiting_since_ms")),
            running_since_ms=_ms(document.get("running_since_ms")),
            last_gap_ms=_ms(gap["gap_ms"]) if gap else None,
            restart=_restart(restart) if restart else None,
            returned=bool(document.get("returned", False)),
            generations=tuple((int(n), bool(f), int(at)) for n, f, at in document.get("generations", ())),
            rebalance_ms=(int(rebalance["started_ms"]), _ms(rebalance["ended_ms"])) if rebalance else None,
        )
    except (AttributeError, KeyError, TypeError) as exc:
        raise ValueError(f"no worker's status: {type(exc).__name__}: {exc}") from exc


def _restart(told: Mapping[str, Any]) -> RestartTimes:
    return RestartTimes(
        drain_ms=_ms(told.get("drain_ms")),
        served_until_ms=_ms(told.get("served_until_ms")),
        started_ms=_ms(told.get("started_ms")),
        joined_ms=_ms(told.get("joined_ms")),
        first_record_ms=_ms(told.get("first_record_ms")),
    )


def _ms(value: Any) -> int | None:
    return None if value is None else int(value)


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


class WorkerStatuses:
    """Asks workers, over one HTTP session. Its methods raise nothing that a worker can be blamed for."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """`timeout_s` bounds each request, with connecting."""
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(CONNECTIONS)

    def _open(self) -> aiohttp.ClientSession:
        """The session; one connection a request, since a pod's address may be another's soon."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def statuses(self, pods: Iterable[PodAddress]) -> dict[str, WorkerStatus | None]:
        """For each pod's name what it says; None where it does not answer, or not with a status."""
        asked = list(pods)
        told = await asyncio.gather(*(self._status(one) for one in asked))
        return {pod.name: status for pod, status in zip(asked, told, strict=True)}

    async def open_gate(self, ip: str, port: int) -> bool:
        """POST /join: lets a worker join that waits in phase `warm`. Whether it has taken that."""
        try:
            async with self._places, self._open().post(_url(ip, port, "join")) as answer:
                return answer.status == 202
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            log.debug("the gate at %s:%d does not answer: %s", ip, port, exc)
            return False

    async def close(self) -> None:
        """Closes the session. May be called again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _status(self, pod: PodAddress) -> WorkerStatus | None:
        try:
            async with self._places, self._open().get(_url(pod.ip, pod.port, "status")) as answer:
                if answer.status != 200 or (answer.content_length or 0) > LARGEST_BYTES:
                    return None
                return parse_status(await answer.json(content_type=None))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            log.debug("%s at %s:%d tells no status: %s", pod.name, pod.ip, pod.port, exc)
            return None


def _url(ip: str, port: int, path: str) -> str:
    return f"http://{f'[{ip}]' if ':' in ip else ip}:{port}/{path}"
