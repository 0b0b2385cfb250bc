"""Standard output: broken, full, and paged."""

from __future__ import annotations

import errno
import io
import os

import pytest

from sbusd.ctl import output
from sbusd.ctl.output import JsonStyle, OutputClosedError, OutputError


class _Broken(io.RawIOBase):
    """A file that fails with one error."""

    def __init__(self, number: int) -> None:
        self.number = number

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise OSError(self.number, os.strerror(self.number))


def _break_output(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BufferedWriter(_Unflushable(number), 1), encoding="utf-8"))


class _Unflushable(_Broken):
    """The same; only its first failures count, so that it can be collected quietly."""

    failures = 2

    def write(self, data: object) -> int:
        if self.failures:
            self.failures -= 1
            return super().write(data)
        assert isinstance(data, bytes | bytearray | memoryview)
        return len(data)


class _Terminal(io.BytesIO):
    """Input that says it comes from a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_reader_that_has_gone_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _break_output(monkeypatch, errno.EPIPE)
    with pytest.raises(OutputClosedError):
        output.write_lines(["x"])


def test_a_full_disk_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _break_output(monkeypatch, errno.ENOSPC)
    with pytest.raises(OutputError, match="cannot write standard output: No space left on device"):
        output.write_lines(["x"])


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_json({"a": "ü\x7f", "b": [1]}, JsonStyle.SHORT)
    assert capsys.readouterr().out == '{"a":"\\u00fc\\u007f","b":[1]}\n'
    output.write_json({"a": 1}, JsonStyle.PRETTY)
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'


def test_text_that_the_terminal_cannot_say_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert output.encode("größer") == b"gr\\xf6\\xdfer"


def test_complaints_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.complain("no bus at /a\nb\x1b[31m")
    assert capsys.readouterr().err == "sbusctl: no bus at /a\\nb\\x1b[31m\n"


def test_a_complaint_that_nobody_can_read_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    output.complain("x")
    assert closed.closed


_LONG_ON_A_TERMINAL = (True, True, 99)


@pytest.mark.parametrize("case", [_LONG_ON_A_TERMINAL, (True, False, 99), (False, True, 99), (True, True, 3)])
def test_the_pager_is_for_long_output_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: tuple[bool, bool, int]
) -> None:
    is_terminal, pager, count = case
    is_paged = case == _LONG_ON_A_TERMINAL
    shown: list[str] = []
    monkeypatch.setattr("rich.pager.SystemPager.show", lambda _, content: shown.append(content))
    monkeypatch.setattr(output, "is_terminal", lambda: is_terminal)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(_Terminal(), encoding="utf-8"))
    monkeypatch.setenv("LINES", "24")
    # Set first, so that monkeypatch puts back what the code under test sets.
    for name in ("LESS", "LESSSECURE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("SUDO_UID", "1000")
    lines = [f"line {number}" for number in range(count)]
    output.write_page(lines, pager=pager)
    text = "".join(f"{line}\n" for line in lines)
    assert shown == ([text] if is_paged else [])
    assert capsys.readouterr().out == ("" if is_paged else text)
    assert os.environ.get("LESS") == ("FRSXMK" if is_paged else None)
    assert os.environ.get("LESSSECURE") == ("1" if is_paged else None)
