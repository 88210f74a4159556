"""One run: a Kafka, a control plane, and one way after the other under the same load."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.rollouts import brokers, measure, plot, table
from benchmarks.rollouts.brokers import LagWatch
from benchmarks.rollouts.measure import Handled, Span
from benchmarks.rollouts.outcome import Figures, Outcome, Results, figures_of, merged, normal_of
from benchmarks.rollouts.sink_watch import SinkWatch
from benchmarks.rollouts.ways import JVM, PYTHON, WAYS, Settings, Variant, Way
from tests.support.controlplane import ControlPlane, ToolsUnavailable, until
from tests.support.controlplane.cluster import ControlPlaneUnavailable
from tests.support.kafka import KafkaCluster, KafkaUnavailable
from tests.support.site import ClusterSite, Load, now_ms
from tests.support.site.sink import verify
from tests.support.spark import SparkUnavailable

CALM_SAMPLES = 5
"""So many in a row, a second's, must be as in quiet times for the roll to count as done."""
LAG_BACK_S = 0.5
"""A lag of no more than the records of so long is back, or of no more than there was in quiet times."""
CATCH_UP_TIMEOUT_S = 120.0
BROKERS = 3
LEAST_HEARTBEAT, LEAST_HEARTBEAT_DEFAULT_MS = "group.consumer.min.heartbeat.interval.ms", 5000
"""The brokers' limit of the group config consumer.heartbeat.interval.ms; lowered for shorter heartbeats."""
LINGER_MS = 100
"""librdkafka sends a request for each batch of a partition, and each is replicated: with its default of 5 ms
the brokers are busy with those."""


@dataclass(frozen=True)
class Mode:
    """What goes with a kind of handler: the defaults, and how long the first pods and a roll may take.

    ``title``: of the picture.
    """

    workers: int
    rate: float
    start_timeout_s: float
    roll_timeout_s: float
    title: str


MODES = {
    PYTHON: Mode(4, 600, 180.0, 900.0, "Lag over time"),
    # Three Java processes that start at once on two cores take up to a minute. With these limits a way that
    # fails says so within ten minutes, its Kafka and control plane included.
    JVM: Mode(3, 300, 180.0, 300.0, "Lag over time, with a handler that needs a JVM"),
}


class Unusable(Exception):
    """The options or the files of earlier results cannot be used; the message says why."""


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 where records were lost, 2 where it cannot run here."""
    options = _parser().parse_args(arguments)
    try:
        results = _saved(options.saved) if options.saved else _tried(options)
    except (Unusable, ControlPlaneUnavailable, ToolsUnavailable, KafkaUnavailable, SparkUnavailable) as exc:
        print(f"rollouts: {exc}", file=sys.stderr)
        return 2
    _tell(results, options)
    return 1 if any(outcome.lost for outcome in results.outcomes) else 0


def _saved(paths: Sequence[Path]) -> Results:
    """What earlier runs have saved. Raises Unusable for other files, and for runs that can't be compared."""
    parts = []
    for path in paths:
        try:
            parts.append(Results.of(json.loads(path.read_text())))
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise Unusable(f"{path} is not a file that --json has written: {exc!r}") from exc
    try:
        return merged(parts)
    except ValueError as exc:
        raise Unusable(str(exc)) from exc


def _tried(options: argparse.Namespace) -> Results:
    """Raises Unusable for options that do not go together, and what says that it cannot run here."""
    mode = MODES[options.handler]
    settings = Settings(
        workers=options.workers or mode.workers,
        partitions=options.partitions,
        surge=options.surge,
        unavailable=options.unavailable,
        heartbeat_ms=options.heartbeat_ms,
        fetch_wait_ms=options.fetch_wait_ms,
        handler=options.handler,
    )
    rate = options.rate or mode.rate
    if settings.partitions < 2 * settings.workers:
        raise Unusable("there must be two partitions a worker")
    load = (
        f"{settings.workers} workers, {settings.partitions} partitions, {rate:g} records a second, "
        f"{os.cpu_count()} cores"
    )
    return Results(
        settings.handler,
        load,
        asdict(settings),
        _run(options.ways, settings, rate, options.quiet_s, kill=options.kill),
    )


def _ways(text: str) -> list[Variant]:
    """Reads the letters of ways."""
    known = "".join(way.key for way in WAYS)
    if not text or not set(text) <= set(known):
        raise argparse.ArgumentTypeError(f"must be some of {known}, not {text!r}")
    return [way for way in WAYS if way.key in text]


