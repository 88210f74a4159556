"""A sink that the user has written: what a class and a function may be, and the example of the docs."""

from __future__ import annotations

import random
import re
import sqlite3
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples.flights.sqlite import COLUMNS, SqliteSink
from slackwater.pipeline import make_sink
from slackwater.pipeline.engines.arrow import ArrowEngine
from slackwater.pipeline.sinks.custom.sink import CustomSink
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.errors import (
    ConfigError,
    HandlerError,
    HandlerLoadError,
    RecordsError,
    SinkError,
    SinkRaisedError,
)
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support import sinks, sweeps
from tests.support.sinks import OLD, A, B, at_once, put, rows
from tests.support.workers.fakes import Bench

ROOT = Path(__file__).parents[4]
RECORDS = 16
"""Of each partition."""
MODULE = """
import threading
import pyarrow as pa
from slackwater.sinks import RecordsError, SinkError, SinkFencedError, StagedRows

written, calls, release = [], [], threading.Event()


def write(rows):
    if any(value == b"bad" for value in rows["value"].to_pylist()):
        raise RecordsError("a value is bad")
    written.extend(rows["offset"].to_pylist())


def write_checked(rows):
    for offset, value in zip(rows["offset"].to_pylist(), rows["value"].to_pylist()):
        written.append(offset)
        if value == b"bad":
            raise ValueError(value)


def raises_always(rows):
    raise RuntimeError("the service is away")


def write_with_options(rows, options):
    written.append((rows.num_rows, options))


def write_none():
    pass


async def write_later(rows):
    pass


def fails(rows):
    raise OSError("the disk is full")


def leaves(rows):
    raise SystemExit(3)


def hangs(rows):
    release.wait()


class Staged:
    def __init__(self, sink, ranges):
        self._sink, self._ranges = sink, dict(ranges)

    def drop(self, partitions):
        self._sink.note("drop", sorted(map(str, partitions)))

    def publish(self):
        self._sink.note("publish", sorted(map(str, self._ranges)))
        if error := self._sink.errors.get("publish"):
            raise error

    def discard(self):
        self._sink.note("discard")
        raise ValueError("cannot discard")


class Full:
    def __init__(self, group_id, options):
        self.group_id, self.options, self.errors = group_id, options, {}
        self.note("made", group_id, options)

    def note(self, *call):
        calls.append((threading.current_thread().name, *call))

    def marks(self, partitions):
        self.note("marks")
        return self.options.get("marks", {tp: {"id": 7} for tp in partitions})

    def stage(self, rows, ranges):
        self.note("stage")
        if error := self.errors.get("stage"):
            raise error
        return Staged(self, ranges) if "wrong" not in self.options else object()

    def rewind(self, starts):
        return 42

    def probe(self):
        return "a table"


class Small:
    def __init__(self, group_id, options):
        self.asked = 0

    def marks(self, partitions):
        self.asked += 1
        return {}

    def stage(self, rows, ranges):
        return StagedRows(lambda staged: None, rows, ranges)


class Unready:
    def __init__(self, group_id, options):
        raise ConnectionError("no database")

    def marks(self, partitions): ...

    def stage(self, rows, ranges): ...


class Markless:
    def stage(self, rows, ranges): ...


full = object.__new__(Full)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module ``own``, which is loaded anew."""
    (tmp_path / "own.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("own", None)
    import own  # type: ignore[import-not-found]  # made above

    yield own
    own.release.set()
    sys.modules.pop("own", None)


def custom(name: str, **options: Any) -> CustomSink:
    return CustomSink("g", f"own:{name}", options=options, timeout_ms=10_000)


SPAN = {A: Range(OLD, 0, 3, None), B: Range(OLD, 0, 3, None)}


# ---- a class


def test_all_calls_of_a_class_are_made_on_one_thread(module: Any) -> None:
    sink = custom("Full", file="x")
    assert sink.marks([A]) == {A: {"id": 7}}
    staged = sink.stage(rows([0, 1]), SPAN)
    staged.drop([B])
    staged.publish()
    sink.stage(rows([0, 1]), SPAN).discard()
    assert sink.rewind({A: (OLD, 0)}) == 42
    assert sink.probe() == "a table"
    assert module.calls == [
        ("sink", "made", "g", {"file": "x"}),
        ("sink", "marks"),
        ("sink", "stage"),
        ("sink", "drop", ["flights-1"]),
        ("sink", "publish", ["flights-0", "flights-1"]),
        ("sink", "stage"),
        ("sink", "discard"),
    ]


def test_a_class_is_loaded_from_the_handlers_path_with_the_configurations_options(
    module: Any, tmp_path: Path
) -> None:
    document = {
        "groupId": "flights", "topics": ["t"], "bootstrapServers": "h:1", "handler": "m:f",
        "handlerPath": [str(tmp_path)], "handlerTimeoutMs": 1234,
        "sink": {"format": "custom", "implementation": "own:Full", "options": {"file": "x"}},
    }  # fmt: skip
    sink = make_sink(parse(document))
    assert isinstance(sink, CustomSink)
    assert sink.has_marks
    assert sink._calls._timeout_ms == 1234
    assert module.calls == [("sink", "made", "flights", {"file": "x"})]
    assert sys.path[0] == str(tmp_path)


def test_rewind_and_probe_may_be_left_out(module: Any) -> None:
    sink = custom("Small")
    assert sink.probe() == "sink own:Small, which has no method probe: only reading marks was tried"
    assert sink._sink.asked == 1
    with pytest.raises(SinkError, match="^sink own:Small: the class has no method rewind, so rows cannot"):
        sink.rewind({A: (OLD, 0)})


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (SinkFencedError("moved"), SinkFencedError, "^moved$"),
        (RecordsError("a value does not fit"), RecordsError, "^a value does not fit$"),
        (SinkError("no space"), SinkError, "^sink own:Full: no space$"),
        (OSError("carrier"), SinkError, r"^sink own:Full: {call} raised OSError: carrier \(.*own.py line"),
        (HandlerError("x"), SinkError, "^sink own:Full: {call} raised HandlerError: x"),
        (SystemExit(3), SinkError, "^sink own:Full: {call} raised SystemExit: 3"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("call", ["stage", "publish"])
def test_what_a_class_raises_names_it(
    module: Any, call: str, raised: BaseException, kind: type[Exception], message: str
) -> None:
    sink = custom("Full")
    sink._sink.errors[call] = raised
    with pytest.raises(Exception, match=message.format(call=call)) as caught:
        sink.stage(rows([0]), SPAN).publish()
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("call", "kind"), [("stage", SinkRaisedError), ("publish", SinkError)], ids=["stage", "publish"]
)
@pytest.mark.parametrize("raised", [KeyError("carrier"), pa.ArrowInvalid("x")], ids=repr)
def test_what_a_class_raises_may_be_for_records_if_they_can_be_looked_for(
    module: Any, call: str, kind: type[Exception], raised: Exception
) -> None:
    """The search stages parts of a batch and publishes nothing."""
    sink = custom("Full")
    sink._sink.errors[call] = raised
    with pytest.raises(kind, match=rf"^sink own:Full: .*{type(raised).__name__}: .* \(.*own.py line"):
        sink.stage(rows([0]), SPAN).publish()


def test_what_discard_raises_is_logged_and_the_next_call_is_made(
    module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sink = custom("Full")
    sink.stage(rows([0]), SPAN).discard()
    sink.marks([A])
    assert "discard of the sink own:Full failed" in caplog.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "marks returned NoneType, not a mapping of partitions"),
        ({A: 7}, "marks returned 7 for flights-0, not a mapping of topic ids to offsets"),
        ({A: {"id": "7"}}, "not a mapping of topic ids to offsets"),
        ({A: {"id": True}}, "not a mapping of topic ids to offsets"),
        ({A: {"id": -1}}, "not a mapping of topic ids to offsets"),
    ],
)
def test_marks_that_are_none_are_an_error(module: Any, given: object, message: str) -> None:
    with pytest.raises(SinkError, match=f"^sink own:Full: .*{message}"):
        custom("Full", marks=given).marks([A])


