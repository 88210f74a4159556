"""What a rollout costs a consumer group, by several ways to roll: one run, one load, one cluster, one Kafka.

(a) a Deployment of confluent-kafka consumers, cooperative-sticky, RollingUpdate; (b) a StatefulSet of
static confluent-kafka consumers, RollingUpdate; (c) a ConsumerGroup, Restart; (d) a ConsumerGroup, Takeover;
(e) to (h) the same by Kafka's consumer protocol (KIP-848); (i) as (e) with Java's consumer.
All hand the same records to the same handler (`work.py`) and put its rows into the same sink; what
differs is who consumes and who restarts it. Prints a table, and draws the lag over time as SVG. With --kill
a second table: one pod's process is killed after each roll.

    python -m benchmarks.rollouts --svg lag.svg
    python -m benchmarks.rollouts --ways efgh --kill --heartbeat-ms 5000
    python -m benchmarks.rollouts --handler jvm --ways a --json a.json      (then b, c and d)
    python -m benchmarks.rollouts --from a.json b.json c.json d.json --svg lag.svg

One ruler for all, outside of the consumers: files as they appear in the sink's folder (inotify), the group's
generations from the broker's own log, offsets and lag from the brokers. `measure.py` has the definitions,
`peer.py` the settings of the peers. `ways.py` says how each is rolled. As root: the pods are processes.
"""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> int:
    """Runs it; without arguments with the defaults. Returns the exit code."""
    # Loaded here: a peer's process imports this package on its way, and shall not wait for all of it.
    from benchmarks.rollouts import run

    return run.main(arguments or [])
