"""The command line: its errors, and what each feed is started with."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sbus_services.feeds import main
from sbus_services.feeds.journal.checked_publisher import AccessCheckError
from sbus_services.feeds.journal.feed import BACKLOG_SECONDS, StartPosition
from sbus_services.feeds.journal.reader import JournalError
from sbus_services.feeds.netlink.sockets import KernelError


@pytest.mark.slow
def test_without_dbus_fast_it_says_which_package_is_missing(tmp_path: Path) -> None:
    code = "import sys; sys.modules['dbus_fast'] = None; sys.argv = ['sbus-feed', 'systemd', '--dbus-address', 'unix:path=/none']"
    code += f"; from sbus_services.feeds.main import main; sys.argv += ['--address', {str(tmp_path / 'none')!r}]; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == os.EX_CONFIG
    assert done.stderr == (
        "sbus-feed: this feed needs the Python package dbus-fast: install python3-dbus-fast, or pip install 'sbusd[dbus]'\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["netlink", "--system", "--user"],
        ["netlink", "--address", "x", "--user"],
        ["netlink", "--receive-buffer", "0"],
        ["netlink", "--nonsense"],
        ["journal", "--system", "--user"],
        ["journal", "--lines", "-1"],
        ["journal", "--rate", "0"],
        ["journal", "--backlog", "5"],
        ["journal", "--backlog", "9999d"],
        ["udev", "--system", "--user"],
        ["udev", "--rate", "0"],
        ["udev", "--subsystem", ""],
        ["udev", "--subsystem", "a/b"],
        ["udev", *(["--subsystem", "block"] * 33)],
    ],
)
def test_wrong_command_line_is_status_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(main.app, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("name", "failure", "status", "line"),
    [
        ("netlink", KernelError("no"), 1, "sbus-feed: no\n"),
        ("netlink", PermissionError(1, "Operation not permitted"), 1, "sbus-feed: netlink: Operation not permitted\n"),
        ("netlink", KeyboardInterrupt(), 0, ""),
        ("journal", AccessCheckError("not here"), 78, "sbus-feed: not here\n"),
        ("journal", JournalError("no journal"), 1, "sbus-feed: no journal\n"),
        ("journal", PermissionError(13, "Permission denied"), 1, "sbus-feed: journal: Permission denied\n"),
        ("journal", KeyboardInterrupt(), 0, ""),
    ],
)
def test_every_end_is_a_status_and_at_most_a_line(
    name: str, failure: BaseException, status: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **named: object) -> None:
        raise failure

    monkeypatch.setattr(main, f"_feed_{name}", fail)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    result = CliRunner().invoke(main.app, [name])
    assert (result.exit_code, result.stderr) == (status, line)


@pytest.mark.parametrize("options", [["--system"], ["--user"], [], ["--address", "/x"]])
def test_choice_of_the_bus(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr(main, "_feed_netlink", lambda *arguments: given.extend(arguments))
    assert CliRunner().invoke(main.app, ["netlink", *options, "--namespace", "blue", "--receive-buffer", "64"]).exit_code == 0
    address = "/x" if "--address" in options else None
    scope = options[0].removeprefix("--") if options and address is None else None
    assert given[1:] == [address, scope, "blue", 65536]


@pytest.mark.parametrize(
    ("options", "folder", "path"),
    [
        ([], "/var/lib/x:/var/lib/y", Path("/var/lib/x/journal.cursor")),
        ([], "", None),
        (["--cursor-file", "/there"], "/var/lib/x", Path("/there")),
    ],
)
def test_choices_of_the_journal_feed(options: list[str], folder: str, path: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setenv("STATE_DIRECTORY", folder)
    monkeypatch.setattr(main, "_feed_journal", lambda *arguments, **named: given.extend([*arguments, *named.values()]))
    backlog = ["--backlog", "2h"] if path else []
    words = ["journal", "--lines", "5", *backlog, "--rate", "7", "--directory", "/d", *options]
    assert CliRunner().invoke(main.app, words).exit_code == 0
    _signals, _publisher, directory, file, start, rate = given
    assert (directory, file.path, start, rate) == (Path("/d"), path, StartPosition(5, 7200.0 if path else BACKLOG_SECONDS), 7)


def test_choices_of_the_udev_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(main, "_feed_udev", lambda *arguments, **named: given.extend([*arguments, *named.values()]))
    words = ["udev", "--user", "--subsystem", "block", "--subsystem", "net", "--receive-buffer", "64", "--rate", "7"]
    assert CliRunner().invoke(main.app, words).exit_code == 0
    assert given[1:] == [None, "user", ["block", "net"], 65536, 7]


def test_a_closed_standard_error_does_not_stop_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    main._log("anything")


def test_a_missing_service_manager_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    main._ready("fine")
    assert capsys.readouterr().err.startswith("sbus-feed: cannot notify the service manager: ")