def test_marks_that_nobody_has_asked_for_are_left_out(module: Any) -> None:
    assert custom("Full", marks={B: {"id": 7}}).marks([A]) == {A: {}}


def test_a_stage_that_returns_something_else_is_an_error(module: Any) -> None:
    with pytest.raises(SinkError, match="sink own:Full: stage returned object, which has no method drop"):
        custom("Full", wrong=True).stage(rows([0]), SPAN)


# ---- what cannot be used


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("Fulll", HandlerLoadError, "^sink own:Fulll: own .* has no function Fulll; did you mean Full?"),
        ("written", HandlerLoadError, "^sink own:written: written in own .* is no function but list"),
        ("Markless", HandlerLoadError, "^sink own:Markless: the class has no method marks; it needs marks"),
        ("full", HandlerLoadError, "^sink own:full: full in own .* is no function but Full"),
        ("write_none", HandlerLoadError, "must take the rows, or the rows and the options; it takes 0"),
        ("write_later", HandlerLoadError, "an async function is not supported"),
        ("Unready", SinkError, "^sink own:Unready: its constructor raised ConnectionError: no database"),
    ],
)
def test_what_is_no_sink_is_refused(module: Any, name: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        custom(name)


def test_options_of_a_function_that_takes_none_are_refused(module: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^sink\.options: are given, but the function own:write takes only"
    ):
        custom("write", file="x")


# ---- a function


def test_a_function_gets_the_rows_of_each_batch(module: Any) -> None:
    sink = custom("write_with_options", url="x")
    put(sink, rows([0, 1]), 0)
    put(sink, rows([]), 2)
    assert module.written == [(2, {"url": "x"})]
    assert sink.marks([A]) == {A: {}}
    assert not sink.has_marks


def test_a_part_of_a_batch_that_was_given_up_is_not_given_to_a_function(module: Any) -> None:
    both = pa.concat_tables([rows([0, 1]), rows([0], 1)])
    staged = custom("write_with_options").stage(both, SPAN)
    staged.drop([A])
    staged.publish()
    assert module.written == [(1, {})]


def test_rows_of_a_function_cannot_be_removed(module: Any) -> None:
    with pytest.raises(
        SinkError, match="^the sink cannot remove rows from own:write: it does not know which"
    ):
        custom("write").rewind({A: (OLD, 0)})
    assert custom("write").probe() == "own:write, which is not checked before there are rows"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", r"^sink own:fails: publish raised OSError: the disk is full \(.*own.py line"),
        ("leaves", "^sink own:leaves: publish raised SystemExit: 3"),
    ],
)
def test_what_a_function_raises_names_it(module: Any, name: str, message: str) -> None:
    with pytest.raises(SinkError, match=message):
        custom(name).stage(rows([0]), SPAN).publish()


