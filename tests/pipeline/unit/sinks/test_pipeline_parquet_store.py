"""Parquet files in an object store: addresses and options, and the calls of a writer to a store in memory."""

from __future__ import annotations

import itertools
import random
import uuid
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

import obstore
import pyarrow as pa
import pytest
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from slackwater.pipeline.sinks.parquet import commit_log
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.pipeline.sinks.parquet.store import Objects, StoreError
from slackwater.pipeline.sinks.parquet.store_options import StoreAddress
from slackwater.runtime.errors import ConfigError, RecordsError, SinkError
from slackwater.runtime.interfaces import SinkFencedError
from tests.support import sinks
from tests.support.sinks import Steps
from tests.support.stores.memory import places_in

RECORDS = 12
"""Of each partition."""
ALL = Counter({(partition, offset): 1 for partition in (0, 1) for offset in range(RECORDS)})
URLS = ["s3://lake/flights", "gs://lake/flights", "az://lake/flights"]
CALLS = [
    (Objects, name) for name in ("create", "put", "upload", "copy_to_free", "delete", "get", "list", "size")
]
"""What a writer asks of a store."""
QUICK = (URLS[0], True, False)
"""Of the ways in which a request may fail, the one that is tried in each run."""

write_all = partial(sinks.write_all, records=RECORDS)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[MemoryStore]:
    """The store that all addresses lead to. The last one counts: a test may begin another."""
    stores = [MemoryStore()]
    monkeypatch.setattr(StoreAddress, "open", lambda _: stores[-1])
    monkeypatch.setattr(commit_log, "CHECKPOINT_EVERY", 2)
    return stores


@pytest.mark.parametrize("url", [URLS[0], pytest.param(URLS[2], marks=pytest.mark.long)])
def test_a_worker_that_goes_on_after_its_successor_has_written_changes_nothing(
    memory: list[MemoryStore], url: str
) -> None:
    """The successor also removes rows and writes them again, with other batches."""
    fenced = 0
    for turn in itertools.count(1):
        memory.append(MemoryStore())
        rng = random.Random(turn)

        def succeed(_: Steps, rng: random.Random = rng) -> None:
            write_all(ParquetSink("g", url), rng)
            ParquetSink("g", url).rewind({sinks.A: (sinks.OLD, 3)})
            write_all(ParquetSink("g", url), rng)

        steps = Steps(turn, succeed, after=turn % 2 == 0)
        try:
            with steps.watching(CALLS):
                write_all(ParquetSink("g", url), rng)
        except SinkFencedError:
            fenced += 1
        if steps.count < turn:
            break
        assert places_in(memory[-1]) == ALL, f"stopped at call {turn}"
    assert turn > 25
    assert fenced > 10


@pytest.mark.parametrize(
    ("url", "after", "is_same"),
    [
        pytest.param(
            url, after, is_same,
            id=f"{url[:2]}-{'after' if after else 'before'}-{'same' if is_same else 'another'} worker",
            marks=() if (url, after, is_same) == QUICK else pytest.mark.long,
        )
        for url, after, is_same in itertools.product((URLS[0], URLS[2]), (False, True), (False, True))
    ],
)  # fmt: skip
def test_a_request_that_fails_once_does_not_change_the_result(
    memory: list[MemoryStore], url: str, after: bool, is_same: bool
) -> None:
    """Of writes, and of a rewind, which must not take an unreadable file for one without its rows."""

    def fail(_: Steps) -> None:
        raise StoreError("Generic S3 error: 503 Slow Down")

    def run(sink: ParquetSink) -> None:
        write_all(sink, random.Random(3))
        sink.rewind({sinks.A: (sinks.OLD, 7)})

    failures: list[str] = []
    for turn in itertools.count(1):
        memory.append(MemoryStore())
        sink = ParquetSink("g", url)
        steps = Steps(turn, fail, after=after)
        with steps.watching([*CALLS, (Objects, "get_range")]):
            try:
                run(sink)
            except SinkError as exc:
                failures.append(str(exc))
                run(sink if is_same else ParquetSink("g", url))
        kept = {place: 1 for place in ALL if place[0] == 1 or place[1] < 7}
        assert places_in(memory[-1]) == Counter(kept), f"failed at call {turn}"
        if steps.count < turn:
            break
    assert turn > 50
    assert len(failures) > 30
    assert all("503 Slow Down" in failure for failure in failures)


