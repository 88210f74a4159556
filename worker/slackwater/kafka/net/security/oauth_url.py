"""The address of a token endpoint, checked."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from slackwater.kafka.net.security.settings import SecurityProblem


class Endpoint(NamedTuple):
    """A token endpoint. ``target``: path and query, as the request has it. As text it is without the query,
    which may have something secret in it.
    """

    tls: bool
    host: str
    port: int
    target: str

    @property
    def default_port(self) -> bool:
        """Whether the port is the one of its scheme."""
        return self.port == (443 if self.tls else 80)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.default_port else f":{self.port}"
        return f"http{'s' if self.tls else ''}://{host}{port}{self.target.partition('?')[0]}"


def endpoint_of(url: str) -> Endpoint:
    """Reads the URL. Raises :class:`SecurityProblem`, without the URL, for one that must not be used."""
    if not url.isascii() or any(c <= " " or c == "\x7f" for c in url):
        raise SecurityProblem(
            "<token_endpoint_url> contains characters that are invalid in a URL; percent-encode them"
        )
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError as exc:
        raise SecurityProblem(f"<token_endpoint_url> is not a URL: {exc}") from None
    if parts.scheme not in ("https", "http") or not host:
        raise SecurityProblem("<token_endpoint_url> must be a URL of the form https://HOST/PATH")
    if "@" in parts.netloc:
        raise SecurityProblem(
            "<token_endpoint_url> has a user in it: set <client_id> and <client_secret> instead"
        )
    if parts.fragment:
        raise SecurityProblem("<token_endpoint_url> has a fragment (#): leave it out (RFC 6749, 3.2)")
    if parts.scheme == "http" and not _is_this_machine(host):
        raise SecurityProblem(
            f"<token_endpoint_url> is http:// to {host}: the secret would be sent in clear text; use "
            "https:// (http:// is allowed for localhost only)"
        )
    tls = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(tls, host, port or (443 if tls else 80), target)


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