def test_a_call_that_takes_too_long_is_given_up(module: Any) -> None:
    sink = CustomSink("g", "own:hangs")
    staged = sink.stage(rows([0]), SPAN)
    sink._calls._timeout_ms = 30  # of the call that hangs alone: a busy machine delays any other
    with pytest.raises(
        SinkError, match=r"^sink own:hangs: publish did not return within handlerTimeoutMs \(30\)"
    ):
        staged.publish()
    with pytest.raises(
        SinkError, match="^sink own:hangs: an earlier call did not return; marks was not called"
    ):
        sink.marks([A])
    module.release.set()


class Whole:
    """The engine ``arrow`` with a handler that changes nothing."""

    def __new__(cls) -> Any:
        engine = ArrowEngine("own:pass", function=lambda table: table)
        engine.start()
        return engine


@pytest.mark.parametrize("name", ["write", "write_checked"])
def test_records_that_a_function_refuses_become_dead_letters(module: Any, name: str) -> None:
    """It is called with parts of the batch, so that rows of this batch are written more than once."""
    bench = Bench()
    bench.sink = custom(name)
    bench.restart(engine=Whole())
    tp = bench.produce(0, *(f"v{n}" for n in range(12)))
    bench.assign(tp)
    bench.until_idle()
    assert module.written == list(range(12))
    module.written.clear()
    bench.produce(0, *("bad" if n == 5 else f"v{n}" for n in range(12)))
    bench.until_idle()
    assert bench.letters.origins() == ["flights-0@17"]
    assert set(module.written) >= set(range(12, 24)) - {17}
    assert module.written[-11:] == [offset for offset in range(12, 24) if offset != 17]
    module.written.clear()
    bench.produce(0, "v", "v")
    bench.until_idle()
    assert module.written == [24, 25], "the search has ended: rows are written once again"


def test_no_record_is_rejected_where_a_function_raises_for_each(module: Any) -> None:
    bench = Bench()
    bench.sink = custom("write")
    bench.restart(engine=Whole())
    tp = bench.produce(0, "v")
    bench.assign(tp)
    bench.until_idle()
    bench.sink = custom("raises_always")
    bench.restart(engine=Whole())
    bench.assign(tp)
    bench.produce(0, "v", "v")
    with pytest.raises(
        HandlerError, match="^sink own:raises_always: RuntimeError: the service is away .*own.py line"
    ):
        bench.until_idle()
    assert bench.letters.origins() == []


