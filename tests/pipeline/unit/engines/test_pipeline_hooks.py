"""``setup`` and ``refresh`` of a handler's module, by all engines; Spark is a fake."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slackwater import Batch, OffsetRange, Retry
from slackwater.handler import NO_BATCH
from slackwater.kafka.records import ARROW_SCHEMA, ConsumerRecord
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.engines import frames, spark
from slackwater.pipeline.engines.arrow import ArrowEngine
from slackwater.pipeline.engines.decoding import DecodingEngine, DecodingRecordEngine
from slackwater.pipeline.engines.hooks import load_handler
from slackwater.pipeline.engines.python import PythonEngine
from slackwater.pipeline.engines.spark import SparkEngine
from slackwater.pipeline.values.ddl import parse
from slackwater.pipeline.values.json import JsonDecoder
from slackwater.runtime.errors import (
    HandlerError,
    HandlerLoadError,
    HandlerSetupError,
    HandlerTimeoutError,
    RefreshFailed,
    StartError,
)

HANDLERS = """
import threading
calls, problems, batches = [], [], []
release = threading.Event()
def transform(rows):
    calls.append("transform")
    return rows
def informed(rows, batch):
    batches.append(batch)
    return rows if hasattr(rows, "schema") or hasattr(rows, "toArrow") else []
def setup(spark):
    calls.append(("setup", spark))
    if problems: raise problems.pop()
def refresh(spark):
    calls.append(("refresh", spark))
    problem = problems.pop() if problems else None
    if problem == "hang": release.wait()
    elif problem is not None: raise problem
"""


class Session:
    def __init__(self, name: str, failure: Exception | None = None) -> None:
        self.name, self.failure = name, failure

    def __repr__(self) -> str:
        return self.name

    def createDataFrame(self, table: pa.Table) -> Any:  # noqa: N802
        if self.failure is not None and table.num_rows == 1:
            raise self.failure
        return Frame(table)


class Frame:
    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self.rows


class Backend:
    parallelism = files = None

    def __init__(self, sessions: list[Session]) -> None:
        self.sessions = sessions

    def open(self) -> Session:
        return self.sessions.pop(0)

    def alive(self) -> bool:
        return True

    def cancel(self) -> None: ...

    def close(self) -> None: ...


@contextmanager
def frame(session: Any, table: pa.Table, _parallelism: int | None, _files: None) -> Iterator[Any]:
    """In place of what needs Spark's own functions."""
    yield session.createDataFrame(table)


@pytest.fixture
def handlers(tmp_path: Path) -> Iterator[Any]:
    """The module of the handlers."""
    (tmp_path / "hk_handlers.py").write_text(HANDLERS)
    path = list(sys.path)
    sys.path.insert(0, str(tmp_path))
    import hk_handlers

    yield hk_handlers
    hk_handlers.release.set()
    del sys.modules["hk_handlers"]
    sys.path[:] = path


Make = Callable[..., Any]


