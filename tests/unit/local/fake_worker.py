"""A small real process that speaks a worker's events, health port and exit codes, without Kafka.

Its first argument is a file: "group" there is the port of the FakeGroup that it joins, "behave" says what it
does, by the name of its member or of its process: "refuse" (exit 2 with an error), "crash" (exit 4 after
joining), "deaf" (ignores SIGTERM), "slow" (warms up for a second), "cold" (is not warm before it is told to
take over at once). Its second argument is a worker's configuration, of which it knows `takeover.keyFile`.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from slackwater.clock import SYSTEM_CLOCK
from slackwater.runtime.takeover.signing import (
    ANSWER_HEADER,
    Unauthorized,
    Verifier,
    read_key,
    sign_answer,
    target_of,
)

NAME = os.environ["SLACKWATER_INSTANCE_ID"]
POD = os.environ["SLACKWATER_POD_NAME"]
CONFIG = json.loads(Path(sys.argv[1]).read_text())
BEHAVE = CONFIG["behave"].get(POD, CONFIG["behave"].get(NAME, ""))
GATE = threading.Event()
TOLD: queue.Queue[str] = queue.Queue()
"""Predecessors that this one was told to take over from."""


TAKEOVER = json.loads(Path(sys.argv[2]).read_text()).get("takeover")
KEY = read_key(Path(TAKEOVER["keyFile"]).read_text()) if TAKEOVER else b""
PROCESS = secrets.token_hex(16)
VERIFIER = Verifier(KEY, SYSTEM_CLOCK, target_of(POD, PROCESS))


class State:
    """What the process is now."""

    phase = ""
    held: ClassVar[set[tuple[str, int]]] = set()
    generation = -1


def emit(event: str, **fields: Any) -> None:
    line = {"ts_ms": time.time_ns() // 1_000_000, "event": event, "instance": NAME, **fields}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def phase(name: str) -> None:
    State.phase = name
    emit("phase", phase=name)


class Health(BaseHTTPRequestHandler):
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
            emit("handover", by=json.loads(body)["by"], generation=State.generation, drain_took_ms=1)
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
    if State.phase != "standby":
        phase("draining")
        emit("drained", ms=1)
    emit("stopped", code=0)
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN if BEHAVE == "deaf" else drain)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    emit("started", pid=os.getpid(), port=server.server_port, process=PROCESS)
    print("a line that is no event", flush=True)
    if BEHAVE == "refuse":
        emit("error", message="flights.pipeline: no module of this name; check spec.pipeline.handler")
        emit("stopped", code=2)
        sys.exit(2)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # as a JVM would be
    emit("child", pid=child.pid)
    group = socket.create_connection(("127.0.0.1", CONFIG["group"]))
    lines = group.makefile("rw")
    known = ask(lines, known=NAME)
    if known["known"] and KEY and known["holder"] != POD:
        warm_up()
        if BEHAVE != "cold":
            emit("standby", holder=known["holder"])
            phase("standby")
        take_over(lines)
    else:
        if not known["known"]:
            warm_up()
            phase("warm")
            GATE.wait()
        phase("joining")
        follow(ask(lines, join=NAME, pod=POD))
    phase("running")
    if BEHAVE == "crash":
        emit("error", message="the sink is full")
        sys.exit(4)
    for line in lines:
        told = json.loads(line)
        if "fenced" in told:
            fenced(told["fenced"])
        else:
            follow(told)


def warm_up() -> None:
    phase("warming")
    time.sleep(1 if BEHAVE == "slow" else 0)


def take_over(lines: Any) -> None:
    predecessor = TOLD.get()
    phase("taking-over")
    if predecessor:
        connection = HTTPConnection(predecessor, timeout=2)
        connection.request("POST", "/handover", json.dumps({"by": POD}))
        connection.getresponse().read()
    began = time.time_ns() // 1_000_000
    joined = ask(lines, join=NAME, pod=POD)
    follow(joined)
    pauses = {f"{topic}-{number}": 20 + number for topic, number in State.held}
    for partition, gap in pauses.items():
        emit("first_records", partition=partition, gap_ms=gap, restart=True, session_timeout_ms=45_000)
    emit("takeover", asked_ms=began, forced=not predecessor, pauses_ms=pauses, **{"from": predecessor})


def fenced(by: str) -> None:
    if not KEY:
        emit("fenced")
        emit("error", message="another process has joined the group with this worker's instance id")
        os._exit(3)
    State.held = set()
    emit("handed_over", by=by)
    emit("standby", holder=by)
    phase("standby")


def ask(lines: Any, **question: Any) -> dict[str, Any]:
    lines.write(json.dumps(question) + "\n")
    lines.flush()
    answer: dict[str, Any] = json.loads(lines.readline())
    return answer


def follow(told: dict[str, Any]) -> None:
    now = {(topic, number) for topic, number in told["partitions"]}
    if State.held - now:
        emit("revoked", partitions=sorted(State.held - now), generation=told["generation"])
    joined = {"generation": told["generation"], "leader": told["leader"], "member_id": f"id-{POD}"}
    emit("joined", follow_up=False, returned=False, **joined)
    if now - State.held:
        emit("assigned", partitions=sorted(now - State.held), generation=told["generation"])
    State.held, State.generation = now, told["generation"]


main()
