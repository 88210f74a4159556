"""ConsumerGroups that must be refused, each with what the refusal must say.

Where the API server can know it, `kubectl apply` refuses it, by schema or by CEL; the rest is refused when
the operator reads it. What the API server refuses, `slackwater local run` refuses as well.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]

GONE: Any = object()
"""As a value: the field is taken away."""


def good(**changes: Any) -> Document:
    """A ConsumerGroup that nothing is wrong with; `changes` as for `changed`."""
    document = {
        "apiVersion": "slackwater.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "flights"},
        "spec": {
            "kafka": {
                "bootstrapServers": "kafka.kafka.svc:9092",
                "properties": {"session.timeout.ms": "30000"},
            },
            "topics": ["flights"],
            "pipeline": {
                "handler": "flights.pipeline:transform",
                "engine": "arrow",
                "sink": {"path": "/data/flights"},
                "deadLetterTopic": "flights.dlq",
            },
            "scaling": {"minReplicas": 2, "maxReplicas": 12, "catchUp": "5m"},
        },
    }
    return changed(document, changes)


def changed(document: Document, changes: Mapping[str, Any]) -> Document:
    """A copy with fields set: path -> value. A path's parts are separated by `/`, as properties have dots."""
    result = copy.deepcopy(document)
    for path, value in changes.items():
        *parents, last = path.split("/")
        inside = result
        for part in parents:
            inside = inside.setdefault(part, {})
        if value is GONE:
            inside.pop(last, None)
        else:
            inside[last] = value
    return result


@dataclass(frozen=True)
class Bad:
    """A ConsumerGroup that must be refused.

    Attributes:
        what: what is wrong with it.
        changes: how it differs from the good one.
        field: the path of the field as the refusal must name it.
        says: what else the refusal of the API server must have in it; of `parse` for those in `UNREADABLE`.
        parse_field: the path as `parse` names it, where it does so more closely.
    """

    what: str
    changes: Mapping[str, Any]
    field: str
    says: str
    parse_field: str = ""

    @property
    def document(self) -> Document:
        """The resource."""
        return good(**self.changes)


def _property(name: str, value: Any) -> dict[str, Any]:
    return {f"spec/kafka/properties/{name}": value}


def _schedule(**changes: Any) -> dict[str, Any]:
    window = {"name": "day", "start": "0 8 * * MON-FRI", "duration": "10h", "minReplicas": 4, **changes}
    return {"spec/scaling/schedules": [window]}


def _policies(*policies: dict[str, Any]) -> dict[str, Any]:
    return {"spec/scaling/behavior": {"scaleUp": {"policies": list(policies)}}}


def _route(condition: str = "kind = 'a'", **sink: Any) -> dict[str, Any]:
    return {"spec/pipeline/routes": [{"when": condition, "sink": sink}]}


def _maintained(*entries: dict[str, Any], sink_format: str = "delta") -> dict[str, Any]:
    return {"spec/pipeline/sink/format": sink_format, "spec/maintenance": list(entries)}


def _sink(**fields: Any) -> dict[str, Any]:
    return {"spec/pipeline/sink": {"path": "/data/flights", **fields}}


def _custom(**fields: Any) -> dict[str, Any]:
    sink = {"format": "custom", "implementation": "flights.sqlite:SqliteSink", **fields}
    return {"spec/pipeline/sink": {name: value for name, value in sink.items() if value is not GONE}}


_SPARK = {"spec/pipeline/engine": "spark"}


def _topic(topic: Any = "flights.delayed", **fields: Any) -> dict[str, Any]:
    sink = {"format": "kafka", "topic": topic, **fields}
    return {"spec/pipeline/sink": {name: value for name, value in sink.items() if value is not GONE}}


def _value(**fields: Any) -> dict[str, Any]:
    return {"spec/pipeline/value": {"format": "json", "schema": "a INT", **fields}}


def _registry(format_: str = "avro", **fields: Any) -> dict[str, Any]:
    """Values of a schema registry; `readerSchema` belongs to the value, all other fields to the registry."""
    value: dict[str, Any] = {"format": format_, "registry": {"url": "http://registry:8081", **fields}}
    if "readerSchema" in fields:
        value["readerSchema"] = value["registry"].pop("readerSchema")
    return {"spec/pipeline/value": value}


def _iceberg(**fields: Any) -> dict[str, Any]:
    return {"spec/pipeline/sink": {"format": "iceberg", "table": "lake.flights", **fields}}


def _postgres(**fields: Any) -> dict[str, Any]:
    sink = {"format": "postgres", "table": "public.flights", **fields}
    return {"spec/pipeline/sink": {name: value for name, value in sink.items() if value is not GONE}}


def _metric(**metric: Any) -> dict[str, Any]:
    """A group with one metric of an analysis."""
    whole = {"name": "lag", "thresholdRange": {"max": 1}, **metric}
    return {"spec/rollout/analysis": {"metrics": [whole]}}


def _prometheus(**fields: Any) -> dict[str, Any]:
    """A group with a query, and how Prometheus is asked."""
    return {"spec/rollout/analysis": {**_metric(query="up")["spec/rollout/analysis"], "prometheus": fields}}


def _security(**fields: Any) -> dict[str, Any]:
    return {"spec/kafka/security": fields}


_DAY = {"name": "day", "start": "0 8 * * *", "duration": "1h", "minReplicas": 3}
_PROPERTIES = "spec.kafka.properties"
_SECURITY = "spec.kafka.security"
_METRICS = "spec.rollout.analysis.metrics"
_PROMETHEUS = "spec.rollout.analysis.prometheus"
_UP = "spec.scaling.behavior.scaleUp"
_POLICY = {"type": "Pods", "value": 2, "period": "1m"}
_SCHEDULE = "spec.scaling.schedules[0]"
_PIPELINE = "spec.pipeline"
_SINK = f"{_PIPELINE}.sink"
_MAINTENANCE = "spec.maintenance"
_ROUTE = f"{_PIPELINE}.routes[0]"
_VALUE = f"{_PIPELINE}.value"
_REGISTRY = f"{_VALUE}.registry"

