"""The group's own figures in the analysis of a rollout."""

from __future__ import annotations

from slackwater_operator.model.worker_status import WorkerCounts
from slackwater_operator.policies.rollout.figures import FiguresInput, FigureWatch


def observed(
    now_ms: int, step: str = "s", lag: int | None = 7, **counts: tuple[int, int, int]
) -> FiguresInput:
    workers = {process: WorkerCounts(*numbers) for process, numbers in counts.items()}
    return FiguresInput(step, 1_000, workers, lag, 2.5, now_ms)


def test_the_figures_are_about_the_time_since_the_measurement_before() -> None:
    watch = FigureWatch()
    assert watch.observe(observed(0, a=(1_000, 500, 9))) is None
    assert watch.observe(observed(999, a=(1_050, 500, 9))) is None
    figures = watch.observe(observed(1_000, a=(1_100, 501, 11)))
    assert figures is not None
    assert {name: measured.value for name, measured in figures.items()} == {
        "DeadLetterRate": 0.01,
        "HandlerFailures": 2.0,
        "Lag": 7.0,
        "LagSeconds": 2.5,
    }
    figures = watch.observe(observed(2_000, a=(1_200, 501, 11)))
    assert figures is not None
    assert figures["DeadLetterRate"].value == 0.0


def test_a_process_that_started_in_between_counts_from_its_start() -> None:
    watch = FigureWatch()
    watch.observe(observed(0, a=(1_000, 0, 0)))
    figures = watch.observe(observed(1_000, b=(10, 5, 0)))
    assert figures is not None
    assert figures["DeadLetterRate"].value == 0.5


def test_another_step_begins_anew() -> None:
    watch = FigureWatch()
    watch.observe(observed(0, a=(0, 0, 0)))
    assert watch.observe(observed(5_000, "t", a=(9, 9, 9))) is None


def test_what_is_not_known_has_no_value() -> None:
    watch = FigureWatch()
    watch.observe(observed(0, a=(5, 0, 0)))
    figures = watch.observe(observed(1_000, lag=None, a=(5, 0, 0)))
    assert figures is not None
    assert figures["DeadLetterRate"].problem.endswith("committed no records since the last measurement")
    assert (figures["HandlerFailures"].value, figures["Lag"].value) == (0.0, None)
    figures = watch.observe(observed(2_000))
    assert figures is not None
    assert figures["HandlerFailures"].problem == "no worker of the new revision reports its counts"
