"""Access to the board's pages: who may ask, and the headers of every answer. Pure functions.

A user's own board serves the user's files on the user's machine. The token keeps out other users of the machine, the
check of the Host header keeps out web pages whose name was made to point to this machine (DNS rebinding), and
SameSite=Lax keeps other web sites from asking with the user's cookie: they can open the board, and not read it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from hmac import compare_digest

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

WRONG_HOST = "The name in the address is not one of this board."
NO_TOKEN = "The board has a new token each time it starts. Open the URL that mptj board printed."  # noqa: S105


def headers(*, static: bool) -> Mapping[str, str]:
    """Return the headers of every answer. Static files may be kept, if the browser asks whether they changed."""
    return {**_HEADERS, "Cache-Control": "no-cache" if static else "no-store"}


def is_allowed_host(header: str, allowed: Collection[str]) -> bool:
    """Return whether a Host header names this machine: localhost, an address, or a name in `allowed`.

    An address is no danger: only a name can be made to point elsewhere.
    """
    host = host_name(header)
    if host == "localhost" or host in {name.lower() for name in allowed}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_name(header: str) -> str:
    """Return the name or address of a Host header, in lower case."""
    host = header.rpartition(":")[0] if _has_port(header) else header
    return host.strip("[]").rstrip(".").lower()


def _has_port(header: str) -> bool:
    last = header.rpartition(":")[2]
    return last.isdigit() and (header.count(":") == 1 or "]:" in header)


def is_token(given: str | None, token: str) -> bool:
    """Compare in constant time."""
    return given is not None and compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())


class OneTimeToken:
    """A token that is accepted once: the browser's history, and the command line that opened it, hold no valid one."""

    def __init__(self, token: str) -> None:
        self.token = token
        self._used = False

    def take(self, given: str) -> bool:
        """Return whether the token is the right one and was not used before. For one thread."""
        if self._used or not is_token(given, self.token):
            return False
        self._used = True
        return True


def cookie_name(port: int) -> str:
    """Return the cookie's name; cookies are shared by all ports of a host, and two boards may run there."""
    return f"mptj-board-{port}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
