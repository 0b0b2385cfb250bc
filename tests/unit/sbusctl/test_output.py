"""Standard output: broken, full, and paged."""

from __future__ import annotations

import errno
import io
import os

import pytest

from sbusctl import output
from sbusctl.output import JsonStyle, OutputClosedError, OutputError, visible


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
    with pytest.raises(OutputError, match="cannot write to standard output: No space left on device"):
        output.write_lines(["x"])


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_json({"a": "ü\x7f", "b": [1]}, JsonStyle.SHORT)
    assert capsys.readouterr().out == '{"a":"\\u00fc\\u007f","b":[1]}\n'
    output.write_json({"a": 1}, JsonStyle.PRETTY)
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'


def test_text_that_the_terminal_cannot_say_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert output.encode("größer") == b"gr\\xf6\\xdfer"


_LONG_ON_A_TERMINAL = (True, True, 99)


@pytest.mark.parametrize("case", [_LONG_ON_A_TERMINAL, (True, False, 99), (False, True, 99), (True, True, 3)])
def test_the_pager_is_for_long_output_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: tuple[bool, bool, int]
) -> None:
    is_terminal, pager, count = case
    is_paged = case == _LONG_ON_A_TERMINAL
    shown: list[str] = []

    def show(_command: str, content: str) -> bool:
        shown.append(content)
        return True

    monkeypatch.setattr(output, "run_pager", show)
    monkeypatch.setattr(output, "is_terminal", lambda: is_terminal)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(_Terminal(), encoding="utf-8"))
    monkeypatch.setenv("LINES", "24")
    # Set first, so that monkeypatch puts back what the code under test sets.
    for name in ("LESS", "LESSSECURE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    lines = [f"line {number}" for number in range(count)]
    output.write_page(lines, pager=pager)
    text = "".join(f"{line}\n" for line in lines)
    assert shown == ([text] if is_paged else [])
    assert capsys.readouterr().out == ("" if is_paged else text)
    assert os.environ.get("LESS") == ("FRSXMK" if is_paged else None)
    assert os.environ.get("LESSSECURE") == ("1" if is_paged else None)


_MARKS = ("SUDO_UID", "PKEXEC_UID", "DOAS_USER")


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The process has no raised privileges; the item is the kernel's user of the login session."""
    said = [f"{os.geteuid()}"]
    for name in _MARKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sbusctl.output.Path.read_text", lambda *_: said[0])
    return said


@pytest.mark.parametrize("mark", _MARKS)
def test_rights_that_another_program_gave_are_noticed(monkeypatch: pytest.MonkeyPatch, login: list[str], mark: str) -> None:
    assert login == [str(os.geteuid())]
    assert not output.is_elevated()
    monkeypatch.setenv(mark, "1000")
    assert output.is_elevated()


def test_another_user_than_the_login_session_has_raised_rights(login: list[str]) -> None:
    login[0] = str(os.geteuid() + 1)
    assert output.is_elevated()
    for none in (str(2**32 - 1), "", "x"):
        login[0] = none
        assert not output.is_elevated()


@pytest.mark.parametrize("is_elevated", [True, False])
def test_with_raised_rights_the_environment_cannot_loosen_the_secure_mode(
    monkeypatch: pytest.MonkeyPatch, login: list[str], is_elevated: bool
) -> None:
    assert login == [str(os.geteuid())]
    if is_elevated:
        monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setenv("LESSSECURE_ALLOW", "shell,edit,pipe")
    shown: list[str | None] = []

    def show(*_: object) -> bool:
        shown.append(os.environ.get("LESSSECURE_ALLOW"))
        return True

    monkeypatch.setattr(output, "run_pager", show)
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(_Terminal(), encoding="utf-8"))
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/bin/less")
    monkeypatch.setenv("LINES", "2")
    monkeypatch.setenv("LESS", "")
    monkeypatch.setenv("LESSSECURE", "0")
    output.write_page(["a", "b", "c"], pager=True)
    assert shown == [None if is_elevated else "shell,edit,pipe"]


@pytest.mark.parametrize("has_less", [True, False])
def test_with_raised_privileges_the_pager_is_less_or_none(monkeypatch: pytest.MonkeyPatch, login: list[str], has_less: bool) -> None:
    assert not output.is_elevated()
    monkeypatch.setenv("PKEXEC_UID", "1000")
    monkeypatch.setenv("LESSSECURE", "0")
    monkeypatch.setenv("PAGER", "sh")
    shown: list[tuple[str | None, str | None]] = []

    def show(*_: object) -> bool:
        shown.append((os.environ.get("PAGER"), os.environ.get("LESSSECURE")))
        return True

    monkeypatch.setattr(output, "run_pager", show)
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(_Terminal(), encoding="utf-8"))
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/bin/less" if has_less else None)
    monkeypatch.setenv("LINES", "2")
    monkeypatch.setenv("LESS", "")
    output.write_page(["a", "b", "c"], pager=True)
    assert shown == ([(None, "1")] if has_less else [])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"plain", "plain"),
        ("größer ✓".encode(), "größer ✓"),
        (b"\x1b[2J", r"\x1b[2J"),
        (b"a\nb\r\tc\0", r"a\nb\r\tc\x00"),
        (b"\xff\xfe", r"\xff\xfe"),
        ("\x9b31m".encode(), r"\x9b31m"),
        ("\u202egnp.exe".encode(), r"\u202egnp.exe"),
        ("\u2028".encode(), r"\u2028"),
        (b"\x7f", r"\x7f"),
        ("\U000e0041".encode(), r"\U000e0041"),
        ("file\udcff", r"file\xff"),
        ("\ud800", r"\ud800"),
        (b"", ""),
    ],
)
def test_shows(value: bytes | str, shown: str) -> None:
    assert visible(value) == shown


def test_leaves_backslashes_so_that_json_stays_readable() -> None:
    assert visible(rb'{"a":"\"x\""}') == r'{"a":"\"x\""}'


@pytest.mark.parametrize("byte", range(256))
def test_every_byte_becomes_printable_and_stays_the_same_the_second_time(byte: int) -> None:
    shown = visible(b"a" + bytes([byte]) + b"b")
    assert shown.isprintable()
    assert visible(shown) == shown


@pytest.mark.slow
@pytest.mark.parametrize("pager", ["/nonexistent", "/"])
def test_a_pager_that_cannot_be_run_loses_no_output(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], pager: str) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setattr(output, "is_elevated", lambda: False)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(_Terminal(), encoding="utf-8"))
    monkeypatch.delenv("MANPAGER", raising=False)
    for name, value in (("LINES", "2"), ("LESS", ""), ("LESSSECURE", "0"), ("PAGER", pager)):
        monkeypatch.setenv(name, value)
    output.write_page(["a", "b", "c"], pager=True)
    said = capfd.readouterr()
    assert said.out == "a\nb\nc\n"
    assert pager in said.err
