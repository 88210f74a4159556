"""The coordinator's file: what survives a crash, a damaged byte and a full disk."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from slackwater.devbroker.group import FileGroupStore, GroupStoreError, store
from slackwater.devbroker.group.store import (
    GroupRecord,
    OffsetRecord,
    Record,
    StoredMember,
    StoreImage,
    decode_records,
    encode_records,
)
from slackwater.kafka.wire.errors import DecodeError
from tests.support.devbroker.coordinator import Bench


def offset(value: int, partition: int = 0, topic: str = "t", group: str = "g") -> OffsetRecord:
    return OffsetRecord(group_id=group, topic=topic, partition=partition, offset=value, metadata="m\u20ac")


GROUP = GroupRecord(
    group_id="g",
    generation=7,
    protocol_type="consumer",
    protocol="range",
    leader="a-1",
    members=[StoredMember(member_id="a-1", instance_id="a", metadata=b"\0\1", assignment=b"x" * 300)],
)


def test_what_was_appended_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "groups.log"
    first = FileGroupStore(path)
    first.append([GROUP, offset(1), offset(2, partition=1)])
    first.append([offset(3)])
    first.append([OffsetRecord(group_id="g", topic="t", partition=1, deleted=True)])
    image = first.image
    first.close()
    again = FileGroupStore(path)
    assert again.image == image
    assert again.image.groups == {"g": GROUP}
    assert again.image.offsets["g"]["t"] == {0: offset(3)}
    assert again.truncated_bytes == 0
    again.close()


def test_every_cut_of_the_last_frame_loses_that_frame_only(tmp_path: Path) -> None:
    path = tmp_path / "groups.log"
    group_store = FileGroupStore(path)
    group_store.append([offset(1)])
    whole = path.stat().st_size
    group_store.append([offset(2), offset(2, partition=1)])
    group_store.close()
    data = path.read_bytes()
    for cut in range(whole, len(data)):
        path.write_bytes(data[:cut])
        opened = FileGroupStore(path)
        assert opened.image.offsets == {"g": {"t": {0: offset(1)}}}
        assert opened.truncated_bytes == cut - whole
        opened.append([offset(9)])
        opened.close()
        assert _reopened(path).offsets["g"]["t"] == {0: offset(9)}


def test_every_damaged_byte_of_the_last_frame_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "groups.log"
    group_store = FileGroupStore(path)
    group_store.append([offset(1)])
    whole = path.stat().st_size
    group_store.append([offset(2)])
    group_store.close()
    data = path.read_bytes()
    for position in range(whole, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        assert _reopened(path).offsets == {"g": {"t": {0: offset(1)}}}


def test_a_file_of_zeros_behind_the_last_frame_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "groups.log"
    group_store = FileGroupStore(path)
    group_store.append([offset(1)])
    group_store.close()
    path.write_bytes(path.read_bytes() + bytes(4096))
    opened = FileGroupStore(path)
    assert opened.truncated_bytes == 4096
    opened.close()


def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "groups.log"
    path.write_bytes(b"something else entirely")
    with pytest.raises(GroupStoreError, match=r"groups\.log is not a group store"):
        FileGroupStore(path)
    assert path.read_bytes() == b"something else entirely"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GroupStoreError, match=r"no/groups\.log: No such file or directory"):
        FileGroupStore(tmp_path / "no" / "groups.log")


def test_opening_compacts(tmp_path: Path) -> None:
    path = tmp_path / "groups.log"
    group_store = FileGroupStore(path)
    for value in range(500):
        group_store.append([offset(value)])
    group_store.close()
    long = path.stat().st_size
    FileGroupStore(path).close()
    assert path.stat().st_size < long / 100
    assert _reopened(path).offsets == {"g": {"t": {0: offset(499)}}}
    assert [entry.name for entry in tmp_path.iterdir()] == ["groups.log"]


def test_a_long_file_is_compacted_while_it_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_COMPACT_FROM_BYTES", 4_000)
    path = tmp_path / "groups.log"
    group_store = FileGroupStore(path)
    for value in range(1_000):
        group_store.append([offset(value, partition=value % 3)])
        assert path.stat().st_size < 4_200
    group_store.close()
    assert _reopened(path).offsets["g"]["t"] == {
        0: offset(999),
        1: offset(997, partition=1),
        2: offset(998, partition=2),
    }


def test_a_left_over_of_a_compaction_that_was_killed_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "groups.log"
    group_store = FileGroupStore(path)
    group_store.append([offset(1)])
    group_store.close()
    (tmp_path / "groups.log.new").write_bytes(b"half a f")
    assert _reopened(path).offsets == {"g": {"t": {0: offset(1)}}}


def test_nothing_can_be_appended_after_closing(tmp_path: Path) -> None:
    group_store = FileGroupStore(tmp_path / "groups.log")
    group_store.close()
    with pytest.raises(GroupStoreError, match="is closed"):
        group_store.append([offset(1)])


def test_what_a_failed_append_left_is_cut_off_later_if_not_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "groups.log"
    group_store = FileGroupStore(path)
    group_store.append([offset(1)])
    write, truncate = os.pwrite, os.ftruncate

    def half(fd: int, data: memoryview, position: int) -> int:
        write(fd, data[: len(data) // 2], position)
        raise OSError(28, "No space left on device")

    def broken(fd: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        patch.setattr(os, "ftruncate", broken)
        with pytest.raises(GroupStoreError, match=r"groups\.log: No space left on device"):
            group_store.append([offset(2, topic="long" * 100)])
        with pytest.raises(GroupStoreError, match="Input/output error"):
            group_store.append([offset(2)])
    assert os.ftruncate is truncate
    group_store.append([offset(3)])
    group_store.close()
    again = FileGroupStore(path)
    assert again.truncated_bytes == 0
    assert again.image.offsets == {"g": {"t": {0: offset(3)}}}
    again.close()


def test_a_compacted_file_is_on_the_disk_before_it_takes_the_old_ones_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "groups.log"
    steps: list[str] = []
    sync, replace = os.fsync, os.replace

    def noted_sync(fd: int) -> None:
        steps.append("fsync")
        sync(fd)

    def noted_replace(old: Path, new: Path) -> None:
        steps.append("replace")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    FileGroupStore(path).close()
    assert steps == ["fsync", "replace", "fsync"]


def test_a_coordinator_over_a_file_is_the_same_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "groups.log"
    first = FileGroupStore(path)
    bench = Bench(store=first)
    ids = bench.form_static("a", "b")
    bench.commit(ids["a"], 1, "a", offset=5)
    before = bench.described()
    first.close()
    second = FileGroupStore(path)
    bench = Bench(store=second)
    after = bench.described()
    assert after["offsets"] == before["offsets"]
    for old, new in zip(before["members"], after["members"], strict=True):
        assert {k: old[k] for k in ("member_id", "instance_id", "client_host", "assignment_bytes")} == {
            k: new[k] for k in ("member_id", "instance_id", "client_host", "assignment_bytes")
        }
    second.close()


# -- the records themselves

_TEXT = st.text(max_size=20)
_OFFSETS = st.builds(
    OffsetRecord,
    group_id=st.sampled_from("gh"),
    topic=st.sampled_from("tu"),
    partition=st.integers(0, 3),
    deleted=st.booleans(),
    offset=st.integers(-1, 2**63 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=_TEXT,
)
_MEMBERS = st.builds(
    StoredMember, member_id=_TEXT, instance_id=st.none() | _TEXT, metadata=st.binary(max_size=9)
)
_GROUPS = st.builds(
    GroupRecord,
    group_id=st.sampled_from("gh"),
    deleted=st.booleans(),
    generation=st.integers(0, 2**31 - 1),
    protocol=st.none() | _TEXT,
    members=st.lists(_MEMBERS, max_size=3),
)


@pytest.mark.long
@settings(max_examples=60)
@given(st.lists(_OFFSETS | _GROUPS, max_size=20))
def test_records_round_trip_and_the_image_compacts_to_itself(records: list[Record]) -> None:
    assert decode_records(encode_records(records)) == records
    image, again = StoreImage(), StoreImage()
    image.apply(records)
    again.apply(image.records())
    assert again == image
    assert all(partitions for topics in image.offsets.values() for partitions in topics.values())


def test_an_unknown_kind_of_record_is_an_error() -> None:
    with pytest.raises(DecodeError, match="record kind 9"):
        decode_records(struct.pack(">b", 9))


def _reopened(path: Path) -> StoreImage:
    opened = FileGroupStore(path)
    opened.close()
    return opened.image
