"""``format("slackwater")``: options that cannot be used."""

from __future__ import annotations

import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, TopicPartition
from slackwater.kafka.admin import NewTopic
from slackwater.pipeline.datasource.commits import GroupCommits
from slackwater.pipeline.datasource.options import OptionError
from tests.client.integration.groups.consumer_harness import unique
from tests.pipeline.integration.engines import spark_source_host as host
from tests.pipeline.integration.engines.spark_process import SparkProcess
from tests.support.devbroker import DevBroker
from tests.support.waiting import wait_until


def made(devbroker: DevBroker) -> str:
    topic = unique("source")
    with KafkaAdmin(devbroker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1)]).unwrap()
        admin.wait_for_topic(topic, 1)
    return topic


@pytest.mark.parts("spark")
@pytest.mark.long
def test_errors_name_the_option_and_secrets_are_nowhere(devbroker: DevBroker, spark: SparkProcess) -> None:
    options = {
        "kafka.bootstrap.servers": devbroker.bootstrap,
        "subscribe": made(devbroker),
    }
    secret = {"kafka.security.protocol": "SSL", "kafka.ssl.key.password": "hunter2-key"}
    for more, said in (
        (
            {"startingOffset": "earliest"},
            'option "startingoffset" does not exist; did you mean startingOffsets?',
        ),
        ({"startingOffsets": "latest"}, 'option "startingOffsets" must not be latest'),
        ({"subscribe": "no-such-topic"}, 'option "subscribe" names topic no-such-topic'),
        (secret, 'option "kafka.*" cannot be used: ssl.key.password'),
        ({**secret, "kafka.fetch.min.bytes": "hunter2-key"}, "fetch.min.bytes must be a number, not '***'"),
    ):
        error = spark.run(host.error_of, {**options, **more})
        assert said in error
        assert "hunter2" not in error
    assert "hunter2" not in spark.run(host.plan_of, {**options, **secret})


def test_a_group_with_members_cannot_be_committed_to(devbroker: DevBroker) -> None:
    topic, group = made(devbroker), unique("g")
    settings = {"bootstrap_servers": devbroker.bootstrap, "group_id": group}
    with KafkaConsumer(topic, **settings) as member:
        wait_until(lambda: member.poll(100) or member.assignment(), "the member's assignment")
        commits = GroupCommits(group, {"bootstrap.servers": devbroker.bootstrap})
        with pytest.raises(
            OptionError, match='"commitGroup" cannot be used: .* the group has members; name a'
        ):
            commits.commit({TopicPartition(topic, 0): 1})
        commits.close()
