"""A Kafka broker for one machine: the wire protocol, a log on disk, the group coordinator, and faults."""

from slackwater.devbroker.broker import DevBroker, StartError
from slackwater.devbroker.faults.rules import Fault, FaultError
from slackwater.devbroker.options import BrokerOptions, OptionError

__all__ = ["BrokerOptions", "DevBroker", "Fault", "FaultError", "OptionError", "StartError"]