@pytest.mark.parametrize("commits", [1, 6])
def test_a_file_of_a_commit_that_is_missing_is_an_error_until_it_is_rewound(
    memory: list[MemoryStore], commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one's own commit, and of those that another process finds."""
    monkeypatch.setattr(commit_log, "CHECKPOINT_EVERY", 22)
    sink = ParquetSink("g", URLS[0])
    for start in range(commits):
        staged = sinks.stage(sink, {sinks.A: start}, 1, records=RECORDS)
        if start == commits - 1:
            (lost,) = (meta["path"] for meta in obstore.list(memory[-1], ".slackwater/g/staging").collect())
            obstore.delete(memory[-1], lost)
            with pytest.raises(SinkError, match="is missing"):
                staged.publish()
        else:
            staged.publish()
    name = lost.rpartition("/")[2].partition(".")[0]
    heir = ParquetSink("g", URLS[0])
    with pytest.raises(SinkError, match=rf"{name}\.parquet is missing: .*0, offsets before {commits}\)"):
        heir.refresh()
    assert heir.rewind({sinks.A: (sinks.OLD, 0)}) == commits - 1
    sinks.put(ParquetSink("g", URLS[0]), sinks.rows(range(commits)), 0)
    assert places_in(memory[-1]) == Counter({(0, offset): 1 for offset in range(commits)})


def test_a_place_stays_taken_after_its_rows_were_removed(memory: list[MemoryStore]) -> None:
    sink = ParquetSink("g", URLS[0])
    write_all(sink, random.Random(1))
    before = set(sink._files.places("g"))
    assert sink.rewind({sinks.A: (sinks.OLD, 0), sinks.B: (sinks.OLD, 0)}) == 2 * RECORDS
    assert set(sink._files.places("g")) == before
    assert places_in(memory[-1]) == Counter()


def test_a_rewind_gives_each_file_a_place_of_its_own(
    memory: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the new files begin alike. Each old file keeps one row of B."""
    sink = ParquetSink("g", URLS[0])
    for start in (0, 1):
        sinks.stage(sink, {sinks.A: start, sinks.B: start}, 1, records=RECORDS).publish()
    made = itertools.count(1)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(f"8c6f2d1e{next(made):024x}"))
    assert sink.rewind({sinks.A: (sinks.OLD, 0)}) == 2
    assert places_in(memory[-1]) == Counter({(1, 0): 1, (1, 1): 1})


def test_a_value_with_which_an_object_s_name_is_too_long_is_refused(memory: list[MemoryStore]) -> None:
    sink = ParquetSink("g", f"s3://lake/{'k' * 300}", partition_by=["a", "b"])
    long, short = (pa.array(["x" * size]) for size in (400, 100))
    with pytest.raises(RecordsError, match="1024 are the most"):
        sinks.put(sink, sinks.rows([0], a=long, b=long), 0)
    assert obstore.list(memory[-1]).collect() == []
    sinks.put(sink, sinks.rows([0], a=long, b=short), 0)


# ---- addresses and options


def config_of(url: str, options: dict[str, str]) -> Any:
    return StoreAddress(url, options).open()


def test_options_go_where_obstore_takes_them() -> None:
    options = {
        "AWS_REGION": "eu-central-1",
        "aws_endpoint_url": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
        "timeout": "7s",
        "max_retries": "2",
        "RETRY_TIMEOUT": "500ms",
    }
    store = config_of("s3://lake/a/b/", options)
    assert isinstance(store, S3Store)
    assert (store.config["region"], store.config["bucket"], store.prefix) == ("eu-central-1", "lake", "a/b")
    assert store.config["copy_if_not_exists"] == "multipart"
    assert store.client_options is not None
    assert store.client_options["allow_http"] in (True, "true")
    assert str(store.client_options["timeout"]).startswith(("7s", "0:00:07", "7 s"))
    assert store.retry_config is not None
    assert store.retry_config["max_retries"] == 2
    assert store.retry_config["retry_timeout"] == timedelta(milliseconds=500)


def test_the_addresses_of_other_stores_are_theirs() -> None:
    google = config_of("gs://lake/flights", {"google_skip_signature": "true"})
    assert isinstance(google, GCSStore)
    assert (google.config["bucket"], google.prefix) == ("lake", "flights")
    account = {"azure_storage_account_name": "storage", "azure_storage_account_key": "aGVsbG8="}
    for url in ("az://lake/flights", "abfss://lake@storage.dfs.core.windows.net/flights"):
        azure = config_of(url, account)
        assert isinstance(azure, AzureStore)
        assert (azure.config["container_name"], azure.prefix) == ("lake", "flights")
        assert azure.config["account_name"] == "storage"


def test_settings_of_the_environment_are_below_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_TIMEOUT", "9s")
    assert StoreAddress("s3://b/k", {})._client == {
        "connect_timeout": "5s",
        "timeout": "9s",
        "allow_http": "true",
    }
    assert StoreAddress("s3://b/k", {"timeout": "3s"})._client["timeout"] == "3s"


@pytest.mark.parametrize("name", ["aws_conditional_put", "CONDITIONAL_PUT", "aws_copy_if_not_exists"])
def test_what_makes_commits_conditional_cannot_be_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=rf"sink.options: {name} must not be set"):
        ParquetSink("g", "s3://b/k", options={name: "disabled"})
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(ConfigError, match="environment: AWS_CONDITIONAL_PUT must not be set"):
        ParquetSink("g", "s3://b/k")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aws_bogus": "secret-text"}, "sink.options: the options do not fit s3://b/k: .*aws_bogus"),
        ({"max_retries": "many"}, "sink.options: max_retries is 'many', not a number"),
        ({"retry_timeout": "1 day"}, "sink.options: retry_timeout is '1 day', not a time"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        ParquetSink("g", "s3://b/k", options=options).probe()
    assert "secret-text" not in str(raised.value)


def test_hdfs_and_options_of_a_folder_are_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"sink.path: hdfs://h/x cannot hold .* On HDFS use format delta"):
        ParquetSink("g", "hdfs://h/x")
    with pytest.raises(ConfigError, match="sink.options: are not for a folder"):
        ParquetSink("g", str(tmp_path), options={"AWS_REGION": "x"})


def test_a_store_that_takes_any_write_is_refused(
    memory: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Objects, "create", Objects.put)
    for call in (ParquetSink("g", URLS[0]).probe, lambda: ParquetSink("g", URLS[0]).marks([sinks.A])):
        with pytest.raises(SinkError, match=r"If-None-Match.*Set sink\.path to a store"):
            call()
    assert obstore.list(memory[-1]).collect() == []
