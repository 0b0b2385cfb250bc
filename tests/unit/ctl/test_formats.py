"""--format, --json and --raw."""

from __future__ import annotations

import json

import pytest

from sbusd.ctl.formats import DEFAULT_FORMAT, BadFormatError, Received, compile_format, gap_json, json_piece, message_json, raw_piece
from sbusd.ctl.output import JsonStyle

_TEXT = Received(b"a/b", b"hello", 1700000000.25)
_BINARY = Received(b"k\xff", b"\0\x1b[m\xfe", 1700000000.0)
_FORGED = Received(b"mine", b"x\nother/key\tforged", 0.0)


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
def test_a_sequence_that_means_nothing_is_told_with_its_place(template: str, position: int) -> None:
    with pytest.raises(BadFormatError, match=f"at character {position}: use") as caught:
        _write(template, _TEXT)
    assert str(caught.value).isprintable()


def test_json_has_base64_for_what_is_not_text() -> None:
    assert message_json(_BINARY) == {"type": "message", "time": 1700000000.0, "key_base64": "a/8=", "payload_base64": "ABtbbf4="}
    assert gap_json(3, 1.5) == {"type": "gap", "time": 1.5, "lost": 3}


def test_json_is_plain_ascii_in_both_styles() -> None:
    message = Received("ü/\x7f".encode(), "\x1b\u202e".encode(), 1.0)
    for style in (JsonStyle.SHORT, JsonStyle.PRETTY):
        written = json_piece(style)(message)
        assert all(byte == 10 or 32 <= byte < 127 for byte in written)
        assert json.loads(written) == message_json(message)
        assert (b"\n" in written) is (style is JsonStyle.PRETTY)
