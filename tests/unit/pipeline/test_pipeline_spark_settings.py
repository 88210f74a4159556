"""Settings of Spark sessions."""

from __future__ import annotations

from slackwater.pipeline.engines.spark_session import ConnectBackend, LocalBackend

LAPTOP = {"spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"}


def test_settings_for_small_batches_are_not_made_on_somebody_elses_server() -> None:
    assert LocalBackend({})._conf.keys() >= LAPTOP
    assert not ConnectBackend("sc://spark:15002", {})._conf.keys() & LAPTOP
    asked = {"spark.sql.shuffle.partitions": "8"}
    assert ConnectBackend("sc://spark:15002", asked)._conf["spark.sql.shuffle.partitions"] == "8"
