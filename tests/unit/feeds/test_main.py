"""The command line, and that it agrees with the manual page."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import TypeAdapter
from typer.core import TyperGroup
from typer.testing import CliRunner

from sbusd.config.feed_dbus import MAX_SIGNALS, DBusFeedSettings, SignalRule
from sbusd.config.quantities import show_duration
from sbusd.config.rules import PolicyRule
from sbusd.feeds import main
from sbusd.feeds.dbus.changes import INTERVAL_SECONDS, MAX_UNPUBLISHED
from sbusd.feeds.dbus.key_template import MAX_PART_BYTES
from sbusd.feeds.dbus.signal_feed import QUEUE_BYTES, QUEUE_MESSAGES, SignalCounters
from sbusd.feeds.dbus.state_feed import StateCounters
from sbusd.feeds.journal.batch_reader import BATCH_ENTRIES
from sbusd.feeds.journal.checked_publisher import AccessCheckError
from sbusd.feeds.journal.entry import MESSAGE_BYTES, PAYLOAD_BYTES, PREFIX, PRIORITIES, VALUE_BYTES
from sbusd.feeds.journal.feed import BACKLOG_SECONDS, RATE, JournalCounters, StartPosition
from sbusd.feeds.journal.reader import MEMORY_BYTES, JournalError
from sbusd.feeds.logind.manager import READ_SECONDS
from sbusd.feeds.netlink.entries import Address, Entry, Link, Neighbour, Route
from sbusd.feeds.netlink.feed import NetlinkCounters
from sbusd.feeds.netlink.sockets import KernelError
from sbusd.feeds.udev.devices import HEAD, VALUE_CHARACTERS
from sbusd.feeds.udev.devices import PAYLOAD_BYTES as UDEV_BYTES
from sbusd.feeds.udev.feed import RATE as UDEV_RATE
from sbusd.feeds.udev.feed import REQUEST, UdevCounters
from sbusd.feeds.udev.waiting_events import MAX_WAITING
from tests.support import skips

PAGE = Path(__file__).parents[3] / "man" / "sbus-feed.8"
TEXT = PAGE.read_text()


def options_of_the_program() -> set[str]:
    group = typer.main.get_command(main.app)
    context = typer.Context(group)
    assert isinstance(group, TyperGroup)
    commands = [group.get_command(context, name) for name in group.list_commands(context)]
    given = [parameter for command in (group, *commands) if command is not None for parameter in command.get_params(context)]
    return {name for parameter in given for name in parameter.opts}


def test_manual_page_has_the_options_of_the_program() -> None:
    listed = re.findall(r"^\.It Fl Fl (\S+)", TEXT, flags=re.MULTILINE)
    in_synopsis = re.findall(r"Fl Fl (\S+)", TEXT[: TEXT.index(".Sh DESCRIPTION")])
    assert {f"--{name}" for name in listed} == options_of_the_program()
    assert set(in_synopsis) == set(listed)
    pages = {"netlink", "journal", "udev", "systemd", "logind", "dbus"}
    assert pages == set(re.findall(r"^\.Nm\n\.Cm (\S+)$", TEXT, flags=re.MULTILINE))


def _flat(text: str) -> str:
    """Return the text of a page without macros, in one line."""
    return re.sub(r"\s+", " ", re.sub(r"^\.(It|Ar|Li|Cm|Fl Fl|Pa) ", "", text, flags=re.MULTILINE))


def test_manual_page_has_the_bounds_and_counters_of_the_feeds_of_dbus() -> None:
    flat = _flat(TEXT)
    assert f"by default {main._CHANGE_RATE}" in flat
    assert f"because more than {MAX_UNPUBLISHED} waited" in flat
    assert f"less than {INTERVAL_SECONDS * 1000:.0f} ms can be missing" in flat
    assert f"reads these every {READ_SECONDS:.0f} seconds" in flat
    assert "memory of 512 MiB" in flat
    counted = flat[flat.index("Of both feeds") : flat.index("Of the D-Bus feed")]
    for name in ("coalesced", "dropped", *(each.name for each in fields(StateCounters)), "requests", "refused", "reconnects"):
        assert re.search(rf"\b{name}\b", counted), name
    of_signals = flat[flat.index("Of the D-Bus feed") : flat.index("LAST VALUES")]
    for name in (each.name for each in fields(SignalCounters)):
        assert re.search(rf"\b{name}\b", of_signals), name


def test_manual_page_of_the_configuration_has_its_keys_and_bounds() -> None:
    page = (PAGE.parent / "feed-dbus.toml.5").read_text()
    documented = re.findall(r"^\.It Cm (\w+)", page, flags=re.MULTILINE)
    assert documented == ["rate", *(each.name for each in fields(SignalRule) if each.name != "origin")]
    flat = _flat(page)
    assert f"rate No = {DBusFeedSettings().rate} " in flat
    assert f"a queue for {QUEUE_MESSAGES} signals and {QUEUE_BYTES >> 20} MiB" in flat
    assert f"There can be {MAX_SIGNALS}." in flat
    assert f"more than {MAX_PART_BYTES} bytes is truncated" in flat


@pytest.mark.slow
def test_without_dbus_fast_it_says_which_package_is_missing(tmp_path: Path) -> None:
    code = "import sys; sys.modules['dbus_fast'] = None; sys.argv = ['sbus-feed', 'systemd', '--dbus-address', 'unix:path=/none']"
    code += f"; from sbusd.feeds.main import main; sys.argv += ['--address', {str(tmp_path / 'none')!r}]; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == os.EX_CONFIG
    assert done.stderr == (
        "sbus-feed: this feed needs the Python package dbus-fast: install python3-dbus-fast, or pip install 'sbusd[dbus]'\n"
    )


def test_manual_page_has_the_bounds_and_defaults_of_the_journal_feed() -> None:
    flat = re.sub(r"\s+", " ", re.sub(r"^\.(It|Ar|Li|Fl Fl) ", "", TEXT, flags=re.MULTILINE))
    assert f"entries, 0 to {main._LINES_MOST}; default {StartPosition().lines}." in flat
    assert f"up to 3650d; default {show_duration(StartPosition().backlog_seconds)}." in flat
    assert f"1 to {main._RATE_MOST}; default {RATE}." in flat
    assert f"limit is {MESSAGE_BYTES >> 10} KiB for MESSAGE and {VALUE_BYTES >> 10} KiB for any other field" in flat
    assert f"at most {PAYLOAD_BYTES >> 10} KiB" in flat
    assert f"the {MEMORY_BYTES >> 20} MiB of memory" in flat
    assert f"before each batch of up to {BATCH_ENTRIES} entries" in flat
    assert f"by default {UDEV_RATE}. Up to {MAX_WAITING} further events wait in the feed" in flat
    assert f"up to {main._SUBSYSTEMS_MOST} times" in flat
    assert f"A value has at most {VALUE_CHARACTERS} characters" in flat
    assert f"All properties together have at most {UDEV_BYTES >> 10} KiB" in flat
    assert ", ".join(PRIORITIES) in flat.replace(" ,", ",")
    assert f"status {os.EX_CONFIG}" in flat


def test_manual_page_has_the_rules_that_are_shipped() -> None:
    shipped = (PAGE.parents[1] / "etc/sbusd.toml.d/50-journal.toml").read_text()
    rules = "".join(line for line in shipped.splitlines(keepends=True) if not line.startswith("#")).lstrip("\n")
    assert f".Bd -literal -offset indent\n{rules}.Ed" in TEXT


def test_the_bus_accepts_the_shipped_rules() -> None:
    shipped = tomllib.loads((PAGE.parents[1] / "etc/sbusd.toml.d/50-journal.toml").read_text())
    for rule in shipped["policy"]:
        known = {**rule, "groups": [0] if "groups" in rule else [], "users": [0] if "users" in rule else []}
        assert TypeAdapter(PolicyRule).validate_python(known).keys == PREFIX


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
    assert set(NetlinkCounters.__dataclass_fields__) <= fields
    assert set(JournalCounters.__dataclass_fields__) <= fields
    assert set(UdevCounters.__dataclass_fields__) <= fields
    assert {"coalesced", "cut", "omitted", "devices", "waiting", "receive_kib"} <= fields
    assert {"reason", "count", "vacuumed", "backlog", "unreadable", "refused", "cursor"} <= fields
    assert {"generation", "reason", "entries", "interrupted", "receive_kib", "namespace", "event", "time"} <= fields


def test_manual_page_is_clean() -> None:
    skips.require_program("mandoc", "mandoc")
    result = subprocess.run(["mandoc", "-T", "lint", str(PAGE)], capture_output=True, text=True, check=False, timeout=60)
    # Other pages may be missing on this machine.
    wrong = [line for line in result.stdout.splitlines() if "referenced manual not found" not in line]
    assert wrong == []


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


def test_the_rules_of_the_store_protect_devices_but_not_requests() -> None:
    shipped = tomllib.loads((PAGE.parents[1] / "etc/sbusd.toml.d/50-store.toml").read_text())
    rules = [rule for rule in shipped["policy"] if rule["keys"].startswith("udev/")]
    assert [(rule["keys"], rule["publish"], rule.get("users")) for rule in rules] == [
        (REQUEST, "allow", None),
        (HEAD, "allow", ["root", "sbus-feed", "sbus-store"]),
        (HEAD, "deny", None),
    ]


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
