"""Starting Java programs: compiled once, anew after a change, and what is said where that cannot be done."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.java import programs
from tests.support.java.programs import JavaOracle, compiled, java_command
from tests.support.kafka.jars import KafkaUnavailable

pytestmark = pytest.mark.parts("java")
ECHO = """package some.place;
public class Echo {
    public static void main(String[] arguments) throws Exception {
        var lines = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        if (arguments.length > 0) { System.out.println(String.join(",", arguments)); return; }
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.contains("end")) throw new IllegalStateException("was told to end");
            System.out.println(line);
        }
    }
}
"""


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A program of this test's own, and a folder of its own for the classes."""
    monkeypatch.setattr(programs, "SOURCES", tmp_path)
    monkeypatch.setattr(programs, "COMPILED", tmp_path / "compiled")
    file = tmp_path / "Echo.java"
    file.write_text(ECHO)
    return file


@pytest.mark.long
def test_a_program_is_compiled_once_and_answers(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(java_command("Echo", "a b", "c"), capture_output=True, text=True, check=True)
    assert done.stdout == "a b,c\n"
    with monkeypatch.context() as patched:
        patched.setattr(programs, "_javac", lambda: pytest.fail("it was compiled again"))
        folder = compiled()
    with JavaOracle("Echo") as oracle:
        assert oracle.ask({"grün": [1, None]}) == {"grün": [1, None]}
        with pytest.raises(RuntimeError, match=r"(?s)JVM of Echo has ended.*was told to end"):
            oracle.ask({"end": True})
    source.write_text(ECHO.replace("package", "pakage"))
    with pytest.raises(RuntimeError, match=r"(?s)do not compile.*Echo.java.*pakage"):
        compiled()
    assert {path.name for path in programs.COMPILED.iterdir()} == {"lock", folder.name}


def test_no_compiler_is_one_clear_error(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A runtime alone is not enough, and the error says so."""
    monkeypatch.setattr(programs, "find_java", lambda: tmp_path / "java")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KafkaUnavailable, match=r"runtime without 'javac'.*Install a JDK.*JAVA_HOME"):
        compiled()
