"""The states of the units, and the compiled extension of the Python client."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sbusd.client import message_batch
from sbusd.ctl.checks import CheckResult
from sbusd.ctl.checks.installation import check_package, check_units, judge, main_process, parse

_SHOWN = """\
Id=sbus.socket
LoadState=loaded
ActiveState=active
UnitFileState=enabled
Result=success

MainPID=4321
Result=success
Id=sbus.service
LoadState=loaded
ActiveState=active
UnitFileState=static
"""


def test_a_good_state() -> None:
    units = parse(_SHOWN)
    assert set(units) == {"sbus.socket", "sbus.service"}
    assert main_process(units) == 4321
    assert [finding.result for finding in judge(units, "systemctl")] == [CheckResult.OK, CheckResult.OK]


@pytest.mark.parametrize(
    ("old", "new", "results"),
    [
        ("LoadState=loaded", "LoadState=not-found", [CheckResult.WARN, CheckResult.WARN]),
        ("ActiveState=active", "ActiveState=failed", [CheckResult.FAIL, CheckResult.FAIL]),
        ("ActiveState=active", "ActiveState=inactive", [CheckResult.WARN, CheckResult.OK]),
        ("UnitFileState=enabled", "UnitFileState=disabled", [CheckResult.WARN, CheckResult.OK]),
        (_SHOWN, "", [CheckResult.WARN, CheckResult.WARN]),
    ],
)
def test_other_states(old: str, new: str, results: list[CheckResult]) -> None:
    found = judge(parse(_SHOWN.replace(old, new)), "systemctl --user")
    assert [finding.result for finding in found] == results
    assert all(finding.advice for finding in found if finding.result is not CheckResult.OK)


@pytest.mark.parametrize(("shown", "pid"), [("", None), ("Id=sbus.service\nMainPID=0", None), ("Id=sbus.service\nMainPID=x", None)])
def test_no_process(shown: str, pid: int | None) -> None:
    assert main_process(parse(shown)) is pid


def test_where_systemd_is_not_that_is_said_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, pid = check_units("system", tmp_path / "none")
    assert ([finding.result for finding in found], pid) == ([CheckResult.SKIP], None)
    monkeypatch.setenv("PATH", str(tmp_path))
    found, pid = check_units("system", tmp_path)
    assert [finding.reason for finding in found] == ["systemctl is not installed"]
    found, _ = check_units(None, tmp_path)
    assert [finding.result for finding in found] == [CheckResult.SKIP]


def _fake_systemctl(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a systemctl that runs *script* in front of the path."""
    program = folder / "systemctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_systemctl_is_asked_for_the_right_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_systemctl(tmp_path, monkeypatch, f"echo \"$1\" > '{tmp_path}/said'\ncat <<'END'\n{_SHOWN}END")
    found, pid = check_units("user", tmp_path)
    assert ([finding.result for finding in found], pid) == ([CheckResult.OK, CheckResult.OK], 4321)
    assert (tmp_path / "said").read_text() == "--user\n"


def test_a_manager_that_cannot_tell_is_skipped_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_systemctl(tmp_path, monkeypatch, "echo 'Failed to connect to bus: No medium found' >&2; exit 1")
    found, pid = check_units("user", tmp_path)
    assert pid is None
    assert [finding.reason for finding in found] == ["systemctl failed: Failed to connect to bus: No medium found"]


def test_a_manager_that_hangs_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("systemctl", 10)

    monkeypatch.setattr(subprocess, "run", hang)
    found, _ = check_units("system", tmp_path)
    assert [finding.result for finding in found] == [CheckResult.WARN]


def test_a_package_that_was_not_built_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_batch, "IS_COMPILED", False)
    finding = check_package()
    assert finding.result is CheckResult.WARN
    assert "make build" in finding.advice
    monkeypatch.setattr(message_batch, "IS_COMPILED", True)
    assert check_package().result is CheckResult.OK
