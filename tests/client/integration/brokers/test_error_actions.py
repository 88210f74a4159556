"""The table of actions, walked: each (API, error) meets a real client at the dev broker; the action is seen.

All walks run side by side in one loop, before the first test; each test is the outcome of its walk.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slackwater.devbroker import DevBroker
from slackwater.kafka.producer import AsyncProducer
from slackwater.kafka.protocol.actions import TABLE, Action
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.integration.brokers.error_drops import DROPS
from tests.client.integration.brokers.error_scenarios import SCENARIOS
from tests.client.integration.brokers.error_walk import HEARTBEAT_MS, RECORDS, TOPIC, Case, Walk

"""The first test waits for all walks."""
AT_ONCE = 80
OF_A_PARTITION = {
    "Metadata": {E.LISTENER_NOT_FOUND, E.LEADER_NOT_AVAILABLE, E.REPLICA_NOT_AVAILABLE},
    "OffsetFetch": {
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.TOPIC_AUTHORIZATION_FAILED,
        E.UNSTABLE_OFFSET_COMMIT,
        E.UNKNOWN_TOPIC_ID,
    },
    "OffsetCommit": {E.OFFSET_METADATA_TOO_LARGE, E.TOPIC_AUTHORIZATION_FAILED, E.UNKNOWN_TOPIC_OR_PARTITION},
}
"""Where an API has two places for an error, and these codes stand at a partition."""


OF_TRANSACTIONS = {"AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"}
"""The dev broker does not serve them: tests/client/unit/producer/test_transactions.py has their rows."""


def cases() -> list[Case]:
    """Every pair of the table."""
    cases = []
    for api, row in TABLE.items():
        name = api.__name__.removesuffix("Request")
        if name in OF_TRANSACTIONS:
            continue
        for code, action in row.items():
            cases.append(Case(name, code, action, by_partition=code in OF_A_PARTITION.get(name, ())))
            if name == "Metadata" and cases[-1].by_partition and code is not E.LISTENER_NOT_FOUND:
                cases.append(Case(name, code, action))
    return cases


def drops() -> list[Case]:
    """A connection that is lost, before and after each API's request was handled."""
    return [Case(api, E.NONE, Action.RECONNECT, drop=when) for api in DROPS for when in ("before", "after")]


async def _walk_all(data: Path, chosen: list[Case]) -> dict[Case, BaseException | None]:
    outcomes: dict[Case, BaseException | None] = {}
    turns = asyncio.Semaphore(AT_ONCE)
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    }
    async with DevBroker(data, settings=settings) as broker:
        await _fill(broker)
        walks = [Walk(broker, case, number) for number, case in enumerate(chosen)]
        by_name = {walk.name: walk for walk in walks} | {f"{walk.name}-eager": walk for walk in walks}

        def note(exchange: object) -> None:
            walk = by_name.get(exchange.client_id)  # type: ignore[attr-defined]
            if walk is not None:
                walk.note(exchange)  # type: ignore[arg-type]

        broker.requests.watchers.append(note)

        async def run(walk: Walk) -> None:
            async with turns:
                try:
                    await (DROPS if walk.case.drop else SCENARIOS)[walk.case.api](walk)
                    outcomes[walk.case] = None
                except (Exception, asyncio.CancelledError) as exc:
                    outcomes[walk.case] = exc

        await asyncio.gather(*map(run, walks))
    return outcomes


async def _fill(broker: DevBroker) -> None:
    producer = AsyncProducer(bootstrap_servers=broker.bootstrap, linger_ms=0)
    await producer.start()
    for number in range(RECORDS):
        await producer.send(TOPIC, b"%d" % number, partition=0)
    await producer.flush()
    await producer.close()


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[Case, BaseException | None]:
    """Walks what was selected of this module."""
    chosen = [
        item.callspec.params["case"]  # type: ignore[attr-defined]
        for item in request.session.items
        if item.module is request.module and "case" in getattr(getattr(item, "callspec", None), "params", ())  # type: ignore[attr-defined]
    ]
    return asyncio.run(_walk_all(tmp_path_factory.mktemp("walked"), chosen))


def test_every_api_of_the_table_has_a_scenario() -> None:
    assert {api.__name__.removesuffix("Request") for api in TABLE} == set(SCENARIOS) | OF_TRANSACTIONS


@pytest.mark.parametrize("case", drops(), ids=lambda case: case.id)
def test_a_connection_that_is_lost_costs_nothing(
    case: Case, outcomes: dict[Case, BaseException | None]
) -> None:
    problem = outcomes[case]
    if problem is not None:
        raise problem


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.id)
def test_the_client_takes_the_action_of_the_table(
    case: Case, outcomes: dict[Case, BaseException | None]
) -> None:
    problem = outcomes[case]
    if problem is not None:
        raise problem
