"""What traces cost a worker: CPU seconds a million records, without and with them, in pairs of runs.

python -m benchmarks.traces [--records N] [--pairs N] [--engine arrow|python] [--batch N] [--sample-ratio N]

Each pair reads the same topic twice, in turns the one or the other first. Every record has a header
`traceparent`; 50 records are of one trace. A receiver in this process takes the spans. What counts is the CPU
time of the worker from the first tenth of the records to their end, so its start is left out. On a busy
machine pairs differ by more than traces cost; so what they cost a batch is measured alone, too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import uuid
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.pipeline.load import PARTITIONS, create, values
from benchmarks.pipeline.ours import Batch, config, worker
from benchmarks.pipeline.processes import tree
from slackwater.clock import SYSTEM_CLOCK
from slackwater.kafka import KafkaProducer
from slackwater.kafka.records import BatchBuilder, decode
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.batch import Part
from slackwater.runtime.delivery.partition import OwnedPartition
from slackwater.runtime.delivery.stages import Stage
from slackwater.runtime.telemetry.batch_trace import BatchTraces
from slackwater.tracing.sdk import open_tracing
from slackwater.tracing.spans import NO_TRACING, Tracing
from tests.support.devbroker import DevBroker
from tests.support.telemetry.otlp import otlp_receiver

PER_TRACE = 50


def fill(bootstrap: str, topic: str, total: int) -> None:
    """Makes the topic and writes ``total`` records with headers, evenly to its partitions."""
    create(bootstrap, topic)
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, compression_type="lz4", batch_size=500_000, linger_ms=200
    )
    for index, value in zip(range(total), cycle(values(10_000)), strict=False):
        made = index // PER_TRACE + 1
        headers: list[tuple[str, bytes | None]] = [("traceparent", f"00-{made:032x}-{made:016x}-01".encode())]
        producer.send(topic, value=value, partition=index % PARTITIONS, headers=headers)
    producer.flush()
    producer.close()


def measure(bootstrap: str, topic: str, records: int, telemetry: dict[str, Any], args: Any) -> float:
    """CPU seconds a million records of one worker that reads the topic."""
    group = f"traces-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as folder:
        settings = config(
            bootstrap,
            topic,
            group,
            Path(folder),
            engine=args.engine,
            handler=f"benchmarks.pipeline.handlers:{args.engine}",
            properties={"max.poll.records": str(args.batch)},
            telemetry=telemetry,
        )

        def read(batches: list[Batch]) -> int:
            return sum(batch.records for batch in batches)

        with worker(settings, Path(folder)) as running:
            begun = read(running.wait(lambda batches: read(batches) >= records / 10))
            before = _cpu_s(running.process.pid)
            running.wait(lambda batches: read(batches) >= records)
            return (_cpu_s(running.process.pid) - before) / (records - begun) * 1e6


def batch_us(tracing: Tracing, records: int, turns: int) -> float:
    """CPU time (µs) of the trace of a batch of ``records`` with five stages. Nothing else is done."""
    builder = BatchBuilder(max_bytes=1 << 26)
    for row in range(records):
        made = row // PER_TRACE + 1
        builder.append(row, b"", b"", [("traceparent", f"00-{made:032x}-{made:016x}-01".encode())])
    tp = TopicPartition("flights", 0)
    columns = decode(builder.build(base_offset=0), fetch_offset=0)
    parts = {tp: Part(OwnedPartition(tp), columns, 0, records)}
    traces = BatchTraces(lambda: tracing, SYSTEM_CLOCK, "flights", "flights-0")
    began = time.process_time()
    for _ in range(turns):
        now = SYSTEM_CLOCK.mono_ms()
        trace = traces.begin(parts, now)
        for stage in (Stage.HANDLING, Stage.STAGING, Stage.READY, Stage.PUBLISHING, Stage.PUBLISHED):
            trace.enter(stage.name, now)
            trace.inside(int)()
            with trace.current():
                pass
        trace.end(now, "committed", counts={"records": records})
    return (time.process_time() - began) / turns * 1e6


def show_batches(url: str, records: int) -> None:
    """Prints what traces cost a batch."""
    costs = {"off": batch_us(NO_TRACING, records, 2_000)}
    for name, ratio in (("not sampled", 0.0), ("sampled", 1.0)):
        tracing = open_tracing(url, ratio, {}, {}, print)
        costs[name] = batch_us(tracing, records, 200 if ratio else 2_000)
        tracing.close(5_000)
    shown = ", ".join(f"{name} {cost:.0f}" for name, cost in costs.items())
    print(f"CPU time for a batch of {records} records (µs): {shown}", flush=True)


def _cpu_s(pid: int) -> float:
    return sum(cpu for cpu, _ in tree(pid))


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each pair, and the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces")
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--pairs", type=int, default=5, help="0: only what traces cost a batch")
    parser.add_argument("--engine", choices=["arrow", "python"], default="arrow")
    parser.add_argument("--batch", type=int, default=1_000, help="the most records of a batch")
    parser.add_argument("--sample-ratio", type=float, default=0.01)
    args = parser.parse_args([] if arguments is None else arguments)
    topic = f"traces-{uuid.uuid4().hex[:8]}"
    without: list[float] = []
    with_traces: list[float] = []
    with DevBroker() as broker, otlp_receiver() as receiver:
        show_batches(receiver.url, args.batch)
        if not args.pairs:
            return
        fill(broker.bootstrap, topic, args.records)
        traced = {"traces": {"endpoint": receiver.url, "sampleRatio": args.sample_ratio}}
        for pair in range(args.pairs):
            turns: list[tuple[list[float], dict[str, Any]]] = [(without, {}), (with_traces, traced)]
            for results, telemetry in turns if pair % 2 else reversed(turns):
                results.append(measure(broker.bootstrap, topic, args.records, telemetry, args))
            print(
                f"pair {pair + 1}: {without[-1]:.3f} s a million without traces, {with_traces[-1]:.3f} with: "
                f"{100 * (with_traces[-1] / without[-1] - 1):+.1f} %",
                flush=True,
            )
        spans = len(receiver.spans)
    off, on = statistics.median(without), statistics.median(with_traces)
    print(
        f"{args.engine}, batches of {args.batch}, {100 * args.sample_ratio:g} % sampled: medians {off:.3f} "
        f"and {on:.3f} s a million, {100 * (on / off - 1):+.1f} %; {spans} spans received"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
