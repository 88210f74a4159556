"""``consumer-metrics`` of the network, and ``consumer-node-metrics`` of each broker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from slackwater.kafka.metrics.raw import Source, Sources, values
from slackwater.kafka.metrics.sensors import (
    SensorMaker,
    SensorsByKey,
    Values,
    average_and_maximum,
    meter_of_events,
    meter_of_values,
)
from slackwater.kafka.net.connection_settings import Traffic


class _Flow:
    """Requests and answers, of all connections or those to one broker."""

    def __init__(self, make: SensorMaker) -> None:
        self.sent, self.received, self.latency = make(), make(), make()

    def values(self, now_ms: float) -> Values:
        return {
            **meter_of_events("request", self.sent, now_ms),
            **average_and_maximum("request-size", self.sent, now_ms),
            **meter_of_values("outgoing-byte", self.sent, now_ms),
            **meter_of_events("response", self.received, now_ms),
            **meter_of_values("incoming-byte", self.received, now_ms),
        }

    def values_of_node(self, now_ms: float) -> Values:
        latency = average_and_maximum("request-latency", self.latency, now_ms)
        return {**self.values(now_ms), **latency}


class NetMetrics(Traffic):
    """Written on the client's loop."""

    def __init__(self, clock_ms: Callable[[], float], make: SensorMaker, *, client: str = "consumer") -> None:
        """``client``: with what the names of the groups begin."""
        self._group, self._node_group = f"{client}-metrics", f"{client}-node-metrics"
        self._now = clock_ms
        self._all = _Flow(make)
        self._nodes: SensorsByKey[int, _Flow] = SensorsByKey(partial(_Flow, make))
        self._opened, self._closed = make(), make()
        self._transfers = make()
        self._logins = {(again, good): make() for again in (False, True) for good in (False, True)}
        self._relogin_latency = make()

    def opened(self) -> None:
        """A socket is connected."""
        self._opened.record(1, self._now())

    def closed(self) -> None:
        """A socket is closed."""
        self._closed.record(1, self._now())

    def sent(self, node: int, size_bytes: int) -> None:
        """A request was written."""
        now = self._now()
        for flow in (self._all, self._nodes.of(node)):
            flow.sent.record(size_bytes, now)
        self._transfers.record(size_bytes, now)

    def received(self, node: int, size_bytes: int, took_ms: float) -> None:
        """An answer came."""
        now = self._now()
        for flow in (self._all, self._nodes.of(node)):
            flow.received.record(size_bytes, now)
            flow.latency.record(took_ms, now)
        self._transfers.record(size_bytes, now)

    def logged_in(self, took_ms: float, *, again: bool) -> None:
        """A login was accepted."""
        now = self._now()
        self._logins[again, True].record(1, now)
        if again:
            self._relogin_latency.record(took_ms, now)

    def login_failed(self, *, again: bool) -> None:
        """A login was refused."""
        self._logins[again, False].record(1, self._now())

    def values(self) -> dict[str, Values]:
        """All figures by group; brokers' as ``consumer-node-metrics.node-ID``."""
        return values(self.sources(), self._now())

    def sources(self, of_client: Callable[[float], Values] = lambda _: {}) -> Sources:
        """Where they come from. ``of_client``: more figures of the client's own group."""
        own = Source(self._group, lambda now: {**self._values_of_all(now), **of_client(now)})
        sources = {self._group: own}
        for node, flow in self._nodes.items():
            group = f"{self._node_group}.node-{node}"
            sources[group] = Source(group, flow.values_of_node, {"node-id": f"node-{node}"})
        return sources

    def latency(self, now: float) -> Values:
        """``request-latency-avg`` and ``-max`` of all requests."""
        return average_and_maximum("request-latency", self._all.latency, now)

    def _values_of_all(self, now: float) -> Values:
        return {
            **self._all.values(now),
            **meter_of_events("network-io", self._transfers, now),
            **meter_of_events("connection-creation", self._opened, now),
            **meter_of_events("connection-close", self._closed, now),
            "connection-count": float(self._opened.count - self._closed.count),
            **meter_of_events("successful-authentication", self._logins[False, True], now),
            **meter_of_events("failed-authentication", self._logins[False, False], now),
            **meter_of_events("successful-reauthentication", self._logins[True, True], now),
            **meter_of_events("failed-reauthentication", self._logins[True, False], now),
            **average_and_maximum("reauthentication-latency", self._relogin_latency, now),
        }
