"""A small real process that speaks a worker's events, endpoints and exit codes, without Kafka.

Its first argument is a file: "group" there is the port of the FakeGroup that it joins, "behave" says what it
does, by the name of its member or of its pod: "refuse" (exit 2 with an error), "broken" (ends with Python's
traceback before it says anything), "crash" (exit 4 after joining), "deaf" (ignores SIGTERM), "hang" (stops
after joining), "slow" (warms up for a second), "late" (joins a tenth of a second after its start), "cold" (is
not warm before it is told to take over at once). After it come a worker's own arguments; of the configuration
it knows `takeover.keyFile`. With `--preflight` it only says whether it would start, which "behave" has under
"preflight".
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from slackwater.clock import SYSTEM_CLOCK
from slackwater.runtime.takeover.signing import (
    ANSWER_HEADER,
    Unauthorized,
    Verifier,
    read_key,
    sign_answer,
    target_of,
)
from slackwater.runtime.telemetry.events import write_termination_message
from slackwater.runtime.telemetry.status import Status

NAME = os.environ["SLACKWATER_INSTANCE_ID"]
POD = os.environ["SLACKWATER_POD_NAME"]
CONFIG = json.loads(Path(sys.argv[1]).read_text())
PREFLIGHT = "--preflight" in sys.argv
BEHAVE = CONFIG["behave"].get("preflight" if PREFLIGHT else POD, CONFIG["behave"].get(NAME, ""))
GATE = threading.Event()
TOLD: queue.Queue[str] = queue.Queue()
"""Predecessors that this one was told to take over from."""


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


TAKEOVER = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text()).get("takeover")
KEY = read_key(Path(TAKEOVER["keyFile"]).read_text()) if TAKEOVER else b""
STATUS = Status("flights", NAME, SYSTEM_CLOCK, pod=POD)
VERIFIER = Verifier(KEY, SYSTEM_CLOCK, target_of(POD, STATUS.process))
HELD: set[tuple[str, int]] = set()


def emit(event: str, **fields: Any) -> None:
    line = {"ts_ms": wall_ms(), "event": event, "instance": NAME, **fields}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def phase(name: str) -> None:
    STATUS.enter(name)
    emit("phase", phase=name)


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(200, json.dumps(STATUS.document()).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/join":
            try:
                if KEY:
                    VERIFIER.verify("POST", "/join", body, self.headers.get("Authorization"))
            except Unauthorized as exc:
                self.answer(401, json.dumps({"error": str(exc)}).encode())
                return
            GATE.set()
            self.answer(202, b"{}")
        elif self.path == "/takeover" and KEY:
            self.take_over(body)
        elif self.path == "/handover" and KEY:
            phase("handing-over")
            emit("handover", by=json.loads(body)["by"], generation=STATUS.generation, drain_took_ms=1)
            self.answer(200, b"{}")
        else:
            self.answer(404, b'{"error": "there is no such path"}')

    def take_over(self, body: bytes) -> None:
        try:
            nonce = VERIFIER.verify("POST", "/takeover", body, self.headers.get("Authorization"))
        except Unauthorized as exc:
            self.answer(401, json.dumps({"error": str(exc)}).encode())
            return
        answer = b'{"phase": "standby"}'
        STATUS.standby = {**(STATUS.standby or {}), "told": True}
        TOLD.put(json.loads(body)["predecessor"])
        self.answer(202, answer, sign_answer(KEY, nonce, 202, answer))

    def answer(self, status: int, body: bytes, signature: str = "") -> None:
        self.send_response(status)
        if signature:
            self.send_header(ANSWER_HEADER, signature)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


def drain(*_: Any) -> None:
    if STATUS.phase != "standby":
        phase("draining")
        emit("drained", ms=1)
    emit("stopped", code=0)
    os._exit(0)


def main() -> None:
    if BEHAVE == "broken":
        raise ModuleNotFoundError("No module named 'flights'")
    if PREFLIGHT:
        if BEHAVE == "refuse":
            write_termination_message(
                "flights.pipeline: no module of this name; check spec.pipeline.handler", os.environ
            )
        sys.exit(2 if BEHAVE == "refuse" else 0)
    STATUS.started_ms = wall_ms()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if BEHAVE == "deaf" else drain)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    emit("started", pid=os.getpid(), port=server.server_port, process=STATUS.process)
    print("a line that is no event", flush=True)
    if BEHAVE == "refuse":
        emit("error", message="flights.pipeline: no module of this name; check spec.pipeline.handler")
        emit("stopped", code=2)
        sys.exit(2)
    child = subprocess.Popen(["sleep", "600"])  # as a JVM would be
    emit("child", pid=child.pid)
    group = socket.create_connection(("127.0.0.1", CONFIG["group"]))
    lines = group.makefile("rw")
    known = ask(lines, known=NAME)
    if known["known"] and KEY and known["holder"] != POD:
        warm_up()
        if BEHAVE != "cold":
            stand_by(known["holder"])
        take_over(lines, known["holder"])
    else:
        if not known["known"]:
            warm_up()
            phase("warm")
            GATE.wait()
        if BEHAVE == "late":
            time.sleep(0.1)
        phase("joining")
        follow(ask(lines, join=NAME, pod=POD))
    phase("running")
    if BEHAVE == "crash":
        emit("error", message="the sink is full")
        sys.exit(4)
    if BEHAVE == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    for line in lines:
        message = json.loads(line)
        if "fenced" in message:
            fenced(message["fenced"])
        else:
            follow(message)


def warm_up() -> None:
    phase("warming")
    time.sleep(1 if BEHAVE == "slow" else 0)


def stand_by(holder: str, *, handed_over: bool = False) -> None:
    STATUS.holder, STATUS.assignment, STATUS.is_leader = holder, [], False
    STATUS.standby = {"since_ms": wall_ms(), "handed_over": handed_over, "told": False, "reason": ""}
    emit("standby", holder=holder)
    phase("standby")


def take_over(lines: Any, before: str) -> None:
    predecessor = TOLD.get()
    phase("taking-over")
    if predecessor:
        connection = HTTPConnection(predecessor, timeout=2)
        connection.request("POST", "/handover", json.dumps({"by": POD}))
        connection.getresponse().read()
    began = wall_ms()
    joined = ask(lines, join=NAME, pod=POD)
    STATUS.standby = None
    follow(joined)
    pauses = {f"{topic}-{number}": 20 + number for topic, number in HELD}
    for partition, gap in pauses.items():
        emit("first_records", partition=partition, gap_ms=gap, restart=True, session_timeout_ms=45_000)
    fields = {"asked_ms": began, "forced": not predecessor, "pauses_ms": pauses, "from": before}
    STATUS.takeover = {
        **fields,
        "joined_ms": STATUS.joined_ms,
        "first_record_ms": STATUS.joined_ms,
        "generation_before": STATUS.generation if predecessor else None,
        "generation": STATUS.generation,
    }
    emit("takeover", **fields)


def fenced(by: str) -> None:
    if not KEY:
        emit("fenced")
        emit("error", message="another process has joined the group with this worker's instance id")
        os._exit(3)
    HELD.clear()
    emit("handed_over", by=by)
    stand_by(by, handed_over=True)


def ask(lines: Any, **question: Any) -> dict[str, Any]:
    lines.write(json.dumps(question) + "\n")
    lines.flush()
    answer: dict[str, Any] = json.loads(lines.readline())
    return answer


def follow(message: dict[str, Any]) -> None:
    now = {(topic, number) for topic, number in message["partitions"]}
    gone, new = sorted(HELD - now), sorted(now - HELD)
    HELD.clear()
    HELD.update(now)
    STATUS.holder, STATUS.is_leader, STATUS.member_id = POD, message["leader"], f"id-{POD}"
    STATUS.generation, STATUS.joined_ms = message["generation"], wall_ms()
    STATUS.assignment = [[topic, number] for topic, number in sorted(now)]
    join = {"generation": message["generation"], "at_ms": STATUS.joined_ms, "kind": "joined", "reason": ""}
    STATUS.joins = [*STATUS.joins, join][-5:]
    if gone:
        emit("revoked", partitions=gone, generation=message["generation"])
    joined = {"generation": message["generation"], "leader": message["leader"], "member_id": STATUS.member_id}
    emit("joined", follow_up=False, returned=False, **joined)
    if new:
        emit("assigned", partitions=new, generation=message["generation"])


main()
