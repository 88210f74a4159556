"""The dev broker in the tests: as a process, on a thread, and its group coordinator alone."""

from tests.support.devbroker.process import DevBroker

__all__ = ["DevBroker"]
