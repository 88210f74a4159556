"""The parts of the client's pages that are drawn from the code: tables of options, pictures of states.

Each part stands between ``<!-- generated: NAME -->`` and ``<!-- end of NAME -->``; a test holds the page to
what this module makes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from slackwater.kafka import KafkaAdmin, KafkaProducer
from slackwater.kafka.admin import AsyncAdmin
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.java_names import KEYWORDS_NOT_HERE, NOT_HERE, NotHere, java_name
from slackwater.kafka.net.security import options as security_options
from slackwater.kafka.producer.config import ProducerConfig
from slackwater.kafka.protocol.consumer_membership.states import TRANSITIONS as CONSUMER_TRANSITIONS
from slackwater.kafka.protocol.membership.states import TRANSITIONS, Event, State
from slackwater.kafka.protocol.subscription import MOVES
from tools.client_docs.described import ADMIN, DESCRIBED, OURS_ALONE, PRODUCER, SECURITY
from tools.kafka_python_suite.reasons import CANNOT_PASS, OWN_CLASSES

_DOCS = Path(__file__).parents[2] / "docs"
PAGE = _DOCS / "reference" / "client.md"
PAGES = (
    PAGE,
    _DOCS / "reference" / "producer.md",
    _DOCS / "reference" / "admin.md",
    _DOCS / "how-to" / "client" / "migrate-from-kafka-python.md",
)


_NOT_OPTIONS = ("rng", "options")
"""Parameters of AsyncAdmin: for tests, and the keywords that other tables have."""


def options_table() -> str:
    """Every field of ConsumerConfig with its default, unit, and Java's name."""
    return _options({field.name: field.default for field in fields(ConsumerConfig)}, DESCRIBED)


def producer_options_table() -> str:
    """Every field of ProducerConfig, likewise."""
    defaults = {field.name: field.default for field in fields(ProducerConfig)}
    return _options(defaults, DESCRIBED | PRODUCER, OURS_ALONE | {"allow_auto_create_topics"})


def admin_options_table() -> str:
    """Every keyword of AsyncAdmin of its own, likewise."""
    parameters = inspect.signature(AsyncAdmin).parameters.values()
    keywords = {keyword.name: keyword.default for keyword in parameters if keyword.name not in _NOT_OPTIONS}
    return _options(keywords, DESCRIBED | PRODUCER | ADMIN)


def _options(
    defaults: Mapping[str, Any], described: Mapping[str, str], ours: Container[str] = OURS_ALONE
) -> str:
    rows = [
        (
            f"`{name}`",
            "" if name in ours else f"`{java_name(name)}`",
            _default(default),
            _unit(name),
            described[name],
        )
        for name, default in sorted(defaults.items())
        if name != "security"
    ]
    return _table(("keyword", "Java's name", "default", "unit", "what it does"), rows)


def producer_calls_table() -> str:
    """The methods of KafkaProducer with their parameters, and the first sentences of their docstrings."""
    return _calls(KafkaProducer)


def admin_calls_table() -> str:
    """The methods of KafkaAdmin, likewise."""
    return _calls(KafkaAdmin)


def _calls(owner: type) -> str:
    methods = {
        name: method for name, method in inspect.getmembers(owner, callable) if not name.startswith("_")
    }
    return _table(("call", "what it does"), [(_call(name, m), _about(m)) for name, m in methods.items()])


def _call(name: str, method: Any) -> str:
    parameters = [
        parameter for name, parameter in inspect.signature(method).parameters.items() if name != "self"
    ]
    arguments = ", ".join(str(parameter.replace(annotation=parameter.empty)) for parameter in parameters)
    return f"`{name}({arguments})`"


def _about(method: Any) -> str:
    """The first paragraph of a docstring, in Markdown."""
    first = " ".join((inspect.getdoc(method) or "").split("\n\n")[0].split())
    return re.sub(r":\w+:`[~.]*(?:[\w.]+\.)?(\w+)`", r"`\1`", first).replace("``", "`")


