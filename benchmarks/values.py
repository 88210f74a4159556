"""CPU time to decode values of about 170 bytes, by format. Needs fastavro, protobuf and grpcio-tools."""

from __future__ import annotations

import argparse
import base64
import io
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from slackwater.pipeline.values import ValueDecoder, make_decoder
from slackwater.runtime.config.value_config import ValueConfig

BATCH = 5_000
ROW: dict[str, Any] = {
    "carrier": "UA", "flight": 1545, "origin": "EWR", "dest": "IAH", "tailnum": "N14228",
    "dep_delay": 2.0, "arr_delay": 11.5, "air_time": 227.0, "distance": 1400,
    "time_hour": "2013-01-01T05:00:00Z",
}  # fmt: skip
DDL = (
    "carrier STRING, flight INT, origin STRING, dest STRING, tailnum STRING, dep_delay DOUBLE, "
    "arr_delay DOUBLE, air_time DOUBLE, distance BIGINT, time_hour STRING"
)
_AVRO = {"STRING": "string", "INT": "int", "BIGINT": "long", "DOUBLE": "double"}
_PROTO = {"STRING": "string", "INT": "int32", "BIGINT": "int64", "DOUBLE": "double"}
_FIELDS = [field.split() for field in DDL.split(", ")]


def json_values() -> tuple[ValueConfig, bytes]:
    """The configuration and a value."""
    return ValueConfig("json", schema=DDL), json.dumps(ROW, separators=(",", ":")).encode()


def avro_values() -> tuple[ValueConfig, bytes]:
    """The same for Avro, with a text that makes the value as long."""
    import fastavro

    fields = [{"name": name, "type": _AVRO[kind]} for name, kind in _FIELDS]
    schema = {"type": "record", "name": "Flight", "fields": fields}
    stream = io.BytesIO()
    row = {**ROW, "tailnum": "N" * 105}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return ValueConfig("avro", schema=json.dumps(schema)), stream.getvalue()


def protobuf_values() -> tuple[ValueConfig, bytes]:
    """The same for Protobuf."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message_factory import GetMessageClass
    from grpc_tools import protoc

    from slackwater.pipeline.values.protobuf_schema import pool_of

    lines = [f"{_PROTO[kind]} {name} = {number};" for number, (name, kind) in enumerate(_FIELDS, 1)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "f.proto").write_text(f'syntax = "proto3"; message Flight {{ {" ".join(lines)} }}')
        protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={folder}/set", "f.proto"])
        data = (Path(folder) / "set").read_bytes()
    pool = pool_of(FileDescriptorSet.FromString(data).file)
    message: Any = GetMessageClass(pool.FindMessageTypeByName("Flight"))
    value: bytes = message(**{**ROW, "tailnum": "N" * 90}).SerializeToString()
    return ValueConfig("protobuf", schema=base64.b64encode(data).decode()), value


def seconds_a_million(decoder: ValueDecoder, values: Sequence[bytes], records: int) -> float:
    """CPU seconds for a million records, in batches of ``BATCH``."""
    batch = pa.array([values[n % len(values)] for n in range(BATCH)], pa.binary())
    decoder.decode(batch)
    began = time.process_time()
    for _ in range(records // BATCH):
        decoder.decode(batch)
    return (time.process_time() - began) / (records // BATCH * BATCH) * 1_000_000


def main() -> None:
    """Prints a line for each format."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.values", description=__doc__)
    parser.add_argument("records", nargs="?", type=int, default=200_000, metavar="RECORDS")
    records = parser.parse_args().records
    for make in (json_values, avro_values, protobuf_values):
        config, value = make()
        decoder = make_decoder(config, timeout_ms=0, start_timeout_ms=0)
        for what, values in {
            "good": [value],
            "1 in 1000 bad": [value] * 999 + [value[:-1]],
            "all bad": [value[:-1]],
        }.items():
            seconds = seconds_a_million(decoder, values, records)
            print(f"{config.format:8} {len(value)} B, {what}: {seconds:.1f} CPU s a million")


if __name__ == "__main__":
    main()
