"""docs/reference/client.md says what the code says: its generated parts are complete and current."""

from __future__ import annotations

import builtins
import inspect
import re
import zlib
from dataclasses import fields
from typing import Any

import aiokafka.admin
import confluent_kafka.admin
import kafka.admin
import kafka.producer.future
import pytest

from slackwater import kafka as client
from slackwater.kafka import (
    AsyncAdmin,
    AsyncProducer,
    KafkaAdmin,
    KafkaConsumer,
    KafkaProducer,
    admin,
    errors,
)
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.net.security import options as security_options
from slackwater.kafka.producer.batch import FutureRecordMetadata
from slackwater.kafka.producer.config import ProducerConfig
from slackwater.kafka.protocol.consumer_membership.states import TRANSITIONS as CONSUMER_TRANSITIONS
from slackwater.kafka.protocol.diagnostics import FindingKind
from slackwater.kafka.protocol.membership.states import TRANSITIONS, State
from slackwater.kafka.protocol.subscription import MOVES, FetchState
from tools.client_docs import PAGE, PAGES, PARTS, fetch_picture, membership_picture, render
from tools.client_docs.described import ADMIN, DESCRIBED, PRODUCER, SECURITY


def test_the_pages_are_up_to_date() -> None:
    parts = []
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        assert render(page) == page, "run `python -m tools.client_docs`"
        parts += re.findall(r"<!-- generated: ([a-z -]+) -->", page)
    assert sorted(parts) == sorted(PARTS)


def test_every_option_is_described() -> None:
    assert {field.name for field in fields(ConsumerConfig)} - {"security"} == set(DESCRIBED)
    assert set(PRODUCER) <= {field.name for field in fields(ProducerConfig)}
    assert set(ADMIN) <= set(inspect.signature(AsyncAdmin).parameters)
    assert set(security_options.OPTIONS) == set(SECURITY)


@pytest.mark.parametrize("transitions", [TRANSITIONS, CONSUMER_TRANSITIONS])
def test_the_diagrams_have_every_state_and_every_transition(transitions: Any) -> None:
    drawn = membership_picture(transitions)
    moves = {(s.name, e.name, to.name) for s, row in transitions.items() for e, to in row.items()}
    drawn_moves = set()
    for state, following, events in re.findall(r"^    (\w+) --> (\w+) : (.+)$", drawn, re.MULTILINE):
        drawn_moves |= {(state, event, following) for event in events.split(", ")}
    in_words = {("PREPARING", "RESET", "PREPARING"), ("DEAD", "LEAVE", "DEAD")}
    in_words |= {(state.name, "LEAVE", "OUT") for state in transitions if state is not State.DEAD}
    in_words |= {(state.name, "DIE", "DEAD") for state in transitions}
    assert drawn_moves | in_words == moves
    assert not drawn_moves & in_words


def test_the_diagram_of_a_partition_has_every_move() -> None:
    steps = set(re.findall(r"^    (\w+) --> (\w+)$", fetch_picture(), re.MULTILINE))
    assert steps == {(state.name, to.name) for state, row in MOVES.items() for to in row}
    assert {state.name for state in FetchState} <= {name for step in steps for name in step}


def test_every_diagnostic_is_explained() -> None:
    page = PAGE.read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `([a-z-]+)` \|", page[page.index("## Diagnostics") :], re.MULTILINE))
    assert explained == {kind.value for kind in FindingKind}


def test_every_error_that_the_page_names_exists() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page[page.index("## Errors, and what to do") : page.index("## States")]
    named = set(re.findall(r"`(\w+(?:Error|Available))`", table))
    assert len(named) > 15
    assert {name for name in named if not hasattr(errors, name)} == set()


OURS = (
    KafkaProducer, AsyncProducer, FutureRecordMetadata, client.Serializer,
    KafkaAdmin, AsyncAdmin, admin.PerItem, KafkaConsumer,
)  # fmt: skip
THEIRS = {
    "kafka-python": (
        kafka.KafkaProducer, kafka.producer.future.FutureRecordMetadata, kafka.KafkaAdminClient, kafka.admin,
        kafka.partitioner.Partitioner, kafka,
    ),
    "confluent-kafka": (
        confluent_kafka.Producer, confluent_kafka.admin.AdminClient, confluent_kafka.admin.OffsetSpec,
        confluent_kafka.admin, confluent_kafka,
    ),
    "aiokafka": (
        aiokafka.AIOKafkaProducer, aiokafka.admin.AIOKafkaAdminClient, aiokafka.admin,
        aiokafka.admin.config_resource, aiokafka,
    ),
}  # fmt: skip


def parameters(owner: type) -> set[str]:
    methods = inspect.getmembers(owner, inspect.isfunction)
    return {name for _, method in methods for name in inspect.signature(method).parameters}


@pytest.mark.parametrize("peer", THEIRS)
def test_the_calls_that_a_page_on_migration_names_exist(peer: str) -> None:
    """In the tables of producer and admin client: their calls and ours, and our keywords."""
    page = (PAGE.parents[1] / f"how-to/client/migrate-from-{peer}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \| (.+) \|$", page[page.index("## Producer") :], re.MULTILINE)
    columns = map(" ".join, zip(*rows, strict=True))
    theirs, ours = (" ".join(re.findall(r"`([^`]+)`", column)) for column in columns)
    known = {name for owner in (*OURS, client, admin, builtins, zlib) for name in dir(owner)}
    known |= set(security_options.OPTIONS).union(*map(parameters, OURS), parameters(admin.NewTopic))
    known |= {field.name for field in fields(ProducerConfig)}
    assert set(re.findall(r"(\w+)[(=]", ours)) <= known
    assert set(re.findall(r"(\w+)\(", theirs)) <= {name for owner in THEIRS[peer] for name in dir(owner)}
