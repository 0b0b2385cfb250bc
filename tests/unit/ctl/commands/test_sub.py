"""What a subscription prints, and when it ends."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sbusd.client import Gap, Message, Reconnected, Replaced
from sbusd.ctl.commands.sub import Item, MessagePrinter, TooFewError
from sbusd.ctl.following import follow
from sbusd.ctl.formats import json_piece, raw_piece
from sbusd.ctl.main import application
from sbusd.ctl.output import JsonStyle


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
            raise AssertionError("would wait for ever")
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
        b"sbusctl: lost 3 messages: this subscriber reads too slowly",
        b"sbusctl: reconnected: messages published in the meantime are lost",
    ]


def test_a_gap_of_unknown_size_is_told(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    source = FakeSubscription(Gap(0), _message(b"a"))
    follow(source.receive, _printer(), 1, None, source.clock)
    assert capsysbinary.readouterr().err == b"sbusctl: messages may be lost: the bus was killed\n"


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


def test_no_time_at_all_prints_what_is_there(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    source = FakeSubscription(_message(b"a"))
    follow(source.receive, _printer(), None, 0.0, source.clock)
    assert capsysbinary.readouterr().out == b"a\n"
    assert source.waits == []


def test_too_few_says_how_many() -> None:
    assert str(TooFewError(2, 5, 0.5)) == "timed out after 0.5 s: received 2 of 5 messages"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "sub: missing argument 'PATTERN"),
        (["a", "-n", "0"], "greater than or equal to 1"),
        (["a", "--timeout", "-1"], "greater than or equal to 0"),
        (["a", "-F", "%y"], "unknown sequence %y at character 1"),
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
def test_what_was_replaced_is_said_in_its_place(style: JsonStyle, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = _printer(style)
    printer.write(Replaced(7))
    out, err = capsysbinary.readouterr()
    assert b"replaced 7 messages by newer messages with the same keys" in err
    assert printer.printed == 0
    if style is JsonStyle.OFF:
        assert out == b""
    else:
        assert json.loads(out) == {"type": "replaced", "replaced": 7, "time": 5.0}