def _parser() -> argparse.ArgumentParser:
    from benchmarks import rollouts

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rollouts",
        description=rollouts.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--handler", choices=tuple(MODES), default=PYTHON,
        help="python: it starts within a second; jvm: each pod starts a Spark session of its own",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, help=f"default: {_defaults('workers')}")
    parser.add_argument("--partitions", type=int, default=Settings.partitions)
    parser.add_argument(
        "--rate", type=float, help=f"records a second, 100 bytes each; default: {_defaults('rate')}"
    )
    parser.add_argument("--ways", type=_ways, default=WAYS, help="which of them, as abd")
    parser.add_argument(
        "--quiet-s", type=float, default=30, help="how long nothing happens before the change"
    )
    parser.add_argument(
        "--kill",
        action="store_true",
        help="after each roll, kill -9 one pod's process, and measure that, too",
    )
    parser.add_argument("--surge", default=Settings.surge, help="the Deployment's maxSurge")
    parser.add_argument("--unavailable", default=Settings.unavailable, help="its maxUnavailable")
    parser.add_argument("--heartbeat-ms", type=int, default=Settings.heartbeat_ms, help="of all members")
    parser.add_argument(
        "--fetch-wait-ms", type=int, default=Settings.fetch_wait_ms,
        help="how long a broker gathers records for an answer, of all members; 0: it answers at once",
    )  # fmt: skip
    parser.add_argument("--svg", type=Path, help="where to draw the lag over time")
    parser.add_argument("--json", type=Path, help="where to write the figures and all that was observed")
    parser.add_argument(
        "--from", type=Path, nargs="+", dest="saved", metavar="FILE",
        help="measure nothing: tables and picture of what earlier runs have written by --json",
    )  # fmt: skip
    return parser


def _defaults(name: str) -> str:
    return ", ".join(f"{getattr(mode, name):g} ({handler})" for handler, mode in MODES.items())


def _run(
    ways: Sequence[Variant], settings: Settings, rate: float, quiet_s: float, *, kill: bool
) -> list[Outcome]:
    outcomes = []
    least_heartbeat = {LEAST_HEARTBEAT: str(min(settings.heartbeat_ms, LEAST_HEARTBEAT_DEFAULT_MS))}
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-cp-") as folder,
        KafkaCluster(BROKERS, least_heartbeat) as kafka,
        ControlPlane.start(Path(folder), nodes=("node-1", "node-2")) as plane,
        plane.namespace() as namespace,
        # The operator runs beside the peers, too: each way has the same machine.
        ClusterSite(plane, kafka, namespace) as site,
        site.operator(),
    ):
        for variant in ways:
            outcomes.append(_Trial(variant.make(site, settings), rate, quiet_s, kill=kill).run())
    return outcomes


