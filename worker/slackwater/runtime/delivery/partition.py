"""The state of a partition that a worker owns, and the note in the partition's commits."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from typing import Any

from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.untrusted import json_object, whole

_MAX_MS = 10**15
"""Some 30,000 years. A time beyond it is no worker's."""
_NUMBERS = {"drain": "drain_ms", "since": "since_ms", "alive": "alive_ms"}
_NUMBERS |= {"rejected": "rejected", "handled": "handled"}
_TEXTS = {"pod": "pod", "topic": "topic_id", "trace": "trace", "cluster": "cluster_id"}
"""By their names in the metadata, fields of :class:`CommitNote`."""


@dataclass(frozen=True)
class Begun:
    """Records that a process has begun to handle, from ``start`` up to ``end`` (not included). The handler
    has returned for those from the committed offset up to ``start``.

    ``ends``: how many processes in a row have begun these, or more with these among them, and committed
    nothing. ``alone``: with how many of them it was one record alone, the same each time.
    """

    start: int
    end: int
    ends: int = 1
    alone: int = 0


@dataclass(frozen=True)
class CommitNote:
    """A commit's metadata.

    ``at_ms``: when the partition was last known to be served (wall clock); None: not yet.
    ``instance``: by whom. ``letters``: (target, since, end), where dead letters for offsets from the
    committed one up to ``end`` (not included) may be in partition ``target`` of their topic, at offset
    ``since`` or later; where ``since`` is 0, in any partition.
    ``drain_ms``: in a worker's last commit, when it began to drain (wall clock).
    ``pod``: in which pod ``instance`` is, and ``since_ms``: since when (wall clock, but later than the
    ``since_ms`` of the pod before, whatever the two clocks say); where pods are not called as their members.
    ``alive_ms``: when it was last known to live, where that is later than ``at_ms``: in a long batch.
    ``topic_id``: of the topic that the offset belongs to; "" where brokers have none, and from older workers.
    ``rejected``: how many records were rejected in a row up to the offset, with none handled since; None: no
    batch was committed yet, or by an older worker. ``handled``: up to where records were handled whose rows
    wait to be written with others (`sink.maxAge`); they are not committed. ``trace``: in a worker's last
    commit, the trace of its restart, as the header ``traceparent``; "" without traces. ``cluster_id``: of the
    Kafka cluster that it was committed on; "" where the brokers do not report one, and from older workers.
    ``begun``: what a process works on, or has ended with; None: it is not noted of most batches.
    """

    at_ms: int | None
    instance: str
    letters: tuple[int, int, int] | None = None
    drain_ms: int | None = None
    pod: str = ""
    since_ms: int | None = None
    alive_ms: int | None = None
    topic_id: str = ""
    rejected: int | None = None
    handled: int | None = None
    trace: str = ""
    cluster_id: str = ""
    begun: Begun | None = None

    def mirrored(self, cluster_id: str) -> bool:
        """Whether it was committed on another Kafka cluster than the one with this id: a tool such as
        MirrorMaker 2 has set the offset here, and has copied the metadata. False where an id is unknown."""
        return "" not in (self.cluster_id, cluster_id) and self.cluster_id != cluster_id

    def encode(self) -> str:
        """The metadata string, below 450 characters for any usual names."""
        document = {name: getattr(self, field) for name, field in (_NUMBERS | _TEXTS).items()}
        document |= {"letters": self.letters, "begun": self.begun and astuple(self.begun)}
        noted = {name: value for name, value in document.items() if value not in (None, "")}
        return json.dumps({"at": self.at_ms, "instance": self.instance, **noted}, separators=(",", ":"))

    @classmethod
    def decode(cls, metadata: str) -> CommitNote | None:
        """The note in ``metadata``, or None where it is no worker's: another client may have committed."""
        try:
            document = json_object(metadata)
            at, instance, letters = document["at"], document["instance"], document.get("letters")
            announced = None if letters is None else _letters([whole(at, "letters") for at in letters])
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return None
        if not isinstance(instance, str) or (at is not None and _whole(at) is None):
            return None
        fields: dict[str, Any] = {field: _whole(document.get(name)) for name, field in _NUMBERS.items()}
        fields |= {field: _text(document.get(name)) for name, field in _TEXTS.items()}
        return cls(at, instance, announced, begun=_begun(document.get("begun")), **fields)


