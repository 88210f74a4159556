"""The format protobuf: types, presence, evolution, the wire format's message indexes."""

import base64
import datetime
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from slackwater.pipeline.values import ValueDecoder, make_decoder
from slackwater.pipeline.values.protobuf_schema import pool_of
from slackwater.runtime.config.value_config import RegistryConfig, ValueConfig
from slackwater.runtime.errors import ConfigError
from tests.support.registry import RegistryServer, framed, registry

UTC = datetime.UTC
FLIGHT = """
syntax = "proto3";
package air;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "plane.proto";
enum Kind { UNKNOWN = 0; CARGO = 1; }
message Flight {
  message Leg { string from = 1; int32 miles = 2; }
  string carrier = 1;
  int32 number = 2;
  uint32 u32 = 3;
  uint64 u64 = 4;
  sint64 s64 = 5;
  float f = 6;
  double d = 7;
  bool b = 8;
  bytes raw = 9;
  Kind kind = 10;
  optional double delay = 11;
  repeated Leg legs = 12;
  map<string, int32> counts = 13;
  map<int32, Leg> by = 14;
  oneof gate { string name = 15; int32 code = 16; }
  google.protobuf.Timestamp at = 17;
  google.protobuf.DoubleValue maybe = 18;
  Plane plane = 19;
  Node tree = 20;
  google.protobuf.Struct free = 21;
  repeated Kind kinds = 22;
}
message Node { int32 n = 1; Node next = 2; }
message Other { string x = 1; }
"""
PLANE = 'syntax = "proto3"; package air; message Plane { string tail = 1; }'


def compiled(folder: Path, **sources: str) -> list[FileDescriptorProto]:
    for name, text in sources.items():
        (folder / f"{name}.proto").write_text(text)
    out = folder / "set"
    bundled = Path(protoc.__file__).parent / "_proto"
    arguments = [f"-I{folder}", f"-I{bundled}", f"--descriptor_set_out={out}", "--include_imports"]
    assert protoc.main(["protoc", *arguments, f"{next(iter(sources))}.proto"]) == 0
    return list(FileDescriptorSet.FromString(out.read_bytes()).file)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[FileDescriptorProto]:
    return compiled(tmp_path_factory.mktemp("proto"), flight=FLIGHT, plane=PLANE)


def message(files: list[FileDescriptorProto], name: str = "air.Flight") -> Any:
    return GetMessageClass(pool_of(files).FindMessageTypeByName(name))


def make(**options: Any) -> ValueDecoder:
    return make_decoder(ValueConfig("protobuf", **options), timeout_ms=5_000, start_timeout_ms=5_000)


def inline(files: list[FileDescriptorProto]) -> str:
    return base64.b64encode(FileDescriptorSet(file=files).SerializeToString()).decode()


