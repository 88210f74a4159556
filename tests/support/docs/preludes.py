"""What the Python blocks of a page take as given, and what is checked after them.

All run in one namespace, in which ``bootstrap`` is the broker's address and ``tmp_path`` the working folder.
The broker has the topics ``flights`` and ``orders`` with records. A block that reads for ever ends by
:class:`Enough`, which the page's own function raises.
"""

from __future__ import annotations

from dataclasses import dataclass


class Enough(Exception):
    """Ends a block that would read for ever."""


@dataclass(frozen=True)
class Prelude:
    """What the blocks of a page need.

    Attributes:
        before: Python that runs before the blocks.
        after: Python that runs behind them.
        endless: one of the blocks must end by :class:`Enough`.
        keeps: names that the blocks import, and that stay those of ``before``.
        spark: the blocks need a Spark session.
    """

    before: str = ""
    after: str = ""
    endless: bool = False
    keeps: tuple[str, ...] = ()
    spark: bool = False


_HANDLE = """
handled = []
def handle(records):
    handled.append(records)
    if records and len(handled) > 0:
        raise Enough
"""
_ARROW = "import pyarrow as pa, slackwater"

_OPTIONS = """
from slackwater.kafka import ClientCredentials, Security
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig

password, secret = "p", "s"
checked = []

class KafkaConsumer:
    # No cluster here requires a login: the options go through the consumer's own parser.
    def __init__(self, topic, **options):
        checked.append(ConsumerConfig.from_keywords(options))

    @classmethod
    def from_properties(cls, properties, topic):
        checked.append(ConsumerConfig.from_properties(properties))

def KafkaProducer(*, bootstrap_servers, security):
    checked.append(security)

def KafkaAdmin(bootstrap_servers, security):
    checked.append(security)
"""

PRELUDES = {
    "docs/how-to/pipeline/aggregate-a-batch.md": Prelude(
        _ARROW,
        """
from slackwater.testing import run
result = run(transform, [b"a", b"b"], engine="arrow", lineage="batch")
assert result.to_pylist() == [{"source": "test", "records": 2}]
""",
    ),
    "docs/how-to/operate/alerts.md": Prelude(
        """
from slackwater.kafka import KafkaConsumer
options = {"bootstrap_servers": bootstrap, "group_id": "flights"}
members = [KafkaConsumer("flights", group_instance_id=f"flights-{n}", **options) for n in (5, 6)]
while {str(member.membership().state).upper() for member in members} != {"STABLE"}:
    for member in members:
        member.poll(50)
for member in members:
    member.close()
"""
    ),
    "docs/how-to/tables/update-by-key.md": Prelude(
        after="""
from slackwater.testing import record, run
records = [record("Ann", key="a"), record("Bo", key="b"), record(None, key="a")]
rows = run(transform, records, engine="arrow").to_pylist()
assert [(row["id"], row["customer"], row["_op"]) for row in rows] == [
    ("a", "Ann", "upsert"), ("b", "Bo", "upsert"), ("a", None, "delete")]
""",
    ),
    "docs/how-to/client/connect-securely.md": Prelude(
        _OPTIONS, "assert len(checked) == 6", keeps=("KafkaConsumer", "KafkaProducer", "KafkaAdmin")
    ),
    "docs/how-to/pipeline/handle-bad-records.md": Prelude(
        """
import slackwater
class requests:
    class RequestException(Exception): pass
def fetch_rates():
    raise requests.RequestException("no answer")
""",
        """
try:
    transform([])
except slackwater.Retry as error:
    assert "the rates cannot be read: no answer" in str(error)
else:
    raise AssertionError
""",
    ),
    "docs/how-to/pipeline/handle-records-one-by-one.md": Prelude(
        "async def look_up(customer):\n    return {'name': customer.upper()}",
        """
from slackwater.testing import run
rows = run(transform, [{"order": 1, "customer": "c7"}], engine="python").to_pylist()
assert rows == [{"topic": "test", "partition": 0, "offset": 0, "order": 1, "customer": "c7", "name": "C7"}]
""",
    ),
    "docs/how-to/pipeline/join-reference-tables.md": Prelude(
        "import pyarrow.csv\n(tmp_path / 'airports.csv').write_text('faa,name\\nJFK,Kennedy\\n')",
        "setup(None)\nassert airports == {'JFK': 'Kennedy'}",
    ),
    "docs/how-to/client/migrate-from-aiokafka.md": Prelude(
        _HANDLE,
        """
try:
    await read()
except Enough:
    pass
assert handled
""",
    ),
    "docs/how-to/client/migrate-from-confluent-kafka.md": Prelude(
        "handled = []\nhandle = handled.append", "assert handled"
    ),
    "docs/how-to/client/migrate-from-kafka-python.md": Prelude(
        after="assert KafkaConsumer.__module__.startswith('slackwater')"
    ),
    "docs/how-to/pipeline/test-a-handler.md": Prelude(
        """
(tmp_path / "pipeline.py").write_text('''
import json

def transform(records):
    for record in records:
        position = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        try:
            yield {**json.loads(record.value), **position}
        except ValueError as error:
            yield {**position, "_error": str(error)}
''')
import sys
sys.path.insert(0, str(tmp_path))
""",
        "test_orders_become_rows()\ntest_a_record_with_a_key_and_a_place()\nsys.path.remove(str(tmp_path))",
    ),
    "docs/reference/admin.md": Prelude(
        after="""
with KafkaAdmin(bootstrap_servers=bootstrap) as admin:
    assert len(admin.describe_topics(["trains"])["trains"].partitions) == 3
""",
    ),
    "docs/reference/producer.md": Prelude(after="assert sent.get(1).offset == 1"),
    "docs/reference/client.md": Prelude(
        _HANDLE
        + """
import threading
from slackwater.kafka import KafkaProducer
enough = threading.Event()
def produce():  # the block reads from the end of the topic
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        while not enough.wait(0.2):
            producer.send("flights", b"{}").get(10)
producing = threading.Thread(target=produce)
producing.start()
""",
        "enough.set()\nproducing.join()",
        endless=True,
    ),
    "docs/reference/devbroker.md": Prelude("make_client = str"),
    "docs/reference/spark-source.md": Prelude(
        """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
(tmp_path / "orders.py").write_text("def transform(records):\\n    return []\\n")
(tmp_path / "consumergroup.yaml").write_text(f'''
apiVersion: slackwater.dev/v1alpha1
kind: ConsumerGroup
metadata: {{name: orders-to-lake}}
spec:
  kafka: {{bootstrapServers: "{bootstrap}"}}
  topics: [orders]
  pipeline: {{handler: "orders:transform", engine: python, sink: {{path: "{tmp_path}/out"}}}}
  replicas: 1
''')
""",
        "spark.stop()",
        spark=True,
    ),
}
"""Page -> its prelude. Other pages with Python are in :data:`tests.support.docs.blocks.NOT_RUN`."""
