"""spec.pipeline.sink: the addresses that each format takes, and the storage options that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.runtime.config.sink_config import SinkConfig
from slackwater_operator.api.v1alpha1.consumer_group import ResourceError, parse
from slackwater_operator.api.v1alpha1.spec.pipeline import check_sink
from tests.support.operator.bad_resources import good

ADVICE = "of the container worker, from a Secret (spec.template), or use a service account"


def sink(**fields: Any) -> SinkConfig:
    return parse(good(**{"spec/pipeline/sink": {"path": "/data/flights", **fields}})).spec.pipeline.sink


def problem(**fields: Any) -> str:
    with pytest.raises(ResourceError) as raised:
        sink(**fields)
    return str(raised.value).removeprefix("resource: spec.pipeline.sink")


def test_the_defaults() -> None:
    made = sink()
    assert (made.format, made.path) == ("parquet", "/data/flights")
    assert (made.options, made.partition_by, made.new_columns) == ({}, (), "add")


@pytest.mark.parametrize("format_", ["parquet", "delta"])
@pytest.mark.parametrize(
    "path", ["/data/flights", "out/flights", "../out", "out put", "file:///data/flights"]
)
def test_both_formats_take_a_folder(format_: str, path: str) -> None:
    assert sink(format=format_, path=path).path == path


STORES = [
    "s3://lake/flights",
    "s3://lake.eu-central-1/tables/year=2026/flights_1/",
    "gs://the_lake/flights",
    "az://lake/flights",
    "abfss://lake@storage.dfs.core.windows.net/tables/flights",
]


@pytest.mark.parametrize("format_", ["parquet", "delta"])
@pytest.mark.parametrize("path", STORES)
def test_both_formats_take_an_object_store(format_: str, path: str) -> None:
    made = sink(format=format_, path=path, options={"AWS_REGION": "eu-central-1"})
    assert (made.path, made.options) == (path, {"AWS_REGION": "eu-central-1"})


@pytest.mark.parametrize("path", ["hdfs://namenode:8020/lake/flights", "hdfs://cluster/lake/flights"])
def test_only_delta_takes_hdfs(path: str) -> None:
    assert sink(format="delta", path=path).path == path
    assert problem(path=path) == (
        ".path: is on HDFS, which requires format delta; set format to delta, "
        "or to spark with the path in options"
    )


@pytest.mark.parametrize("format_", ["parquet", "delta"])
@pytest.mark.parametrize(
    "path",
    [
        "",
        "s3:/lake/flights",
        "s3://lake",
        "s3://lake/",
        "s3://lake//flights",
        "s3:///flights",
        "S3://lake/flights",
        "s3a://lake/flights",
        "hdfs://lake",
        "hdfs:///flights",
        "https://lake.example/flights",
        "s3://lake/my flights",
        "s3://user:password@lake/flights",
        "s3://lake/flights#1",
        "az://lake/flights?sig=abc",
        "az://lake@storage.dfs.core.windows.net/flights",
        "abfss://lake/flights",
        "abfss://lake@storage/flights",
        "abfss://lake@storage.dfs.core.windows.net",
        "abfss://lake@storage.dfs.core.windows.net.example/flights",
        "abfss://storage.dfs.core.windows.net/flights",
        "file://data/flights",
    ],
)
def test_other_addresses_are_refused(format_: str, path: str) -> None:
    message = problem(format=format_, path=path)
    assert message.startswith(f".path: {path!r} has an invalid format; use a value such as /data/flights")
    assert "or s3://lake/flights" in message


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "aws_secret_access_key",
        "Aws_Secret_Access_Key",
        "secret_access_key",
        "AWS_SECRET_ACCESS_KEY_DYNAMODB",
        "AWS_SESSION_TOKEN",
        "AWS_SESSION_TOKEN_DYNAMODB",
        "aws_token",
        "session_token",
        "token",
        "aws_sse_customer_key_base64",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "azure_storage_access_key",
        "azure_storage_master_key",
        "account_key",
        "access_key",
        "master_key",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "sas_key",
        "sas_token",
        "azure_storage_client_secret",
        "AZURE_CLIENT_SECRET",
        "client_secret",
        "azure_storage_token",
        "bearer_token",
        "azure_fabric_session_token",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "service_account_key",
        "password",
        "accountKey",
        "credential",
        "s3.secret-access-key",
        "s3.session-token",
        "adls.account-key",
        "adls.sas-token",
        "adls.client-secret",
        "adls.connection-string",
        "gcs.oauth2.token",
        "header.Authorization",
    ],
)
def test_options_with_credentials_are_refused_without_their_value(name: str) -> None:
    message = problem(format="delta", options={"AWS_REGION": "eu-central-1", name: "hidden"})
    assert message.startswith(f".options[{name}]: must not be set here")
    assert message.endswith(ADVICE)
    assert "hidden" not in message


@pytest.mark.parametrize(
    "name",
    [
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ACCESS_KEY_ID",
        "aws_access_key_id",
        "AWS_ALLOW_HTTP",
        "aws_role_arn",
        "aws_web_identity_token_file",
        "aws_container_authorization_token_file",
        "aws_sse_kms_key_id",
        "aws_sse_bucket_key_enabled",
        "azure_storage_account_name",
        "azure_client_id",
        "azure_federated_token_file",
        "azure_fabric_token_service_url",
        "google_service_account",
        "google_application_credentials",
        "s3.access-key-id",
        "s3.endpoint",
        "oauth2-server-uri",
        "timeout",
    ],
)
def test_other_options_are_taken(name: str) -> None:
    assert sink(format="delta", path="s3://lake/flights", options={name: "x"}).options == {name: "x"}


def test_options_of_files_need_an_object_store() -> None:
    assert problem(options={"AWS_REGION": "eu-central-1"}) == (
        ".options: does not apply to format parquet with a folder; remove it, or give path an object store"
    )


def iceberg(**fields: Any) -> dict[str, Any]:
    return good(**{"spec/pipeline/sink": {"format": "iceberg", "table": "lake.flights", **fields}})


def iceberg_problem(**fields: Any) -> str:
    with pytest.raises(ResourceError) as raised:
        parse(iceberg(**fields))
    return str(raised.value).removeprefix("resource: spec.pipeline.sink")


def test_an_iceberg_table_has_a_name_and_properties_of_its_catalog() -> None:
    options = {"uri": "https://catalog.example:8181/api?realm=a", "warehouse": "s3://lake/a:b@c"}
    made = parse(
        iceberg(options=options, partitionBy=["day(time_hour)", "bucket(16, id)"])
    ).spec.pipeline.sink
    assert (made.format, made.table, made.path) == ("iceberg", "lake.flights", "")
    assert (made.options, made.partition_by) == (options, ("day(time_hour)", "bucket(16, id)"))
    assert parse(iceberg(table="lake.europe.flights")).spec.pipeline.sink.table == "lake.europe.flights"


@pytest.mark.parametrize("table", ["", ".", "flights", "flights.", ".flights", "lake..flights", "a. b"])
def test_other_names_of_tables_are_refused(table: str) -> None:
    assert iceberg_problem(table=table).startswith(f".table: {table!r} has an invalid format")


def test_fields_of_another_format_are_refused() -> None:
    assert iceberg_problem(table="lake.my flights").startswith(".table: must be NAMESPACE.TABLE without")
    assert iceberg_problem(path="/data/flights").startswith(".path: requires format parquet or delta")


@pytest.mark.parametrize(
    "uri",
    ["postgresql://catalog:hidden@db.example/lake", "postgresql://db.example/lake?user=a&password=hidden"],
)
def test_an_address_with_a_password_is_refused_without_it(uri: str) -> None:
    message = iceberg_problem(options={"uri": uri})
    assert message.startswith(".options[uri]: is a URL with a password, which must not be set here")
    assert message.endswith(ADVICE)
    assert "hidden" not in message


def test_an_option_is_checked_in_linear_time() -> None:
    """Longer than the API server lets it be: in quadratic time this takes an hour."""
    check_sink(SinkConfig(path="s3://bucket/key", options={"uri": "://" + ":" * 1_000_000}), "spec")


POSTGRES = {"format": "postgres", "path": None, "table": "public.flights"}


def test_a_postgres_table_has_connection_parameters_a_mode_a_key_and_aggregates() -> None:
    options = {"host": "db", "sslmode": "verify-full", "sslkey": "/tls/tls.key", "passfile": "/run/pass"}
    made = sink(**POSTGRES, options=options)
    assert (made.path, made.table, made.options, made.mode) == ("", "public.flights", options, "append")
    made = sink(**POSTGRES, mode="upsert", key=["id", "day of year"])
    assert (made.mode, made.key, made.aggregates) == ("upsert", ("id", "day of year"), {})
    made = sink(**POSTGRES, mode="merge", key=["minute"], aggregates={"n": "count", "delay": "max"})
    assert (made.mode, made.key, made.aggregates) == ("merge", ("minute",), {"n": "count", "delay": "max"})


def test_a_delta_table_has_a_mode_a_key_and_aggregates() -> None:
    made = sink(format="delta", mode="upsert", key=["id"], partitionBy=["day"])
    assert (made.mode, made.key, made.aggregates) == ("upsert", ("id",), {})
    made = sink(format="delta", mode="merge", key=["id", "day"], aggregates={"n": "sum"}, partitionBy=["day"])
    assert (made.mode, made.key, made.aggregates) == ("merge", ("id", "day"), {"n": "sum"})


@pytest.mark.parametrize("table", ["flights", "a.b.c", ".flights", "public.", "public. flights"])
def test_other_tables_are_refused(table: str) -> None:
    assert problem(**{**POSTGRES, "table": table}).startswith(".table: ")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({**POSTGRES, "mode": "replace"}, ".mode: 'replace' is not supported"),
        (
            {**POSTGRES, "mode": "merge", "key": ["id"], "aggregates": {"n": "avg"}},
            ".aggregates: has a function that is not supported; valid values: sum, min, max, count",
        ),
        ({**POSTGRES, "options": {"password": "hush"}}, ".options[password]: must not be set here"),
        ({**POSTGRES, "options": {"sslpassword": "hush"}}, ".options[sslpassword]: must not be set here"),
    ],
)
def test_fields_of_other_formats_and_modes_are_refused(fields: dict[str, Any], expected: str) -> None:
    message = problem(**fields)
    assert message.startswith(expected)
    assert "hush" not in message


CUSTOM = {"format": "custom", "path": None, "implementation": "flights.sqlite:SqliteSink"}


def test_a_sink_of_ones_own_has_an_implementation_and_options() -> None:
    made = sink(**CUSTOM, options={"file": "/data/flights.db"})
    assert (made.implementation, made.options) == ("flights.sqlite:SqliteSink", {"file": "/data/flights.db"})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({**CUSTOM, "implementation": "SqliteSink"}, ".implementation: 'SqliteSink' has an invalid format"),
        ({**CUSTOM, "options": {"api_token": "hush"}}, ".options[api_token]: must not be set here"),
    ],
)
def test_what_is_not_for_a_sink_of_ones_own_is_refused(fields: dict[str, Any], expected: str) -> None:
    assert problem(**fields).startswith(expected)


KAFKA = {"format": "kafka", "path": None, "topic": "flights.delayed"}


def test_a_topic_has_options_of_its_cluster() -> None:
    options = {
        "bootstrap.servers": "other:9092", "security.protocol": "SASL_SSL", "compression.type": "zstd",
        "sasl.username.file": "/run/user", "sasl.password.file": "/run/pass",
    }  # fmt: skip
    made = sink(**KAFKA, options=options)
    assert (made.topic, made.options) == ("flights.delayed", options)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({**KAFKA, "topic": "a b"}, ".topic: 'a b' has an invalid format"),
        ({**KAFKA, "options": {"sasl.jaas.config": "x"}}, ".options[sasl.jaas.config]: must not be set here"),
        ({**KAFKA, "options": {"ssl.keystore.key": "x"}}, ".options[ssl.keystore.key]: must not be set here"),
        ({**KAFKA, "topic": "flights"}, ".topic: 'flights' is one of spec.topics, so the group would"),
    ],
)
def test_what_is_not_for_a_topic_is_refused(fields: dict[str, Any], expected: str) -> None:
    assert problem(**fields).startswith(expected)


def test_a_topic_that_the_group_reads_or_that_has_dead_letters_is_refused() -> None:
    own = {"spec/pipeline/sink": {"format": "kafka", "topic": "flights"}}
    other = {"spec/pipeline/sink": {**own["spec/pipeline/sink"], "options": {"bootstrap.servers": "b:9092"}}}
    letters = {"spec/topics": ["more"], "spec/pipeline/deadLetterTopic": "flights"}
    pattern = {"spec/topics": None, "spec/topicPattern": "flights"}
    with pytest.raises(ResourceError, match="sink.topic: 'flights' is also the dead-letter topic"):
        parse(good(**own, **letters))
    with pytest.raises(
        ResourceError, match=r"topicPattern: matches spec.pipeline.sink.topic \(flights\), so"
    ):
        parse(good(**own, **pattern))
    for changes in (letters, pattern, {}):
        assert parse(good(**other, **changes)).spec.pipeline.sink.topic == "flights"


SPARK = {"format": "spark", "path": None, "sparkFormat": "orc", "options": {"path": "/data/flights"}}


def on_spark(**fields: Any) -> SinkConfig:
    changes = {"spec/pipeline/engine": "spark", "spec/pipeline/sink": {**SPARK, **fields}}
    return parse(good(**changes)).spec.pipeline.sink


def test_a_format_of_spark_has_options_and_columns_of_folders() -> None:
    made = on_spark(sparkFormat="org.example.source.v2", partitionBy=["day"])
    assert (made.spark_format, made.options) == ("org.example.source.v2", {"path": "/data/flights"})
    assert made.partition_by == ("day",)


def test_rows_replace_others_in_a_delta_table_of_spark() -> None:
    made = on_spark(sparkFormat="Delta", mode="changes", key=["id"], version="lsn", deletedFor="1h")
    assert (made.mode, made.key, made.version, made.deleted_for_ms) == ("changes", ("id",), "lsn", 3_600_000)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"mode": "upsert", "key": ["id"]}, r"\.mode: must be append with format spark, or upsert"),
        (
            {"sparkFormat": "delta", "mode": "merge", "key": ["id"], "aggregates": {"n": "sum"}},
            r"\.mode: must be append with format spark, or upsert",
        ),
        ({"sparkFormat": "a b"}, r"\.sparkFormat: 'a b' has an invalid format"),
        ({"options": {"password": "hush"}}, r"\.options\[password\]: must not be set here"),
    ],
)
def test_what_is_not_for_a_format_of_spark_is_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(ResourceError, match=f"sink{expected}"):
        on_spark(**fields)


def test_a_format_of_spark_needs_the_engine() -> None:
    assert problem(**SPARK).startswith(".format: spark requires engine spark; ")


@pytest.mark.parametrize("format_", ["parquet", "delta"])
def test_both_formats_have_folders_by_column_and_keep_new_columns_out(format_: str) -> None:
    made = sink(format=format_, partitionBy=["day", "Carrier Code", "year.month"], newColumns="reject")
    assert (made.partition_by, made.new_columns) == (("day", "Carrier Code", "year.month"), "reject")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("day", ".partitionBy: must be a list"),
        (["day", ""], ".partitionBy[1]: '' has an invalid format; use a value such as day"),
        ([" day"], ".partitionBy[0]: ' day' has an invalid format"),
        (["day", "day"], ".partitionBy[1]: 'day' is listed twice"),
        (["c" * 256], ".partitionBy[0]: is 256 characters long; the limit is 255"),
        ([f"c{number}" for number in range(11)], ".partitionBy: has 11 entries; the limit is 10"),
    ],
)
def test_bad_columns_are_refused(columns: object, expected: str) -> None:
    assert problem(partitionBy=columns).startswith(expected)


def test_a_declared_schema_is_read() -> None:
    assert sink().schema == ""
    assert sink(schema="carrier STRING, delay INT NOT NULL").schema == "carrier STRING, delay INT NOT NULL"
    assert problem(schema="carrier STRING, delay NUMBER").startswith(
        ".schema: at position 23: 'NUMBER' is no type; types are BOOLEAN"
    )
    assert problem(schema="carrier") == ".schema: at position 8: a type is expected"


def test_rows_wait_for_an_age_and_a_size() -> None:
    assert (sink().max_age_ms, sink().target_file_bytes) == (0, 64 * 2**20)
    made = sink(maxAge="1m30s", targetFileSize="1Gi")
    assert (made.max_age_ms, made.target_file_bytes) == (90_000, 2**30)
    assert "such as 128Mi" in problem(maxAge="1m", targetFileSize="0Mi")
    assert "requires maxAge" in problem(targetFileSize="128Mi")


def test_new_columns_are_added_or_rejected() -> None:
    assert problem(newColumns="ignore") == ".newColumns: 'ignore' is not supported; valid values: add, reject"
