"""A small real process that speaks a worker's events, health port and exit codes, without Kafka.

It joins the FakeGroup whose port stands in its configuration file under "group". "behave" there says what it
does by name: "refuse" (exit 2 with an error), "crash" (exit 4 after joining), "deaf" (ignores SIGTERM),
"slow" (warms up for a second).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

NAME = os.environ["SLACKWATER_INSTANCE_ID"]
GATE = threading.Event()


def emit(event: str, **fields: Any) -> None:
    line = {"ts_ms": time.time_ns() // 1_000_000, "event": event, "instance": NAME, **fields}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Health(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        GATE.set()
        self.send_response(202)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def drain(*_: Any) -> None:
    emit("phase", phase="draining")
    emit("drained", ms=1)
    emit("stopped", code=0)
    os._exit(0)


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    behave = config["behave"].get(NAME, "")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behave == "deaf" else drain)
    server = HTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    emit("started", pid=os.getpid(), port=server.server_port)
    print("a line that is no event", flush=True)
    if behave == "refuse":
        emit("error", message="flights.pipeline: no module of this name; check spec.pipeline.handler")
        emit("stopped", code=2)
        sys.exit(2)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # as a JVM would be
    emit("child", pid=child.pid)
    group = socket.create_connection(("127.0.0.1", config["group"]))
    lines = group.makefile("rw")
    if not ask(lines, known=NAME)["known"]:
        emit("phase", phase="warming")
        time.sleep(1 if behave == "slow" else 0)
        emit("phase", phase="warm")
        GATE.wait()
    emit("phase", phase="joining")
    joined = ask(lines, join=NAME)
    follow(joined, set())
    emit("phase", phase="running")
    if behave == "crash":
        emit("error", message="the sink is full")
        sys.exit(4)
    held = {tuple(one) for one in joined["partitions"]}
    for line in lines:
        changed = json.loads(line)
        held = follow(changed, held)


def ask(lines: Any, **question: Any) -> dict[str, Any]:
    lines.write(json.dumps(question) + "\n")
    lines.flush()
    answer: dict[str, Any] = json.loads(lines.readline())
    return answer


def follow(told: dict[str, Any], held: set[tuple[str, int]]) -> set[tuple[str, int]]:
    now = {(topic, number) for topic, number in told["partitions"]}
    if held - now:
        emit("revoked", partitions=sorted(held - now), generation=told["generation"])
    emit("joined", generation=told["generation"], leader=told["leader"], follow_up=False, returned=False)
    if now - held:
        emit("assigned", partitions=sorted(now - held), generation=told["generation"])
    return now


main()
