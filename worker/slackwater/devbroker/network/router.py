"""Decodes requests, passes each to its handler, and applies injected faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slackwater.devbroker.faults import error_responses
from slackwater.devbroker.faults.rules import ActiveFault, Faults
from slackwater.devbroker.network.connection import BadRequest, Exchange
from slackwater.devbroker.network.request_log import RequestLog
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.frame import API_VERSIONS_KEY, RequestHeader, skip_request_tags
from slackwater.kafka.wire.primitives import Reader
from slackwater.kafka.wire.schema import Request, Response

Handler = Callable[[Exchange, Any], None]
FetchHandler = Callable[[Exchange, Any, ActiveFault | None], None]
MoveCoordinator = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its request, and the versions that are advertised.

    Versions below ``request.min_version`` are advertised where Kafka does so for the sake of old
    clients that would not connect otherwise; a request in them closes the connection.
    """

    request: type[Request[Any]]
    min_version: int
    max_version: int

    @property
    def name(self) -> str:
        """Kafka's name of the API."""
        return self.request.__name__.removesuffix("Request")


APIS: dict[int, Api] = {
    api.request.api_key: api
    for api in (
        Api(m.ProduceRequest, 0, 13),
        Api(m.FetchRequest, 4, 18),
        Api(m.ListOffsetsRequest, 1, 11),
        Api(m.MetadataRequest, 0, 13),
        Api(m.OffsetCommitRequest, 2, 10),
        Api(m.OffsetFetchRequest, 1, 10),
        Api(m.FindCoordinatorRequest, 0, 6),
        Api(m.JoinGroupRequest, 0, 9),
        Api(m.HeartbeatRequest, 0, 4),
        Api(m.LeaveGroupRequest, 0, 5),
        Api(m.SyncGroupRequest, 0, 5),
        Api(m.DescribeGroupsRequest, 0, 6),
        Api(m.ListGroupsRequest, 0, 5),
        Api(m.ApiVersionsRequest, 0, 4),
        Api(m.CreateTopicsRequest, 2, 7),
        Api(m.DeleteTopicsRequest, 1, 6),
        Api(m.InitProducerIdRequest, 0, 5),
        Api(m.DescribeConfigsRequest, 1, 4),
        Api(m.DeleteGroupsRequest, 0, 2),
        Api(m.DescribeClusterRequest, 0, 2),
        Api(m.ConsumerGroupHeartbeatRequest, 0, 1),
        Api(m.ConsumerGroupDescribeRequest, 0, 1),
        Api(m.OffsetForLeaderEpochRequest, 2, 4),
    )
}
"""The served APIs, in the versions of Apache Kafka 4.3 (its ApiVersions response)."""

API_NAMES = frozenset(api.name for api in APIS.values())


