"""Runs the Java programs in this folder, which are compiled into ``.cache/`` once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.kafka.jars import (
    CACHE,
    KAFKA_VERSION,
    LEAST_JAVA,
    QUICK_JAVA,
    KafkaUnavailable,
    fetch_jars,
    find_java,
    kafka_libs,
    made_once,
)
from tests.support.waiting import HANG_S

SOURCES = Path(__file__).parent
COMPILED = CACHE / "java-programs"


def java_command(program: str, *arguments: str, heap_mb: int = 256, options: Sequence[str] = ()) -> list[str]:
    """The command that runs ``java/<program>.java`` with the jars of the tests' default Kafka release.

    ``options`` are for the JVM. Raises as :func:`compiled` does.
    """
    classpath = f"{compiled()}{os.pathsep}{kafka_libs()}/*"
    return [
        str(find_java()), f"-Xmx{heap_mb}m", *QUICK_JAVA, *options, "-cp", classpath,
        _main_class(program), *arguments,
    ]  # fmt: skip


def compiled() -> Path:
    """The folder with the classes of all programs in ``java/``, compiled together if one is new or was
    changed.

    They run on every Java that the tests take, so the key has the sources and the oldest of these. Safe to
    call from many threads and processes at once. Raises :class:`KafkaUnavailable` where there is no Java,
    only a Java without a compiler, or no jars; RuntimeError for a source that does not compile.
    """
    sources = sorted(SOURCES.glob("*.java"))
    content = b"".join(source.read_bytes() for source in sources)
    key = hashlib.sha256(content + f"{KAFKA_VERSION} {LEAST_JAVA}".encode()).hexdigest()[:12]
    return made_once(COMPILED / f"classes-{key}", lambda folder: compile_java(sources, kafka_libs(), folder))


def compile_java(sources: Iterable[Path], libs: Path, folder: Path) -> None:
    """Makes the folder with the classes of ``sources``, which need the jars in ``libs``. Raises as
    :func:`compiled` does."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        classes = Path(made) / "classes"
        done = subprocess.run(
            [
                _javac(), *(f"-J{option}" for option in QUICK_JAVA), "--release", str(LEAST_JAVA), "-nowarn",
                "-cp", f"{libs}/*", "-d", classes, *sources,
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"Java sources do not compile:\n{done.stdout}{done.stderr}")
        classes.rename(folder)


def classpath_of(program: Path, pom: Path, cache: str, what: str, jar: str) -> str:
    """Of a program that needs the jars of a pom of its own: fetched and compiled the first time.

    ``cache``: how the name of their folder in the cache begins. ``what``: the jars, in errors. ``jar``: the
    pattern of one of them. Safe to call from many processes at once. Raises as :func:`compiled` does, and
    KafkaUnavailable without Maven.
    """
    both = CACHE / f"{cache}-{_key(pom)}"
    libs = made_once(both / "libs", lambda folder: fetch_jars(pom, folder, what, jar))
    key = f"classes-{_key(program)}"
    classes = made_once(both / key, lambda folder: compile_java([program], libs, folder))
    return f"{classes}:{libs}/*"


def _key(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def _javac() -> str:
    java = find_java()
    beside = java.resolve().with_name("javac")
    executable = str(beside) if beside.exists() else shutil.which("javac")
    if executable is None:
        raise KafkaUnavailable(
            f"The tests with Java's client need a Java compiler: {java} is of a runtime without 'javac',"
            " and there is none on the PATH. Install a JDK (Debian and Ubuntu: apt-get install"
            " default-jdk-headless; macOS: brew install openjdk) and set JAVA_HOME to it or put it on the"
            " PATH."
        )
    return executable


def _main_class(program: str) -> str:
    package = re.search(r"^package ([\w.]+);", (SOURCES / f"{program}.java").read_text(), re.MULTILINE)
    return f"{package[1]}.{program}" if package else program


class JavaOracle:
    """A context manager: a program that answers each line of JSON with one, asked from one thread.

    ``heap_mb`` is the JVM's heap. Starting raises as :func:`compiled` does.
    """

    def __init__(self, program: str, *, heap_mb: int = 256) -> None:
        self._program, self._heap_mb = program, heap_mb

    def __enter__(self) -> Self:
        command = java_command(self._program, heap_mb=self._heap_mb)
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, encoding="utf-8",
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=HANG_S)  # it ends at the end of its input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        finally:
            self._errors.close()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request. Raises RuntimeError with the end of its stderr if the JVM has ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        line = ""
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"the JVM of {self._program} has ended: {self._errors.read()[-2_000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass(frozen=True, slots=True)
class JavaOption:
    """One of ConsumerConfig's options: its type, and its default as Java prints it."""

    name: str
    type: str
    default: str


def ask_java(attempts: Iterable[Mapping[str, str]]) -> tuple[dict[str, JavaOption], list[str]]:
    """All options of ConsumerConfig (but for internal ones), and what Java's KafkaConsumer raises for each
    combination, empty where it takes it. Raises ``KafkaUnavailable``."""
    lines = ["\t".join(f"{name}={value}" for name, value in attempt.items()) for attempt in attempts]
    done = subprocess.run(
        java_command("ConsumerOptions"),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True, text=True, timeout=HANG_S, check=True,
    )  # fmt: skip
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    options = {row[1]: JavaOption(*row[1:4]) for row in rows if row[0] == "option"}
    answers = [row[2] if len(row) > 2 else "" for row in rows if row[0] == "answer"]
    assert len(answers) == len(lines), done.stderr
    return options, answers