def _begun(value: object) -> Begun | None:
    numbers = [_whole(number) for number in value] if isinstance(value, list) else []
    if len(numbers) != 4 or None in numbers:
        return None
    return Begun(*(number for number in numbers if number is not None))


def _letters(numbers: list[int]) -> tuple[int, int, int]:
    if len(numbers) == 2:  # of an older worker: a time, and the end
        return 0, 0, numbers[1]
    target, since, end = numbers
    return target, since, end


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _MAX_MS else None


@dataclass(frozen=True)
class Signature:
    """Which pod a member's process is in, and since when it has been the member (wall clock, ms)."""

    pod: str
    since_ms: int

    def after(self, others: Iterable[CommitNote]) -> Signature:
        """The same, later than ``others`` of the same member: a pod's clock may be behind its
        predecessor's.
        """
        before = max((note.since_ms or 0 for note in others), default=0)
        return replace(self, since_ms=max(self.since_ms, before + 1))


@dataclass(frozen=True)
class Stopped:
    """Why nothing more is read of a partition until a person has decided where to go on.

    ``reason``: one word in CamelCase, such as ``LogTruncated``. ``message``: what happened and
    what to do. ``since_ms``: wall clock.
    """

    reason: str
    message: str
    since_ms: int


@dataclass
class OwnedPartition:
    """From assignment to revocation; a partition that comes back gets a new one."""

    tp: TopicPartition
    assigned_ms: float = 0.0
    """When it was assigned (monotonic clock)."""
    marks: dict[str, int] | None = None
    """The table's marks by topic id (:class:`slackwater.runtime.interfaces.Sink`); None: to be read."""
    looked_up: bool = False
    """Whether the committed offset is known. Nothing is taken before."""
    committed: int | None = None
    """The committed offset. None: never committed."""
    metadata: str = ""
    """The committed metadata as it stands at the broker."""
    initial_note: CommitNote | None = None
    """The note as it was at assignment."""
    had_records: bool = False
    """Whether it was served since its assignment, if only by finding nothing to read."""
    taken: bool = False
    """Whether a batch has begun with records of it."""
    served_ms: float | None = None
    """When it was last served by this process (monotonic clock): rows of it were published, or there was
    nothing to write of it when a drain began. None: not yet."""
    awaited: bool = False
    """Whether it was taken over, and no rows of it were published since: they wait for no others then."""
    letters: set[int] | None = None
    """Source offsets that are in the dead-letter topic already; of a batch that could not be read
    ``~offset``, since its records may be read later with a higher limit. None: not known yet."""
    letters_place: tuple[int, int] = (0, 0)
    """The partition of the dead-letter topic that its letters go to, and an offset that the next of them is
    not below."""
    signature: Signature | None = None
    """What commits are signed with, if they are."""
    signed: bool = False
    """Whether that was tried."""
    handed_over: bool = False
    """Whether ``committed`` is what a predecessor has handed over, and no batch has shown it to be wrong."""
    unverified: OffsetAndMetadata | None = None
    """What a predecessor has handed over as committed, until the broker has said what is."""
    at_start: bool = False
    """Whether the consumer was brought to where it is to be read from."""
    identified: bool = False
    """Whether the topic that has the name is known to be the one that the committed offset belongs to."""
    topic_id: str = ""
    """Of the topic that is read; "" where that is not known."""
    cluster_id: str = ""
    """Of the Kafka cluster; "" where that is not known."""
    stopped: Stopped | None = None
    """Why nothing more is read; None: it is read."""
    suspect: Begun | None = None
    """What processes before this one have ended with; None: nothing, as far as is known."""
    begun: Begun | None = None
    """What the note says that this process has begun; None: it says nothing of this process."""
    controlled: bool = False
    """Whether the handler was called for another record, before it gets the suspect one again."""
    passed: bool = False
    """Whether this process has committed records of it."""
    _noted: tuple[str, CommitNote | None] = ("", None)
    """``metadata`` as it was when it was last asked for its note, and that."""
    _made: tuple[str, CommitNote | None] = ("", None)
    """The same of the commit that was made last."""

    @property
    def readable(self) -> bool:
        """Whether records of it may be taken."""
        return self.at_start and self.stopped is None

    @property
    def has_start(self) -> bool:
        """Whether it is known where to read it from, if it is of the topic that it is taken to be of. What a
        predecessor has handed over is handled before the mark is known, and not written before."""
        return self.looked_up and (self.marks is not None or self.handed_over)

    @property
    def mark(self) -> int | None:
        """The table's mark for the topic that is read; None: it has none."""
        return (self.marks or {}).get(self.topic_id)

    @property
    def start(self) -> int | None:
        """Where to go on: at the committed offset, or at the mark if rows beyond that are in the table. None:
        nothing is committed, and there is no mark."""
        return max((at for at in (self.committed, self.mark) if at is not None), default=None)

    def written_to(self, end: int, at_ms: float) -> None:
        """Takes in that the table has this worker's rows up to ``end`` since ``at_ms`` (monotonic clock)."""
        assert self.marks is not None
        self.marks[self.topic_id] = end
        self.served_ms, self.awaited = at_ms, False

    def set_committed(self, offset: int | None, metadata: str, cluster_id: str = "") -> None:
        """Takes in what the broker of the Kafka cluster has committed for the partition. An offset that was
        mirrored from another cluster is one that a person has set: its note is about another topic."""
        note = CommitNote.decode(metadata)
        if note is not None and note.mirrored(cluster_id):
            metadata, note = "", None
        self.looked_up, self.committed, self.metadata, self.initial_note = True, offset, metadata, note
        self.cluster_id = cluster_id
        self.suspect = note.begun if note is not None else None

    def stored(self, commit: OffsetAndMetadata) -> None:
        """Takes in a commit of ours that the broker has accepted."""
        self.committed, self.metadata = commit.offset, commit.metadata
        self.suspect = self._suspect_from(commit.offset)
        if self.letters:
            self.letters = {known for known in self.letters if max(known, ~known) >= commit.offset}

    def _suspect_from(self, offset: int) -> Begun | None:
        """What is left of ``suspect`` from ``offset`` on."""
        return self.suspect if self.suspect is not None and self.suspect.end > offset else None

    @property
    def needs_note(self) -> bool:
        """Whether what is begun of it is to be noted: a process has ended with it, or this one has committed
        nothing of it yet, so that the committed offset would not show that it has ended, either. A
        predecessor that has handed the partition over lived until then."""
        return self.suspect is not None or not (self.passed or self.handed_over)

    @property
    def note(self) -> CommitNote | None:
        """The note of the last commit. Every turn of the loop asks for it."""
        if self._noted[0] != self.metadata:
            is_ours = self._made[0] == self.metadata
            self._noted = self._made if is_ours else (self.metadata, CommitNote.decode(self.metadata))
        return self._noted[1]

    def commit_of(
        self,
        offset: int,
        now_ms: int,
        instance: str,
        drain_ms: int | None = None,
        rejected: int | None = None,
        trace: str = "",
    ) -> OffsetAndMetadata:
        """The commit that says: served up to ``offset`` until now; draining since ``drain_ms``; ``rejected``
        records were rejected in a row (None: as in the commit before); ``trace``: of :class:`CommitNote`."""
        note = self._served(offset, now_ms, instance, rejected, drain_ms=drain_ms, trace=trace)
        return self._commit(offset, note)

    def _served(
        self, offset: int, now_ms: int, instance: str, rejected: int | None = None, **fields: Any
    ) -> CommitNote:
        note = self.note
        letters = note.letters if note is not None and note.letters and note.letters[2] > offset else None
        if rejected is None and note is not None:
            rejected = note.rejected
        begun = self._suspect_from(offset)
        return self._new_note(now_ms, instance, letters=letters, rejected=rejected, begun=begun, **fields)

    def handled_of(self, start: int, handled: int, now_ms: int, instance: str) -> OffsetAndMetadata:
        """The commit that moves nothing beyond ``start`` and says that records up to ``handled`` are handled,
        and that the partition was served until now. What is begun of it stays noted unless it is handled: a
        process that ends then does not end with it."""
        note = self._served(start, now_ms, instance)
        begun = self.begun if self.begun is not None and self.begun.end > handled else note.begun
        return self._commit(start, replace(note, handled=handled, begun=begun))

    def begun_of(self, offset: int, begun: Begun, instance: str) -> OffsetAndMetadata:
        """The commit that moves nothing beyond ``offset`` and says what is ``begun``."""
        note = self.note or self._first_note(begun.end, instance)
        return self._commit(offset, replace(note, begun=begun))

    def not_begun_of(self) -> OffsetAndMetadata | None:
        """The commit that takes back what :meth:`begun_of` says; None: nothing is to be taken back."""
        note = self.note
        if self.begun is None or self.committed is None or note is None:
            return None
        return self._commit(self.committed, replace(note, begun=self.suspect))

    def _new_note(self, at_ms: int | None, instance: str, **fields: Any) -> CommitNote:
        return CommitNote(at_ms, instance, **self._place, **self._signed, **fields)

    @property
    def _place(self) -> dict[str, Any]:
        return {"topic_id": self.topic_id, "cluster_id": self.cluster_id}

    @property
    def _signed(self) -> dict[str, Any]:
        signature = self.signature
        return {} if signature is None else {"pod": signature.pod, "since_ms": signature.since_ms}

    def _commit(self, offset: int, note: CommitNote) -> OffsetAndMetadata:
        self._made = note.encode(), note
        return OffsetAndMetadata(offset, self._made[0])

    def sign_of(self, now_ms: int, instance: str) -> OffsetAndMetadata | None:
        """The commit that moves nothing and says who holds the partition, and that it lives.

        None where that has to wait for the first batch: the note there is another member's, or no note at
        all, and says something of its own.
        """
        note = self.note
        if self.committed is None or note is None or note.instance != instance:
            return None
        return self._commit(self.committed, replace(note, alive_ms=now_ms, **self._signed))

    def silent_ms(self, now_ms: int) -> int:
        """For how long no commit has said that a holder lives."""
        note = self.note
        return now_ms - max(note.at_ms or 0, note.alive_ms or 0) if note is not None else now_ms

    def fence_of(self, start: int, end: int, instance: str) -> OffsetAndMetadata:
        """The commit that changes nothing: the broker accepts it only from the partition's owner.

        Where there is no note yet, it makes one: an offset without a note looks as if a person had set it. As
        that offset may have been committed before, letters from ``start`` to ``end`` may be stored already.
        """
        if self.note is not None:
            return OffsetAndMetadata(start, self.metadata)
        return self._commit(start, self._first_note(end, instance))

    def _first_note(self, end: int, instance: str) -> CommitNote:
        return self._new_note(None, instance, letters=(0, 0, end))

    def letters_fence_of(self, start: int, end: int, instance: str) -> OffsetAndMetadata:
        """A fence that says too that letters below ``end`` may be written from now on, to
        :attr:`letters_place`.

        Where the note at assignment was no worker's, anything may be in the dead-letter topic.
        """
        note = self.note or CommitNote(None, instance, **self._place)
        target, since = self.letters_place
        if note.letters is not None:
            before, old_since, old_end = note.letters
            since, end = min(since, old_since if before == target else 0), max(end, old_end)
        elif self.initial_note is None:
            since = 0
        return self._commit(start, replace(note, letters=(target, since, end)))

    def may_have_letters(self, start: int) -> bool:
        """Whether an earlier try has announced dead letters for offsets from ``start`` on, and nobody has
        looked yet which of them it has stored."""
        announced = self.initial_note.letters if self.initial_note is not None else None
        return self.letters is None and announced is not None and announced[2] > start

    @property
    def letters_since(self) -> tuple[int, int] | None:
        """From where on letters of offsets not committed may have been written: partition of the dead-letter
        topic, and offset (0: in any partition); None: there are none.

        To be asked before :meth:`letters_fence_of` is committed for a first time.
        """
        if self.initial_note is None:
            return 0, 0
        note = self.note
        return note.letters[:2] if note is not None and note.letters is not None else None

    def gap_ms(self, now_ms: int) -> int | None:
        """How long the partition was not served until ``now_ms``; None where nobody served it before."""
        if self.initial_note is None or self.initial_note.at_ms is None:
            return None
        return max(0, now_ms - self.initial_note.at_ms)