REFUSED = [
    Bad("no kafka", {"spec/kafka": GONE}, "spec.kafka", "Required value"),
    Bad("no brokers", {"spec/kafka/bootstrapServers": GONE}, "spec.kafka.bootstrapServers", "Required value"),
    Bad("a broker without a port", {"spec/kafka/bootstrapServers": "kafka"}, "spec.kafka.bootstrapServers",
        "such as kafka.kafka.svc:9092"),
    Bad("brokers that are a number", {"spec/kafka/bootstrapServers": 9092}, "spec.kafka.bootstrapServers",
        "must be of type string"),
    Bad("neither topics nor a pattern", {"spec/topics": GONE}, "spec", "set either topics", "spec.topics"),
    Bad("a pattern that is none", {"spec/topics": GONE, "spec/topicPattern": "flights("},
        "spec.topicPattern", "missing closing )"),
    Bad("a pattern that looks ahead", {"spec/topics": GONE, "spec/topicPattern": "(?!test).*"},
        "spec.topicPattern", "invalid or unsupported Perl syntax"),
    Bad("a pattern that refers back", {"spec/topics": GONE, "spec/topicPattern": r"(a)\1"},
        "spec.topicPattern", "invalid escape sequence"),
    Bad("a pattern that is too long", {"spec/topics": GONE, "spec/topicPattern": "a" * 513},
        "spec.topicPattern", "may not be more than 512"),
    Bad("topics and a pattern", {"spec/topicPattern": "flights.*"}, "spec", "set either topics",
        "spec.topicPattern"),
    Bad("no topic in the list", {"spec/topics": []}, "spec.topics", "at least 1"),
    Bad("a topic twice", {"spec/topics": ["a", "a"]}, "spec.topics[1]", "Duplicate value"),
    Bad("a topic with a blank", {"spec/topics": ["my flights"]}, "spec.topics[0]", "such as flights"),
    Bad("a topic that is a dot", {"spec/topics": ["."]}, "spec.topics[0]", "neither '.' nor '..' alone"),
    Bad("a topic that is two dots", {"spec/topics": ["flights", ".."]}, "spec.topics[1]",
        "neither '.' nor '..' alone"),
    Bad("a topic with a slash", {"spec/topics": ["flights/eu"]}, "spec.topics[0]", "letters, digits"),
    Bad("a topic without a name", {"spec/topics": [""]}, "spec.topics[0]", "such as flights"),
    Bad("a topic that is too long", {"spec/topics": ["t" * 250]}, "spec.topics[0]",
        "may not be more than 249"),
    Bad("dead letters for a dot", {"spec/pipeline/deadLetterTopic": "."}, f"{_PIPELINE}.deadLetterTopic",
        "such as flights.dlq"),
    Bad("a pattern that is empty", {"spec/topics": GONE, "spec/topicPattern": ""}, "spec.topicPattern",
        "such as orders"),
    Bad("topics that are text", {"spec/topics": "flights"}, "spec.topics", "must be of type array"),
    Bad("no pipeline", {"spec/pipeline": GONE}, _PIPELINE, "Required value"),
    Bad("no handler", {"spec/pipeline/handler": GONE}, f"{_PIPELINE}.handler", "set engine to arrow"),
    Bad("a handler without a function", {"spec/pipeline/handler": "flights.pipeline"},
        f"{_PIPELINE}.handler", "such as flights.pipeline:transform"),
    Bad("an engine that is not there", {"spec/pipeline/engine": "flink"}, f"{_PIPELINE}.engine",
        'supported values: "spark", "arrow", "python"'),
    Bad("values without a format", {"spec/pipeline/value": {"schema": "a INT"}}, f"{_VALUE}.format",
        "Required value"),
    Bad("values in another format", _value(format="xml"), f"{_VALUE}.format",
        'supported values: "json", "avro", "protobuf"'),
    Bad("values without a schema", {"spec/pipeline/value": {"format": "json"}}, f"{_VALUE}.schema",
        "is missing; set it, or registry"),
    Bad("values with an empty schema", _value(schema=""), f"{_VALUE}.schema", "at least 1 chars"),
    Bad("values with two schemas", _value(schemaFile="/app/schema"), f"{_VALUE}.schemaFile",
        "cannot be combined with schema"),
    Bad("a unit for Debezium's Avro", {"spec/pipeline/value": {"format": "debezium",
        "timestampUnit": "seconds", "registry": {"url": "http://r:8081", "subject": "s"}}},
        f"{_VALUE}.timestampUnit", "is for changes in JSON"),
    Bad("a reader's schema for JSON", _value(readerSchema="{}"), f"{_VALUE}.readerSchema", "format avro"),
    Bad("a message for JSON", _value(message="air.Flight"), f"{_VALUE}.message", "format protobuf"),
    Bad("a message that is no name", _value(format="protobuf", message="air/Flight"), f"{_VALUE}.message",
        "such as air.Flight"),
    Bad("a registry and a writer's schema", {"spec/pipeline/value": {
        "format": "avro", "schema": "{}", "registry": {"url": "http://registry:8081"}}}, f"{_VALUE}.schema",
        "set readerSchema"),
    Bad("a registry and a file with the writer's schema", {"spec/pipeline/value": {
        "format": "avro", "schemaFile": "/app/a", "registry": {"url": "http://registry:8081"}}},
        f"{_VALUE}.schemaFile", "set readerSchema"),
    Bad("a registry without a url", {"spec/pipeline/value": {
        "format": "avro", "registry": {"subject": "flights-value"}}}, f"{_REGISTRY}.url", "Required value"),
    Bad("a registry by another scheme", _registry(url="ftp://registry", subject="s"), f"{_REGISTRY}.url",
        "such as https://registry.kafka.svc:8081"),
    Bad("a registry's url with a password", _registry(url="http://me:pw@registry", subject="s"),
        f"{_REGISTRY}.url", "such as https://registry.kafka.svc:8081"),
    Bad("a registry without a subject", _registry(), f"{_REGISTRY}.subject", "is missing"),
    Bad("a subject and a schema", _registry(subject="s", readerSchema="{}"), f"{_REGISTRY}.subject",
        "cannot be combined with a schema"),
    Bad("a subject and several", _registry(subject="s", subjects={"a": "b"}), f"{_REGISTRY}.subject",
        "cannot be combined with subjects"),
    Bad("several subjects and a schema", _registry(subjects={"a": "b"}, readerSchema="{}"),
        f"{_REGISTRY}.subjects", "cannot be combined with a schema"),
    Bad("several subjects of Protobuf", _registry("protobuf", subjects={"a": "b"}),
        f"{_REGISTRY}.subjects", "requires format avro or debezium"),
    Bad("a kind with a dash", _registry(subjects={"a-b": "b"}), f"{_REGISTRY}.subjects",
        "has a kind whose name is not letters"),
    Bad("a version that is a word", _registry(subject="s", version="newest"), f"{_REGISTRY}.version",
        "such as latest or 3"),
    Bad("a version that is a number", _registry(subject="s", version=3), f"{_REGISTRY}.version",
        "must be of type string"),
    Bad("a CA for a registry without TLS", _registry(subject="s", caSecret="ca"), f"{_REGISTRY}.caSecret",
        "requires https"),
    Bad("a certificate for a registry without TLS", _registry(subject="s", clientCertificateSecret="mine"),
        f"{_REGISTRY}.clientCertificateSecret", "requires https"),
    Bad("a CA where one address has no TLS",
        _registry(url="https://a,http://b", subject="s", caSecret="ca"), f"{_REGISTRY}.caSecret",
        "requires https"),
    Bad("no sink", {"spec/pipeline/sink": GONE}, f"{_PIPELINE}.sink", "Required value"),
    Bad("a sink without a path", {"spec/pipeline/sink": {}}, f"{_PIPELINE}.sink.path",
        "is required with format parquet or delta"),
    Bad("a Delta table without a path", {"spec/pipeline/sink": {"format": "delta"}}, f"{_SINK}.path",
        "is required with format parquet or delta"),
    Bad("files with a table", _sink(table="lake.flights"), f"{_SINK}.table",
        "requires format iceberg or postgres"),
    Bad("a Delta table with a table", _sink(format="delta", table="lake.flights"), f"{_SINK}.table",
        "requires format iceberg"),
    Bad("an Iceberg table without a table", {"spec/pipeline/sink": {"format": "iceberg"}}, f"{_SINK}.table",
        "is required with format iceberg or postgres"),
    Bad("an Iceberg table without a namespace", _iceberg(table="flights"), f"{_SINK}.table",
        "such as lake.flights"),
    Bad("an Iceberg table with a blank", _iceberg(table="lake.my flights"), f"{_SINK}.table",
        "such as lake.flights"),
    Bad("an Iceberg table with a path", _iceberg(path="/data/flights"), f"{_SINK}.path",
        "requires format parquet or delta"),
    Bad("a catalog's credential", _iceberg(options={"uri": "https://catalog.example", "credential": "a:b"}),
        f"{_SINK}.options", "from a Secret (spec.template)", f"{_SINK}.options[credential]"),
    Bad("a catalog's password", _iceberg(options={"uri": "postgresql://catalog:hush@db.example/lake"}),
        f"{_SINK}.options", "a URL with a password must not be set here", f"{_SINK}.options[uri]"),
    Bad("a Postgres table without a name", _postgres(table=GONE), f"{_SINK}.table",
        "is required with format iceberg or postgres"),
    Bad("a Postgres table without a schema", _postgres(table="flights"), f"{_SINK}.table", "public.flights"),
    Bad("a Postgres table with a database", _postgres(table="a.b.c"), f"{_SINK}.table", "SCHEMA.TABLE"),
    Bad("a Postgres table in a folder", _postgres(path="/data/flights"), f"{_SINK}.path",
        "requires format parquet or delta"),
    Bad("a Postgres table in folders", _postgres(partitionBy=["day"]), f"{_SINK}.partitionBy",
        "requires format parquet, delta, iceberg or spark"),
    Bad("another mode", _postgres(mode="replace"), f"{_SINK}.mode", 'supported values: "append"'),
    Bad("a mode of files", _sink(mode="upsert", key=["id"]), f"{_SINK}.mode",
        "format delta, iceberg, postgres or spark"),
    Bad("a merge into folders by no key",
        _sink(format="delta", mode="merge", key=["id"], aggregates={"n": "sum"}, partitionBy=["day"]),
        f"{_SINK}.partitionBy", "that key lacks"),
    Bad("an upsert without a key", _postgres(mode="upsert"), f"{_SINK}.key", "is required with mode"),
    Bad("a key without a mode", _postgres(key=["id"]), f"{_SINK}.key", "requires mode upsert, changes or"),
    Bad("a version in another mode", _postgres(mode="upsert", key=["id"], version="lsn"),
        f"{_SINK}.version", "requires mode changes"),
    Bad("a version in the key", _postgres(mode="changes", key=["id"], version="id"), f"{_SINK}.version",
        "is in key, too"),
    Bad("a merge without aggregates", _postgres(mode="merge", key=["id"]), f"{_SINK}.aggregates",
        "is required with mode merge"),
    Bad("aggregates without a merge", _postgres(aggregates={"n": "sum"}), f"{_SINK}.aggregates",
        "requires mode merge"),
    Bad("another aggregate", _postgres(mode="merge", key=["id"], aggregates={"n": "avg"}),
        f"{_SINK}.aggregates", "sum, min, max, count"),
    Bad("an aggregate of the key", _postgres(mode="merge", key=["id"], aggregates={"id": "max"}),
        f"{_SINK}.aggregates", "that key has"),
    Bad("a password of Postgres", _postgres(options={"host": "db", "password": "x"}), f"{_SINK}.options",
        "from a Secret", f"{_SINK}.options[password]"),
    Bad("a format that is not there", {"spec/pipeline/sink/format": "csv"}, f"{_PIPELINE}.sink.format",
        'supported values: "parquet", "delta", "iceberg", "postgres", "custom", "kafka", "spark"'),
    Bad("a format of Spark without its name", {**_SPARK, "spec/pipeline/sink": {"format": "spark"}},
        f"{_SINK}.sparkFormat", "is required with format spark"),
    Bad("a format of Spark with a blank",
        {**_SPARK, "spec/pipeline/sink": {"format": "spark", "sparkFormat": "a b"}},
        f"{_SINK}.sparkFormat", "such as csv"),
    Bad("a format of Spark whose rows replace others",
        {**_SPARK,
         "spec/pipeline/sink": {"format": "spark", "sparkFormat": "orc", "mode": "upsert", "key": ["id"]}},
        f"{_SINK}.mode", "with sparkFormat delta"),
    Bad("a format of Spark for files", _sink(sparkFormat="orc"), f"{_SINK}.sparkFormat",
        "requires format spark"),
    Bad("a format of Spark without Spark",
        {"spec/pipeline/sink": {"format": "spark", "sparkFormat": "orc"}}, f"{_SINK}.format",
        "requires engine spark"),
    Bad("an output topic without a name", _topic(GONE), f"{_SINK}.topic", "is required with format kafka"),
    Bad("an output topic with a blank", _topic("a b"), f"{_SINK}.topic", "such as flights.delayed"),
    Bad("a topic for files", _sink(topic="flights.delayed"), f"{_SINK}.topic", "requires format kafka"),
    Bad("an output topic in a folder", _topic(path="/data"), f"{_SINK}.path",
        "requires format parquet or delta"),
    Bad("an output topic in folders", _topic(partitionBy=["day"]), f"{_SINK}.partitionBy",
        "requires format parquet"),
    Bad("a login of the output's cluster", _topic(options={"sasl.jaas.config": "x"}), f"{_SINK}.options",
        "from a Secret (spec.template)", f"{_SINK}.options[sasl.jaas.config]"),
    Bad("an output topic that is read", _topic("flights"), f"{_SINK}.topic", "name another topic"),
    Bad("an output topic with dead letters",
        {**_topic(), "spec/pipeline/deadLetterTopic": "flights.delayed"}, f"{_SINK}.topic",
        "is also the dead-letter topic"),
    Bad("a sink of one's own without a class", _custom(implementation=GONE), f"{_SINK}.implementation",
        "is required with format custom"),
    Bad("a class for files", _sink(implementation="flights.sqlite:SqliteSink"), f"{_SINK}.implementation",
        "requires format custom"),
    Bad("a class without a module", _custom(implementation="SqliteSink"), f"{_SINK}.implementation",
        "such as flights.sqlite:SqliteSink"),
    Bad("a sink of one's own in a folder", _custom(path="/data"), f"{_SINK}.path",
        "requires format parquet or delta"),
    Bad("a sink of one's own in folders", _custom(partitionBy=["day"]), f"{_SINK}.partitionBy",
        "requires format parquet, delta, iceberg or spark"),
    Bad("new columns of a sink of one's own", _custom(newColumns="reject"), f"{_SINK}.newColumns",
        "requires format parquet, delta, iceberg or postgres"),
    Bad("a sink by another scheme", _sink(path="s3a://lake/flights"), f"{_SINK}.path",
        "such as /data/flights"),
    Bad("a table by another scheme", _sink(format="delta", path="s3a://lake/flights"), f"{_SINK}.path",
        "s3://lake/flights"),
    Bad("a table on HDFS without a path in it", _sink(format="delta", path="hdfs://lake:8020"),
        f"{_SINK}.path", "s3://lake/flights"),
    Bad("a table in a bucket without a key", _sink(format="delta", path="s3://lake"), f"{_SINK}.path",
        "s3://lake/flights"),
    Bad("a table in a container without an account", _sink(format="delta", path="abfss://lake/flights"),
        f"{_SINK}.path", "s3://lake/flights"),
    Bad("a table's address with a signature", _sink(format="delta", path="az://lake/flights?sig=abc"),
        f"{_SINK}.path", "s3://lake/flights"),
    Bad("files on HDFS", _sink(path="hdfs://lake/flights"), f"{_SINK}.path",
        "is on HDFS, which requires format delta"),
    Bad("storage options for files in a folder", _sink(options={"AWS_REGION": "eu-central-1"}),
        f"{_SINK}.options", "does not apply to format parquet with a folder"),
    Bad("a secret key in the storage options",
        _sink(format="delta", options={"AWS_REGION": "eu-central-1", "AWS_SECRET_ACCESS_KEY": "x"}),
        f"{_SINK}.options", "from a Secret (spec.template)", f"{_SINK}.options[AWS_SECRET_ACCESS_KEY]"),
    Bad("a token in the storage options, in lower case",
        _sink(format="delta", options={"azure_storage_sas_token": "x", "azure_client_id": "id"}),
        f"{_SINK}.options",
        "from a Secret (spec.template)", f"{_SINK}.options[azure_storage_sas_token]"),
    Bad("a storage option that is a boolean", _sink(format="delta", options={"AWS_ALLOW_HTTP": True}),
        f"{_SINK}.options.AWS_ALLOW_HTTP", "must be of type string", f"{_SINK}.options[AWS_ALLOW_HTTP]"),
    Bad("a column for folders as text", _sink(partitionBy="day"), f"{_SINK}.partitionBy",
        "must be of type array"),
    Bad("a column for folders twice", _sink(partitionBy=["day", "day"]), f"{_SINK}.partitionBy[1]",
        "Duplicate value"),
    Bad("a column for folders without a name", _sink(partitionBy=["day", ""]), f"{_SINK}.partitionBy[1]",
        "such as day"),
    Bad("too many columns for folders", _sink(partitionBy=[f"c{number}" for number in range(11)]),
        f"{_SINK}.partitionBy", "must have at most 10 items"),
    Bad("something else with new columns", _sink(newColumns="ignore"), f"{_SINK}.newColumns",
        'supported values: "add", "reject"'),
    Bad("rows that wait for an hour", _sink(maxAge="1h"), f"{_SINK}.maxAge", "must be between 0s and 2m"),
    Bad("a file without a unit", _sink(maxAge="1m", targetFileSize="128"), f"{_SINK}.targetFileSize",
        "such as 128Mi"),
    Bad("a file of two gibibytes", _sink(maxAge="1m", targetFileSize="2Gi"), f"{_SINK}.targetFileSize",
        "such as 128Mi"),
    Bad("a size and no age", _sink(targetFileSize="128Mi"), f"{_SINK}.targetFileSize", "requires maxAge"),
    Bad("rows of whole batches that replace others",
        {**_sink(format="delta", mode="upsert", key=["id"]), "spec/pipeline/lineage": "batch"},
        f"{_PIPELINE}.lineage", "is not for sink.mode upsert"),
    Bad("rows of whole batches that wait", {**_sink(maxAge="1m"), "spec/pipeline/lineage": "batch"},
        f"{_SINK}.maxAge", "does not apply to lineage batch"),
    Bad("tables that no row can name", _sink(format="delta", tables={}), f"{_SINK}.tables",
        "requires a column in table or path"),
    Bad("tables of a topic", {"spec/pipeline/sink": {"format": "kafka", "topic": "t", "tables": {}}},
        f"{_SINK}.tables", "requires format parquet, delta, iceberg or postgres"),
    Bad("rows of whole batches in several tables",
        {**_route(format="delta", path="/data/a"), "spec/pipeline/lineage": "batch"},
        f"{_PIPELINE}.routes", "requires lineage record"),
    Bad("a table that rows of whole batches name",
        {**_sink(format="delta", path="/data/{kind}", tables={}), "spec/pipeline/lineage": "batch"},
        f"{_SINK}.tables", "requires lineage record"),
    Bad("an age of its own for a route", _route(format="delta", path="/data/a", maxAge="1m"),
        f"{_ROUTE}.sink.maxAge", "is of all tables together"),
    Bad("a route to a format of Spark", _route(format="spark", sparkFormat="csv"), f"{_PIPELINE}.routes",
        "requires engine spark", f"{_ROUTE}.sink.format"),
    Bad("a route to a Delta table without a path", _route(format="delta"), f"{_ROUTE}.sink.path",
        "is required with format parquet or delta"),
    Bad("a route without a condition", {"spec/pipeline/routes": [{"sink": {"path": "/data/a"}}]},
        f"{_ROUTE}.when", "is missing; set it, or fieldsOf"),
    Bad("a credential in a route", _route(format="delta", path="s3://a/b", options={"AWS_SECRET_KEY": "x"}),
        f"{_ROUTE}.sink.options", "from a Secret (spec.template)", f"{_ROUTE}.sink.options[AWS_SECRET_KEY]"),
    Bad("a declared schema of a topic",
        {"spec/pipeline/sink": {"format": "kafka", "topic": "t", "schema": "a INT"}},
        f"{_SINK}.schema", "requires format parquet, delta, iceberg or postgres"),
    Bad("an image with a blank", {"spec/pipeline/image": "flights 1.4"}, f"{_PIPELINE}.image",
        "such as registry.example/flights:1.4"),
    Bad("no call at a time", {"spec/pipeline/concurrency": 0}, f"{_PIPELINE}.concurrency",
        "greater than or equal to 1"),
    Bad("a lineage of files", {"spec/pipeline/lineage": "file"}, f"{_PIPELINE}.lineage",
        'supported values: "record", "batch"'),
    Bad("a collector by gRPC",
        {"spec/telemetry": {"traces": {"endpoint": "grpc://otel:4317"}}},
        "spec.telemetry.traces.endpoint", "such as http://otel-collector.observability:4318"),
    Bad("no share of the batches", {"spec/telemetry": {"traces": {"sampling": "0%"}}},
        "spec.telemetry.traces.sampling", "must be more than 0% and at most 100%"),
    Bad("metrics ten times a second", {"spec/telemetry": {"metrics": {"interval": "100ms"}}},
        "spec.telemetry.metrics.interval", "must be between 1s and 1h"),
    Bad("a refresh ten times a second", {"spec/pipeline/refreshEvery": "100ms"},
        f"{_PIPELINE}.refreshEvery", "must be between 1s and 24h"),
    Bad("a timeout as long as max.poll.interval.ms", {"spec/pipeline/handlerTimeout": "5m"},
        f"{_PIPELINE}.handlerTimeout", "must be less than max.poll.interval.ms"),
    Bad("a timeout above a max.poll.interval.ms of its own",
        {"spec/pipeline/handlerTimeout": "1m1s", **_property("max.poll.interval.ms", "60000")},
        f"{_PIPELINE}.handlerTimeout", "or lower handlerTimeout"),
    Bad("Spark's server for another engine", {"spec/pipeline/spark/remote": "sc://spark:15002"},
        f"{_PIPELINE}.spark", "requires engine spark"),
    Bad("a Spark server by another scheme",
        {"spec/pipeline/engine": "spark", "spec/pipeline/spark/remote": "spark://spark:7077"},
        f"{_PIPELINE}.spark.remote", "such as sc://spark-connect:15002"),
    Bad("dead letters that are read again", {"spec/pipeline/deadLetterTopic": "flights"},
        f"{_PIPELINE}.deadLetterTopic", "name another topic"),
    Bad("folders that are text", {"spec/pipeline/handlerPath": "/app"}, f"{_PIPELINE}.handlerPath",
        "must be of type array"),
    Bad("fewer than no workers", {"spec/replicas": -1}, "spec.replicas", "greater than or equal to 0"),
    Bad("workers in words", {"spec/replicas": "three"}, "spec.replicas", "must be of type integer"),
    Bad("more workers than maxReplicas", {"spec/replicas": 13}, "spec.replicas", "scaling.maxReplicas"),
    Bad("fewer workers than minReplicas", {"spec/replicas": 1}, "spec.replicas", "suspend: true"),
    Bad("a million workers", {"spec/scaling/maxReplicas": 1_000_000}, "spec.scaling.maxReplicas",
        "less than or equal to 1000"),
    Bad("minReplicas above maxReplicas", {"spec/scaling/minReplicas": 20}, "spec.scaling.minReplicas",
        "is 20, but maxReplicas is 12; lower minReplicas"),
    Bad("no workers at most", {"spec/scaling/maxReplicas": 0}, "spec.scaling.maxReplicas",
        "greater than or equal to 1"),
    Bad("no lag for a worker", {"spec/scaling/lagPerReplica": 0}, "spec.scaling.lagPerReplica",
        "greater than or equal to 1"),
    Bad("a time in words", {"spec/scaling/catchUp": "soon"}, "spec.scaling.catchUp",
        "write it with a unit: 90s, 5m, 1h30m"),
    Bad("a time without a unit", {"spec/scaling/catchUp": "90"}, "spec.scaling.catchUp",
        "write it with a unit"),
    Bad("a time that is a number", {"spec/scaling/catchUp": 90}, "spec.scaling.catchUp",
        "must be of type string"),
    Bad("no time at all", {"spec/scaling/catchUp": "0s"}, "spec.scaling.catchUp", "between 1s and 24h"),
    Bad("idle at once", {"spec/scaling/idleAfter": "1s"}, "spec.scaling.idleAfter", "between 10s and 24h"),
    Bad("a policy of another type", _policies({"type": "Workers", "value": 2, "period": "1m"}),
        f"{_UP}.policies[0].type", "Unsupported value"),
    Bad("a policy that allows nothing", _policies({"type": "Pods", "value": 0, "period": "1m"}),
        f"{_UP}.policies[0].value", "greater than or equal to 1"),
    Bad("a policy for hours", _policies({"type": "Pods", "value": 2, "period": "2h"}),
        f"{_UP}.policies[0].period", "between 1s and 30m"),
    Bad("two policies of one type", _policies(_POLICY, _POLICY), f"{_UP}.policies[1]", "Duplicate value",
        parse_field=f"{_UP}.policies[1].type"),
    Bad("behavior without a target", {"spec/scaling/catchUp": GONE, **_policies(_POLICY)},
        "spec.scaling.behavior", "requires a target"),
    Bad("paused without a target", {"spec/scaling/catchUp": GONE, "spec/scaling/pausedReplicas": 3},
        "spec.scaling.pausedReplicas", "requires a target"),
    Bad("activation without a target", {"spec/scaling/catchUp": GONE, "spec/scaling/activationLag": 3},
        "spec.scaling.activationLag", "requires a target"),
    Bad("a fallback without a target",
        {"spec/scaling/catchUp": GONE, "spec/scaling/fallback": {"replicas": 3}}, "spec.scaling.fallback",
        "requires a target"),
    Bad("a fallback above maxReplicas", {"spec/scaling/fallback": {"replicas": 900}},
        "spec.scaling.fallback", "must not be greater than scaling.maxReplicas"),
    Bad("a cron expression of four fields", _schedule(start="0 8 * *"), f"{_SCHEDULE}.start",
        'such as "0 8 * * MON-FRI"'),
    Bad("a window of more than a week", _schedule(duration="200h"), f"{_SCHEDULE}.duration",
        "between 1m and 168h"),
    Bad("a window without a name", _schedule(name=None), f"{_SCHEDULE}.name", "Required value"),
    Bad("a window with more workers than maxReplicas", _schedule(minReplicas=13), "spec.scaling.schedules",
        "must not be greater than scaling.maxReplicas", f"{_SCHEDULE}.minReplicas"),
    Bad("two windows of one name", {"spec/scaling/schedules": [_DAY, _DAY]}, "spec.scaling.schedules[1]",
        "Duplicate value"),
    Bad("windows without a target", {"spec/scaling/catchUp": GONE, **_schedule()}, "spec.scaling.schedules",
        "requires a target (catchUp or lagPerReplica)"),
    Bad("a zone with a blank", _schedule(timeZone="Europe Berlin"), f"{_SCHEDULE}.timeZone",
        "such as Europe/Berlin"),
    Bad("a session that is too short", _property("session.timeout.ms", "5999"), _PROPERTIES,
        "session.timeout.ms must be 6000 to 1800000"),
    Bad("a session that is too long", _property("session.timeout.ms", "1800001"), _PROPERTIES,
        "session.timeout.ms must be 6000 to 1800000"),
    Bad("a session in words", _property("session.timeout.ms", "half a minute"), _PROPERTIES,
        "session.timeout.ms must be a number of milliseconds"),
    Bad("a property that is a number", _property("session.timeout.ms", 30000),
        f"{_PROPERTIES}.session.timeout.ms", "must be of type string", f"{_PROPERTIES}[session.timeout.ms]"),
    Bad("heartbeats that are too far apart", _property("heartbeat.interval.ms", "10001"), _PROPERTIES,
        "heartbeat.interval.ms must be at most a third of session.timeout.ms"),
    Bad("heartbeats that are too far apart for Kafka's session",
        {"spec/kafka/properties": {"heartbeat.interval.ms": "15001"}}, _PROPERTIES,
        "heartbeat.interval.ms must be at most a third of session.timeout.ms"),
    Bad("a session by the consumer protocol", {"spec/kafka/groupProtocol": "Consumer"}, _PROPERTIES,
        "require groupProtocol Classic"),
    Bad("the group by a property", _property("group.id", "mine"), _PROPERTIES, "set spec.groupId instead"),
    Bad("a member's name by a property", _property("group.instance.id", "one"), _PROPERTIES,
        "group.instance.id is set by Slackwater"),
    Bad("a password by a property", _property("sasl.jaas.config", "password=x"), _PROPERTIES,
        "use spec.kafka.security"),
    Bad("TLS by a property", _property("ssl.protocol", "TLSv1.3"), _PROPERTIES,
        "use spec.kafka.security"),
    Bad("a protocol that is not there", _security(protocol="TLS"), f"{_SECURITY}.protocol",
        'supported values: "PLAINTEXT", "SSL"'),
    Bad("SASL without a mechanism", _security(protocol="SASL_SSL", credentialsSecret="user"),
        f"{_SECURITY}.mechanism", "set PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"),
    Bad("SASL without credentials", _security(protocol="SASL_SSL", mechanism="PLAIN"),
        f"{_SECURITY}.credentialsSecret", "name a Secret with the keys username and password"),
    Bad("credentials without SASL", _security(protocol="SSL", credentialsSecret="user"), _SECURITY,
        "set protocol to SASL_SSL"),
    Bad("a CA without TLS", _security(caSecret="ca"), _SECURITY, "set protocol to SSL or SASL_SSL"),
    Bad("a Secret's name with capitals", _security(protocol="SSL", caSecret="Kafka_CA"),
        f"{_SECURITY}.caSecret", "such as kafka-ca"),
    Bad("a strategy that is not there", {"spec/rollout/strategy": "Recreate"}, "spec.rollout.strategy",
        'supported values: "Restart", "Takeover"'),
    Bad("a successor that must be warm at once", {"spec/rollout/takeover/warmTimeout": "9s"},
        "spec.rollout.takeover.warmTimeout", "between 10s and 1h"),
    Bad("a fallback that is not there", {"spec/rollout/takeover/fallback": "Recreate"},
        "spec.rollout.takeover.fallback", 'supported values: "Restart", "Stop"'),
    Bad("nobody may be away", {"spec/rollout/maxUnavailable": 0}, "spec.rollout.maxUnavailable",
        "greater than or equal to 1"),
    Bad("a share as a fraction", {"spec/rollout/sessionBudget": "0.6"}, "spec.rollout.sessionBudget",
        "such as 60%"),
    Bad("a share of more than all", {"spec/rollout/sessionBudget": "150%"}, "spec.rollout.sessionBudget",
        "more than 0% and at most 100%"),
    Bad("a share of nothing", {"spec/rollout/sessionBudget": "0%"}, "spec.rollout.sessionBudget",
        "more than 0% and at most 100%"),
    Bad("a preflight in no time", {"spec/rollout/preflight/timeout": "1s"}, "spec.rollout.preflight.timeout",
        "between 5s and 1h"),
    Bad("maintenance that is too frequent", _maintained({"every": "5m"}), f"{_MAINTENANCE}[0].every",
        "between 10m and 8760h"),
    Bad("maintenance without a time", _maintained({}), f"{_MAINTENANCE}[0].every", "Required"),
    Bad("history that expires at once", _maintained({"every": "1h", "expireAfter": "1m"}),
        f"{_MAINTENANCE}[0].expireAfter", "between 1h and"),
    Bad("a step that does two things", {"spec/rollout/steps": [{"setWorkers": 1, "pause": {}}]},
        "spec.rollout.steps[0]", "exactly one of setWorkers, pause and analysis"),
    Bad("a step that does nothing", {"spec/rollout/steps": [{}]}, "spec.rollout.steps[0]", "exactly one of"),
    Bad("a step for no worker", {"spec/rollout/steps": [{"setWorkers": 0}]},
        "spec.rollout.steps[0].setWorkers", "such as 25%"),
    Bad("a step for more than all", {"spec/rollout/steps": [{"setWorkers": "101%"}]},
        "spec.rollout.steps[0].setWorkers", "such as 25%"),
    Bad("a pause of no time", {"spec/rollout/steps": [{"pause": {"duration": "0s"}}]},
        "spec.rollout.steps[0].pause.duration", "between 1s and 24h"),
    Bad("an analysis of nothing", {"spec/rollout/steps": [{"analysis": {}}]}, "spec.rollout.steps",
        "metrics is empty"),
    Bad("a metric without a source", _metric(), f"{_METRICS}[0]", "either figure or query"),
    Bad("a metric with two sources", _metric(figure="Lag", query="up"), f"{_METRICS}[0]",
        "either figure or query"),
    Bad("a figure that is not there", _metric(figure="Errors"), f"{_METRICS}[0].figure", "supported values"),
    Bad("an empty query", _metric(query=""), f"{_METRICS}[0].query", "such as sum("),
    Bad("a metric that always holds", _metric(figure="Lag", thresholdRange={}),
        f"{_METRICS}[0].thresholdRange", "set min, max, or both"),
    Bad("a metric that never holds", _metric(figure="Lag", thresholdRange={"min": 2, "max": 1.5}),
        f"{_METRICS}[0].thresholdRange.min", "must not be greater than max"),
    Bad("two ways to log in to Prometheus", _prometheus(tokenSecret="token", credentialsSecret="user"),
        f"{_PROMETHEUS}.tokenSecret", "cannot be combined with credentialsSecret; remove one of them"),
    Bad("a token's Secret with capitals", _prometheus(tokenSecret="Token"), f"{_PROMETHEUS}.tokenSecret",
        "such as prometheus-token"),
    Bad("a login's Secret in another namespace", _prometheus(credentialsSecret="monitoring/user"),
        f"{_PROMETHEUS}.credentialsSecret", "such as prometheus-user"),
    Bad("a CA in place of its Secret", _prometheus(caSecret="-----BEGIN CERTIFICATE-----"),
        f"{_PROMETHEUS}.caSecret", "such as prometheus-ca"),
    Bad("a client certificate without a name", _prometheus(clientCertificateSecret=""),
        f"{_PROMETHEUS}.clientCertificateSecret", "such as prometheus-client"),
    Bad("a server's name with a port", _prometheus(serverName="prometheus:9090"), f"{_PROMETHEUS}.serverName",
        "such as prometheus.monitoring.svc"),
    Bad("two metrics of one name", {"spec/rollout/analysis": {"metrics": [
        {"name": "lag", "figure": "Lag", "thresholdRange": {"max": 1}}] * 2}}, f"{_METRICS}[1]",
        "Duplicate value", f"{_METRICS}[1].name"),
    Bad("fewer than no dead letters", {"spec/delivery/maxDeadLettersPerMinute": -1},
        "spec.delivery.maxDeadLettersPerMinute", "greater than or equal to 0"),
    Bad("two days of retries", {"spec/delivery/transientErrorTimeout": "48h"},
        "spec.delivery.transientErrorTimeout", "must be between 0s and 24h"),
    Bad("fewer than no retries", {"spec/delivery/retries": -1}, "spec.delivery.retries",
        "greater than or equal to 0"),
    Bad("a batch a minute", {"spec/delivery/batchInterval": "1m"}, "spec.delivery.batchInterval",
        "between 0s and 5s"),
    Bad("a batch a minute long", {"spec/delivery/batchDuration": "1m"}, "spec.delivery.batchDuration",
        "between 10ms and 5s"),
    Bad("a batch of no bytes", {"spec/delivery/maxBatchBytes": 0}, "spec.delivery.maxBatchBytes",
        "greater than or equal to 1024"),
    Bad("a drain of hours", {"spec/delivery/drainTimeout": "2h"}, "spec.delivery.drainTimeout",
        "between 1s and 1h"),
    Bad("a policy that is not there", {"spec/deletionPolicy": "Keep"}, "spec.deletionPolicy",
        'supported values: "Retain", "Delete"'),
    Bad("suspend in words", {"spec/suspend": "yes"}, "spec.suspend", "must be of type boolean"),
    Bad("a template that is text", {"spec/template": "big"}, "spec.template", "must be of type object"),
    Bad("a field that is not there", {"spec/topic": "flights"}, "spec.topic", "unknown field"),
    Bad("a misspelled field", {"spec/scaling/minReplica": 2}, "spec.scaling.minReplica", "unknown field"),
    Bad("a group.id that is blank", {"spec/groupId": " "}, "spec.groupId", "such as flights"),
    Bad("a group.id of a backfill", {"spec/groupId": "flights.backfill.a"}, "spec.groupId",
        "the name of a backfill"),
    Bad("a name that is too long", {"metadata/name": "f" * 53}, "metadata.name", "52"),
    Bad("a name that is too long for two sets",
        {"metadata/name": "f" * 51, "spec/rollout/strategy": "Takeover"}, "metadata.name",
        "at most 50 characters for spec.rollout.strategy Takeover"),
    Bad("a name with a dot", {"metadata/name": "flights.nyc"}, "metadata.name", "use a dash"),
]  # fmt: skip
"""The API server refuses them."""


