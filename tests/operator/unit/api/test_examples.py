"""The examples: each can be read and built, and its handler does what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from slackwater.kafka.records import BatchBuilder, RecordColumns, decode
from slackwater.pipeline.engines import handler
from slackwater.pipeline.engines.arrow import ArrowEngine
from slackwater.pipeline.engines.python import PythonEngine
from slackwater.runtime.config import worker_config as runtime
from slackwater_operator.api.v1alpha1.consumer_group import (
    ConsumerGroup,
    Takeover,
    load,
    parse,
)
from slackwater_operator.kafka.cluster_dns import depends_on_namespace
from slackwater_operator.model import names
from slackwater_operator.specs.statefulset import revision

EXAMPLES = Path(__file__).parents[4] / "examples"
FILES = sorted(EXAMPLES.glob("*/*.yaml"))
ON_KUBERNETES = [file for file in FILES if file.name != "consumergroup.yaml"]

GOOD = {"id": "o-1", "customer": "c-1", "quantity": 2, "price": 9.5}
ORDERS = [
    json.dumps(GOOD).encode(),
    json.dumps({**GOOD, "price": 9, "note": "as a gift"}).encode(),
    b"{",
    b"[1]",
    None,
    json.dumps({**GOOD, "id": 7}).encode(),
    json.dumps({**GOOD, "quantity": "two"}).encode(),
    json.dumps({"id": "o-2"}).encode(),
]
ERRORS = [
    None,
    None,
    "value is not JSON",
    "value is not a JSON object",
    "value is not JSON",
    "id and customer must be text",
    "quantity must be a whole number, price a number",
    "id and customer must be text",
]


def test_the_page_names_all_examples() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(ON_KUBERNETES) >= 6
    assert [str(file) for file in FILES if f"({file.relative_to(EXAMPLES)})" not in page] == []


def manifests() -> list[tuple[str, ConsumerGroup]]:
    """The ConsumerGroups that a user would paste: each example, and each whole one in the documentation."""
    examples = [(file.name, load(file)) for file in ON_KUBERNETES]
    pages = [
        (page.name, parse(yaml.safe_load(block)))
        for page in sorted((EXAMPLES.parent / "docs").rglob("*.md"))
        for block in re.findall(r"```yaml[^\n]*\n(apiVersion: slackwater.*?)```", page.read_text(), re.DOTALL)
    ]
    assert pages
    return [*examples, *pages]


@pytest.mark.parametrize(("name", "group"), manifests(), ids=lambda v: v if isinstance(v, str) else "")
def test_the_workers_may_write_to_a_mounted_volume(name: str, group: ConsumerGroup) -> None:
    pod = group.spec.template.get("spec", {})
    if pod.get("volumes"):
        assert pod["securityContext"]["fsGroup"] == 10001
        assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize(("name", "group"), manifests(), ids=lambda v: v if isinstance(v, str) else "")
def test_the_name_of_kafka_is_the_same_in_all_namespaces(name: str, group: ConsumerGroup) -> None:
    assert not depends_on_namespace(group.spec.kafka.bootstrap_servers)


@pytest.mark.parametrize("file", ON_KUBERNETES, ids=lambda file: file.stem)
def test_a_worker_can_be_started_from_an_example(file: Path) -> None:
    group = load(file)
    made = revision(group, worker_image="slackwater/worker:1")
    config = runtime.parse(json.loads(made.config_map["data"]["worker.yaml"]))
    assert config.handler == group.spec.pipeline.handler
    (worker,) = made.template["spec"]["containers"]
    assert worker["image"] == group.spec.pipeline.image
    assert worker["resources"]["limits"]["memory"]
    if config.sink.implementation:
        assert callable(handler.load(config.sink.implementation, [str(EXAMPLES)], "sink"))
    elif config.sink.spark_format:
        assert config.engine == "spark"
        assert config.sink.options["path"].startswith("/data/")
    elif config.sink.topic:
        assert config.sink.options == {"compression.type": "lz4"}
    elif "://" in config.sink.path:
        assert made.template["spec"]["serviceAccountName"]
    elif config.sink.path:
        assert any(config.sink.path.startswith(mount["mountPath"]) for mount in worker["volumeMounts"])
    else:
        assert "PGPASSWORD" in {variable["name"] for variable in worker["env"]}
    assert callable(handler.load(config.handler, [str(EXAMPLES)]))
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 70


def test_one_example_rolls_by_takeover() -> None:
    group = load(EXAMPLES / "orders" / "takeover.yaml")
    assert group.spec.rollout.takes_over
    assert group.spec.rollout.takeover == Takeover(warm_timeout_ms=180_000, fallback="Restart")
    made = revision(group, worker_image="slackwater/worker:1")
    assert json.loads(made.config_map["data"]["worker.yaml"])["takeover"] == {"keyFile": names.KEY_FILE}
    assert names.can_hand_over(made.template)


def columns(values: list[bytes | None]) -> RecordColumns:
    """The values as a broker gives them."""
    batch = BatchBuilder("none", 1 << 20)
    for value in values:
        assert batch.append(0, None, value, [])
    return decode(batch.build(base_offset=40), fetch_offset=40)


def arrow(values: list[bytes | None]) -> pa.Table:
    engine = ArrowEngine("orders.pipeline:as_table", [str(EXAMPLES)])
    engine.start()
    try:
        engine.warm_up()
        return engine.transform(pa.Table.from_batches([columns(values).to_arrow("orders", 3)]))
    finally:
        engine.close()


def python(values: list[bytes | None]) -> pa.Table:
    engine = PythonEngine("orders.pipeline:as_rows", [str(EXAMPLES)])
    engine.start()
    try:
        engine.warm_up()
        return engine.transform_records(columns(values).records("orders", 3))
    finally:
        engine.close()


@pytest.mark.parametrize("engine", [arrow, python])
def test_orders_become_rows_and_other_records_are_marked(engine: object) -> None:
    assert callable(engine)
    result = engine(ORDERS)
    assert result["offset"].to_pylist() == list(range(40, 48))
    assert result["_error"].to_pylist() == ERRORS
    assert result["price"].to_pylist()[:3] == [9.5, 9.0, None]
    assert result["customer"].to_pylist()[:2] == ["c-1", "c-1"]


def test_the_fast_parser_gives_the_same_rows() -> None:
    result = arrow(ORDERS[:2] * 50)
    assert "_error" not in result.column_names
    assert (
        result.drop_columns(["offset"]).to_pylist()
        == python(ORDERS[:2] * 50).drop_columns(["offset"]).to_pylist()
    )
