"""The dev broker's notes of what it was asked, and the faults that need a running broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.devbroker import DevBroker, Fault
from slackwater.devbroker.control import ControlServer
from slackwater.devbroker.network.request_log import LoggedRequest
from slackwater.kafka.net import Cluster
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode


async def test_what_is_asked_is_noted_once_it_is_wanted(tmp_path: Path) -> None:
    async with DevBroker(tmp_path) as broker:
        cluster = Cluster(broker.bootstrap, client_id="me")
        try:
            await cluster.start()
            assert broker.requests.entries == []
            broker.requests.keep(2)
            heard: list[LoggedRequest] = []
            broker.requests.watchers.append(heard.append)
            fault = broker.faults.add(Fault(api="Heartbeat", group="g", error=ErrorCode.NOT_COORDINATOR))
            await cluster.refresh()
            for generation in (3, 4):
                await cluster.send(
                    1, m.HeartbeatRequest(group_id="g", generation_id=generation, member_id="m")
                )
            assert [request.api for request in heard] == ["Metadata", "Heartbeat", "Heartbeat"]
            last = broker.requests.entries
            assert [request.number for request in last] == [2, 3], "only the last two"
            assert [(request.fields["generation_id"], request.fault) for request in last] == [
                (3, fault.id),
                (4, None),
            ]
            assert last[0].client_id == "me"
            assert last[0].about == (("g", None, None),)
            assert last[0].to_json()["fields"]["member_id"] == "m"
            broker.requests.watchers.clear()
            broker.requests.keep(0)
            await cluster.refresh()
            assert broker.requests.entries == []
        finally:
            await cluster.close()


async def test_the_control_port_tells_them(tmp_path: Path) -> None:
    async with DevBroker(tmp_path, control_port=0) as broker:
        control = broker._control
        assert isinstance(control, ControlServer)
        assert control.call("POST", "/requests", b'{"keep": 10}') == {"keep": 10}
        cluster = Cluster(broker.bootstrap)
        try:
            await cluster.start()
        finally:
            await cluster.close()
        requests = control.call("GET", "/requests", b"")["requests"]
        assert [request["api"] for request in requests] == ["ApiVersions", "Metadata"]
        for bad in (b"{}", b'{"keep": -1}', b'{"keep": true}', b"[]"):
            with pytest.raises(Exception, match='give {"keep": N}'):
                control.call("POST", "/requests", bad)


async def test_api_versions_refused_in_the_form_of_version_0(tmp_path: Path) -> None:
    async with DevBroker(tmp_path) as broker:
        broker.requests.keep(10)
        broker.faults.add(Fault(api="ApiVersions", error=ErrorCode.UNSUPPORTED_VERSION))
        cluster = Cluster(broker.bootstrap)
        try:
            await cluster.start()
        finally:
            await cluster.close()
        assert [(entry.api, bool(entry.fault)) for entry in broker.requests.entries] == [
            ("ApiVersions", True),
            ("ApiVersions", False),
            ("Metadata", False),
        ]


async def test_a_throttled_answer_is_a_whole_answer(tmp_path: Path) -> None:
    async with DevBroker(tmp_path) as broker:
        broker.faults.add(Fault(api="Metadata", throttle_ms=7))
        cluster = Cluster(broker.bootstrap)
        try:
            await cluster.start()
            assert set(cluster.metadata.brokers) == {1}
        finally:
            await cluster.close()
        assert broker.faults.to_json()[0]["hits"] == 1
