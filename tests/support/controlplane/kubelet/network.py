"""Pods' addresses: a range of 10.244.0.0/16 for each kubelet of the machine, routed to loopback.

Not 127.0.0.0/8, which EndpointSlices refuse. Pods share the host's network but for the address that
they are told to bind (``status.podIP``).
"""

from __future__ import annotations

import random
import socket
import subprocess
from collections.abc import Iterator

RANGES = 256
ADDRESSES = range(1, 255)


class NoRange(RuntimeError):
    """No range of addresses is to be had."""


class PodNetwork:
    """``cidr``: a /24 that no other kubelet has; a lock that ends with this process holds it."""

    def __init__(self) -> None:
        self._lock, third = _take_range()
        self._prefix = f"10.244.{third}"
        self.cidr = f"{self._prefix}.0/24"
        self._used: dict[str, str] = {}
        self._hosts = _endless_hosts()
        # What a kubelet that was killed has left counts as made.
        subprocess.run(["ip", "route", "replace", "local", self.cidr, "dev", "lo"], check=True)

    def take(self, uid: str) -> str:
        """An address for a pod, another one than those used last. Raises :class:`NoRange`."""
        for _ in ADDRESSES:
            address = f"{self._prefix}.{next(self._hosts)}"
            if address not in self._used:
                self._used[address] = uid
                return address
        raise NoRange(f"all {len(ADDRESSES)} pod addresses of {self.cidr} are in use")

    def give_back(self, address: str) -> None:
        """The pod is gone."""
        self._used.pop(address, None)


def _endless_hosts() -> Iterator[int]:
    while True:
        yield from ADDRESSES


def _take_range() -> tuple[socket.socket, int]:
    numbers = list(range(RANGES))
    random.SystemRandom().shuffle(numbers)
    for number in numbers:
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0slackwater-pods-10.244.{number}")  # freed by the kernel with the process
        except OSError:
            lock.close()
            continue
        return lock, number
    raise NoRange("every range of pod addresses is in use by another kubelet")
