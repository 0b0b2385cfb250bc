"""No control message may take time in proportion to a packet of 400 kB, whatever it is: each has a bound, and so has its reply."""

from __future__ import annotations

import socket

import pytest

from sbus.protocol import controls
from sbus.protocol.packets import MAX_PACKET_BYTES, control_packet
from sbus_programs.config.settings import DaemonSettings, LimitSettings
from sbusd.broker.control_messages import ControlMessages
from sbusd.broker.request_bounds import MAX_REPLY_BYTES, payload_limit
from tests.support.in_process_bus import BusClient, InProcessBus, MakeBus
from tests.support.wire import error_code

NAMES = sorted({value for name, value in vars(controls).items() if name.isupper() and isinstance(value, bytes)} | {b"not/yet/known"})

SHAPES = {
    "bytes that are not text": b"\xff",
    "segments": b"a/",
    "NULs": b"\0",
    "NUL and digits": b"\x001",
    "digits": b"1",
    "escapes": b'\\"',
    "wildcards": b"*/",
    "a place": b"7/" + b"0a" * 1_000,
    "publish": b"0\0publish\0" + b"\xff" * 1_000,
    "unit": b"0\0publish\0k\0" + b"a@" * 500,
}

KEY_BYTES = LimitSettings().key_bytes

_WHOLE = {controls.PING, controls.BATCH, controls.FROM, controls.TO}


def large_client(bus: InProcessBus) -> BusClient:
    """Return an owner whose socket takes the largest packets."""
    client = bus.client()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212_992)
    return client


def payload_of(name: bytes, shape: bytes) -> bytes:
    """Return a payload of *shape* that makes a control message as long as a packet can be."""
    room = MAX_PACKET_BYTES - len(control_packet(name, b""))
    return (shape * (room // len(shape) + 1))[:room]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.decode())
def test_a_control_message_as_long_as_a_packet_is_refused_before_it_is_read(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(ControlMessages, "reply", lambda _self, _client, packet: read.append(packet.key))
    bus = make_bus()
    for shape in SHAPES.values():
        client = large_client(bus)
        client.send(control_packet(name, payload_of(name, shape)))
        if name == controls.PING:
            assert len(client.receive()) == MAX_PACKET_BYTES
        elif name not in _WHOLE:
            assert error_code(client.receive()) == "EMSGSIZE"
            assert client.barrier() == []
    assert set(read) <= _WHOLE


@pytest.mark.parametrize("payload", [b"%b", b"%b\x001", b"0\0publish\0%b", b"0\0subscribe\0%b\0a.service"])
def test_a_key_in_a_request_is_as_long_as_one_in_a_message(bus: InProcessBus, payload: bytes) -> None:
    names = [controls.EXPLAIN] if payload.startswith(b"0") else [controls.TRACE, controls.MEMBERS]
    for name in names:
        client = large_client(bus)
        client.send(control_packet(name, payload % (b"\xff" * (KEY_BYTES + 1))))
        assert error_code(client.receive()) == "EMSGSIZE"
        assert client.ask_json(name, payload % (b"k" * KEY_BYTES))


@pytest.mark.parametrize("name", [controls.TRACE, controls.EXPLAIN])
def test_a_reply_that_no_socket_takes_is_an_error(make_bus: MakeBus, name: bytes) -> None:
    bus = make_bus(DaemonSettings(limits=LimitSettings(key_bytes=64 << 10)))
    client = large_client(bus)
    head = b"0\0publish\0" if name == controls.EXPLAIN else b""
    client.send(control_packet(name, head + b"\xff" * (64 << 10)))
    assert error_code(client.receive()) == "EMSGSIZE"
    assert len(client.ask(name, head + b"\xff" * KEY_BYTES)) < MAX_REPLY_BYTES


def test_each_request_of_today_fits_its_bound() -> None:
    pattern = (b"\0" + b"p" * KEY_BYTES) * 64
    assert payload_limit(controls.LOST_FOR, KEY_BYTES) >= len(b"9" * 15 + pattern)
    assert payload_limit(controls.SUBSCRIPTIONS, KEY_BYTES) >= 19 + 1 + 2 * (KEY_BYTES + 1 + 64)
    assert payload_limit(controls.EXPLAIN, KEY_BYTES) >= 10 + 1 + 9 + 1 + KEY_BYTES + 1 + 255
