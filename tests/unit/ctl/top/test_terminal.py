"""Keys of a terminal, and how it is left."""

from __future__ import annotations

import os
import pty
import termios
import time
from collections.abc import Iterator

import pytest

from sbusd.ctl.top.terminal import Keyboard, can_show_screen

LONG_SECONDS = 60.0
"""A wait that a test would not survive; every one of them ends by a key."""


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """The keyboard of a terminal, and the descriptor that a program reads it from."""
    keyboard, program = pty.openpty()
    yield keyboard, program
    for fd in (keyboard, program):
        try:
            os.close(fd)
        except OSError:
            continue


@pytest.mark.parametrize("keys", [b"q", b"Q", b"abcq", b"\x04"])
def test_a_key_ends_it_at_once_without_enter(terminal: tuple[int, int], keys: bytes) -> None:
    keyboard, program = terminal
    with Keyboard(program) as reading:
        os.write(keyboard, keys)
        assert reading.quit_within(LONG_SECONDS)


def test_other_keys_do_nothing(terminal: tuple[int, int]) -> None:
    keyboard, program = terminal
    with Keyboard(program) as reading:
        os.write(keyboard, b"x\n")
        begin = time.monotonic()
        assert not reading.quit_within(0.02)
        assert time.monotonic() - begin >= 0.02


def test_keys_are_unseen_and_the_terminal_is_left_as_it_was(terminal: tuple[int, int]) -> None:
    _, program = terminal
    before = termios.tcgetattr(program)

    def be_interrupted() -> None:
        with Keyboard(program):
            flags = termios.tcgetattr(program)[3]
            assert not flags & (termios.ECHO | termios.ICANON)
            assert flags & termios.ISIG
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    assert termios.tcgetattr(program) == before


def test_a_closed_terminal_is_the_end(terminal: tuple[int, int]) -> None:
    keyboard, program = terminal
    with Keyboard(program) as reading:
        os.close(keyboard)
        assert reading.quit_within(LONG_SECONDS)


def test_a_file_that_is_not_a_terminal_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    reader, writer = os.pipe()
    try:
        os.write(writer, b"q")
        with Keyboard(reader) as reading:
            assert not reading.quit_within(3.0)
        assert slept == [3.0]
        assert os.read(reader, 10) == b"q"
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(("term", "can"), [("xterm", True), ("dumb", False), ("unknown", False), (None, False)])
def test_which_terminals_have_another_screen(monkeypatch: pytest.MonkeyPatch, term: str | None, can: bool) -> None:
    if term is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert can_show_screen() is can
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert not can_show_screen()
