"""Backfills in the process of a :class:`~tests.pipeline.integration.engines.spark_process.SparkProcess`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slackwater.backfill.bounds import bound_of
from slackwater.backfill.delivery import BackfillDelivery
from slackwater.backfill.report import TextReport
from slackwater.backfill.run import Options, backfill
from slackwater.backfill.target import config_for, one_table
from slackwater.runtime.config.worker_config import parse
from tests.pipeline.integration.engines.spark_process import session


class EndedHere(Exception):
    """Where a test ends a backfill."""


def run(
    document: dict[str, Any],
    begins: Sequence[str],
    ends: Sequence[str] = (),
    *,
    sink: Sequence[str] = (),
    end_after: str = "",
    after: int = 1,
    **options: Any,
) -> list[str]:
    """What a backfill of a worker's configuration prints; the last line has its counts, or the error.

    ``end_after``: ``store`` (of dead letters), ``publish`` or ``refresh`` of :class:`BackfillDelivery`: it
    ends after this step, when it has been made ``after`` times.
    """
    live = parse(document)
    lines: list[str] = []
    original = getattr(BackfillDelivery, f"_{end_after}", None)
    if original is not None:
        setattr(BackfillDelivery, f"_{end_after}", _ending(original, after))
    try:
        counts = backfill(
            config_for(one_table(live, options.get("route", ""))[0], sink=list(sink)),
            live,
            Options([bound_of(text) for text in begins], [bound_of(text) for text in ends], **options),
            TextReport(lines.append),
            session(),
        )
    except Exception as exc:
        return [*lines, f"{type(exc).__name__}: {exc}"]
    finally:
        if original is not None:
            setattr(BackfillDelivery, f"_{end_after}", original)
    return [*lines, f"{counts.batches} batches, {counts.rows} rows, {counts.letters} letters"]


def _ending(step: Callable[..., Any], after: int) -> Callable[..., Any]:
    left = iter(range(after - 1))

    def ending(*arguments: Any) -> Any:
        result = step(*arguments)
        if next(left, None) is None:
            raise EndedHere
        return result

    return ending


def run_with(document: dict[str, Any], begins: Sequence[str], options: dict[str, Any]) -> list[str]:
    """:func:`run` with keyword arguments, for another process."""
    return run(document, begins, **options)
