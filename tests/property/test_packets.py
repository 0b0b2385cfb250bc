"""What one side encodes the other parses, and what was parsed encodes to the same bytes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from sbus.protocol.errors import ErrorCode, ProtocolError
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
    refused_key,
    subscribe_packet,
    unsubscribe_packet,
)

KEYS = st.binary().map(lambda data: data.replace(b"\0", b"/"))


def encode(packet: Packet) -> bytes:
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


PACKETS = (
    st.builds(Subscribe, KEYS)
    | st.builds(Unsubscribe, KEYS)
    | st.builds(Publish, KEYS, st.binary())
    | st.builds(Control, KEYS, st.none() | st.binary())
)


@given(PACKETS)
def test_encoded_packets_are_parsed(packet: Packet) -> None:
    assert parse_packet(encode(packet)) == packet


@given(st.tuples(st.sampled_from([b"MSG ", b"SUB ", b"UNSUB ", b"CMSG ", b"MSG", b"sub "]), st.binary()).map(b"".join))
@example(b"SUB a\0ignored")
def test_parsed_packets_are_encoded_to_the_same_bytes(data: bytes) -> None:
    try:
        packet = parse_packet(data)
    except ProtocolError:
        return
    # In SUB and UNSUB, the bytes after a NUL are ignored.
    assert encode(packet) == (data if isinstance(packet, Publish | Control) else data.partition(b"\0")[0])


@given(st.sampled_from(ErrorCode), st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_an_error_survives_encoding(code: ErrorCode, words: str) -> None:
    packet = parse_packet(error_packet(code, words))
    assert isinstance(packet, Control)
    assert packet.payload is not None
    assert parse_error(packet.payload) == (code, words)
    assert refused_key(packet.payload) is None
    assert parse_error(packet.payload + b"\0k\xff") == (code, words)
    assert refused_key(packet.payload + b"\0k\xff") == b"k\xff"
