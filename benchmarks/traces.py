"""What traces cost a worker: CPU seconds a million records, without and with them, in pairs of runs.

python -m benchmarks.traces [--records N] [--pairs N] [--engine arrow|python] [--batch N] [--sample-ratio N]

Each pair reads the same topic twice, in turns the one or the other first. Every record has a header
`traceparent`; 50 records are of one trace. A receiver in this process takes the spans. What counts is the CPU
time of the worker from the first tenth of the records to their end, so its start is left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import uuid
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.pipeline.load import PARTITIONS, create, values
from benchmarks.pipeline.ours import Batch, config, worker
from benchmarks.pipeline.processes import tree
from slackwater.kafka import KafkaProducer
from tests.support.devbroker import DevBroker
from tests.support.otlp import otlp_receiver

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


def _cpu_s(pid: int) -> float:
    return sum(cpu for cpu, _ in tree(pid))


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each pair, and the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces")
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--engine", choices=["arrow", "python"], default="arrow")
    parser.add_argument("--batch", type=int, default=1_000, help="the most records of a batch")
    parser.add_argument("--sample-ratio", type=float, default=0.01)
    args = parser.parse_args([] if arguments is None else arguments)
    topic = f"traces-{uuid.uuid4().hex[:8]}"
    without: list[float] = []
    with_traces: list[float] = []
    with DevBroker() as broker, otlp_receiver() as receiver:
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
