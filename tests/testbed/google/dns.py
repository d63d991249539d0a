"""A DNS server for Google's hosts: it answers with one address, and with NXDOMAIN for any other name.

It implements the part of RFC 1035 that a forwarding name server uses: one question a packet, over UDP.
"""

from __future__ import annotations

import socket
import socketserver
import struct
from collections.abc import Mapping

_ADDRESS = b"\0\1"
_INTERNET = b"\0\1"
# Authoritative answer; NXDOMAIN. Section 4.1.1.
_ANSWER, _NO_SUCH_NAME = 0x8400, 3
_SECONDS = 30


def answer(query: bytes, addresses: Mapping[str, str]) -> bytes:
    """Return the answer to a query for one of `addresses`, names to IPv4; for other record types it is empty."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    name, kind, question = ".".join(labels).lower(), query[at + 1 : at + 3], query[12 : at + 5]
    found = addresses.get(name) if kind == _ADDRESS else None
    flags = _ANSWER | (0 if name in addresses else _NO_SUCH_NAME)
    header = query[:2] + struct.pack(">HHHHH", flags, 1, 1 if found else 0, 0, 0)
    if not found:
        return header + question
    # The name is that of the question, at byte 12.
    record = b"\xc0\x0c" + _ADDRESS + _INTERNET + struct.pack(">IH", _SECONDS, 4) + socket.inet_aton(found)
    return header + question + record


class Port(socketserver.ThreadingUDPServer):
    """A socket on `address` that answers queries for `addresses`."""

    def __init__(self, address: tuple[str, int], addresses: Mapping[str, str]) -> None:
        self.addresses = addresses
        super().__init__(address, _Handler)


class _Handler(socketserver.BaseRequestHandler):
    server: Port

    def handle(self) -> None:
        query, connection = self.request
        connection.sendto(answer(query, self.server.addresses), self.client_address)
