"""Requests to workers: GET /status of all pods at once, gates and takeovers, each in bounded time."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import aiohttp

from slackwater.clock import SYSTEM_CLOCK
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.untrusted import flag, json_object, one_line, text, whole
from slackwater.runtime.takeover.messages import split_address
from slackwater.runtime.takeover.signing import ANSWER_HEADER, check_answer, sign_request, target_of
from slackwater.tracing.context import HEADER as TRACE_HEADER
from slackwater_operator.api.v1alpha1.status.group_status import Skip
from slackwater_operator.model.worker_status import (
    RestartTimes,
    StandbyStatus,
    StoppedPartition,
    TakeoverStatus,
    WorkerCounts,
    WorkerStatus,
)
from slackwater_operator.workers.bounded_http import Answer, BadAnswer, bounded_session, request

TIMEOUT_S = 1.0
LARGEST_BYTES = 1024 * 1024
"""Of a status. Some 5,000 partitions make one; and to read it holds the operator for no more than 50 ms."""
MOST_PARTITIONS = 10_000
"""Of a worker, as far as its status is read."""
LARGEST_REPLY_BYTES = 64 * 1024
"""Of the answer to POST /join and POST /takeover."""
CONNECTIONS = 200
"""How many pods are asked at the same time."""

ACCEPTED, UNAUTHORIZED, NOT_FOUND = 202, 401, 404
"""What POST /join and POST /takeover may end in; an order to take over also in 409."""
_LONGEST_ERROR = 500
_LONGEST_TRACE = 256
_LONGEST_MESSAGE = 2_000
_REASON = re.compile("[A-Za-z]{1,64}")
"""What becomes the reason of a condition, which the API server checks."""
_LONGEST_NAME = 253
"""Of a pod, as Kubernetes takes it; a topic's has 249."""
_MAX_INT32 = 2**31 - 1
_MAX_MS = 10**15
"""Some 30,000 years: so that no sum of times is beyond what a metric or a clock can hold."""
_MAX_COUNT = 2**63 - 1
_MOST_FAULTS = 1_000
_MOST_PROCESSES = 10_000

log = logging.getLogger(__name__)


class PodAddress(NamedTuple):
    """A worker's address."""

    name: str
    ip: str
    port: int


def parse_status(document: Any) -> WorkerStatus:
    """A status from the JSON of /status; fields that an older worker lacks have their defaults.

    Raises:
        ValueError: it is no status, or a figure is not in its range.
    """
    try:
        gap, restart = document.get("last_gap"), document.get("restart")
        rebalance = document.get("rebalance")
        standby, takeover = document.get("standby"), document.get("takeover")
        return WorkerStatus(
            phase=text(document["phase"], "phase", _LONGEST_NAME),
            generation=_generation(document["generation"], "generation"),
            member_id=text(document.get("member_id", ""), "member_id"),
            is_leader=flag(document.get("is_leader", False), "is_leader"),
            assignment=frozenset(
                TopicPartition(
                    text(topic, "assignment", _LONGEST_NAME), whole(number, "assignment", 0, _MAX_INT32)
                )
                for topic, number in _few(document["assignment"], "assignment")
            ),
            lag={
                _partition(name, "lag"): whole(lag, "lag", -1)
                for name, lag in _few(document.get("lag", {}).items(), "lag")
            },
            error=one_line(text(document.get("error", ""), "error", LARGEST_BYTES), _LONGEST_ERROR),
            started_ms=_ms(document, "started_ms"),
            joined_ms=_ms(document, "joined_ms"),
            waiting_since_ms=_ms(document, "waiting_since_ms"),
            running_since_ms=_ms(document, "running_since_ms"),
            last_gap_ms=_duration(gap["gap_ms"], "last_gap") if gap else None,
            restart=_restart(restart) if restart else None,
            returned=flag(document.get("returned", False), "returned"),
            generations=tuple(_joined(join) for join in _few(document.get("joins", ()), "joins")),
            rebalance_ms=_rebalance(rebalance) if rebalance else None,
            process=_token(document),
            pod=text(document.get("pod") or "", "pod", _LONGEST_NAME),
            holder=text(document.get("holder") or "", "holder", _LONGEST_NAME),
            standby=_standby(standby) if standby else None,
            takeover=_takeover(takeover) if takeover else None,
            stopped=tuple(_stopped(entry) for entry in _few(document.get("stopped", ()), "stopped")),
            skipped=tuple(_skip(entry) for entry in _few(document.get("skipped", ()), "skipped")),
            counts=_counts(counts) if (counts := document.get("counts")) else None,
        )
    except (AttributeError, KeyError, TypeError) as exc:
        raise ValueError(f"not a worker's status: {type(exc).__name__}: {one_line(exc)}") from exc


