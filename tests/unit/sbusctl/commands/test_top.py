"""The options of ``top``, and its reports; what it prints is tested on a real bus."""

from __future__ import annotations

import json
import os
import pty
import termios
import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from sbus.protocol import controls
from sbusctl.application import application
from sbusctl.commands.top import Keyboard, Watch, can_show_screen
from sbusctl.top.samples import Sampler


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sort", "bogus"], "--sort: no column 'bogus' in this table: use id, user, pid,"),
        (["--sort", "id", "--by-uid"], "--sort: no column 'id' in this table: use user, connections,"),
        (["--once", "-n", "2"], "top: --once prints one report; omit it or --count"),
        (["-n", "0"], "for --count:"),
        (["-i", "0"], "for --interval:"),
        (["-i", "nan"], "for --interval:"),
        (["-i", "1e9"], "for --interval:"),
    ],
)
def test_invalid_options_are_reported_before_connecting(monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("no bus is needed to tell this")

    monkeypatch.setattr("sbusctl.settings.Settings.connect", connect)
    result = CliRunner().invoke(application(), ["top", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr


class FakeBus:
    """A bus on which connection 1 does nothing, and connection 2 gets ten packets between any two looks."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._delivered = 0

    def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        if key == controls.FEATURES:
            return b"stats"
        if key == controls.STATS:
            return json.dumps({"scope": self._scope}).encode()
        self._delivered += 10
        items = [
            {"id": 1, "uid": 0, "delivered_packets": 0, "queued_bytes": 0},
            {"id": 2, "uid": 7, "delivered_packets": self._delivered, "queued_bytes": 0},
        ]
        return json.dumps({"connections": items, "next": None, "hidden": 0}).encode()


def _watch(*, by_user: bool, scope: str = "bus") -> Watch:
    sampler = Sampler(FakeBus(scope), with_users=by_user, sockets=dict)
    return Watch(sampler, by_user=by_user, sort="queued-bytes", source="queued_bytes")


def test_the_second_report_is_about_the_time_between() -> None:
    watch = _watch(by_user=False)
    first, second = watch.report(), watch.report()
    assert first.seconds is None
    assert second.seconds is not None
    assert [row["id"] for row in first.rows] == [1, 2]
    # The busiest of equals first.
    assert [row["id"] for row in second.rows] == [2, 1]
    assert second.rows[0]["delivered_packets_per_second"] == 10 / second.seconds
    assert second.totals["delivered_packets_per_second"] == 10 / second.seconds
    assert (second.scope, second.by_user, second.sorted_by) == ("bus", False, "queued-bytes")


def test_by_user() -> None:
    watch = _watch(by_user=True, scope="connection")
    watch.report()
    report = watch.report()
    assert [row["uid"] for row in report.rows] == [7, 0]
    assert (report.scope, report.totals["connections"]) == ("connections", 2)


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
