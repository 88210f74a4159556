import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from slackwater.kafka.records import ARROW_SCHEMA
from slackwater.pipeline.engines.arrow import ArrowEngine
from slackwater.runtime.call_threads import CallTimedOut, TimedCalls
from slackwater.runtime.errors import HandlerError

HANDLERS = """
import threading
import pyarrow as pa
release = threading.Event()
def keep(table): return table
def no_offset(table): return table.drop_columns(["offset"])
def no_table(table): return 3
def raises(table): return {}["nothing"]
def raises_timeout(table): raise TimeoutError("mine") if table.num_rows else SystemExit(1)
def hangs(table):
    if table.num_rows:
        release.wait()
    return table
"""


@pytest.fixture
def engine_of(tmp_path: Path) -> Iterator[object]:
    (tmp_path / "ae_handlers.py").write_text(HANDLERS)
    made = []

    def make(function: str, timeout_ms: float = 5_000) -> ArrowEngine:
        engine = ArrowEngine(f"ae_handlers:{function}", [str(tmp_path)], timeout_ms=timeout_ms)
        made.append(engine)
        engine.start()
        return engine

    yield make
    sys.modules["ae_handlers"].release.set()
    for engine in made:
        engine.close()
    del sys.modules["ae_handlers"]
    sys.path.remove(str(tmp_path))


def one_row() -> pa.Table:
    row = {"topic": "t", "partition": 0, "offset": 7, "timestamp": 0, "value": b"x", "headers": []}
    return pa.Table.from_pylist([row], schema=ARROW_SCHEMA)


def test_the_handlers_table_comes_back(engine_of) -> None:  # type: ignore[no-untyped-def]
    engine = engine_of("keep")
    engine.warm_up()
    assert engine.transform(one_row()).equals(one_row())


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("no_offset", "column offset"),
        ("no_table", "returned int"),
        ("raises", r"table without rows.*KeyError.*ae_handlers\.py line 8"),
    ],
)
def test_warm_up_shows_a_bad_handler_before_any_record(engine_of, function: str, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(HandlerError, match=said):
        engine_of(function).warm_up()


def test_what_the_handler_raises_comes_out_as_it_is(engine_of) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TimeoutError, match="mine"):
        engine_of("raises_timeout").transform(one_row())


def test_a_handler_that_hangs_is_given_up(engine_of) -> None:  # type: ignore[no-untyped-def]
    engine = engine_of("hangs", timeout_ms=100)
    with pytest.raises(HandlerError, match=r"100 ms \(handlerTimeoutMs\) on 1 records"):
        engine.transform(one_row())
    engine.close()


def test_a_call_that_obeys_the_interrupt_leaves_the_thread_usable() -> None:
    calls, stop = TimedCalls("test"), threading.Event()
    with pytest.raises(CallTimedOut):
        calls.call(stop.wait, 20, stop.set)
    assert calls.call(lambda: 5, 1_000, lambda: None) == 5
    calls.close()


def test_a_call_that_ends_later_is_interrupted_again_and_waited_for() -> None:
    """Spark cancels no query that it has not begun yet."""
    calls, stop = TimedCalls("test"), threading.Event()
    with pytest.raises(CallTimedOut):
        calls.call(stop.wait, 20, lambda: None)
    assert calls.stuck
    with pytest.raises(CallTimedOut, match="an earlier call still runs"):
        calls.call(lambda: 4, 20, lambda: None)
    assert calls.call(lambda: 5, 60_000, stop.set) == 5
    assert not calls.stuck
    calls.close()