def _restart(fields: Mapping[str, Any]) -> RestartTimes:
    return RestartTimes(
        drain_ms=_ms(fields, "drain_ms"),
        served_until_ms=_ms(fields, "served_until_ms"),
        started_ms=_ms(fields, "started_ms"),
        joined_ms=_ms(fields, "joined_ms"),
        first_record_ms=_ms(fields, "first_record_ms"),
        trace=text(fields.get("traceparent") or "", "restart.traceparent", _LONGEST_TRACE),
    )


def _rebalance(fields: Mapping[str, Any]) -> tuple[int, int | None]:
    return whole(fields["started_ms"], "rebalance.started_ms", 0, _MAX_MS), _ms(fields, "ended_ms")


def _standby(fields: Mapping[str, Any]) -> StandbyStatus:
    return StandbyStatus(
        since_ms=whole(fields["since_ms"], "standby.since_ms", 0, _MAX_MS),
        handed_over=flag(fields.get("handed_over", False), "standby.handed_over"),
        prefetched_partitions=whole(fields.get("prefetched_partitions", 0), "standby.prefetched_partitions"),
        told=flag(fields.get("told", False), "standby.told"),
        reason=one_line(text(fields.get("reason") or "", "standby.reason", LARGEST_BYTES), _LONGEST_ERROR),
    )


def _takeover(fields: Mapping[str, Any]) -> TakeoverStatus:
    return TakeoverStatus(
        predecessor=text(fields.get("from") or "", "takeover.from", _LONGEST_NAME),
        asked_ms=_ms(fields, "asked_ms"),
        drain_ms=_ms(fields, "drain_ms"),
        committed_ms=_ms(fields, "committed_ms"),
        answered_ms=_ms(fields, "answered_ms"),
        joined_ms=_ms(fields, "joined_ms"),
        first_record_ms=_ms(fields, "first_record_ms"),
        written_ms=_ms(fields, "written_ms"),
        generation_before=_generation(fields.get("generation_before"), "takeover.generation_before"),
        generation=_generation(fields.get("generation"), "takeover.generation"),
        forced=flag(fields.get("forced", False), "takeover.forced"),
        pauses_ms=_durations(fields, "pauses_ms"),
        waiting_ms=_durations(fields, "waiting_ms"),
    )


def _durations(fields: Mapping[str, Any], name: str) -> dict[TopicPartition, int]:
    where = f"takeover.{name}"
    return {
        _partition(partition, where): _duration(ms, where)
        for partition, ms in _few((fields.get(name) or {}).items(), where)
    }


def _stopped(fields: Mapping[str, Any]) -> StoppedPartition:
    reason = fields["reason"]
    if not isinstance(reason, str) or not _REASON.fullmatch(reason):
        raise ValueError(f"not a worker's status: {one_line(repr(reason), 100)} is not a valid reason")
    message = text(fields["message"], "stopped.message", LARGEST_BYTES)
    partition = _partition(fields["partition"], "stopped.partition")
    return StoppedPartition(partition, reason, one_line(message, _LONGEST_MESSAGE))


def _skip(fields: Mapping[str, Any]) -> Skip:
    return Skip(
        *_partition(fields["partition"], "skipped.partition"),
        from_offset=whole(fields["from"], "skipped.from"),
        to_offset=whole(fields["to"], "skipped.to"),
        cause=one_line(text(fields["cause"], "skipped.cause", LARGEST_BYTES), _LONGEST_ERROR),
        at_ms=whole(fields["at_ms"], "skipped.at_ms", 0, _MAX_MS),
    )


def _counts(fields: Mapping[str, Any]) -> WorkerCounts:
    return WorkerCounts(
        *(
            whole(fields[name], f"counts.{name}", 0, _MAX_COUNT)
            for name in ("records", "dead_letters", "handler_failures")
        )
    )


def _token(fields: Mapping[str, Any]) -> str:
    process = text(fields.get("process", ""), "process", _LONGEST_NAME)
    target_of("", process)
    return process


def _generation(value: Any, name: str) -> int:
    return -1 if value is None else whole(value, name, -1, _MAX_INT32)


def _joined(join: Mapping[str, Any]) -> tuple[int, bool, int]:
    """A generation that was joined, whether it is the second half of a cooperative rebalance, and when."""
    generation, at_ms = join["generation"], whole(join["at_ms"], "joins.at_ms", 0, _MAX_MS)
    return _generation(generation, "joins.generation"), join["kind"] == "follow_up", at_ms


