"""The parser of the NATS protocol: the events do not depend on how the bytes are cut, and any bytes are events or one error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbus_services.link.network import nats_protocol as protocol
from sbus_services.link.network.nats_protocol import Delivery, Event, Info, InvalidBytesError, NatsParser, Ping, Pong, ServerError

INFO = b'INFO {"max_payload": 100}\r\n'
_WORDS = st.text("abcdefgh .:", min_size=1).filter(lambda text: text.strip() == text)
_SUBJECTS = st.binary(min_size=1, max_size=20).filter(lambda subject: len(subject.split()) == 1 and subject.split()[0] == subject)

_SIMPLE: tuple[tuple[bytes, Event | None], ...] = (
    (b"PING\r\n", Ping()),
    (b"PONG\r\n", Pong()),
    (b"+OK\r\n", None),
    (b'INFO {"a": 1}\r\n', Info({"a": 1})),
)


@st.composite
def _events(draw: st.DrawFn) -> tuple[bytes, Event | None]:
    """Return the bytes of a server, and the event that they are; None for +OK."""
    return draw(st.sampled_from(_SIMPLE)) if draw(st.booleans()) else draw(_messages())


@st.composite
def _messages(draw: st.DrawFn) -> tuple[bytes, Event]:
    """Return the bytes of a message or an error, and the event that they are."""
    kind = draw(st.sampled_from(["msg", "hmsg", "err"]))
    reply = draw(st.sampled_from([b"", b"_INBOX.1 "]))
    subject, payload = draw(_SUBJECTS), draw(st.binary(max_size=50))
    match kind:
        case "msg":
            return b"MSG %b 1 %b%d\r\n%b\r\n" % (subject, reply, len(payload), payload), Delivery(subject, b"", payload)
        case "hmsg":
            header = draw(st.binary(max_size=40))
            line = b"HMSG %b 1 %b%d %d\r\n" % (subject, reply, len(header), len(header) + len(payload))
            return line + header + payload + b"\r\n", Delivery(subject, header, payload)
        case _:
            words = draw(_WORDS)
            return b"-ERR '%b'\r\n" % words.encode(), ServerError(words)


def _cut(data: bytes, places: list[int]) -> list[bytes]:
    """Return *data* in pieces."""
    cuts = sorted({place % (len(data) + 1) for place in places})
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(st.lists(_events(), max_size=20), st.lists(st.integers(0, 10_000), max_size=20))
def test_events_do_not_depend_on_how_the_bytes_are_cut(sent: list[tuple[bytes, Event | None]], places: list[int]) -> None:
    parser = NatsParser()
    assert parser.feed(INFO) == [Info({"max_payload": 100})]
    received = [event for piece in _cut(b"".join(data for data, _ in sent), places) for event in parser.feed(piece)]
    assert received == [event for _, event in sent if event is not None]
    assert not parser.is_within


@given(st.binary(max_size=300), st.lists(st.integers(0, 10_000), max_size=10))
def test_any_bytes_are_events_or_one_error_wherever_they_are_cut(data: bytes, places: list[int]) -> None:
    def outcome(pieces: list[bytes]) -> tuple[list[Event], str]:
        parser = NatsParser()
        parser.feed(INFO)
        events: list[Event] = []
        try:
            for piece in pieces:
                for byte in piece:
                    events += parser.feed(bytes([byte]))
        except InvalidBytesError as error:
            return events, str(error)
        return events, ""

    assert outcome([data]) == outcome(_cut(data, places))


@given(_SUBJECTS, st.binary(max_size=30), st.binary(max_size=50))
def test_a_published_message_has_the_form_of_a_delivered_one(subject: bytes, header: bytes, payload: bytes) -> None:
    parser = NatsParser()
    parser.feed(INFO)
    command = protocol.publish(subject, header, payload)
    assert parser.feed(command.replace(b"HPUB " + subject, b"HMSG " + subject + b" 1", 1)) == [Delivery(subject, header, payload)]
