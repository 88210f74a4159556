"""Checks whether a worker could run here: loads, reaches and writes all that it needs, and joins nothing.

Every check is made, also after one has failed, so that one run names all that is wrong. Nothing is left
behind: no member, no commit, no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from slackwater.clock import Clock
from slackwater.kafka.errors import KafkaError
from slackwater.runtime.errors import (
    EXIT_ENVIRONMENT,
    EXIT_OK,
    EXIT_OTHER,
    HandlerError,
    HandlerUnfitError,
    StartError,
    WorkerError,
)
from slackwater.runtime.interfaces import AnyEngine, Sink
from slackwater.runtime.telemetry.events import EventLog


@dataclass(frozen=True)
class Check:
    """One thing to try. ``run`` says in a line what was found; it raises WorkerError or KafkaError."""

    name: str
    run: Callable[[], str]


class Parts(Protocol):
    """Makes what is tried."""

    def engine(self) -> AnyEngine: ...

    def sink(self) -> Sink: ...

    def kafka_checks(self) -> Iterable[Check]:
        """The checks that ask the brokers."""

    def close(self) -> None: ...


def preflight(parts: Parts, handler: str, engine: str, events: EventLog, clock: Clock) -> tuple[int, str]:
    """Makes all checks, with an event ``check {name, ok, message, ms}`` for each, and at last ``preflight
    {ok, message}``.

    Returns the exit code and the message. The code is 0 where all passed, 5 where only the environment is at
    fault, else that of the first failure that is not the environment's.
    """
    checks = [
        Check("handler", lambda: _try_handler(parts, handler, engine)),
        *parts.kafka_checks(),
        Check("sink", lambda: _try_sink(parts)),
    ]
    failed: list[tuple[int, str]] = []
    for check in checks:
        code, message = _run(check, events, clock)
        if code != EXIT_OK:
            failed.append((code, message))
    own = [code for code, _ in failed if code != EXIT_ENVIRONMENT]
    code = own[0] if own else EXIT_ENVIRONMENT if failed else EXIT_OK
    passed = ", ".join(check.name for check in checks)
    return code, finish([message for _, message in failed] or [f"passed: {passed}"], events, ok=not failed)


def finish(messages: list[str], events: EventLog, *, ok: bool) -> str:
    """Writes the last event. Returns its message."""
    message = "; ".join(dict.fromkeys(messages))
    events.emit("preflight", ok=ok, message=message)
    return message


def _run(check: Check, events: EventLog, clock: Clock) -> tuple[int, str]:
    """The exit code that the check asks for, and what it says."""
    began = clock.mono_ms()
    code = EXIT_OK
    try:
        message = check.run()
    except StartError as exc:
        code, message = EXIT_ENVIRONMENT, str(exc)
    except WorkerError as exc:
        code, message = exc.exit_code, str(exc)
    except KafkaError as exc:
        code, message = EXIT_ENVIRONMENT, f"the Kafka client failed: {exc}"
    except Exception as exc:
        code, message = EXIT_OTHER, f"unexpected {type(exc).__name__}: {exc}"
    message = " ".join(message.split())
    took = round(clock.mono_ms() - began)
    events.emit("check", name=check.name, ok=code == EXIT_OK, message=message, ms=took)
    return code, message


def _try_handler(parts: Parts, handler: str, engine: str) -> str:
    """Imports the handler and gives it a batch without rows, as a worker's warm-up does."""
    made = parts.engine()
    try:
        made.start()
        try:
            made.warm_up()
        except HandlerError as exc:
            named = handler in str(exc)
            raise HandlerUnfitError(f"{exc}{'' if named else f' (handler {handler})'}") from exc
    finally:
        made.close()
    return f"{handler} was imported and handled a batch without rows on the engine {engine}"


def _try_sink(parts: Parts) -> str:
    sink = parts.sink()
    return f"a file can be created, renamed and removed in {sink.probe()}"
