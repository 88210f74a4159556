"""The scripts of the command ``completion`` in the shells: bash; zsh and fish where they are installed."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.workers.commands import run

BASH = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
$(complete -p {program} | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


MODULES = {"slackwater": "slackwater.cli", "slackwater-operator": "slackwater_operator.cli.operator"}


def run_program(program: str, shell: str) -> subprocess.CompletedProcess[str]:
    main: Callable[[list[str]], int] = import_module(MODULES[program]).main
    return run(Path(__file__).parent, lambda: main(["completion", shell]))


def script_of(program: str, shell: str) -> str:
    done = run_program(program, shell)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def in_bash(script: Path, line: str) -> set[str]:
    """What bash offers for the last word of ``line``."""
    words = line if line[-1] != " " else f"{line}''"
    source = BASH.format(script=script, words=words, program=line.split()[0])
    command = ["bash", "--norc", "-c", source]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def in_fish(script: Path, line: str) -> set[str]:
    command = ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {offer.split("\t")[0] for offer in shown.splitlines()}


def in_zsh(script: Path, line: str) -> set[str]:
    """The only word that zsh completes the last one of ``line`` to, on a terminal of its own."""
    pid, terminal = pty.fork()
    if not pid:
        os.execvpe("zsh", ["zsh", "-f", "-i"], os.environ | {"TERM": "dumb", "ZDOTDIR": str(script.parent)})
    try:
        os.write(
            terminal,
            f'autoload -Uz compinit; compinit -D -u; eval "$(cat {script})"; echo is-$((1+1))\n'.encode(),
        )
        read_until(terminal, "is-2")
        # The line is completed; then it is made an argument of echo.
        os.write(terminal, f"{line}\t\x01echo completed: \n".encode())
        return set(read_until(terminal, r"completed: ([^\r\n]*)\r?\n").split()[-1:])
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def read_until(terminal: int, pattern: str) -> str:
    text = ""
    while True:
        with contextlib.suppress(UnicodeDecodeError):
            text += os.read(terminal, 4096).decode()
        lines = text.splitlines(keepends=True)
        for line in lines:
            match = re.match(pattern, line)
            if match:
                return match[match.lastindex or 0]


COMPLETERS: dict[str, Callable[[Path, str], set[str]]] = {"bash": in_bash, "fish": in_fish, "zsh": in_zsh}
INSTALLED = ["bash", *(shell for shell in ("fish", "zsh") if shutil.which(shell))]
LINES = [
    ("slackwater topi", "topics"),
    ("slackwater dlq rep", "replay"),
    ("slackwater local ru", "run"),
    ("slackwater topics --part", "--partitions"),
    ("slackwater lag --outp", "--output"),
    ("slackwater completion fi", "fish"),
    ("slackwater-operator ch", "check"),
    ("slackwater-operator --admission-p", "--admission-port"),
    ("slackwater-operator check --sel", "--selector"),
    ("slackwater-operator completion zs", "zsh"),
]


@pytest.mark.parametrize("shell", INSTALLED)
def test_a_shell_completes_commands_options_and_values(tmp_path: Path, shell: str) -> None:
    for program in MODULES:
        (tmp_path / program).write_text(script_of(program, shell))
    for line, completed in LINES:
        assert COMPLETERS[shell](tmp_path / line.split()[0], line) == {completed}, line


def test_the_files_of_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script"
    script.write_text(script_of("slackwater", "bash"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "group.yaml").touch()
    assert in_bash(script, "slackwater try -f gr") == {"group.yaml"}


COMMANDS = {
    "slackwater": ("topics", "try", "replay", "backfill", "local", "worker"),
    "slackwater-operator": ("check", "completion"),
}


@pytest.mark.parametrize("shell", COMPLETERS)
@pytest.mark.parametrize("program", MODULES)
def test_each_script_has_every_command(program: str, shell: str) -> None:
    script = script_of(program, shell)
    for command in COMMANDS[program]:
        assert command in script


@pytest.mark.parametrize("program", MODULES)
def test_a_shell_without_a_script(program: str) -> None:
    done = run_program(program, "cmd")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'cmd'" in done.stderr