def _ms(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return None if value is None else whole(value, name, 0, _MAX_MS)


def _duration(value: Any, name: str) -> int:
    # Below 0 where the clocks of two machines differ.
    return whole(value, name, -_MAX_MS, _MAX_MS)


def _partition(written: str, name: str) -> TopicPartition:
    topic, _, number = text(written, name, _LONGEST_NAME + 12).rpartition("-")
    if not (number.isascii() and number.isdigit()):
        raise ValueError(f"{name} has {one_line(repr(written), 100)}, which is not a partition")
    return TopicPartition(topic, whole(int(number), name, 0, _MAX_INT32))


def _few(items: Collection[Any], name: str) -> Collection[Any]:
    if len(items) > MOST_PARTITIONS:
        raise ValueError(f"{name} has {len(items)} entries; the limit is {MOST_PARTITIONS}")
    return items


class WorkerStatuses:
    """Asks workers, over one HTTP session. Its methods raise nothing that a worker can be blamed for."""

    def __init__(
        self,
        *,
        timeout_s: float = TIMEOUT_S,
        wall_ms: Callable[[], int] = SYSTEM_CLOCK.wall_ms,
        nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """Opens nothing yet.

        Args:
            timeout_s: bounds each request, with connecting.
            wall_ms: the time that requests are signed with.
            nonce: gives the nonce of each of them.
        """
        self._timeout_s = timeout_s
        self._wall_ms, self._nonce = wall_ms, nonce
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(CONNECTIONS)
        self._processes: dict[tuple[str, int], tuple[str, str]] = {}
        """Address -> the pod and the process that answered there last."""
        self._faults: dict[str, str] = {}
        """Pod -> what was wrong with its last answer: each is logged once."""

    def _open(self) -> aiohttp.ClientSession:
        """The session; one connection a request, since a pod's address may be another's soon."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False)
            self._session = bounded_session(self._timeout_s, connector=connector)
        return self._session

    async def statuses(self, pods: Iterable[PodAddress]) -> dict[str, WorkerStatus | None]:
        """Each pod's status by its name; None without a valid response."""
        asked = list(pods)
        statuses = await asyncio.gather(*(self._status(address) for address in asked))
        return {pod.name: status for pod, status in zip(asked, statuses, strict=True)}

    def heard(self, pod: PodAddress, process: str) -> None:
        """Remembers the process (``process`` in its /status) that answers for a pod; "": it has told none."""
        if len(self._processes) >= _MOST_PROCESSES:
            self._processes.clear()
        self._processes[pod.ip, pod.port] = pod.name, process

    async def open_gate(self, ip: str, port: int, pod: str, key: bytes = b"") -> int:
        """POST /join: lets a worker join that waits in phase `warm`; announces to others that members come or
        go.

        Args:
            ip: its address.
            port: its port.
            pod: its name: no other pod takes the request.
            key: the group's takeover key, which the request is signed with; empty: the group has none.

        Returns:
            The HTTP status: 202 where it has taken that, 401 where it has a key, and this is another; 0 where
            there was no answer.
        """
        return await self._notify("join", PodAddress(pod, ip, port), key)

    async def leave(self, ip: str, port: int, pod: str, key: bytes = b"") -> int:
        """POST /leave: has a worker leave the group if it ends within a minute. As `open_gate`; 404 where the
        worker is of an earlier release."""
        return await self._notify("leave", PodAddress(pod, ip, port), key)

    async def _notify(self, what: str, pod: PodAddress, key: bytes) -> int:
        try:
            if key:
                answer, _ = await self._post(pod, f"/{what}", b"", key)
            else:
                answer = await self._ask("POST", _url(pod.ip, pod.port, what))
            return answer.status
        except (BadAnswer, aiohttp.ClientError, TimeoutError, OSError) as exc:
            log.debug("worker %s:%d did not answer the request to %s: %s", pod.ip, pod.port, what, exc)
            return 0

    async def take_over(
        self, ip: str, port: int, pod: str, predecessor: str, key: bytes, trace: str = ""
    ) -> tuple[int, str]:
        """POST /takeover: tells a standby to take over.

        Args:
            ip: the standby's address.
            port: its port.
            pod: its name: no other pod takes the request.
            predecessor: "host:port" of the pod that it asks for the handover; "": there is nobody to ask.
            key: the group's takeover key, which the request is signed with.
            trace: the context of the takeover's trace, for the header traceparent; "": none.

        Returns:
            The HTTP status and what was said against it: 202 and "" where it was taken, 409 where it is not
            in the phase for it, 400 where the address is none, 401 where it has another key (or another
            time), 404 where it has none; 0 where there was no answer, or one that no worker with this key
            has signed.
        """
        order = json.dumps({"predecessor": predecessor, "target": self._target_at(predecessor)}).encode()
        try:
            answer, nonce = await self._post(PodAddress(pod, ip, port), "/takeover", order, key, trace)
        except (BadAnswer, aiohttp.ClientError, TimeoutError, OSError) as exc:
            return 0, f"{ip}:{port} does not respond: {one_line(exc) or type(exc).__name__}"
        status, answered, text = answer
        # Who has no key, or another, cannot sign.
        if status == NOT_FOUND:
            return status, "the worker has no key for takeovers (it was started with strategy Restart)"
        if status == UNAUTHORIZED:
            return status, f"the worker rejected the signature: {_error(text) or 'it has another key'}"
        if not check_answer(key, nonce, status, text, answered.get(ANSWER_HEADER, "")):
            return 0, f"the response from {ip}:{port} was not signed with the group's key"
        return status, "" if status == ACCEPTED else _error(text) or f"HTTP {status}"

    def _target(self, pod: PodAddress) -> str:
        """Who a request to a pod is signed for; "" where its process is not known, or tells none."""
        name, process = self._processes.get((pod.ip, pod.port), ("", ""))
        return target_of(name, process) if name == pod.name else ""

    def _target_at(self, address: str) -> str:
        """Who a request to the worker at "host:port" is signed for, as far as its /status was read."""
        try:
            name, process = self._processes.get(split_address(address), ("", ""))
        except ValueError:
            return ""
        return target_of(name, process)

    async def _post(
        self, pod: PodAddress, path: str, body: bytes, key: bytes, trace: str = ""
    ) -> tuple[Answer, str]:
        """A signed POST: its answer and its nonce.

        A worker whose process is not known, or is another by now, names it in its 401, and is asked once
        more; the pod's name is the one known here, whatever the worker says.
        """
        target = self._target(pod)
        answer, nonce = await self._post_to(target, pod, path, body, key, trace)
        if answer.status == UNAUTHORIZED and (process := _process(answer.body)):
            self.heard(pod, process)
            if self._target(pod) != target:
                answer, nonce = await self._post_to(self._target(pod), pod, path, body, key, trace)
        return answer, nonce

    async def _post_to(
        self, target: str, pod: PodAddress, path: str, body: bytes, key: bytes, trace: str
    ) -> tuple[Answer, str]:
        now_ms, nonce = self._wall_ms(), self._nonce()
        signed = sign_request(key, "POST", path, body, now_ms=now_ms, nonce=nonce, target=target)
        headers = {"Authorization": signed, "Content-Type": "application/json"}
        if trace:
            headers[TRACE_HEADER] = trace
        return await self._ask("POST", _url(pod.ip, pod.port, path[1:]), body=body, headers=headers), nonce

    async def close(self) -> None:
        """Closes the session. May be called again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _status(self, pod: PodAddress) -> WorkerStatus | None:
        try:
            answer = await self._ask("GET", _url(pod.ip, pod.port, "status"), most_bytes=LARGEST_BYTES)
            if answer.status != 200:
                raise BadAnswer(f"HTTP {answer.status}")
            status = parse_status(json_object(answer.body))
        except (BadAnswer, ValueError) as exc:
            self._warn(pod, one_line(exc))
            return None
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            log.debug("%s at %s:%d did not report its status: %s", pod.name, pod.ip, pod.port, one_line(exc))
            return None
        self._faults.pop(pod.name, None)
        self.heard(pod, status.process)
        return status

    async def _ask(
        self,
        method: str,
        url: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        most_bytes: int = LARGEST_REPLY_BYTES,
    ) -> Answer:
        async with self._places:
            session = self._open()
            return await request(session, method, url, most_bytes=most_bytes, body=body, headers=headers)

    def _warn(self, pod: PodAddress, fault: str) -> None:
        """Logs what is wrong with a pod's answers, once for as long as it is the same."""
        if self._faults.get(pod.name) == fault:
            return
        if len(self._faults) >= _MOST_FAULTS:
            self._faults.clear()
        self._faults[pod.name] = fault
        log.warning(
            "pod %s at %s:%d sent an invalid response to /status and counts as not responding: %s; check "
            "that its image is a worker's",
            pod.name,
            pod.ip,
            pod.port,
            fault,
        )


def _process(body: bytes) -> str:
    """The process that a 401 response names; "" for none."""
    try:
        return _token(json_object(body))
    except ValueError:
        return ""


def _error(body: bytes) -> str:
    """The error in a response; "" without a readable one."""
    try:
        return one_line(json_object(body)["error"], _LONGEST_ERROR)
    except (ValueError, KeyError):
        return ""


def _url(ip: str, port: int, path: str) -> str:
    return f"http://{f'[{ip}]' if ':' in ip else ip}:{port}/{path}"
