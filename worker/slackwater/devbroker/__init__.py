"""A Kafka broker for one machine: the wire protocol, a log on disk, the group coordinator, and faults."""

from slackwater.devbroker.broker import BrokerStartError, DevBroker
from slackwater.devbroker.faults.rules import Fault, FaultError
from slackwater.devbroker.options import BrokerOptionError, BrokerOptions

__all__ = ["BrokerOptionError", "BrokerOptions", "BrokerStartError", "DevBroker", "Fault", "FaultError"]