def _worker(**fields: Any) -> dict[str, Any]:
    return {"spec/template": {"spec": {"containers": [{"name": "worker", **fields}]}}}


def _pod(**fields: Any) -> dict[str, Any]:
    return {"spec/template": {"spec": fields}}


_TEMPLATE = "spec.template.spec"
_WORKER = f"{_TEMPLATE}.containers[worker]"

UNREADABLE = [
    Bad("a port that is none", {"spec/kafka/bootstrapServers": "kafka:70000"}, "spec.kafka.bootstrapServers",
        "a port of 1 to 65535"),
    Bad("a property that Kafka does not have", _property("fetch.max.byte", "1000"),
        f"{_PROPERTIES}[fetch.max.byte]", "did you mean 'fetch.max.bytes'?"),
    Bad("a property of another type", _property("max.poll.records", "many"),
        f"{_PROPERTIES}[max.poll.records]", "must be a number, not 'many'"),
    Bad("a table's schema that is none", _sink(schema="carrier STRING, delay NUMBER"), f"{_SINK}.schema",
        "at position 23: 'NUMBER' is no type"),
    Bad("a reset that is not there", _property("auto.offset.reset", "newest"),
        f"{_PROPERTIES}[auto.offset.reset]", "must be one of earliest, latest, none"),
    Bad("a pattern with a count that RE2 takes for text", {"spec/topics": GONE, "spec/topicPattern": "a{,3}"},
        "spec.topicPattern", "write {0,3} instead"),
    Bad("a pattern that is too large", {"spec/topics": GONE, "spec/topicPattern": "[^a]{1000}"},
        "spec.topicPattern", "2000 are the limit; use fewer and smaller counts"),
    Bad("a pattern that takes the dead letters in", {"spec/topics": GONE, "spec/topicPattern": "flights.*"},
        "spec.topicPattern", "dead letters would be consumed again; narrow"),
    Bad("a condition that is not closed", _route("kind = 'a", path="/data/a"), f"{_ROUTE}.when",
        "at position 8: the text is not closed"),
    Bad("two sinks of one table", _route(path="/data/flights/"), f"{_ROUTE}.sink",
        "names the same place as another sink"),
    Bad("a route to a topic that is read", _route(format="kafka", topic="flights"), f"{_ROUTE}.sink.topic",
        "would consume its own output"),
    Bad("a pattern that RE2 does not have", _sink(path="/data/{a}", tables={"allow": "(?=a)"}),
        f"{_SINK}.tables.allow", "is not a regular expression"),
    Bad("maintenance of a table of others", _maintained({"every": "1h", "table": "/data/others"}),
        f"{_MAINTENANCE}[0].table", "is no table of the group; name one of /data/flights"),
    Bad("two maintenances of a table", _maintained({"every": "1h"}, {"every": "2h"}),
        f"{_MAINTENANCE}[0].table", "two entries are for every table"),
    Bad("maintenance of a table that has none",
        _maintained({"every": "1h", "table": "/data/flights"}, sink_format="parquet"),
        f"{_MAINTENANCE}[0].table", "format parquet has no maintenance"),
    Bad("maintenance of nothing", _maintained({"every": "1h"}, sink_format="parquet"), f"{_MAINTENANCE}[0]",
        "the group has no table to maintain"),
    Bad("resources of no kind", _maintained({"every": "1h", "resources": {"memory": "1Gi"}}),
        f"{_MAINTENANCE}[0].resources.memory", "use requests and limits"),
    Bad("memory for maintenance in a unit that is none",
        _maintained({"every": "1h", "resources": {"limits": {"memory": "1GB"}}}),
        f"{_MAINTENANCE}[0].resources.limits.memory", "no quantity"),
    Bad("a cron expression for the 99th minute", _schedule(start="99 8 * * *"), f"{_SCHEDULE}.start",
        "such as \"0 8 * * MON-FRI\""),
    Bad("a window on the 31st of February", _schedule(start="0 8 31 2 *"), f"{_SCHEDULE}.start",
        "is not a cron expression"),
    Bad("a zone that is not there", _schedule(timeZone="Mars/Phobos"), f"{_SCHEDULE}.timeZone",
        "Mars/Phobos"),
    Bad("a misspelled field of the pod", _pod(contaniers=[]), f"{_TEMPLATE}.contaniers",
        "did you mean containers?"),
    Bad("a misspelled field of a container", _worker(resource={}), f"{_WORKER}.resource",
        "did you mean resources?"),
    Bad("containers that are a mapping", _pod(containers={"worker": {}}), f"{_TEMPLATE}.containers",
        "must be a list, but is a mapping"),
    Bad("a container without a name", _pod(containers=[{"image": "x"}]), f"{_TEMPLATE}.containers[0].name",
        "is missing"),
    Bad("memory in a unit that is none", _worker(resources={"limits": {"memory": "1GB"}}),
        f"{_WORKER}.resources.limits.memory", "the text '1GB' is no quantity"),
    Bad("CPU that is a boolean", _worker(resources={"requests": {"cpu": True}}),
        f"{_WORKER}.resources.requests.cpu", "the boolean true is no quantity"),
    Bad("a folder's size that is none", _pod(volumes=[{"name": "tmp", "emptyDir": {"sizeLimit": "2 Gi"}}]),
        f"{_TEMPLATE}.volumes[tmp].emptyDir.sizeLimit", "the text '2 Gi' is no quantity"),
    Bad("a command of its own", _worker(command=["sh"]), f"{_WORKER}.command", "is set by Slackwater"),
    Bad("arguments of its own", _worker(args=["-x"]), f"{_WORKER}.args", "is set by Slackwater"),
    Bad("an image by the template", _worker(image="x:1"), f"{_WORKER}.image", "set spec.pipeline.image"),
    Bad("a name of its own for the member",
        _worker(env=[{"name": "SLACKWATER_INSTANCE_ID", "value": "one"}]),
        f"{_WORKER}.env[SLACKWATER_INSTANCE_ID]", "is set by Slackwater"),
    Bad("an ordinal of its own", _worker(env=[{"name": "SLACKWATER_ORDINAL", "value": "1"}]),
        f"{_WORKER}.env[SLACKWATER_ORDINAL]", "is set by Slackwater"),
    Bad("a pod's name of its own", _worker(env=[{"name": "SLACKWATER_POD_NAME", "value": "one"}]),
        f"{_WORKER}.env[SLACKWATER_POD_NAME]", "is set by Slackwater"),
    Bad("something mounted over the configuration",
        _worker(volumeMounts=[{"name": "data", "mountPath": "/etc/slackwater/kafka"}]),
        f"{_WORKER}.volumeMounts[/etc/slackwater/kafka]", "use another mountPath"),
    Bad("something mounted around the configuration",
        _worker(volumeMounts=[{"name": "data", "mountPath": "/etc"}]), f"{_WORKER}.volumeMounts[/etc]",
        "use another mountPath"),
    Bad("another health port", _worker(ports=[{"name": "health", "containerPort": 9000}]),
        f"{_WORKER}.ports[health]", "use another name and number"),
    Bad("another way to ask how a worker is", _worker(livenessProbe={"exec": {"command": ["true"]}}),
        f"{_WORKER}.livenessProbe.exec", "set only times and thresholds"),
    Bad("a hook before the end", _worker(lifecycle={"preStop": {"sleep": {"seconds": 30}}}),
        f"{_WORKER}.lifecycle", "drains when it is stopped"),
    Bad("a grace period by the template", _pod(terminationGracePeriodSeconds=5),
        f"{_TEMPLATE}.terminationGracePeriodSeconds", "set spec.delivery.drainTimeout"),
    Bad("a volume in the configuration's place", _pod(volumes=[{"name": "slackwater", "emptyDir": {}}]),
        f"{_TEMPLATE}.volumes[slackwater]", "give your volume another name"),
    Bad("a label that selectors use",
        {"spec/template": {"metadata": {"labels": {"slackwater.dev/group": "mine"}}}},
        "spec.template.metadata.labels[slackwater.dev/group]", "use another name"),
    Bad("a name for all pods", {"spec/template": {"metadata": {"name": "one"}}},
        "spec.template.metadata.name", "unknown field"),
    Bad("a Deployment in place of a pod template", {"spec/template": {"replicas": 3}},
        "spec.template.replicas", "unknown field"),
]  # fmt: skip
"""The API server takes them, as CEL cannot know; reading them fails."""

NOT_FOR_PODS = [
    Bad("a sink in a relative folder", {"spec/pipeline/sink/path": "out/flights"}, f"{_PIPELINE}.sink.path",
        "give an absolute path on a volume"),
    Bad("a route to a relative folder", _route(path="out"), f"{_ROUTE}.sink.path",
        "give an absolute path on a volume"),
    Bad("a relative folder for the handler", {"spec/pipeline/handlerPath": ["src"]},
        f"{_PIPELINE}.handlerPath[0]", "absolute path in the image"),
    Bad("a relative file for the schema",
        {"spec/pipeline/value": {"format": "avro", "schemaFile": "flight.avsc"}}, f"{_VALUE}.schemaFile",
        "absolute path in the image"),
]  # fmt: skip
"""They can be read, and run on one machine, but nothing can be built from them for Kubernetes."""
