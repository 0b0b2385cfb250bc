"""The compiled module does as the plain one, and packets of cached keys are those of the function that makes them."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbus import plain_scanner
from sbus.encoding import Data, Encode, payload_bytes, to_bytes
from sbus.items import Message
from sbus.protocol.credentials import make_peer
from sbus.protocol.errors import ProtocolError
from sbus.protocol.packets import BATCH_HEAD, MAX_PACKET_BYTES, join_batch, parse_batch, publish_packet
from tests.support.skips import require

START = len(BATCH_HEAD)


def compiled() -> ModuleType:
    """Return the compiled module."""
    require(importlib.util.find_spec("sbus.speedups") is not None, "needs the extensions: make build", could_run=True)
    return importlib.import_module("sbus.speedups")


@pytest.fixture(params=["plain", "compiled"])
def scanner(request: pytest.FixtureRequest) -> ModuleType:
    return plain_scanner if request.param == "plain" else compiled()


def test_messages_in_a_row_are_measured_and_taken_apart(scanner: ModuleType) -> None:
    messages = [Message(b"a", b""), Message(b"a", b"1"), Message(b"", b"\0x"), Message(b"b/c", b"y" * 300), Message(b"b/d", b"")]
    batch = join_batch([b"MSG %b\0%b" % (each.key_bytes, each.payload) for each in messages])
    end, count = scanner.measure_run(batch, START)
    assert (end, count) == (len(batch), len(messages))
    assert scanner.take_apart(batch, START, end) == messages
    assert scanner.take_apart(batch, START, START) == []


def test_a_message_is_like_any_other(scanner: ModuleType) -> None:
    """However it was made, it has all its fields, and is immutable."""
    message = scanner.message_of(b"MSG a/b\0x")
    assert type(message) is Message
    assert message == Message(b"a/b", b"x")
    assert hash(message) == hash(Message(b"a/b", b"x"))
    assert repr(message) == repr(Message(b"a/b", b"x"))
    assert message.sender is None
    sender = make_peer(7, b"!/cred/1/2/3")
    assert scanner.message_of(b"MSG a/b\0x", sender) == Message(b"a/b", b"x", sender)
    for field in ("key_bytes", "payload", "sender"):
        with pytest.raises(AttributeError):
            setattr(message, field, b"c")


@pytest.mark.parametrize("packet", [b"", b"MSG", b"MSG ", b"MSG a", b"msg a\0", b"CMSG a\0", b"SUB a\0", b" MSG a\0"])
def test_bytes_without_a_message_return_none(scanner: ModuleType, packet: bytes) -> None:
    assert scanner.message_of(packet) is None


@pytest.mark.parametrize("other", [b"CMSG !/bus/lost\x001", b"MSG without NUL", b"MSG ", b"M", b"SUB a", b"msg a\0x"])
def test_a_run_ends_before_the_first_packet_that_is_not_a_message(scanner: ModuleType, other: bytes) -> None:
    batch = join_batch([b"MSG a\0x", other, b"MSG b\0y"])
    end, count = scanner.measure_run(batch, START)
    assert count == 1
    assert scanner.take_apart(batch, START, end) == [Message(b"a", b"x")]
    assert scanner.measure_run(batch, end) == (end, 0)
    behind = end + 4 + len(other)
    assert scanner.measure_run(batch, behind) == (len(batch), 1)
    assert scanner.take_apart(batch, behind, len(batch)) == [Message(b"b", b"y")]


def test_a_run_ends_in_front_of_what_is_cut_short(scanner: ModuleType) -> None:
    whole = join_batch([b"MSG a\0x", b"MSG bb\0yy"])
    first, _ = scanner.measure_run(join_batch([b"MSG a\0x"]), START)
    for size in range(first, len(whole)):
        assert scanner.measure_run(whole[:size], START) == (first, 1)
    assert scanner.measure_run(whole, START) == (len(whole), 2)
    assert scanner.measure_run(whole[:first] + b"\xff\xff\xff\xffMSG b\0", START) == (first, 1)


def test_a_nul_of_the_next_packet_is_not_that_of_this_one(scanner: ModuleType) -> None:
    assert scanner.measure_run(join_batch([b"MSG key", b"MSG b\0y"]), START) == (START, 0)


@pytest.mark.parametrize("place", [START, START + 1, 0, 1 << 40])
def test_an_empty_rest_has_no_run(scanner: ModuleType, place: int) -> None:
    assert scanner.measure_run(BATCH_HEAD, place) == (place, 0)


def test_what_was_not_measured_is_not_taken_apart(scanner: ModuleType) -> None:
    batch = join_batch([b"MSG a\0x", b"SUB b", b"MSG c\0"])
    end, _ = scanner.measure_run(batch, START)
    for place, behind in (
        (START, len(batch)),
        (START, end - 1),
        (START + 1, end),
        (end, len(batch)),
        (START, len(batch) + 1),
        (end, START),
    ):
        with pytest.raises(ValueError, match="run"):
            scanner.take_apart(batch, place, behind)
    with pytest.raises(ValueError, match="0 or more"):
        scanner.measure_run(batch, -1)


@pytest.mark.parametrize(
    "packets",
    [
        [b"MSG a\0x"],
        [b"MSG a\0x", b"SUB b", b"x" * 300],
        [b"CMSG !/batc", b"CMSG !/batches\0"],
        [b"x" * (MAX_PACKET_BYTES - START - 4)],
    ],
)
def test_packets_are_joined(scanner: ModuleType, packets: list[bytes]) -> None:
    batch = scanner.join_batch(packets)
    assert list(parse_batch(batch)) == packets
    assert batch == join_batch(packets)


@pytest.mark.parametrize(
    "packets", [[], [b""], [b"a", b""], [b"a", BATCH_HEAD], [BATCH_HEAD[:-1]], [b"x" * (MAX_PACKET_BYTES - START - 3)]]
)
def test_what_makes_no_batch_is_refused(scanner: ModuleType, packets: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        scanner.join_batch(packets)


@given(st.lists(st.sampled_from([b"MSG a\0", b"MSG a\0x", b"MSG bc\0", b"MSG a", b"SUB a"]) | st.binary(min_size=1, max_size=9)), st.data())
@example([b"MSG a\0"], None)
def test_both_make_the_same_of_any_bytes(packets: list[bytes], data: st.DataObject | None) -> None:
    other = compiled()
    batch = b"".join(len(packet).to_bytes(4, "little") + packet for packet in packets)
    if data is not None and batch:
        spot = data.draw(st.integers(0, len(batch) - 1))
        batch = batch[:spot] + data.draw(st.binary(max_size=4)) + batch[spot + 1 :]
    for place in range(len(batch) + 1):
        end, count = plain_scanner.measure_run(batch, place)
        assert other.measure_run(batch, place) == (end, count)
        messages = plain_scanner.take_apart(batch, place, end)
        assert len(messages) == count
        assert other.take_apart(batch, place, end) == messages
    for packet in packets:
        assert other.message_of(packet) == plain_scanner.message_of(packet)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from(["a/b", b"a/b", "", b"", "\u00fc", "k" * 1025]), st.text(max_size=8), st.binary(max_size=8)),
            st.one_of(st.binary(max_size=20), st.text(max_size=8), st.builds(bytearray, st.binary(max_size=8))),
        ),
        max_size=20,
    )
)
def test_packets_of_cached_keys_are_those_of_the_function(publications: list[tuple[str | bytes, Data]]) -> None:
    encode = compiled().publication_encoder(plainly)
    for key, payload in publications * 2:
        assert outcome(encode, key, payload) == outcome(plainly, key, payload)


def test_more_keys_than_are_cached() -> None:
    """Of both types, again and again, with bytes and str that are equal in UTF-8."""
    encode = compiled().publication_encoder(plainly)
    for _ in range(2):
        for number in range(1_200):
            assert encode(f"k/{number}", b"x") == b"MSG k/%d\0x" % number
            assert encode(b"k/%d" % number, b"x") == b"MSG k/%d\0x" % number


def test_a_packet_with_a_cached_key_is_never_too_long() -> None:
    encode = compiled().publication_encoder(plainly)
    room = MAX_PACKET_BYTES - len(b"MSG k\0")
    assert encode("k", b"") == b"MSG k\0"
    assert len(encode("k", b"x" * room)) == MAX_PACKET_BYTES
    with pytest.raises(ProtocolError, match="too long"):
        encode("k", b"x" * (room + 1))


def plainly(key: str | bytes, payload: Data) -> bytes:
    """Return the packet of a publication."""
    return publish_packet(to_bytes(key), payload_bytes(payload))


def outcome(encode: Encode, key: str | bytes, payload: Data) -> bytes | str:
    """Return the packet, or the text of the error."""
    try:
        return encode(key, payload)
    except ProtocolError as error:
        return str(error)
