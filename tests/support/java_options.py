"""The options of Java's consumer, asked of the kafka-clients jar itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.support.java_programs import java_command


@dataclass(frozen=True, slots=True)
class JavaOption:
    """One of ConsumerConfig's options: its type, and its default as Java prints it."""

    name: str
    type: str
    default: str


def ask_java(attempts: Iterable[Mapping[str, str]]) -> tuple[dict[str, JavaOption], list[str]]:
    """All options of ConsumerConfig (but for internal ones), and what Java's KafkaConsumer raises for each
    combination, empty where it takes it. Raises ``KafkaUnavailable``."""
    lines = ["\t".join(f"{name}={value}" for name, value in one.items()) for one in attempts]
    done = subprocess.run(
        java_command("ConsumerOptions"),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    options = {row[1]: JavaOption(*row[1:4]) for row in rows if row[0] == "option"}
    answers = [row[2] if len(row) > 2 else "" for row in rows if row[0] == "answer"]
    assert len(answers) == len(lines), done.stderr
    return options, answers
