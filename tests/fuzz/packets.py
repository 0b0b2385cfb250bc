"""Fuzz target: any bytes are a packet that encodes to the same bytes, or a ProtocolError whose text can be encoded and parsed."""

from __future__ import annotations

from sbus.protocol.errors import ProtocolError
from sbus.protocol.packets import (
    Control,
    Packet,
    Publish,
    Subscribe,
    Unsubscribe,
    control_packet,
    error_packet,
    parse_error,
    parse_packet,
    publish_packet,
    subscribe_packet,
    unsubscribe_packet,
)


def check(data: bytes) -> None:
    """Any bytes are a packet that encodes to the same bytes, or a ProtocolError whose text can be encoded and parsed."""
    try:
        packet = parse_packet(data)
    except ProtocolError as error:
        reported = parse_packet(error_packet(error.code, error.words))
        assert isinstance(reported, Control)
        assert reported.payload is not None
        assert parse_error(reported.payload) == (error.code, error.words)
        assert error.words.isprintable()
    else:
        assert _encode(packet) == (data if isinstance(packet, Publish | Control) else data.partition(b"\0")[0])
    parse_error(data)


def _encode(packet: Packet) -> bytes:
    """Return the bytes of a packet, by the functions a client uses."""
    match packet:
        case Subscribe(pattern):
            return subscribe_packet(pattern)
        case Unsubscribe(pattern):
            return unsubscribe_packet(pattern)
        case Publish(key, payload):
            return publish_packet(key, payload)
        case Control(key, answer):
            return control_packet(key, answer)