class Router:
    """Passes each request to its handler, or applies the fault that matches it."""

    def __init__(
        self,
        handlers: dict[int, Handler],
        fetch: FetchHandler,
        api_versions: Handler,
        faults: Faults,
        move_coordinator: MoveCoordinator,
        requests: RequestLog,
    ) -> None:
        self._handlers = handlers
        self._fetch = fetch
        self._api_versions = api_versions
        self._faults = faults
        self._move_coordinator = move_coordinator
        self._requests = requests

    def route(self, exchange: Exchange, reader: Reader) -> None:
        """Answers a request at once or later. Raises BadRequest or WireError if it cannot be decoded."""
        header = exchange.header
        api = APIS.get(header.api_key)
        if api is None:
            raise BadRequest(f"API key {header.api_key} is not served (version {header.api_version})")
        if not max(api.min_version, api.request.min_version) <= header.api_version <= api.max_version:
            self._refuse_version(exchange, api)
            return
        skip_request_tags(reader, header, api.request)
        # Bytes behind the body are ignored, as by a real broker.
        request = api.request.read_from(reader, header.api_version)
        fault = self._faults.take(api.name, header.client_id, request) if len(self._faults) else None
        if self._requests.on:
            self._requests.add(api.name, header, exchange.peer, request, fault.id if fault else None)
        if fault is None:
            self._handle(exchange, request, None)
        else:
            self._apply_fault(exchange, request, fault)

    def _refuse_version(self, exchange: Exchange, api: Api) -> None:
        header = exchange.header
        if header.api_key != API_VERSIONS_KEY:
            raise BadRequest(
                f"{api.name} version {header.api_version} is not served, only "
                f"{max(api.min_version, api.request.min_version)} to {api.max_version}"
            )
        self._api_versions(exchange, None)

    def _handle(self, exchange: Exchange, request: Request[Any], fault: ActiveFault | None) -> None:
        if isinstance(request, m.FetchRequest):
            self._fetch(exchange, request, fault)
        else:
            self._handlers[request.api_key](exchange, request)

    # -- faults -------------------------------------------------------------------------------

    def _apply_fault(self, exchange: Exchange, request: Request[Any], fault: ActiveFault) -> None:
        rule = fault.rule
        if rule.error is not None:
            self._answer_with_error(exchange, request, fault, rule.error)
        elif rule.delay_ms is not None:
            delay_s = rule.delay_ms / 1000
            asyncio.get_running_loop().call_later(delay_s, self._handle_later, exchange, request)
        elif rule.throttle_ms is not None:
            throttle_ms = rule.throttle_ms
            exchange.on_reply = lambda response: error_responses.changed(
                response, throttle_time_ms=throttle_ms
            )
            self._handle(exchange, request, None)
        elif rule.drop == "before":
            exchange.drop("a fault was injected")
        elif rule.drop == "after":
            exchange.on_reply = lambda _: None
            self._handle(exchange, request, None)
        else:
            self._move_coordinator(rule.move_coordinator or 0)
            self._handle(exchange, request, None)

    def _handle_later(self, exchange: Exchange, request: Request[Any]) -> None:
        if not exchange.done:
            exchange.guard(lambda: self._handle(exchange, request, None))

    def _answer_with_error(
        self, exchange: Exchange, request: Request[Any], fault: ActiveFault, code: ErrorCode
    ) -> None:
        if isinstance(request, m.FetchRequest):
            self._handle(exchange, request, fault)
        elif isinstance(request, m.ApiVersionsRequest) and code == ErrorCode.UNSUPPORTED_VERSION:
            # In the form of version 0, with the served versions (KIP-511).
            self._api_versions(exchange, None)
        elif isinstance(request, m.MetadataRequest | m.OffsetFetchRequest):
            exchange.on_reply = lambda response: _overlaid(response, request, exchange.header, fault, code)
            self._handle(exchange, request, None)
        else:
            self._split(exchange, request, fault, code)

    def _split(self, exchange: Exchange, request: Request[Any], fault: ActiveFault, code: ErrorCode) -> None:
        """The matching part of the request fails; the rest, if there is any, is handled."""
        hit, rest = error_responses.split(request, fault.matches)
        if isinstance(request, m.ProduceRequest) and request.acks == 0:
            if rest is not None:
                self._handle(exchange, rest, None)
            exchange.drop("a fault was injected into Produce with acks=0")
            return
        failed = error_responses.error_response(
            hit or request, exchange.header.api_version, code, "a fault was injected"
        )
        if rest is None:
            exchange.reply(failed)
            return
        exchange.on_reply = lambda handled: error_responses.merge(handled, failed)
        self._handle(exchange, rest, None)


def _overlaid(
    response: Any, request: Request[Any], header: RequestHeader, fault: ActiveFault, code: ErrorCode
) -> Response:
    """The true answer to a request that changes nothing, with the error laid over it."""
    if isinstance(request, m.MetadataRequest):
        by_partition = fault.rule.partition is not None
        return error_responses.with_metadata_errors(response, fault.matches, code, by_partition=by_partition)
    if isinstance(request, m.OffsetFetchRequest) and (fault.rule.topic or fault.rule.partition is not None):
        return error_responses.with_offset_fetch_errors(response, fault.matches, code, request.group_id)
    if header.api_version < 8:
        return error_responses.error_response(request, header.api_version, code, "")
    for group in response.groups:
        if fault.matches(group.group_id, None, None):
            group.error_code, group.topics = int(code), []
    return response  # type: ignore[no-any-return]
