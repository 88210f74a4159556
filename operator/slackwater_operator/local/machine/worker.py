"""A worker's state from its events, and when its next process starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.local.machine.events import EXIT_BAD_CONFIG, EXIT_HANDLER_OR_SINK, WorkerEvent
from slackwater_operator.local.machine.processes import WorkerProcess

STANDBY = "standby"
"""The phase of a process that is ready to take its member over, or has handed it over."""

_FIRST_BACKOFF_MS = 1_000
_LONGEST_BACKOFF_MS = 30_000
_STEADY_MS = 60_000


@dataclass
class Progress:
    """The state of a worker's process, from its events.

    Attributes:
        phase: its phase, "" before its first event about it.
        port: its health port.
        generation: the generation that it joined last, -1 before.
        leader: whether it leads.
        assignment: its partitions.
        committed: whether it has committed anything.
        error: its last `error` message.
        handed_over: whether it has handed its member over to another process.
        joined_ms: when it joined last.
        changed_ms: when its phase, generation or assignment changed last.
    """

    phase: str = ""
    port: int | None = None
    generation: int = -1
    leader: bool = False
    assignment: frozenset[TopicPartition] = frozenset()
    committed: bool = False
    error: str = ""
    handed_over: bool = False
    joined_ms: int = 0
    changed_ms: int = 0

    @property
    def member(self) -> bool:
        """Whether it is its member in the group, as far as it knows."""
        return self.generation >= 0 and self.phase != STANDBY and not self.handed_over

    def take(self, event: WorkerEvent) -> None:
        """Takes an event in."""
        data = event.data
        match event.event:
            case "started":
                self.port = int(data["port"]) if data.get("port") else None
            case "phase":
                self.phase = str(data.get("phase", ""))
                self.changed_ms = event.ts_ms
                if self.phase == STANDBY:
                    self.assignment, self.leader = frozenset(), False
            case "joined":
                self.generation = int(data.get("generation", -1))
                self.leader = bool(data.get("leader", False))
                self.handed_over = False
                self.joined_ms = self.changed_ms = event.ts_ms
            case "handed_over":  # the group knows another process as this member now
                self.handed_over, self.leader = True, False
                self.assignment = frozenset()
                self.changed_ms = event.ts_ms
            case "assigned":
                self.assignment |= event.partitions()
                self.changed_ms = event.ts_ms
            case "revoked" | "lost":
                self.assignment -= event.partitions()
                self.changed_ms = event.ts_ms
            case "committed":
                self.committed = True
            case "error":
                self.error = str(data.get("message", ""))


@dataclass
class Worker:
    """The worker's container of a pod: its processes come and go.

    Attributes:
        name: the member that its processes are, or are to be.
        ordinal: its number; -1 for a preflight's.
        pod: the pod, which its processes are called as.
        revision: the revision of the pod's template.
        process: its process, None when there is none.
        progress: the state of that process.
        stopping: whether its process has been asked to end.
        restarts: how many processes it has had after the first; -1 before that.
        failures: how many times in a row it ended by itself without having worked in between.
        next_start_ms: not started again before this.
        ended_ms: when its last process ended.
        last_exit: the exit code of its last process, negative for a signal.
        last_error: what its last process said was wrong.
    """

    name: str
    ordinal: int
    pod: str
    revision: str = ""
    process: WorkerProcess | None = None
    progress: Progress = field(default_factory=Progress)
    stopping: bool = False
    restarts: int = -1
    failures: int = 0
    next_start_ms: int = 0
    ended_ms: int | None = None
    last_exit: int | None = None
    last_error: str = ""

    def started(self, process: WorkerProcess) -> None:
        """Notes a new process."""
        self.process = process
        self.progress = Progress()
        self.restarts += 1

    def ended(self, exit_code: int, at_ms: int) -> None:
        """Notes the end of its process, and when the next may start: the later, the more often it failed."""
        self.ended_ms = at_ms
        self.last_exit = exit_code
        self.last_error = self.progress.error
        if self.stopping or exit_code == 0:
            self.failures = 0
        else:
            self.failures = 1 if self._recovered(exit_code, at_ms) else self.failures + 1
        # A bad configuration does not get better by itself: its second try waits already.
        self.process = None
        unready = exit_code == EXIT_BAD_CONFIG and not self.stopping
        self.next_start_ms = at_ms + backoff_ms(self.failures + unready)
        self.progress = Progress(changed_ms=at_ms)

    def _recovered(self, exit_code: int, at_ms: int) -> bool:
        """Whether the process that has ended worked again after the failures before it.

        A commit shows it, but not where the handler or the sink ended it soon: a batch that always fails lets
        other partitions' batches through before it.
        """
        began_ms = self.process.started_ms if self.process is not None else None
        soon = began_ms is not None and at_ms - began_ms < _STEADY_MS
        return self.progress.committed and not (exit_code == EXIT_HANDLER_OR_SINK and soon)


def backoff_ms(failures: int) -> int:
    """How long a worker waits before its next process: after a first failure not at all, like a kubelet."""
    if failures <= 1:
        return 0
    return int(min(_FIRST_BACKOFF_MS * 2 ** (failures - 2), _LONGEST_BACKOFF_MS))
