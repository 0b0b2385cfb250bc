"""The command line, and that the manual page says the same."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from sbusd.feeds import main
from sbusd.feeds.entries import Address, Entry, Link, Neighbour, Route
from sbusd.feeds.kernel import KernelError
from sbusd.feeds.netlink import Counters
from tests.support import skips

PAGE = Path(__file__).parents[3] / "man" / "sbus-feed.8"
TEXT = PAGE.read_text()


def options_of_the_program() -> set[str]:
    group = typer.main.get_command(main.app)
    context = typer.Context(group)
    assert isinstance(group, TyperGroup)
    command = group.get_command(context, "netlink")
    assert command is not None
    return {name for parameter in command.get_params(context) for name in parameter.opts}


def test_manual_page_has_the_options_of_the_program() -> None:
    listed = re.findall(r"^\.It Fl Fl (\S+)", TEXT, flags=re.MULTILINE)
    in_synopsis = re.findall(r"Fl Fl (\S+)", TEXT[: TEXT.index(".Sh DESCRIPTION")])
    assert {f"--{name}" for name in listed} == options_of_the_program()
    assert set(in_synopsis) == set(listed)


def test_manual_page_has_every_field_of_a_payload() -> None:
    fields = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"^\.(?:It )?(?:Li|Pq) .*|^\.Pq.*", TEXT, flags=re.MULTILINE))))
    entries: list[Entry] = [
        Link(1, b"lo", "up", (), 1, None, None, None),
        Address(1, "inet", "10.0.0.1", None, 24, "global", (), None, None),
        Route("inet", "main", "default", None, 0, 0, "unicast", "global", "boot", 1, None, None, (), ()),
        Neighbour(1, "inet", "10.0.0.2", None, "stale", ()),
    ]
    for entry in entries:
        assert entry.attributes(lambda index: b"lo").keys() <= fields
    assert set(Counters.__dataclass_fields__) <= fields
    assert {"generation", "reason", "entries", "interrupted", "receive_kib", "namespace", "event", "time"} <= fields


def test_manual_page_is_clean() -> None:
    skips.require_program("mandoc", "mandoc")
    result = subprocess.run(["mandoc", "-T", "lint", str(PAGE)], capture_output=True, text=True, check=False, timeout=60)
    # Whether the pages referred to are installed says something about this machine alone.
    wrong = [line for line in result.stdout.splitlines() if "referenced manual not found" not in line]
    assert wrong == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["netlink", "--system", "--user"],
        ["netlink", "--address", "x", "--user"],
        ["netlink", "--receive-buffer", "0"],
        ["netlink", "--nonsense"],
        ["nonsense"],
    ],
)
def test_wrong_command_line_is_status_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(main.app, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("failure", "status", "line"),
    [
        (KernelError("no"), 1, "sbus-feed: no\n"),
        (PermissionError(1, "Operation not permitted"), 1, "sbus-feed: netlink: Operation not permitted\n"),
        (KeyboardInterrupt(), 0, ""),
    ],
)
def test_every_end_is_a_status_and_at_most_a_line(
    failure: BaseException, status: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*given: object) -> None:
        raise failure

    monkeypatch.setattr(main, "_feed_netlink", fail)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    result = CliRunner().invoke(main.app, ["netlink"])
    assert (result.exit_code, result.stderr) == (status, line)


@pytest.mark.parametrize("options", [["--system"], ["--user"], [], ["--address", "/x"]])
def test_choice_of_the_bus(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr(main, "_feed_netlink", lambda *arguments: given.extend(arguments))
    assert CliRunner().invoke(main.app, ["netlink", *options, "--namespace", "blue", "--receive-buffer", "64"]).exit_code == 0
    address = "/x" if "--address" in options else None
    scope = options[0].removeprefix("--") if options and address is None else None
    assert given == [address, scope, "blue", 65536]


def test_standard_error_that_is_gone_does_not_end_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    main._say("anything")


def test_service_manager_that_is_gone_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    main._ready("fine")
    assert capsys.readouterr().err.startswith("sbus-feed: cannot notify the service manager: ")
