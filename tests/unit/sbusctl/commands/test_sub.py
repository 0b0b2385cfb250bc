"""What a subscription prints, and when it ends."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sbus import Gap, Message, Reconnected, Replaced
from sbusctl.application import application
from sbusctl.commands.sub import (
    DEFAULT_FORMAT,
    BadFormatError,
    Item,
    MessagePrinter,
    Received,
    TooFewError,
    compile_format,
    gap_json,
    json_piece,
    message_json,
    raw_piece,
)
from sbusctl.output import JsonStyle, follow

_TEXT = Received(b"a/b", b"hello", 1700000000.25)
_BINARY = Received(b"k\xff", b"\0\x1b[m\xfe", 1700000000.0)
_FORGED = Received(b"mine", b"x\nother/key\tforged", 0.0)


class FakeSubscription:
    """Yields its items, each of which may be preceded by silence (None), and tells the time, which passes in silence alone."""

    def __init__(self, *items: Item | None) -> None:
        self.items = list(items)
        self.now = 0.0
        self.waits: list[float | None] = []

    def receive(self, timeout: float | None) -> Item:
        if timeout != 0:
            self.waits.append(timeout)
        if self.items and self.items[0] is not None:
            item = self.items.pop(0)
            assert item is not None
            return item
        if timeout is None and not self.items:
            raise AssertionError("would wait indefinitely")
        if timeout != 0 and self.items:
            self.items.pop(0)
            self.now += 1.0
            return self.receive(0)
        self.now += timeout or 0.0
        raise TimeoutError

    def clock(self) -> float:
        return self.now


def _printer(json_style: JsonStyle = JsonStyle.OFF, end: bytes = b"\n") -> MessagePrinter:
    return MessagePrinter(raw_piece() if json_style is JsonStyle.OFF else json_piece(json_style), end, json_style, wall=lambda: 5.0)


def _message(payload: bytes) -> Message:
    return Message(b"k", payload)


def test_it_ends_after_as_many_messages_and_leaves_the_rest(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    source = FakeSubscription(_message(b"a"), None, _message(b"b"), _message(b"c"))
    printer = _printer()
    follow(source.receive, printer, 2, None, source.clock)
    assert capsysbinary.readouterr().out == b"a\nb\n"
    assert printer.printed == 2
    assert source.items == [_message(b"c")]


def test_gaps_do_not_count_as_messages_and_stand_in_their_place(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    source = FakeSubscription(_message(b"a"), Gap(3), Reconnected(1, 0.5), _message(b"b"))
    follow(source.receive, _printer(), 2, None, source.clock)
    said = capsysbinary.readouterr()
    assert said.out == b"a\nb\n"
    assert said.err.splitlines() == [
        b"sbusctl: lost 3 messages: this subscriber reads too slowly, or another host was not reached",
        b"sbusctl: reconnected: messages published in the meantime are lost",
    ]


def test_a_gap_of_unknown_size_is_reported(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    source = FakeSubscription(Gap(0), _message(b"a"))
    follow(source.receive, _printer(), 1, None, source.clock)
    assert capsysbinary.readouterr().err == b"sbusctl: messages may be lost: the bus was killed, or another host was not reached\n"


def test_json_has_gaps_too(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    source = FakeSubscription(Gap(1), _message(b"a"), Reconnected(1, 0.5), _message(b"b"))
    follow(source.receive, _printer(JsonStyle.SHORT, b"\0"), 2, None, source.clock)
    said = capsysbinary.readouterr()
    objects = [json.loads(line) for line in said.out.split(b"\0")[:-1]]
    assert [each["type"] for each in objects] == ["gap", "message", "reconnected", "message"]
    assert objects[0] == {"type": "gap", "time": 5.0, "lost": 1}
    assert b"lost 1 message: " in said.err


def test_the_time_is_for_all_messages_together(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    source = FakeSubscription(None, _message(b"a"), None, _message(b"b"))
    printer = _printer()
    follow(source.receive, printer, None, 2.5, source.clock)
    assert capsysbinary.readouterr().out == b"a\nb\n"
    assert source.waits == [2.5, 1.5, 0.5]
    assert source.now == 2.5


def test_a_zero_timeout_prints_pending_messages(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    source = FakeSubscription(_message(b"a"))
    follow(source.receive, _printer(), None, 0.0, source.clock)
    assert capsysbinary.readouterr().out == b"a\n"
    assert source.waits == []


def test_too_few_says_how_many() -> None:
    assert str(TooFewError(2, 5, 0.5)) == "timed out after 0.5 s: received 2 of 5 messages"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "sub: missing argument PATTERN"),
        (["a", "-n", "0"], "invalid value for --count: must be at least 1, not 0\n"),
        (["a", "--timeout", "-1"], "must be at least 0, not -1\n"),
        (["a", "--timeout", "nan"], "'nan' is not a number\n"),
        (["a", "-n", "x"], "'x' is not a whole number\n"),
        (["a", "--timeout", "x"], "'x' is not a number\n"),
        (["a", "-F", "%y"], "% at character 1 is not followed by k, p, r, b, x, l, t, U or j; write %% for a percent sign"),
        (["a", "-F", "a\\y"], "\\ at character 2 is not followed by n, t or 0; write \\\\ for a backslash"),
        (["a", "-F", "%k", "--raw"], "sub: --raw, --format and --json are mutually exclusive"),
        (["a", "-F", "%k", "-j"], "sub: --raw, --format and --json are mutually exclusive"),
        (["a", "--json=pretty", "--raw"], "sub: --raw, --format and --json are mutually exclusive"),
    ],
)
def test_usage(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(application(), ["sub", *arguments])
    assert result.exit_code == 2
    assert reason in result.stderr


@pytest.mark.parametrize("style", [JsonStyle.OFF, JsonStyle.SHORT])
def test_replaced_messages_are_reported_in_their_place(style: JsonStyle, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = _printer(style)
    printer.write(Replaced(7))
    out, err = capsysbinary.readouterr()
    assert b"replaced 7 messages by newer messages with the same keys" in err
    assert printer.printed == 0
    if style is JsonStyle.OFF:
        assert out == b""
    else:
        assert json.loads(out) == {"type": "replaced", "replaced": 7, "time": 5.0}


def _write(template: str, message: Received, *, is_terminal: bool = False) -> bytes:
    return compile_format(template, str.encode, is_terminal=is_terminal)(message)


@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("%k %p", b"a/b hello"),
        ("%b|%x|%l", b"aGVsbG8=|68656c6c6f|5"),
        ("%U", b"1700000000.250000"),
        (r"\n\t\0\\%%", b"\n\t\0\\%"),
        ("", b""),
        ("ü", "ü".encode()),
        ("%j", b'{"type":"message","time":1700000000.25,"key":"a/b","payload":"hello"}'),
    ],
)
def test_directives(template: str, written: bytes) -> None:
    assert _write(template, _TEXT) == written


def test_time_is_rfc_3339_with_an_offset() -> None:
    from datetime import datetime

    shown = datetime.fromisoformat(_write("%t", _TEXT).decode())
    assert shown.timestamp() == 1700000000.25
    assert shown.utcoffset() is not None


def test_a_message_cannot_forge_another_line() -> None:
    assert _write(DEFAULT_FORMAT, _FORGED) == rb"mine" + b"\t" + rb"x\nother/key\tforged"
    assert _write(DEFAULT_FORMAT, _BINARY) == rb"k\xff" + b"\t" + rb"\x00\x1b[m\xfe"


def test_raw_bytes_go_into_a_pipe_and_never_to_a_terminal() -> None:
    assert _write("%r", _BINARY) == _BINARY.payload
    assert _write("%r", _BINARY, is_terminal=True) == rb"\x00\x1b[m\xfe"
    assert raw_piece()(_BINARY) == _BINARY.payload


@pytest.mark.parametrize(("template", "position"), [("%z", 1), ("ab%", 3), ("%k\\q", 3), ("\\", 1), ("%k%\x1b", 3)])
def test_an_unknown_sequence_is_reported_with_its_position(template: str, position: int) -> None:
    with pytest.raises(BadFormatError, match=f"at character {position} is not followed by") as caught:
        _write(template, _TEXT)
    assert str(caught.value).isprintable()


def test_json_has_base64_for_binary_data() -> None:
    assert message_json(_BINARY) == {"type": "message", "time": 1700000000.0, "key_base64": "a/8=", "payload_base64": "ABtbbf4="}
    assert gap_json(3, 1.5) == {"type": "gap", "time": 1.5, "lost": 3}


def test_json_is_plain_ascii_in_both_styles() -> None:
    message = Received("ü/\x7f".encode(), "\x1b\u202e".encode(), 1.0)
    for style in (JsonStyle.SHORT, JsonStyle.PRETTY):
        written = json_piece(style)(message)
        assert all(byte == 10 or 32 <= byte < 127 for byte in written)
        assert json.loads(written) == message_json(message)
        assert (b"\n" in written) is (style is JsonStyle.PRETTY)
