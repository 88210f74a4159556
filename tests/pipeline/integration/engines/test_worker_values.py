"""Workers with typed values: exact rows and dead letters; a schema registry that is down is waited for."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.processes import reserve_ports
from tests.support.registry import RegistryServer, framed, registry
from tests.support.waiting import wait_until
from tests.support.workers.group_site import GroupSite

HANDLER = """
import pyarrow as pa
import pyarrow.compute as pc


def transform(table):
    value = table["value"].combine_chunks()
    place = table.select(["topic", "partition", "offset"])
    carrier = pc.struct_field(value, "carrier")
    odd = pc.if_else(pc.equal(carrier, "odd"), "is odd", None)
    place = place.append_column("carrier", carrier).append_column("delay", pc.struct_field(value, "delay"))
    return place.append_column("none", pc.is_null(value)).append_column("_error", odd)
"""
PARTITIONS = 2
JSON = {"format": "json", "schema": "carrier STRING NOT NULL, delay DOUBLE"}
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "double"], "default": None},
    ],
}


@pytest.fixture
def site(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[GroupSite]:
    with GroupSite(
        broker.bootstrap, tmp_path, handler=HANDLER, partitions=PARTITIONS, dead_letters=1
    ) as made:
        yield made


def config(site: GroupSite, value: dict[str, Any]) -> dict[str, Any]:
    properties = {"session.timeout.ms": "45000", "max.poll.records": "50"}
    return site.config(engine="arrow", value=value, properties=properties)


def rows(site: GroupSite) -> list[tuple[Any, ...]]:
    columns = ("partition", "offset", "carrier", "delay", "none")
    return sorted(tuple(row[name] for name in columns) for row in site.output.rows(*columns))


def letters(site: GroupSite) -> dict[tuple[int, int], tuple[bytes | None, str]]:
    made = site.dead_letters()
    by_source = {one.source: (one.value, one.headers["slackwater.error"].decode()) for one in made}
    assert len(by_source) == len(made)
    return by_source


def test_values_that_are_no_json_are_dead_letters_and_all_others_rows(site: GroupSite) -> None:
    bad = {
        b'{"carrier": "UA"': "JSON value: is not JSON at byte 16: ",
        b'{"carrier": 7}': "JSON value: field carrier: must be text, not a number",
        b'{"delay": 1.5}': "JSON value: field carrier: is missing, and it is NOT NULL",
        b"\xff\x00": "JSON value: is not UTF-8 at byte 0",
        b'{"carrier": "x"}{"carrier": "y"}': "JSON value: is not JSON at byte 16: Extra data",
        b"": "JSON value: is not JSON at byte 0: ",
        b'{"carrier": "odd"}': "is odd",
    }
    records: list[tuple[int, bytes | None]] = []
    wanted, rejected, ends = [], {}, dict.fromkeys(range(PARTITIONS), 0)
    for number in range(400):
        partition = number % PARTITIONS
        offset = ends[partition]
        ends[partition] += 1
        value: bytes | None = json.dumps({"carrier": f"c{number}", "delay": number, "more": [1]}).encode()
        row: tuple[Any, ...] = (partition, offset, f"c{number}", float(number), False)
        if number % 9 == 0:
            value = list(bad)[number // 9 % len(bad)]
            rejected[partition, offset] = value, bad[value]
        elif number % 50 == 1:
            value, row = None, (partition, offset, None, None, True)
            wanted.append(row)
        else:
            wanted.append(row)
        records.append((partition, value))
    site.write(records)  # type: ignore[arg-type]  # librdkafka takes None
    worker = site.start_worker("w-0", config(site, JSON))
    site.until_committed(why=site.why)
    assert worker.terminate() == 0
    assert rows(site) == sorted(wanted)
    found = letters(site)
    assert {place: value for place, (value, _) in found.items()} == {
        place: value for place, (value, _) in rejected.items()
    }
    for place, (_, reason) in rejected.items():
        assert found[place][1].startswith(reason), found[place]


def test_a_registry_that_is_down_is_waited_for(site: GroupSite) -> None:
    server = RegistryServer(port=reserve_ports(1)[0], status=503)
    flight_id = server.register("flights-value", json.dumps(AVRO))
    schema = fastavro.parse_schema(AVRO)
    records = []
    for number in range(100):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, {"carrier": f"c{number}", "delay": number / 2})
        records.append((number % PARTITIONS, framed(flight_id + (number == 50), stream.getvalue())))
    site.write(records)
    value = {"format": "avro", "readerSchema": json.dumps(AVRO), "registry": {"url": server.url}}
    worker = site.start_worker("w-0", config(site, value))
    worker.until("assigned")
    with server:
        wait_until(lambda: len(server.requests) > 2, site.why)
        assert site.committed() == {0: 0, 1: 0}
        assert site.output.files() == []
        server.status = None
        site.until_committed(why=site.why)
        assert worker.terminate() == 0
    wanted = [(n % PARTITIONS, n // PARTITIONS, f"c{n}", n / 2, False) for n in range(100) if n != 50]
    assert rows(site) == sorted(wanted)
    reason = f"Avro value: the schema registry does not know the schema id {flight_id + 1}"
    assert letters(site) == {(0, 25): (records[50][1], reason)}


@pytest.mark.long
def test_a_registry_that_refuses_the_worker_ends_it(site: GroupSite) -> None:
    site.write([(0, framed(1, b"\2"))])
    with registry(credentials=("reader", "secret")) as server:
        server.register("flights-value", json.dumps(AVRO))
        value = {"format": "avro", "registry": {"url": server.url, "subject": "flights-value"}}
        worker = site.start_worker("w-0", config(site, value))
        assert worker.wait() == 2
        assert "value.registry" in worker.why("")
        assert "refuses the worker (HTTP 401" in worker.why("")
    assert site.committed() == {0: 0, 1: 0}
