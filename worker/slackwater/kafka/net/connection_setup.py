"""Opens a connection: a TCP connection to one of the name's addresses, TLS, versions, login."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

from slackwater.kafka.errors import AuthenticationError, KafkaConnectionError, KafkaError
from slackwater.kafka.net.connection import Connection, Login, TlsFailure, address
from slackwater.kafka.net.connection_settings import ConnectionSettings
from slackwater.kafka.net.dialer import dial, reason

log = logging.getLogger(__name__)


async def open_connection(
    host: str,
    port: int,
    settings: ConnectionSettings,
    *,
    tls: ssl.SSLContext | None = None,
    login: Login | None = None,
) -> Connection:
    """Connects, agrees on versions and logs in, within ``settings.connect_timeout_ms`` altogether.

    Without ``tls`` in plain text, without ``login`` anonymously. All addresses of the name are tried, the
    one that worked last first; an address that accepts the connection but does not answer as a broker counts
    as failed. Raises :class:`KafkaConnectionError` with the address and the
    reason, :class:`TlsFailure` among them, and what ``login`` raises.
    """
    where = address(host, port)
    book = settings.addresses
    deadline = asyncio.get_running_loop().time() + settings.connect_timeout_ms / 1000
    problem: KafkaConnectionError | None = None
    try:
        async with asyncio.timeout_at(deadline):
            left = book.in_order(host, port, await settings.resolve(host, port))
            while left:
                sock, endpoint = await dial(
                    left,
                    receive_buffer_bytes=settings.receive_buffer_bytes,
                    send_buffer_bytes=settings.send_buffer_bytes,
                )
                book.reached = True
                left.remove(endpoint)
                opening = _Opening(host, port, settings, tls, login)
                try:
                    connection = await opening.over(sock, deadline, others=len(left))
                except KafkaConnectionError as exc:
                    book.failed(host, port, endpoint)
                    problem = exc
                    if left and not isinstance(exc, AuthenticationError):
                        log.info(
                            "%s: %s cannot be used, trying the other addresses: %s", where, endpoint, exc
                        )
                        continue
                    raise
                book.worked(host, port, endpoint)
                return connection
    except TimeoutError as exc:
        raise problem or _too_slow(where, settings) from exc
    except OSError as exc:
        raise problem or KafkaConnectionError(f"{where}: {reason(exc)}") from exc
    raise KafkaConnectionError(f"{where}: the name has no address")


def _too_slow(where: str, settings: ConnectionSettings) -> KafkaConnectionError:
    return KafkaConnectionError(f"{where}: no Kafka broker answered within {settings.connect_timeout_ms} ms")


class _Opening:
    """Opens a connection over one socket: TLS, versions, login."""

    def __init__(
        self,
        host: str,
        port: int,
        settings: ConnectionSettings,
        tls: ssl.SSLContext | None,
        login: Login | None,
    ) -> None:
        self._host, self._settings, self._tls, self._login = host, settings, tls, login
        self._connection = Connection(host, port, settings)

    async def over(self, sock: socket.socket, deadline: float, *, others: int) -> Connection:
        """The connection, ready for requests. Leaves each of the ``others`` its share of the time."""
        connection, loop = self._connection, asyncio.get_running_loop()
        now = loop.time()
        until = now + max(0.0, deadline - now) / (others + 1)
        try:
            async with asyncio.timeout_at(until):
                await loop.create_connection(
                    lambda: connection,
                    sock=sock,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
                await connection.negotiate()
                if self._login is not None:
                    await connection.log_in(self._login)
        except TimeoutError as exc:
            connection.fail(KafkaConnectionError("connecting took too long"))
            raise _too_slow(connection.address, self._settings) from exc
        except (ssl.SSLError, ssl.CertificateError) as exc:
            raise TlsFailure(f"{connection.address}: {exc}", exc) from exc
        except OSError as exc:
            handshake = " during the TLS handshake; is it a port with TLS?"
            said = handshake if self._tls and isinstance(exc, ConnectionError) and not exc.errno else ""
            raise KafkaConnectionError(f"{connection.address}: {reason(exc)}{said}") from exc
        except BaseException as exc:
            given_up = f"connection to {connection.address} not completed: {exc!r}"
            connection.fail(KafkaConnectionError(given_up))
            if isinstance(exc, KafkaError) and isinstance(connection.error, TlsFailure):
                raise connection.error from exc
            raise
        finally:
            if not connection.attached:
                sock.close()
        return connection