def test_a_worker_with_a_function_begins_at_the_committed_offset(module: Any) -> None:
    """A worker that dies between the write and the commit has its batch written again."""
    bench = Bench()
    bench.sink = custom("write")
    bench.restart(engine=Whole())
    tp = bench.produce(0, "a", "b")
    bench.assign(tp)
    bench.until_idle()
    bench.produce(0, "c")
    committed = dict(bench.cluster.committed)
    bench.until_idle()
    bench.cluster.committed.clear()
    bench.cluster.committed.update(committed)
    bench.restart(engine=Whole())
    bench.assign(tp)
    bench.until_idle()
    assert module.written == [0, 1, 2, 2]


# ---- the example: SQLite


class Connection(sqlite3.Connection):
    """Its calls can be watched: those of sqlite3's own class cannot be replaced. It does not sync."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        super().execute("pragma synchronous = off")

    def execute(self, *args: Any) -> sqlite3.Cursor:
        return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        return super().executemany(*args)

    def __exit__(self, *args: Any) -> Any:
        return super().__exit__(*args)


CALLS = [(Connection, "execute"), (Connection, "executemany"), (Connection, "__exit__")]


@pytest.fixture
def own_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))


def flights(offsets: Sequence[int], partition: int = 0) -> pa.Table:
    """What the handler makes of records."""
    n = len(offsets)
    return rows(
        offsets,
        partition,
        origin=pa.array(["JFK"] * n, pa.string()),
        hour=pa.array([1_357_034_400_000_000] * n, pa.timestamp("us", "UTC")),
        cancelled=pa.array([0] * n, pa.int64()),
        delay_total=pa.array(offsets, pa.int64()),
    )


def places(file: Path) -> Counter[tuple[int, int]]:
    """How often the record at each partition and offset is there, as another connection reads it."""
    database = sqlite3.connect(file)
    try:
        return Counter(database.execute('select "partition", "offset" from flights').fetchall())
    finally:
        database.close()


EACH_ONCE = sweeps.each_once(RECORDS)
write_all = partial(sinks.write_all, records=RECORDS, make=flights)


class Files:
    """A database of its own for each turn of a sweep."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    def begin(self) -> None:
        self._file = self._scratch / f"{uuid.uuid4().hex}.db"

    def sink(self) -> SqliteSink:
        return SqliteSink("g", {"file": str(self._file)})

    def read(self) -> Files:
        return self

    def places(self) -> Counter[tuple[int, int]]:
        return places(self._file)


@pytest.mark.usefixtures("own_connection")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_worker_that_dies_at_any_step_leaves_each_record_once_in_sqlite(
    tmp_path: Path, after: bool
) -> None:
    turns = sweeps.die_at_each_step(
        Files(tmp_path), CALLS, after=after, records=RECORDS, make=flights,
        ended=lambda sink: sink._database.close(),
    )  # fmt: skip
    assert turns > 20


@pytest.mark.usefixtures("own_connection")
def test_a_worker_that_goes_on_after_its_successor_changes_nothing_in_sqlite(tmp_path: Path) -> None:
    """It is suspended before it begins its transaction: within it the successor waits, for 30 s at most."""
    calls = [(SqliteSink, "_commit")]
    _, fenced = sweeps.go_on_after_a_successor(
        Files(tmp_path), calls, after=False, records=RECORDS, make=flights
    )
    assert fenced > 0


def test_sqlite_as_a_sink_of_a_worker_keeps_to_its_thread(tmp_path: Path) -> None:
    """A connection of sqlite3 belongs to the thread that has opened it; a worker has several."""
    file = tmp_path / "flights.db"
    sink = CustomSink("g", "flights.sqlite:SqliteSink", [str(ROOT / "examples")], options={"file": str(file)})
    at_once(partial(write_all, sink), [random.Random(1)])
    assert places(file) == EACH_ONCE


def test_the_class_of_the_page_is_that_of_the_example() -> None:
    page = (ROOT / "docs" / "how-to" / "tables" / "write-a-sink.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(class SqliteSink.*?)```", page, re.DOTALL)
    example = (ROOT / "examples" / "flights" / "sqlite.py").read_text(encoding="utf-8")
    assert [line for line in block.splitlines() if line and line not in example.splitlines()] == []
    assert len(block.splitlines()) > 20
    assert set(COLUMNS) >= {"topic", "partition", "offset"}
