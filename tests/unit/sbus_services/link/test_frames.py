"""Heads and bodies: what is encoded is parsed, and nothing else is."""

from __future__ import annotations

import pytest

from sbus_services.link.frames import (
    MAX_FRAME_BYTES,
    MAX_TAILS,
    MAX_TAILS_BYTES,
    Data,
    FrameError,
    Heartbeat,
    Line,
    Tail,
    VersionError,
    add_serial,
    chunks,
    encode_head,
    encode_line,
    encode_tail,
    heartbeat_body,
    message_head,
    name_digest,
    parse_head,
    parse_heartbeat,
    parse_lines,
    parse_messages,
    parse_tails,
)
from tests.support.link_bodies import join_body, sent


def test_a_head_is_one_short_line() -> None:
    assert add_serial(encode_head(Data(1, 2, 3, 4, 5, 6)), 7) == b"2/D/1/2/3/4/5/6/7"
    most = (1 << 64) - 1
    beat = Heartbeat(*[most] * 10)
    line = add_serial(encode_head(beat), most)
    assert parse_head(line) == (beat, most)
    assert len(line) < 250


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"2/D",
        b"2/D/1",
        b"2/D/1/2/3/4/5/6",
        b"2/D/1/2/3/4/5/6/7/8",
        b"2/D/1/2/3/4/5/6/0",
        b"2/D/1/2/3/-4/5/6/7",
        b"2/D/1/2/3/4/5/6/7\n",
        b"2/Z/1/2",
        b"2/2/D/1/2/3/4/5/6/7",
        b"2/D/1/2/3/4/5/6/18446744073709551616",
        b"2/D/1/2/3/18446744073709551616/5/6/7",
        b"2/D/1/2/3/4/" + b"1" * 30,
        b"1" * 30 + b"/D/1/2/3/4/5/6/7",
    ],
)
def test_another_head_is_an_error(line: bytes) -> None:
    with pytest.raises(FrameError, match="malformed head"):
        parse_head(line)


@pytest.mark.parametrize("line", [b"D/1/2/3/4/5", b"H/1/2", b"Z/1", b"1/D/1/2/3/4/5/6/7", b"3/D/1/2/3/4/5/6/7", b"22/N/1"])
def test_a_frame_of_another_version_is_known_as_one(line: bytes) -> None:
    with pytest.raises(VersionError):
        parse_head(line)


def test_a_heartbeat_has_an_address_and_the_names_of_forgotten_hosts() -> None:
    tail = encode_tail(Tail(1, 2, b"k"))
    body = heartbeat_body(b"192.0.2.1", ["alpha", "beta"], tail)
    head = Heartbeat(1, 1, 2_000, 0, 0, 0, 1, 7, 2, 9)
    assert parse_heartbeat(head, body) == ("192.0.2.1", {name_digest("alpha"), name_digest("beta")}, tail)
    for wrong in (head._replace(listed=9), head._replace(address=1 << 60), head._replace(listed=1 << 60)):
        with pytest.raises(FrameError, match="truncated heartbeat"):
            parse_heartbeat(wrong, body)


def test_messages_are_parsed_with_their_senders() -> None:
    service = b"!/cred/9/9/9/!/store/!/cred/1/2/3"
    body = join_body([message_head(b"a", b"!/cred/1/2/3") + b"x\0y", message_head(b"", service), message_head(b"", service) + b"z"])
    first, second = parse_messages(body, Data(1, 1, 1, 3))
    assert (first.key, first.sender, first.messages, first.longest) == (b"a", b"!/cred/1/2/3", 1, 3)
    assert (second.key, second.sender, second.messages, second.longest) == (b"", service, 2, 1)


def test_lines_and_tails_are_parsed() -> None:
    lines = [(Line(b"alpha", b"net/"), True), (Line(b"al*", b""), False), (Line(b"*", b"x"), True)]
    assert parse_lines(b"".join(encode_line(line, wanted=sign) for line, sign in lines)) == lines
    tails = [Tail(1, 2, b"k"), Tail(3, 4, b"")]
    assert list(parse_tails(b"".join(map(encode_tail, tails)))) == tails


@pytest.mark.parametrize("body", [b"+", b"*\x01\0\0a", b"+\x05\0\0a", b"+\0\0\0", b"+\x01\0\x01a\0", b"+\x01\0\0.", b"+\x02\0\0*a"])
def test_malformed_lines_are_an_error(body: bytes) -> None:
    with pytest.raises(FrameError):
        parse_lines(body)


@pytest.mark.parametrize("body", [b"\0", encode_tail(Tail(1, 2, b"key"))[:-1], encode_tail(Tail(1, 2, b"k\0y"))])
def test_malformed_tails_are_an_error(body: bytes) -> None:
    with pytest.raises(FrameError):
        list(parse_tails(body))


def test_tails_are_bounded_by_number_and_size() -> None:
    tails = b"".join(encode_tail(Tail(number, 1, b"k")) for number in range(MAX_TAILS + 1))
    assert len(parse_tails(tails)) == MAX_TAILS + 1
    with pytest.raises(FrameError, match="more than 16 last numbers"):
        parse_tails(tails, MAX_TAILS)
    with pytest.raises(FrameError, match="65536 are allowed"):
        parse_tails(encode_tail(Tail(1, 1, b"k" * 65_000)) + encode_tail(Tail(2, 1, b"k" * 600)))
    packets = join_body([sent(b"net/x")])
    assert parse_messages(bytes(MAX_TAILS_BYTES) + packets, Data(1, 1, 1, 1, 0, MAX_TAILS_BYTES))
    with pytest.raises(FrameError, match="8192 are allowed"):
        parse_messages(bytes(MAX_TAILS_BYTES + 1) + packets, Data(1, 1, 1, 1, 0, MAX_TAILS_BYTES + 1))


def test_a_line_concerns_the_hosts_that_its_segment_matches() -> None:
    assert [Line(origins, b"").concerns("alpha") for origins in (b"alpha", b"al*", b"*", b"alp", b"alphas", b"b*")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_parts_are_joined_up_to_the_size_of_a_frame() -> None:
    bodies = list(chunks([bytes(40_000), bytes(20_000), bytes(10_000), bytes(70_000)]))
    assert [len(body) for body in bodies] == [60_000, 10_000, 70_000]
    assert MAX_FRAME_BYTES == 65_536
