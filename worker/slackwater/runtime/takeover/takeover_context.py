"""What a worker needs beside its parts to hand over and to take over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slackwater.runtime.call_threads import Runner, Task
from slackwater.runtime.config.worker_config import TakeoverConfig
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from slackwater.runtime.takeover.http_client import Peers


@dataclass(frozen=True)
class TakeoverContext:
    """``watcher``: looks at the group; ``caller``: asks other pods. Two threads, so that a coordinator
    that is slow does not hold up a question to the predecessor.
    """

    key: bytes
    peers: Peers
    watcher: Runner
    caller: Runner


class MainLoop(Protocol):
    """What a worker's main thread lends to those who wait on it."""

    def turn(self) -> None:
        """Lets a short time pass. Raises what ends the worker."""

    def wait_for(self, task: Task) -> Any:
        """The result of ``task``; turns meanwhile."""

    def until(self, condition: Callable[[], bool]) -> None:
        """Turns until ``condition`` holds."""

    def enter(self, phase: str) -> None:
        """Goes to a phase."""


def load_key(config: TakeoverConfig, file: str) -> bytes:
    """The key in ``config.key_file``. Raises ConfigError, which names ``file`` and says what to do."""
    from slackwater.runtime.takeover.signing import read_key

    try:
        text = Path(config.key_file).read_text(encoding="ascii")
    except OSError as exc:
        problem = (
            f"{config.key_file} cannot be read: {exc.strerror or exc}; put the group's key there (a pod: the "
            "Secret GROUP-takeover), or leave takeover out"
        )
        raise ConfigError(problem, file=file, field="takeover.keyFile") from None
    except UnicodeDecodeError:
        text = ""
    try:
        return read_key(text)
    except ValueError as exc:
        raise ConfigError(f"{config.key_file} {exc}", file=file, field="takeover.keyFile") from None
