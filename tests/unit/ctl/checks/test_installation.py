"""The states of the units, the configuration, the kernel limits, and the extension of the Python client."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from sbusd.client import incoming
from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.checks.installation import (
    check_configuration,
    check_descriptors,
    check_file,
    check_package,
    check_packet,
    check_units,
    judge_descriptors,
    judge_units,
    main_process,
    parse_units,
)
from tests.support.users import User

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
    units = parse_units(_SHOWN)
    assert set(units) == {"sbus.socket", "sbus.service"}
    assert main_process(units) == 4321
    assert [finding.result for finding in judge_units(units, "systemctl")] == [CheckResult.OK, CheckResult.OK]


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
    found = judge_units(parse_units(_SHOWN.replace(old, new)), "systemctl --user")
    assert [finding.result for finding in found] == results
    assert all(finding.advice for finding in found if finding.result is not CheckResult.OK)


@pytest.mark.parametrize(("shown", "pid"), [("", None), ("Id=sbus.service\nMainPID=0", None), ("Id=sbus.service\nMainPID=x", None)])
def test_no_process(shown: str, pid: int | None) -> None:
    assert main_process(parse_units(shown)) is pid


def test_a_missing_systemd_is_reported_and_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_failing_service_manager_is_skipped_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(incoming, "IS_COMPILED", False)
    finding = check_package()
    assert finding.result is CheckResult.WARN
    assert "make build" in finding.advice
    monkeypatch.setattr(incoming, "IS_COMPILED", True)
    assert check_package().result is CheckResult.OK


def test_no_file_is_well(tmp_path: Path) -> None:
    assert check_file(tmp_path / "sbusd.toml").result is CheckResult.OK


@pytest.mark.parametrize(
    ("text", "result"), [('separator = "/"\n', CheckResult.OK), ("separator =\n", CheckResult.FAIL), ("colour = 1\n", CheckResult.FAIL)]
)
def test_files(tmp_path: Path, text: str, result: CheckResult) -> None:
    file = tmp_path / "sbusd.toml"
    file.write_text(text)
    finding = check_file(file)
    assert finding.result is result
    assert str(file) in finding.reason
    assert "\n" not in finding.reason


def test_a_bus_elsewhere_has_no_known_files() -> None:
    assert check_configuration(None).result is CheckResult.SKIP


def test_the_user_s_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbus").mkdir()
    (tmp_path / "sbus" / "sbusd.toml").write_text("nonsense\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert check_configuration("user").result is CheckResult.FAIL


@pytest.mark.parametrize("hidden", ["sbusd.toml", "sbusd.toml.d", "sbusd.toml.d/a.toml", "."])
def test_a_file_that_this_user_may_not_read_is_not_a_fault(folder: Path, first_user: User, hidden: str) -> None:
    (folder / "etc" / "sbusd.toml.d").mkdir(parents=True)
    file = folder / "etc" / "sbusd.toml"
    for each in (file, folder / "etc" / "sbusd.toml.d" / "a.toml"):
        each.write_text("separator = \n")
    check_file(file)  # imports all that it needs, before the other user forks off
    (folder / "etc" / hidden).chmod(0)

    def look() -> Finding:
        return check_file(file)

    finding = first_user.call(look)
    assert finding.result is CheckResult.SKIP
    assert finding.reason.endswith("is not readable by this user")


def test_a_small_packet_can_be_sent() -> None:
    finding = check_packet(1000)
    assert finding.result is CheckResult.OK
    assert "1000 bytes" in finding.reason


def test_a_packet_past_every_limit_is_a_warning_with_the_setting_to_change() -> None:
    finding = check_packet(1 << 28)
    assert finding.result is CheckResult.WARN
    assert finding.advice.startswith(f"sysctl net.core.wmem_max={1 << 28}")


@pytest.mark.parametrize(
    ("limit", "connections", "result"),
    [
        (16_384, 100, CheckResult.OK),
        (16_384, None, CheckResult.OK),
        (1_024, None, CheckResult.WARN),
        (16_384, 6_553, CheckResult.OK),
        (16_384, 6_554, CheckResult.WARN),
        (16_384, 15_000, CheckResult.FAIL),
        (1_024, 1_000, CheckResult.FAIL),
        (resource.RLIM_INFINITY, 10, CheckResult.OK),
    ],
)
def test_descriptors(limit: int, connections: int | None, result: CheckResult) -> None:
    assert judge_descriptors(limit, connections).result is result


def test_descriptors_of_a_real_process() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert check_descriptors(os.getpid(), None) == judge_descriptors(soft, None)


def test_a_process_that_is_not_known_or_gone_is_skipped() -> None:
    assert check_descriptors(None, 3).result is CheckResult.SKIP
    # Above the highest number that the kernel gives, proc(5): /proc/sys/kernel/pid_max.
    assert check_descriptors((1 << 22) + 1, 3).result is CheckResult.SKIP
