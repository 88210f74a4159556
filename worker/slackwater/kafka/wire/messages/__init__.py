"""The messages of the Kafka protocol that Slackwater speaks, each declared once.

Names and versions follow Apache Kafka's own message definitions, in Python's spelling; a test
holds every declaration against the definitions inside the kafka-clients jar.
"""

# ruff: noqa: F403

from slackwater.kafka.wire.messages.cluster import *
from slackwater.kafka.wire.messages.data import *
from slackwater.kafka.wire.messages.groups import *
from slackwater.kafka.wire.messages.login import *
from slackwater.kafka.wire.messages.offsets import *
from slackwater.kafka.wire.messages.transactions import *
