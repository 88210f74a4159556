"""A client of a schema registry with Confluent's REST API, and what is known of its schemas.

Ids never change their meaning, so schemas are kept. A registry that does not answer is waited for; one that
refuses the login ends the worker, because every batch would fail.
"""

from __future__ import annotations

import base64
import copy
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from slackwater.pipeline.values.registry.http import RegistryAwayError, RegistryConnection, RegistryResponse
from slackwater.runtime.config.value_config import RegistryConfig
from slackwater.runtime.errors import ConfigError, StartError, WorkerError

MAX_SCHEMAS = 1_000
MAX_UNKNOWN = 10_000
"""How many unknown ids are remembered."""
MOST_UNKNOWN_IN_BATCH = 1_000
"""How many unknown ids of a batch are asked for: each costs a request, and whoever writes to the topic can
name as many as there are records."""
MAX_REFERENCES = 200
UNKNOWN_FOR_MS = 30_000
"""How long an id that the registry does not know is not asked for again."""
FIRST_WAIT_MS, LONGEST_WAIT_MS = 100.0, 5_000.0
_SCHEMA_NOT_FOUND = 40403
_UNKNOWN = "the schema registry does not know the schema id {}"
_SUBJECT, _URL = "value.registry.subject", "value.registry.url"


class Time(Protocol):
    """The module ``time``, or what stands for it in a test."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class NotRegisteredError(ConfigError):
    """The registry has no such subject, version or schema."""


@dataclass(frozen=True)
class Registered:
    """A schema of the registry. ``name``: for messages. ``references``: what it refers to, all of them, each
    after those that it refers to itself, with the name that it is referred to by."""

    name: str
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class Registry:
    """Asks the registry's addresses in turn. Used by one thread at a time."""

    def __init__(self, config: RegistryConfig, *, timeout_ms: float, clock: Time = time) -> None:
        """``timeout_ms``: how long a batch may wait for the registry."""
        self._config, self._timeout_ms, self._clock = config, timeout_ms, clock
        self._connections = [RegistryConnection(url, config) for url in config.urls]
        self._query = ""
        self.record = ""
        """Of the subject's schema, if that is a union, the record that is meant."""
        self.begin()

    def ask_for(self, schema_format: str) -> None:
        """Sets the parameter ``format`` of all requests for schemas."""
        self._query = f"?format={schema_format}"

    def begin(self, timeout_ms: float | None = None, *, starting: bool = False) -> None:
        """Begins a batch, or the start of the worker: from now on the time to wait counts."""
        self._limit_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        self._deadline = self._clock.monotonic() + self._limit_ms / 1000
        self._starting = starting
        self._subjects: dict[str, Registered] = {}
        """Schemas that were asked for since, also by copies: a union's for each of its records."""

    def schema(self, schema_id: int) -> Registered | None:
        """The schema with this id; None: the registry does not know it.

        Raises ConfigError, StartError and WorkerError.
        """
        answer = self._get(f"/schemas/ids/{schema_id}{self._query}")
        if answer.status == 404 and answer.error_code == _SCHEMA_NOT_FOUND:
            return None
        return self._registered(f"schema id {schema_id}", self._expect(answer, _URL))

    def subject_schema(self, kind: str) -> Registered:
        """The schema of the configured subject and version, which must be of ``kind`` (``AVRO`` ...).

        Raises ConfigError, StartError and WorkerError.
        """
        subject, version = self._config.subject or "", self._config.version
        name = f"the schema of subject {subject}, version {version}"
        registered = self._subjects.get(subject)
        if registered is None:
            answer = self._get(_version_path(subject, version) + self._query)
            registered = self._registered(name, self._expect(answer, _SUBJECT))
            self._subjects[subject] = registered
        if registered.kind != kind:
            raise ConfigError(
                f"{name} is of type {registered.kind}, and value.format needs {kind}", field=_SUBJECT
            )
        return registered

    def of_subject(self, subject: str) -> Registry:
        """The same registry, by the same connections, for another subject."""
        made = copy.copy(self)
        made._config = replace(self._config, subject=subject)
        return made

    def of_record(self, record: str) -> Registry:
        """The same for a record of the subject's union, by its full name."""
        made = copy.copy(self)
        made.record = record
        return made

    def close(self) -> None:
        """Closes the connections."""
        for connection in self._connections:
            connection.close()

    def _registered(self, name: str, document: dict[str, Any]) -> Registered:
        references: dict[tuple[str, str], tuple[str, str]] = {}
        self._collect(document, references, set())
        return Registered(name, *_schema(document, name), tuple(references.values()))

    def _collect(
        self,
        document: dict[str, Any],
        collected: dict[tuple[str, str], tuple[str, str]],
        open_: set[tuple[str, str]],
    ) -> None:
        """Adds what ``document`` refers to, with what that refers to before it."""
        for reference in document.get("references") or ():
            try:
                name, subject, version = (str(reference[key]) for key in ("name", "subject", "version"))
            except (TypeError, KeyError):
                raise WorkerError("the schema registry has sent a reference that is none") from None
            key = (subject, version)
            if key in collected or key in open_:
                continue
            if len(collected) + len(open_) >= MAX_REFERENCES:
                raise ConfigError(f"a schema refers to more than {MAX_REFERENCES} others", field=_URL)
            open_.add(key)
            referred = self._expect(self._get(_version_path(subject, version) + self._query), _URL)
            self._collect(referred, collected, open_)
            collected[key] = (name, _schema(referred, name)[1])

    def _expect(self, answer: RegistryResponse, field: str) -> dict[str, Any]:
        """The object in a good answer. Raises ConfigError or WorkerError for another."""
        if answer.status in (401, 403):
            raise ConfigError(
                f"{answer.url} refuses the worker (HTTP {answer.status}{answer.said}): correct the user "
                "name and the password, or what this user may read",
                field="value.registry",
            )
        if answer.status == 404:
            if answer.error_code is not None:
                raise NotRegisteredError(
                    f"{answer.url} has not found it (HTTP 404{answer.said})", field=field
                )
            raise ConfigError(
                f"{answer.url} is no schema registry (HTTP 404): correct the path in the url", field=_URL
            )
        if 300 <= answer.status < 400:
            raise ConfigError(f"{answer.url} sends to another address; give that one", field=_URL)
        if answer.status != 200:
            raise WorkerError(f"{answer.url}: the schema registry answers HTTP {answer.status}{answer.said}")
        if not isinstance(answer.document, dict):
            raise ConfigError(f"{answer.url} is no schema registry: its answer is no JSON object", field=_URL)
        return answer.document

    def _get(self, path: str) -> RegistryResponse:
        """The first answer of an address. Waits while none can answer. Raises StartError and WorkerError."""
        wait_ms = FIRST_WAIT_MS
        while True:
            problems = []
            for connection in list(self._connections):
                try:
                    answer = connection.get(path, self._request_timeout())
                except RegistryAwayError as exc:
                    problems.append(str(exc))
                    continue
                if connection is not self._connections[0]:  # begins with this one from now on
                    self._connections.remove(connection)
                    self._connections.insert(0, connection)
                return answer
            if self._clock.monotonic() + wait_ms / 1000 >= self._deadline:
                raise self._given_up(problems)
            self._clock.sleep(wait_ms / 1000)
            wait_ms = min(wait_ms * 2, LONGEST_WAIT_MS)

    def _request_timeout(self) -> float:
        left = self._deadline - self._clock.monotonic()
        return max(0.05, min(self._config.timeout_ms / 1000, left))

    def _given_up(self, problems: Sequence[str]) -> WorkerError:
        why = "; ".join(problems)
        if self._starting:
            return StartError(
                f"no schema registry answers within {self._limit_ms:.0f} ms: {why}; start it, or "
                f"correct {_URL}"
            )
        return WorkerError(
            f"no schema registry answers within {self._limit_ms:.0f} ms: {why}; the batch was not committed"
        )