@pytest.fixture(params=["arrow", "python", "spark", "arrow with values", "python with values"])
def engine(request: pytest.FixtureRequest, handlers: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a started engine."""
    made = []

    def make(function: str = "transform", **options: Any) -> Any:
        spec = f"hk_handlers:{function}"
        options = {"refreshes": True, "timeout_ms": 5_000, **options}
        engine: Any
        if request.param.startswith("arrow"):
            engine = ArrowEngine(spec, **options)
        elif request.param.startswith("python"):
            engine = PythonEngine(spec, **options)
        else:
            monkeypatch.setattr(frames, "frame", frame)
            monkeypatch.setattr(spark, "make_backend", lambda *_: Backend([Session("session")]))
            engine = SparkEngine(spec, **options)
        if request.param.endswith("values"):
            kind = DecodingEngine if request.param.startswith("arrow") else DecodingRecordEngine
            engine = kind(engine, {"value": lambda: JsonDecoder(parse("n INT"))})
        made.append(engine)
        engine.start()
        return engine

    make.gets = "session" if request.param == "spark" else "None"  # type: ignore[attr-defined]
    yield make
    for engine in made:
        engine.close()


def calls(handlers: Any) -> list[Any]:
    return [call if isinstance(call, str) else (call[0], repr(call[1])) for call in handlers.calls]


def test_setup_is_called_once_before_the_handler(engine: Any, handlers: Any) -> None:
    made = engine()
    assert handlers.calls == []
    made.warm_up()
    assert calls(handlers) == [("setup", engine.gets), "transform"]


def test_refresh_gets_what_setup_gets(engine: Any, handlers: Any) -> None:
    made = engine()
    made.warm_up()
    made.refresh()
    assert calls(handlers)[2:] == [("refresh", engine.gets)]


@pytest.mark.parametrize("error", [ValueError("no column faa"), SystemExit(3), FileNotFoundError("airports")])
def test_a_setup_that_fails_is_the_handlers_error(engine: Any, handlers: Any, error: BaseException) -> None:
    handlers.problems.append(error)
    with pytest.raises(
        HandlerSetupError, match="setup of the handler hk_handlers:transform failed: "
    ) as raised:
        engine().warm_up()
    assert type(error).__name__ in str(raised.value)
    assert "transform" not in handlers.calls


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError("no store"), TimeoutError("no answer"), Retry("later")]
)
def test_what_setup_reads_from_may_be_back_at_the_next_start(
    engine: Any, handlers: Any, error: Exception
) -> None:
    handlers.problems.append(error)
    with pytest.raises(StartError, match="setup of the handler hk_handlers:transform failed"):
        engine().warm_up()


@pytest.mark.parametrize("error", [ValueError("no column faa"), SystemExit(3), HandlerError("mine")])
def test_after_a_refresh_that_fails_the_handler_goes_on(
    engine: Any, handlers: Any, error: BaseException
) -> None:
    made = engine()
    made.warm_up()
    handlers.problems.append(error)
    with pytest.raises(RefreshFailed) as raised:
        made.refresh()
    assert type(error).__name__ in str(raised.value)
    made.warm_up()
    assert calls(handlers)[-1] == "transform"


def test_a_refresh_that_does_not_end_ends_the_worker(handlers: Any) -> None:
    made = ArrowEngine("hk_handlers:transform", refreshes=True, timeout_ms=100)
    made.start()
    handlers.problems.append("hang")
    with pytest.raises(
        HandlerTimeoutError, match=r"did not end within 100 ms \(handlerTimeoutMs\) in refresh"
    ):
        made.refresh()
    made.close()


def test_a_refresh_that_ends_after_it_was_cancelled_has_failed(
    handlers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Backend([Session("session")])
    monkeypatch.setattr(backend, "cancel", handlers.release.set)
    monkeypatch.setattr(spark, "make_backend", lambda *_: backend)
    made = SparkEngine("hk_handlers:transform", refreshes=True, timeout_ms=300)
    made.start()
    handlers.problems.append("hang")
    with pytest.raises(RefreshFailed, match="did not end within 300 ms"):
        made.refresh()
    made.refresh()
    assert calls(handlers) == [("refresh", "session")] * 2
    made.close()


class Lost(Exception):
    """What pyspark raises for a session that the server has dropped."""


Lost.__module__ = "pyspark.errors"


@pytest.fixture
def dropped(handlers: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkEngine]:
    """An engine whose first session is dropped when it gets a row."""
    sessions = [Session("first", Lost("[INVALID_HANDLE.SESSION_CLOSED]")), Session("second")]
    monkeypatch.setattr(spark, "make_backend", lambda *_: Backend(sessions))
    monkeypatch.setattr(frames, "frame", frame)
    made = SparkEngine("hk_handlers:transform", refreshes=True, timeout_ms=5_000)
    made.start()
    made.warm_up()
    yield made
    made.close()


def test_another_session_is_set_up_before_the_batch(dropped: SparkEngine, handlers: Any) -> None:
    row = pa.Table.from_pylist([dict.fromkeys(ARROW_SCHEMA.names)], schema=ARROW_SCHEMA)
    dropped.transform(row)
    assert calls(handlers)[-2:] == [("setup", "second"), "transform"]


def test_a_refresh_of_a_session_that_was_dropped_sets_another_up(dropped: SparkEngine, handlers: Any) -> None:
    handlers.problems.append(Lost("[INVALID_HANDLE.SESSION_CLOSED]"))
    dropped.refresh()
    assert calls(handlers)[-2:] == [("refresh", "first"), ("setup", "second")]


def test_a_refresh_that_is_not_asked_for_need_not_be_there(engine: Any, handlers: Any) -> None:
    del handlers.refresh
    engine(refreshes=False).refresh()
    assert handlers.calls == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def setup(): ...",
            r"setup in hk_other \(.*hk_other.py\) is setup\(\), and is called with one argument",
        ),
        ("def setup(spark, path): ...", "missing a required argument: 'path'; write it as def setup"),
        ("setup = 3", "is no function but int"),
        ("async def setup(spark): ...", "a coroutine or generator function"),
        ("def setup(spark): yield", "a coroutine or generator function"),
        ("def refresh(): ...", r"refresh in hk_other \(.*\) is refresh\(\), and is called with one"),
        (
            "",
            r"refreshEvery is set, and hk_other \(.*\) has no function refresh; .*spec.pipeline.refreshEvery",
        ),
    ],
)
def test_hooks_that_cannot_be_called_are_named(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "hk_other.py").write_text(f"def transform(table): return table\n{source}\n")
    made = ArrowEngine("hk_other:transform", [str(tmp_path)], refreshes=True)
    try:
        with pytest.raises(HandlerLoadError, match=f"handler hk_other:transform: .*{message}"):
            made.start()
    finally:
        sys.modules.pop("hk_other", None)
        sys.path.remove(str(tmp_path))


BATCH = Batch({TopicPartition("flights", 3): OffsetRange(7, 8)}, frozenset(), "flights", "w-0", 2)


def test_a_handler_with_a_second_parameter_is_told_its_batch(engine: Any, handlers: Any) -> None:
    made = engine("informed")
    made.warm_up()
    assert handlers.batches == [NO_BATCH]
    if hasattr(made, "transform_records"):
        record = ConsumerRecord("flights", 3, -1, 7, 0, 0, None, b"{}")
        made.transform_records([record], BATCH)
    else:
        place = {"topic": "flights", "partition": 3, "offset": 7}
        row = {**dict.fromkeys(ARROW_SCHEMA.names), **place, "value": b"{}"}
        made.transform(pa.Table.from_pylist([row], schema=ARROW_SCHEMA), BATCH)
    assert handlers.batches == [NO_BATCH, BATCH]


@pytest.mark.parametrize(
    ("parameters", "given"),
    [
        ("rows", ()),
        ("rows, batch", (BATCH,)),
        ("rows, anything", (BATCH,)),
        ("rows, batch=None", (BATCH,)),
        ("rows, *, batch", (BATCH,)),
        ("rows, strict=True", (True,)),
        ("rows, *, strict=True", (True,)),
        ("*rows", ()),
        ("rows, batch, strict=True", (BATCH, True)),
    ],
)
def test_the_signature_decides_whether_the_batch_is_given(parameters: str, given: tuple[object, ...]) -> None:
    names = [name.strip(" *").partition("=")[0] for name in parameters.split(",")[1:]]
    scope: dict[str, Any] = {}
    exec(f"def transform({parameters}): return ({''.join(f'{name}, ' for name in names if name)})", scope)
    assert load_handler("m:transform", function=scope["transform"]).call("rows", BATCH) == given


@pytest.mark.parametrize("parameters", ["", "rows, batch, more", "rows, *, more", "*, batch"])
def test_a_handler_that_cannot_be_called_is_named(parameters: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def transform({parameters}): ...", scope)
    with pytest.raises(
        HandlerLoadError, match=r"handler m:transform has the parameters \(.*slackwater.Batch"
    ):
        load_handler("m:transform", function=scope["transform"])


def test_a_handler_without_a_signature_gets_its_records_alone() -> None:
    assert load_handler("m:dict", function=dict).call([(1, 2)], BATCH) == {1: 2}


@pytest.mark.parametrize(
    "source", ["def setup(spark=None): ...", "def setup(*sessions): ...", "setup = print"]
)
def test_what_takes_one_argument_is_a_hook(tmp_path: Path, source: str) -> None:
    (tmp_path / "hk_other.py").write_text(f"def transform(table): return table\n{source}\n")
    made = ArrowEngine("hk_other:transform", [str(tmp_path)])
    try:
        made.start()
        made.warm_up()
    finally:
        made.close()
        sys.modules.pop("hk_other", None)
        sys.path.remove(str(tmp_path))
