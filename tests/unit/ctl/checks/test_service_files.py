"""The checks of the configuration of services that have no other check."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from sbusd.ctl.checks import CheckResult, service_files
from sbusd.ctl.checks.service_files import check_files
from sbusd.systemd import service_user
from tests.support import skips
from tools.stage import ROOT

ON = {"LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active"}
FILES = {
    "blob.toml": "sbus-blob.socket",
    "feed-dbus.toml": "sbus-feed@dbus.service",
    "recorder.toml": "sbus-recorder.service",
    "ship.toml": "sbus-ship.service",
    "live.toml": "sbus-live.service",
}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Mapping[str, str]]:
    """The units that systemd knows; a test changes them."""
    units: dict[str, Mapping[str, str]] = {}
    monkeypatch.setattr(service_files, "shown_units", lambda scope, *names: {name: units[name] for name in names if name in units})
    return units


@pytest.mark.parametrize(("name", "unit"), FILES.items())
def test_an_invalid_file_of_a_service_that_is_on_is_a_failure(
    name: str, unit: str, folder: Path, shown: dict[str, Mapping[str, str]]
) -> None:
    (folder / name).write_text("unknown_key = 1\n")
    assert check_files("system", folder) == []
    shown[unit] = ON | {"UnitFileState": "disabled", "ActiveState": "inactive"}
    assert check_files("system", folder) == []
    shown[unit] = ON
    (found,) = check_files("system", folder)
    assert (found.check, found.result, found.advice) == (name, CheckResult.FAIL, f"correct {folder / name}")
    (folder / name).write_text("")
    assert check_files("system", folder) == []


@pytest.mark.parametrize(("name", "unit"), FILES.items())
def test_a_file_that_only_root_can_read_is_a_failure(
    name: str, unit: str, folder: Path, shown: dict[str, Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    skips.require_root()
    user = service_user.parse_user({"LoadState": "loaded", "User": "daemon"})
    asked: list[str] = []

    def user_of(service: str, _main_file: Path) -> service_user.ServiceUser | None:
        asked.append(service)
        return user

    monkeypatch.setattr(service_user, "user_of", user_of)
    shown[unit] = ON
    folder.chmod(0o755)
    file = folder / name
    file.write_text("")
    file.chmod(0o600)
    (found,) = check_files("system", folder)
    assert (found.result, found.advice) == (CheckResult.FAIL, f"let the user daemon read {file}")
    assert "Permission denied" in found.reason
    assert asked == [unit.replace(".socket", ".service")]
    file.chmod(0o644)
    assert check_files("system", folder) == []


def test_a_user_is_not_told_that_a_file_of_the_machine_is_wrong(
    folder: Path, shown: dict[str, Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown["sbus-blob.socket"] = ON
    (folder / "blob.toml").write_text("unknown_key = 1\n")
    monkeypatch.setattr(os, "access", lambda path, mode, effective_ids=False: False)
    (found,) = check_files("system", folder)
    assert found.result is CheckResult.SKIP


def test_each_configuration_of_a_service_is_checked() -> None:
    """Each main file that a program reads by default is read by doctor, too."""
    sources = {path: path.read_text("utf-8") for path in (ROOT / "sbusd").rglob("*.py")}
    checks = "".join(text for path, text in sources.items() if "ctl" in path.parts)
    read = {name for text in sources.values() for name in re.findall(r'default_main_file\("([\w-]+\.toml)"', text)}
    assert len(read) >= 10
    assert sorted(name for name in read if f'"{name}"' not in checks) == []