T = TypeVar("T")


class SchemasById(Generic[T]):
    """What is made of the schemas of the registry, by id. Keeps the :data:`MAX_SCHEMAS` used last."""

    def __init__(self, registry: Registry, make: Callable[[Registered], T], clock: Time = time) -> None:
        """``make``: raises ValueError for a schema that cannot be used, with the reason."""
        self._registry, self._make, self._clock = registry, make, clock
        self._known: OrderedDict[int, tuple[T | None, str]] = OrderedDict()
        self._unknown: OrderedDict[int, float] = OrderedDict()
        """Until when these ids are not asked for."""
        self._unknown_in_batch = 0

    def begin(self) -> None:
        """Begins a batch."""
        self._registry.begin()
        self._unknown_in_batch = 0

    def get(self, schema_id: int) -> tuple[T | None, str]:
        """What is made of the schema, or None and the reason why there is none. Raises as the registry."""
        known = self._known.get(schema_id)
        if known is not None:
            self._known.move_to_end(schema_id)
            return known
        now = self._clock.monotonic()
        if now < self._unknown.get(schema_id, 0.0):
            return None, _UNKNOWN.format(schema_id)
        if self._unknown_in_batch >= MOST_UNKNOWN_IN_BATCH:
            return None, (
                f"the schema registry was not asked for the schema id {schema_id}, because it does not know "
                f"{MOST_UNKNOWN_IN_BATCH} others of this batch"
            )
        registered = self._registry.schema(schema_id)
        if registered is None:
            self._unknown_in_batch += 1
            _keep(self._unknown, schema_id, now + UNKNOWN_FOR_MS / 1000, MAX_UNKNOWN)
            return None, _UNKNOWN.format(schema_id)
        try:
            made: tuple[T | None, str] = self._make(registered), ""
        except ValueError as exc:
            made = None, f"schema id {schema_id} cannot be used: {exc}"
        _keep(self._known, schema_id, made, MAX_SCHEMAS)
        return made


V = TypeVar("V")


def _keep(cache: OrderedDict[int, V], key: int, value: V, most: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > most:
        cache.popitem(last=False)


def serialized(text: str) -> bytes:
    """The bytes of a schema that was asked for with ``format=serialized``.

    Raises ConfigError for a registry that does not give them: no value could be decoded.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ConfigError(
            "the registry does not give Protobuf schemas with format=serialized, in base64; use a registry "
            "that does, such as Confluent's",
            field=_URL,
        ) from None


def _schema(document: dict[str, Any], name: str) -> tuple[str, str]:
    text, kind = document.get("schema"), document.get("schemaType") or "AVRO"
    if not isinstance(text, str) or not isinstance(kind, str):
        raise WorkerError(
            f"the schema registry has sent {name} without a schema: {json.dumps(document)[:200]}"
        )
    return kind, text


def _version_path(subject: str, version: str) -> str:
    return f"/subjects/{quote(subject, safe='')}/versions/{quote(version, safe='')}"
