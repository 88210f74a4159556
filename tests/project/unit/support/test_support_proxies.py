"""The proxies: bytes pass unchanged, hang, are cut or changed when a test says so."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.support.processes import reserve_ports
from tests.support.proxies import ChangingProxy, DamagingProxy, Proxy, SwitchedProxy
from tests.support.waiting import HANG_S


class Echo(socketserver.BaseRequestHandler):
    """Sends back what it receives."""

    def handle(self) -> None:
        while data := self.request.recv(65_536):
            self.request.sendall(data)


@pytest.fixture
def server() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as echo:
        echo.daemon_threads = True
        thread = threading.Thread(target=echo.serve_forever)
        thread.start()
        yield "{}:{}".format(*echo.server_address)
        echo.shutdown()
        thread.join()


def frame(text: bytes) -> bytes:
    return struct.pack(">i", len(text)) + text


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection(proxy.host_and_port, timeout=HANG_S)


def received(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := client.recv(count - len(data))):
        data += more
    return data


def ended(client: socket.socket) -> bool:
    """Waits for the other side: whether it ends the connection, and sends nothing more."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_switched_proxy_passes_hangs_and_cuts(server: str) -> None:
    with SwitchedProxy(server) as proxy:
        with connected(proxy) as client:
            client.sendall(b"first")
            assert received(client, 5) == b"first"
            proxy.hang()
            client.sendall(b"later")
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(1)
            proxy.open()
            client.settimeout(30)
            assert received(client, 5) == b"later"
            proxy.cut()
            assert ended(client)
        with connected(proxy) as client:
            assert ended(client), "a new connection ends at once"


def test_a_changing_proxy_changes_one_answer(server: str) -> None:
    with ChangingProxy(server) as proxy, connected(proxy) as client:
        proxy.changes.append(lambda data: data[:4] + data[4:].upper())
        client.sendall(frame(b"one"))
        assert received(client, 7) == frame(b"ONE")
        client.sendall(frame(b"two"))
        assert received(client, 7) == frame(b"two")
        assert not proxy.changes


def test_a_damaging_proxy_leaves_the_first_answers_alone(server: str) -> None:
    with DamagingProxy(server, good=1, share=1.0, seed=1) as proxy, connected(proxy) as client:
        client.sendall(frame(b"good"))
        assert received(client, 8) == frame(b"good")
        proxy.damages = False
        client.sendall(frame(b"also"))
        assert received(client, 8) == frame(b"also")
        proxy.damages = True
        client.sendall(frame(b"this one"))
        client.settimeout(30)
        assert client.recv(1024) != frame(b"this one")
        assert sum(proxy.damaged.values()) == 1


def test_a_damaging_proxy_names_itself_in_place_of_the_broker(server: str) -> None:
    host, port = server.split(":")
    with DamagingProxy(server, good=9, share=0.0, seed=1) as proxy, connected(proxy) as client:
        client.sendall(frame(host.encode() + struct.pack(">i", int(port))))
        own_host, own_port = proxy.address.split(":")
        answer = frame(own_host.encode() + struct.pack(">i", int(own_port)))
        assert received(client, len(answer)) == answer


def test_a_server_that_is_gone_ends_the_connection() -> None:
    (port,) = reserve_ports(1)
    with SwitchedProxy(f"127.0.0.1:{port}") as proxy, connected(proxy) as client:
        assert ended(client)