class _Trial:
    """One way, from its first pod to its last."""

    def __init__(self, way: Way, rate: float, quiet_s: float, *, kill: bool) -> None:
        self._kills = kill
        self._way, self._site, self._settings = way, way.site, way.settings
        self._rate, self._quiet_s = rate, quiet_s
        self._mode = MODES[way.settings.handler]
        self._bootstrap = self._site.kafka.bootstrap
        self._lag: LagWatch

    def run(self) -> Outcome:
        """Raises TimeoutError where it does not come to its end, with what the way says of itself."""
        way, name, partitions = self._way, self._way.name, self._settings.partitions
        print(f"({way.variant.key}) {way.variant.title}", flush=True)
        self._site.make_topic(name, partitions)
        way.configure()
        way.push()
        with SinkWatch(way.sink) as sink, LagWatch(self._bootstrap, name, partitions, name) as self._lag:
            try:
                way.apply(way.image("v1"))
                self._until_calm(way.image("v1"), lag=0, timeout_s=self._mode.start_timeout_s)
                way.settle()
                weights = [1.0] * partitions
                with Load(
                    self._bootstrap, name, rate=self._rate, weights=weights, linger_ms=LINGER_MS
                ) as load:
                    quiet, roll, busy = self._roll()
                    starts_s = way.starts_s()
                    time.sleep(2 * CALM_SAMPLES * brokers.EVERY_S)
                    if restarts := way.restarts():
                        said = f"    {restarts} containers were restarted: {way.tell()}"
                        print(said, file=sys.stderr, flush=True)
                    kill = self._kill(measure.peak_lag(self._lag.samples, quiet)) if self._kills else None
                    produced = load.stop()
                self._until_handled()
            except (TimeoutError, AssertionError) as exc:
                raise TimeoutError(f"{exc}\n{way.tell()}") from exc
            way.remove()
            until(lambda: not way.pods(), f"the end of {name}'s pods")
        report = verify(way.sink, produced)
        stored = brokers.stored_ms(self._bootstrap, name)
        return Outcome(
            key=way.variant.key,
            title=way.variant.title,
            quiet=quiet,
            roll=roll,
            kill=kill,
            pauses=measure.pauses(sink.published(), stored),
            handled=journal_of(way.journal),
            samples=tuple(self._lag.samples),
            generations=brokers.generations(self._bootstrap, name),
            lost=report.lost,
            repeated=report.duplicated + report.strangers,
            busy=busy,
            starts_s=starts_s,
        )

    def _roll(self) -> tuple[Span, Span, tuple[float, float]]:
        """Under load: the quiet span, the roll's, and how busy the machine was in both."""
        way = self._way
        time.sleep(self._quiet_s / 3)  # it gets going
        begin, before = float(now_ms()), _cpu_ticks()
        time.sleep(self._quiet_s)
        quiet, between = Span(begin, float(now_ms())), _cpu_ticks()
        lag = measure.peak_lag(self._lag.samples, quiet)
        print(f"    quiet: lag up to {lag}", flush=True)
        since = float(now_ms())
        way.apply(way.image("v2"))
        back = max(lag, int(LAG_BACK_S * self._rate))
        done = self._until_calm(way.image("v2"), lag=back, timeout_s=self._mode.roll_timeout_s)
        roll = Span(since, done)
        print(f"    rolled in {roll.seconds:.1f} s", flush=True)
        return quiet, roll, (_busy(before, between), _busy(between, _cpu_ticks()))

    def _kill(self, lag: int) -> Span:
        """Under load: from a kill -9 of one pod's process until the group is as in quiet times again."""
        way = self._way
        pod = min(pod["metadata"]["name"] for pod in way.pods())
        before, since = way.restarts(), float(now_ms())
        self._site.pods.kill(self._site.namespace, pod)
        until(lambda: way.restarts() > before, f"{pod} is restarted")
        done = self._until_calm(way.image("v2"), lag=lag, timeout_s=self._mode.roll_timeout_s)
        kill = Span(since, done)
        said = f"    kill -9 of {pod}: calm after {kill.seconds:.1f} s, {way.restarts() - before} restarts"
        print(said, flush=True)
        return kill

    def _until_calm(self, image: str, *, lag: int, timeout_s: float) -> float:
        """Waits until all pods have that image and are ready, and the group has been calm for a second; since
        when that holds."""
        rolled_at = 0.0

        def calm() -> float | None:
            nonlocal rolled_at
            if not self._way.rolled(image):
                rolled_at = 0.0
                return None
            rolled_at = rolled_at or float(now_ms())
            since = measure.calm_since(
                self._lag.samples, members=self._settings.workers, lag=lag, count=CALM_SAMPLES
            )
            return None if since is None else max(since, rolled_at)

        return until(calm, f"{self._way.name}: all pods on {image}, and calm", timeout_s, every_s=0.1)

    def _until_handled(self) -> None:
        """Waits until a sample that is taken from now on has no lag."""
        since = float(now_ms())

        def done() -> bool:
            last = self._lag.samples[-1]
            return last.at_ms >= since and last.lag == 0

        until(done, f"{self._way.name}: everything committed", CATCH_UP_TIMEOUT_S)


def journal_of(folder: Path) -> list[Handled]:
    """What the handlers of all processes have been given (`work.py`)."""
    batches = []
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            at_ns, partition, first, last = map(int, line.split())
            batches.append(Handled(at_ns / 1e6, partition, first, last, path.name))
    return batches


def _cpu_ticks() -> tuple[int, int]:
    """Of the whole machine: the ticks used, and all of them."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def _busy(before: tuple[int, int], after: tuple[int, int]) -> float:
    return (after[0] - before[0]) / max(1, after[1] - before[1])


def _tell(results: Results, options: argparse.Namespace) -> None:
    outcomes = results.outcomes
    normal = normal_of(outcomes)
    figures = [figures_of(outcome, normal) for outcome in outcomes]
    about = f"{results.load}; {starts_text(figures)}"
    print(f"\n{about}\n\n{table.main_table(figures)}\n\n{table.details(figures, normal)}", flush=True)
    if kills := [replace(outcome, roll=outcome.kill, kill=None) for outcome in outcomes if outcome.kill]:
        killed = table.main_table([figures_of(outcome, normal) for outcome in kills], "kill -9 of a pod")
        print(f"\n{killed}", flush=True)
    lines = [
        plot.Line(
            f"({outcome.key}) {outcome.title}",
            plot.points_of(outcome.samples, outcome.roll),
            outcome.roll.seconds,
        )
        for outcome in outcomes
    ]
    if options.svg:
        options.svg.write_text(plot.svg(lines, MODES[results.handler].title, about))
    if options.json:
        report = {
            "normal_ms": normal,
            "figures": [figure.plain() for figure in figures],
            **results.plain(),
        }
        options.json.write_text(json.dumps(report) + "\n")


def starts_text(figures: Sequence[Figures]) -> str:
    """How long a pod takes to start, over all ways."""
    shortest, longest = (pick(round(figure.start_s) for figure in figures) for pick in (min, max))
    return f"a pod starts in {shortest if shortest == longest else f'{shortest} to {longest}'} s"
