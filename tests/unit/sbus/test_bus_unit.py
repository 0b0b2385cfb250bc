"""The unit of a bus, and whether it fails to start."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sbus import bus_unit
from sbus.bus_unit import STATUS_HEAD, BusUnit, UnitCheck, explained, has_failed, unit_of
from sbus.errors import NoBus
from sbusd.daemon.main import CANNOT_START

pytestmark = pytest.mark.slow

RUNNING = {"ActiveState": "active", "SubState": "running", "ActiveEnterTimestampMonotonic": "9", "ExecMainStartTimestampMonotonic": "8"}
CRASHED = RUNNING | {"ActiveState": "activating", "SubState": "auto-restart", "NRestarts": "3"}
"""A bus that has run, and is about to start again."""
REFUSED = CRASHED | {"ExecMainStartTimestampMonotonic": "10"}
"""A bus whose last process started and ended without becoming ready."""
STARTING = REFUSED | {"SubState": "start"}


@pytest.mark.parametrize(
    ("address", "unit"),
    [
        ("/run/sbus.socket", BusUnit("sbus.service", is_user=False)),
        ("/run/sbus/lab.socket", BusUnit("sbus@lab.service", is_user=False)),
        ("/run/user/7/sbus.socket", BusUnit("sbus.service", is_user=True)),
        ("/run/user/7/sbus/lab.socket", BusUnit("sbus@lab.service", is_user=True)),
        ("/run/user/8/sbus.socket", None),
        ("/run/sbus/.socket", None),
        ("/run/sbus/a/b.socket", None),
        ("/run/sbus/lab.sock", None),
        ("/tmp/sbus.socket", None),
        ("/dev/unix/abstract/00", None),
    ],
)
def test_an_address_names_its_unit(address: str, unit: BusUnit | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert unit_of(address, tmp_path) == unit
    assert unit_of(address, tmp_path / "none") is None
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert unit_of(address, tmp_path) == (None if unit is None or unit.is_user else unit)


@pytest.mark.parametrize(
    ("now", "before", "failed"),
    [
        (RUNNING, {}, False),
        ({}, {}, False),
        (RUNNING | {"ActiveState": "failed", "SubState": "failed"}, {}, True),
        (RUNNING | {"ActiveState": "inactive", "SubState": "dead"}, {}, False),
        (CRASHED, {}, False),
        (REFUSED, {}, True),
        (REFUSED | {"SubState": "auto-restart-queued"}, {}, True),
        (STARTING, {}, False),
        (STARTING, STARTING, False),
        (STARTING | {"NRestarts": "4"}, STARTING, True),
        # It was ready in between.
        (STARTING | {"NRestarts": "4", "ActiveEnterTimestampMonotonic": "11"}, STARTING, False),
        (STARTING | {"NRestarts": "4"}, RUNNING, False),
    ],
)
def test_a_start_that_failed_differs_from_a_crash(now: dict[str, str], before: dict[str, str], failed: bool) -> None:
    assert has_failed(now, before) is failed


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs of systemd, which come first in the path."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(bus_unit, "_COMMAND_SECONDS", 60.0)
    return tmp_path


def program(folder: Path, name: str, output: str, status: int = 0) -> None:
    """Write a program that prints *output* and its arguments to a file."""
    (folder / name).write_text(f"#!/bin/sh\necho \"$@\" >>'{folder}/{name}.called'\ncat <<'END'\n{output}\nEND\nexit {status}\n")
    (folder / name).chmod(0o755)


def shown(properties: dict[str, str]) -> str:
    """Return *properties* as systemctl prints them."""
    return "\n".join(f"{name}={value}" for name, value in properties.items())


def test_the_reason_is_the_status_that_the_bus_sent(systemd: Path) -> None:
    assert STATUS_HEAD == CANNOT_START
    program(systemd, "systemctl", shown(REFUSED | {"StatusText": f"{STATUS_HEAD}/etc/x: bad\x1b key"}))
    check = UnitCheck(BusUnit("sbus.service", is_user=True))
    assert check.failure() == "the bus does not start: /etc/x: bad\N{REPLACEMENT CHARACTER} key; see: systemctl --user status sbus.service"
    assert (systemd / "systemctl.called").read_text().startswith("--user show --property=")


def test_without_a_status_the_journal_has_the_reason(systemd: Path) -> None:
    # The status of a bus that has run is not the reason.
    program(systemd, "systemctl", shown(REFUSED | {"StatusText": "3 clients", "InvocationID": "abc", "Result": "exit-code"}))
    program(systemd, "journalctl", "Traceback\nImportError: no x")
    check = UnitCheck(BusUnit("sbus.service", is_user=False))
    assert check.failure() == "the bus does not start: ImportError: no x; see: systemctl status sbus.service"
    assert "_SYSTEMD_INVOCATION_ID=abc" in (systemd / "journalctl.called").read_text()


def test_without_either_the_result_is_the_reason(systemd: Path) -> None:
    program(systemd, "systemctl", shown(REFUSED | {"InvocationID": "abc", "Result": "exit-code", "ExecMainStatus": "203"}))
    program(systemd, "journalctl", "", 1)
    said = UnitCheck(BusUnit("sbus.service", is_user=False)).failure()
    assert said == "the bus does not start: sbus.service failed (exit-code, status 203/EXEC); see: systemctl status sbus.service"


def test_a_missing_or_failing_systemctl_means_that_nothing_is_known(systemd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(systemd, "systemctl", shown(REFUSED), 1)
    assert UnitCheck(BusUnit("sbus.service", is_user=False)).failure() is None
    monkeypatch.setenv("PATH", str(systemd / "none"))
    assert UnitCheck(BusUnit("sbus.service", is_user=False)).failure() is None


def test_an_error_of_connect_gets_the_reason_only_if_nothing_listens(systemd: Path) -> None:
    program(systemd, "systemctl", shown(REFUSED | {"StatusText": f"{STATUS_HEAD}bad"}))
    check = UnitCheck(BusUnit("sbus.service", is_user=False))
    found = explained(NoBus("/run/sbus.socket", "no such socket", errno.ENOENT), check)
    assert str(found) == "cannot connect to /run/sbus.socket: the bus does not start: bad; see: systemctl status sbus.service"
    assert found.errno == errno.ENOENT
    for error in (NoBus("/run/sbus.socket", "denied", errno.EACCES), NoBus("/run/sbus.socket", "no")):
        assert explained(error, check) is error
    missing = NoBus("/run/sbus.socket", "no such socket", errno.ENOENT)
    assert explained(missing, None) is missing
    program(systemd, "systemctl", shown(RUNNING))
    assert explained(missing, check) is missing