def security_table() -> str:
    """The options of how to get to a cluster."""
    rows = []
    for keyword in security_options.OPTIONS:
        field = {**security_options.KEYWORDS, **security_options.OAUTH_KEYWORDS}.get(keyword, "")
        java = security_options.JAVA_NAMES.get(field, "sasl.jaas.config" if "jaas" in keyword else "")
        name = java if " " in java or "_" in java or not java else f"`{java}`"
        rows.append((f"`{keyword}`", "" if java == keyword else name, SECURITY[keyword]))
    return _table(("keyword", "Java's name", "what it is"), rows)


def not_here_table() -> str:
    """What of Java's and kafka-python's options does nothing, and why; alike ones share a row."""
    groups: dict[NotHere, list[str]] = {}
    for name, option in [*sorted(NOT_HERE.items()), *sorted(KEYWORDS_NOT_HERE.items())]:
        groups.setdefault(option, []).append(name)
    rows = [
        (", ".join(f"`{name}`" for name in names), _accepts(option.accepts), option.why)
        for option, names in groups.items()
    ]
    return _table(("option", "taken with", "why it does nothing"), rows)


def suite_table() -> str:
    """kafka-python's tests that cannot pass, and those that are not run, with the reasons."""
    rows = [(f"`{name}`", cannot.why) for name, cannot in CANNOT_PASS.items()]
    rows += [(f"`{file.removeprefix('test/consumer/')}`, not run", why) for file, why in OWN_CLASSES.items()]
    return _table(("test of kafka-python", "why it cannot pass"), rows)


def membership_picture(transitions: Mapping[State, Mapping[Event, State]]) -> str:
    """A table of transitions of a member as a Mermaid state diagram, without those that the page has in
    words: arrows from every state, and to the same state, lie over each other's labels."""
    edges: dict[tuple[str, str], list[str]] = {}
    for state, moves in transitions.items():
        for event, following in moves.items():
            if following is state or event in (Event.LEAVE, Event.DIE):
                continue
            edges.setdefault((state.name, following.name), []).append(event.name)
    return _picture(next(iter(transitions)).name, edges)


def fetch_picture() -> str:
    """The legal moves of a partition's fetch state as a Mermaid state diagram."""
    edges: dict[tuple[str, str], list[str]] = {}
    for state, moves in MOVES.items():
        for following in sorted(moves, key=_name):
            edges[(state.name, following.name)] = []
    return _picture(next(iter(MOVES)).name, edges)


def _name(state: Any) -> str:
    return str(state.name)


def _picture(first: str, edges: Mapping[tuple[str, str], list[str]]) -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    direction LR", f"    [*] --> {first}"]
    for (state, following), events in edges.items():
        label = f" : {', '.join(events)}" if events else ""
        lines.append(f"    {state} --> {following}{label}")
    return "\n".join([*lines, "```"])


def _accepts(values: tuple[str, ...] | None) -> str:
    if values is None:
        return "any value"
    return " or ".join(f"`{value}`" if value else "nothing" for value in values if value != "[]")


def _unit(name: str) -> str:
    return "ms" if name.endswith("_ms") else "bytes" if name.endswith("_bytes") else ""


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value) or "none"
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    return "none" if value is None else f"`{value}`"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


PARTS: dict[str, Callable[[], str]] = {
    "options": options_table,
    "security options": security_table,
    "options that do nothing": not_here_table,
    "producer options": producer_options_table,
    "producer calls": producer_calls_table,
    "admin options": admin_options_table,
    "admin calls": admin_calls_table,
    "membership states": lambda: membership_picture(TRANSITIONS),
    "consumer protocol states": lambda: membership_picture(CONSUMER_TRANSITIONS),
    "fetch states": fetch_picture,
    "tests of kafka-python": suite_table,
}


def render(page: str) -> str:
    """The page with its generated parts as they should be. Raises KeyError for a part that is not known."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- generated: {name} -->\n{PARTS[name]()}\n<!-- end of {name} -->"

    return re.sub(r"<!-- generated: ([a-z -]+) -->\n.*?<!-- end of \1 -->", fill, page, flags=re.DOTALL)


def write() -> None:
    """Brings the pages up to date."""
    for page in PAGES:
        page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")
