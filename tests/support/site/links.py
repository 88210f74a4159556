"""The links between the workers' pods, which can be cut: no worker reaches another one's health port.

By the network itself this cannot be had here: all pods share the machine's network, and a connection to a
local address comes from that very address, so no rule tells the successor's from the operator's. So it is
done where the connection is made: in the workers' processes, by a ``sitecustomize`` on their PYTHONPATH.
"""

from __future__ import annotations

from pathlib import Path

_MODULE = '''\
"""Packets to another worker's health port are dropped while the file FOLDER/cut is there."""
import pathlib
import socket
import time

_CUT = pathlib.Path(__file__).with_name("cut")
_connect = socket.socket.connect


def connect(self, address):
    if self.family == socket.AF_INET and address[1] == 8080 and _CUT.exists():
        time.sleep(self.gettimeout() or 60.0)
        raise TimeoutError("timed out")
    return _connect(self, address)


socket.socket.connect = connect
'''


class Links:
    """All links between workers at once. ``folder``: on the workers' PYTHONPATH."""

    def __init__(self, folder: Path) -> None:
        self._flag = folder / "cut"
        (folder / "sitecustomize.py").write_text(_MODULE)

    def cut(self) -> None:
        """No new connection comes about; who tries waits for its timeout. One that is there goes on."""
        self._flag.touch()

    def mend(self) -> None:
        """As at first."""
        self._flag.unlink(missing_ok=True)
