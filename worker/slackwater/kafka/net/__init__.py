"""The network: all sockets of the client, on asyncio.

:class:`~.connection.Connection` is one socket to one broker; :class:`~.cluster.Cluster` knows the
brokers and keeps their connections.
"""

from slackwater.kafka.net.cluster import Cluster
from slackwater.kafka.net.connection import ByVersion, Connect, Connection, RequestTimeoutError
from slackwater.kafka.net.connection_settings import ConnectionSettings
from slackwater.kafka.net.connection_setup import open_connection
from slackwater.kafka.net.pool import Purpose

__all__ = [
    "ByVersion",
    "Cluster",
    "Connect",
    "Connection",
    "ConnectionSettings",
    "Purpose",
    "RequestTimeoutError",
    "open_connection",
]
