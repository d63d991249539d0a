"""The emulator's name server, with raw queries as a forwarding server sends them."""

from __future__ import annotations

import socket
import struct

import pytest

from tests.testbed.google.dns import answer

WHERE = {"storage.googleapis.com": "10.96.3.4"}
ADDRESS, IPV6 = 1, 28


def query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
    # One question, and the record that EDNS appends.
    header = struct.pack(">HHHHHH", 0x1234, 0x0100, 1, 0, 0, 1)
    return header + labels + b"\0" + struct.pack(">HH", kind, 1) + b"\0\0\x29\x10\0\0\0\0\0\0\0"


@pytest.mark.parametrize(
    ("name", "kind", "code", "address"),
    [
        ("storage.googleapis.com", ADDRESS, 0, "10.96.3.4"),
        ("Storage.GoogleAPIs.com", ADDRESS, 0, "10.96.3.4"),
        ("storage.googleapis.com", IPV6, 0, None),
        ("compute.googleapis.com", ADDRESS, 3, None),
    ],
)
def test_a_known_name_has_one_address_and_no_other_exists(name: str, kind: int, code: int, address: str | None) -> None:
    asked = query(name, kind)
    answered = answer(asked, WHERE)
    number, flags, questions, answers, _, _ = struct.unpack(">HHHHHH", answered[:12])
    assert (number, flags & 0xF, questions, answers) == (0x1234, code, 1, 1 if address else 0)
    question = asked[12:-11]
    assert answered[12 : 12 + len(question)] == question
    assert answered[12 + len(question) :][-4:] == (socket.inet_aton(address) if address else b"")