def decode(decoder: ValueDecoder, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    array, rejected = decoder.decode(pa.array(values, pa.binary()))
    array.validate(full=True)
    assert array.type == decoder.type
    return array.to_pylist(), dict(rejected)


def test_all_kinds_of_fields(files: list[FileDescriptorProto], tmp_path: Path) -> None:
    flight = message(files)()
    flight.carrier, flight.number, flight.u32, flight.u64, flight.s64 = (
        "UA",
        -3,
        4294967295,
        (1 << 64) - 1,
        -9,
    )
    flight.f, flight.d, flight.b, flight.raw, flight.kind, flight.delay = 0.5, 0.1, True, b"\0\xff", 1, 0.0
    flight.legs.add(**{"from": "EWR", "miles": 10})
    flight.counts["x"] = 1
    flight.by[7].miles = 2
    flight.code = 0
    flight.at.seconds, flight.at.nanos = 1357016400, 123456789
    flight.maybe.value = 0.0
    flight.plane.tail = "N1"
    flight.tree.next.n = 2
    flight.free.update({"k": 1})
    flight.kinds.extend([1, 0])
    wanted = {
        "carrier": "UA", "number": -3, "u32": 4294967295, "u64": decimal.Decimal((1 << 64) - 1), "s64": -9,
        "f": 0.5, "d": 0.1, "b": True, "raw": b"\0\xff", "kind": "CARGO", "delay": 0.0,
        "legs": [{"from": "EWR", "miles": 10}], "counts": [("x", 1)], "by": [(7, {"from": "", "miles": 2})],
        "name": None, "code": 0, "at": datetime.datetime(2013, 1, 1, 5, 0, 0, 123456, UTC), "maybe": 0.0,
        "plane": {"tail": "N1"}, "tree": {"n": 0, "next": flight.tree.next.SerializeToString()},
        "kinds": ["CARGO", "UNKNOWN"],
    }  # fmt: skip
    decoder = make(schema=inline(files))
    rows, rejected = decode(decoder, flight.SerializeToString(), None)
    assert rejected == {}
    assert rows[1] is None
    free = rows[0].pop("free")
    assert free["fields"][0][0] == "k"
    assert rows[0] == wanted
    (tmp_path / "set").write_bytes(FileDescriptorSet(file=files).SerializeToString())
    from_file = make(schema_file=str(tmp_path / "set"), message="air.Flight")
    assert from_file.type == decoder.type


def test_what_is_not_set(files: list[FileDescriptorProto]) -> None:
    row = decode(make(schema=inline(files)), b"")[0][0]
    assert {name for name, value in row.items() if value is None} == {
        "delay", "name", "code", "at", "maybe", "plane", "tree", "free",
    }  # fmt: skip
    assert (row["carrier"], row["number"], row["kind"], row["legs"], row["counts"]) == (
        "",
        0,
        "UNKNOWN",
        [],
        [],
    )


def test_bytes_that_are_no_message_cost_their_own_row(files: list[FileDescriptorProto]) -> None:
    flight = message(files)
    good = flight(carrier="UA").SerializeToString()
    seconds = b"\x08" + _varint(253_402_300_800)
    late = b"\x8a\x01" + _varint(len(seconds)) + seconds
    assert flight.FromString(late).at.seconds == 253_402_300_800
    deep = b""
    for _ in range(300):
        deep = b"\x12" + _varint(len(deep)) + deep
    unknown = good + b"\xf8\x7f\x05"
    enum = good + b"\x50\x63"
    values = (
        good,
        good[:-1],
        b"\x0a\x02\xff\xff",
        late,
        b"\xa2\x01" + _varint(len(deep)) + deep,
        unknown,
        enum,
    )
    rows, rejected = decode(make(schema=inline(files)), *values)
    assert [row is not None for row in rows] == [True, False, False, False, False, True, True]
    assert sorted(rejected) == [1, 2, 3, 4]
    assert all(reason.startswith("Protobuf value: the message air.Flight") for reason in rejected.values())
    assert "out of range" in rejected[3]
    assert rows[5] == rows[0]
    assert rows[6]["kind"] == "99"


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def registered(server: RegistryServer, files: list[FileDescriptorProto]) -> int:
    """Registers the file flight.proto and what it imports, as producers do."""
    by_name = {file.name: file for file in files}
    text = {name: base64.b64encode(file.SerializeToString()).decode() for name, file in by_name.items()}
    server.register("plane", text["plane.proto"], "PROTOBUF")
    reference = {"name": "plane.proto", "subject": "plane", "version": 1}
    return server.register("flights-value", text["flight.proto"], "PROTOBUF", [reference])


def test_schemas_of_the_registry(files: list[FileDescriptorProto], tmp_path: Path) -> None:
    newer = FLIGHT.replace("repeated Kind kinds = 22;", "repeated Kind kinds = 22; string added = 23;")
    with registry() as server:
        one = registered(server, files)
        decoder = make(registry=RegistryConfig((server.url,), subject="flights-value"))
        two = registered(server, compiled(tmp_path, flight=newer, plane=PLANE))
        flight, other = message(files), message(files, "air.Other")
        payload = flight(carrier="UA", number=7).SerializeToString()
        text = server.register("t", "{}", "JSON")
        values = [
            framed(one, b"\0" + payload),  # the first message, in its short form
            framed(one, b"\2\0" + payload),  # the same as a list of one index
            framed(two, b"\0" + payload + b"\xba\x01\x01x"),
            None,
            framed(one, b"\2\4" + other(x="y").SerializeToString()),
            framed(one, b"\2\x12" + payload),
            framed(one, b"\4\0\0" + payload),
            framed(one, b""),
            framed(one, b"\x7e"),
            framed(text, b"\0"),
            framed(77, b"\0"),
            framed(one, b"\2\5" + payload),
        ]
        rows, rejected = decode(decoder, *values)
        assert [row and (row["carrier"], row["number"]) for row in rows] == [("UA", 7)] * 3 + [None] * 9
        assert rows[2]["added"] == "x", "the latest schema is followed"
        assert {at: reason.removeprefix("Protobuf value: ") for at, reason in rejected.items()} == {
            4: "is a message air.Other, not air.Flight",
            5: "the schema has no message with the indexes [9]",
            6: "is a message air.Flight.Leg, not air.Flight",
            7: "has no message index at byte 5",
            8: "has 63 message indexes at byte 5; 1 to 32 are possible",
            9: "schema id 4 cannot be used: it is of type JSON, not PROTOBUF",
            10: "the schema registry does not know the schema id 77",
            11: "the schema has no message with the indexes [-3]",
        }
        nested = make(
            registry=RegistryConfig((server.url,), subject="flights-value"), message="air.Flight.Leg"
        )
        assert nested.type == pa.struct([("from", pa.string()), ("miles", pa.int32())])
        assert decode(nested, framed(one, b"\4\0\0\x10\x05")) == ([{"from": "", "miles": 5}], {})


def test_a_message_may_not_have_any_number_of_fields(tmp_path: Path) -> None:
    messages = "".join(f"message M{n} {{ M{n - 1} a = 1; M{n - 1} b = 2; }}" for n in range(1, 40))
    source = f'syntax = "proto3"; message M0 {{ string x = 1; }} {messages}'
    with pytest.raises(ConfigError, match="value.message: has more than 10000 fields"):
        make(schema=inline(compiled(tmp_path, deep=source)), message="M39")


def test_schemas_that_cannot_be_used_are_named(files: list[FileDescriptorProto]) -> None:
    for schema, said in [
        ("?", "value.schema: is not base64"),
        ("AAAA", "value.schema: is no descriptor set"),
        ("", "value.schema: is no descriptor set"),
        (inline(files[-1:]), "value.schema: the descriptors do not fit together.*plane.proto"),
    ]:
        with pytest.raises(ConfigError, match=said):
            make(schema=schema)
    with pytest.raises(ConfigError, match="message: there is no message air.Fligt; known: .*air.Flight"):
        make(schema=inline(files), message="air.Fligt")
    with pytest.raises(ConfigError, match="value.schemaFile: /none cannot be read"):
        make(schema_file="/none")
    with registry() as server:
        server.register("v", "no base64!", "PROTOBUF")
        with pytest.raises(ConfigError, match=r"url: the registry does not give .* format=serialized"):
            make(registry=RegistryConfig((server.url,), subject="v"))
        # No dead letters of all records: it is the registry's fault.
        decoder = make(schema=inline(files), registry=RegistryConfig((server.url,)))
        with pytest.raises(ConfigError, match=r"url: the registry does not give .* format=serialized"):
            decode(decoder, framed(1, b"\0"))
        server.register("w", "AAAA", "PROTOBUF")
        assert (
            "schema id 2 cannot be used: it is no file descriptor" in decode(decoder, framed(2, b"\0"))[1][0]
        )
