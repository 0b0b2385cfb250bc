"""The states of the units, the configuration, the kernel limits, and the extension of the Python client."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from sbus import incoming
from sbus.bus_unit import BusUnit
from sbus_programs.systemd import service_user
from sbusctl.checks import CheckResult, Finding
from sbusctl.checks.installation import (
    check_configuration,
    check_descriptors,
    check_file,
    check_package,
    check_packet,
    judge_descriptors,
    main_file_of,
)
from tests.support import skips
from tests.support.users import User

SYSTEM, OWN = BusUnit("sbus.service", is_user=False), BusUnit("sbus.service", is_user=True)


def test_a_package_that_was_not_built_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "IS_COMPILED", False)
    finding = check_package()
    assert finding.result is CheckResult.WARN
    assert "make build" in finding.advice
    monkeypatch.setattr(incoming, "IS_COMPILED", True)
    assert check_package().result is CheckResult.OK


def test_no_file_is_well(tmp_path: Path) -> None:
    assert check_file(tmp_path / "sbusd.toml", SYSTEM).result is CheckResult.OK


@pytest.mark.parametrize(
    ("text", "result"), [('separator = "/"\n', CheckResult.OK), ("separator =\n", CheckResult.FAIL), ("colour = 1\n", CheckResult.FAIL)]
)
def test_files(tmp_path: Path, text: str, result: CheckResult) -> None:
    file = tmp_path / "sbusd.toml"
    file.write_text(text)
    finding = check_file(file, SYSTEM)
    assert finding.result is result
    assert str(file) in finding.reason
    assert "\n" not in finding.reason


def test_a_bus_elsewhere_has_no_known_files() -> None:
    assert check_configuration(None).result is CheckResult.SKIP


def test_the_user_s_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbus").mkdir()
    (tmp_path / "sbus" / "sbusd.toml").write_text("nonsense\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert check_configuration(OWN).result is CheckResult.FAIL


@pytest.mark.parametrize("hidden", ["sbusd.toml", "sbusd.toml.d", "sbusd.toml.d/a.toml", "."])
def test_a_file_that_this_user_may_not_read_is_not_a_fault(folder: Path, first_user: User, hidden: str) -> None:
    (folder / "etc" / "sbusd.toml.d").mkdir(parents=True)
    file = folder / "etc" / "sbusd.toml"
    for each in (file, folder / "etc" / "sbusd.toml.d" / "a.toml"):
        each.write_text("separator = \n")
    check_file(file, SYSTEM)  # imports all that it needs, before the other user forks off
    (folder / "etc" / hidden).chmod(0)

    def look() -> Finding:
        return check_file(file, SYSTEM)

    finding = first_user.call(look)
    assert finding.result is CheckResult.SKIP
    assert finding.reason.endswith("is not readable by this user")


def test_a_file_that_only_root_can_read_fails_with_its_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root reads as the user of the service: the bus would admit no user after its next start."""
    skips.require_root()
    daemon = service_user.parse_user({"LoadState": "loaded", "User": "daemon"})
    monkeypatch.setattr(service_user, "user_of", lambda unit, main_file: daemon)
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    file = tmp_path / "sbusd.toml"
    (tmp_path / "sbusd.toml.d").mkdir()
    hidden = tmp_path / "sbusd.toml.d" / "60-umask.toml"
    hidden.write_text('[[policy]]\nkeys = "lab/"\npublish = "deny"\n')
    hidden.chmod(0o600)
    finding = check_file(file, SYSTEM)
    assert (finding.result, str(hidden) in finding.reason) == (CheckResult.FAIL, True)
    assert finding.advice.endswith(f"chmod a+rX {hidden}; then: systemctl try-reload-or-restart sbus.service")
    hidden.chmod(0o644)
    assert check_file(file, SYSTEM).result is CheckResult.OK


def test_an_instance_has_a_file_of_its_own() -> None:
    assert main_file_of(BusUnit("sbus@lab.service", is_user=False)) == Path("/etc/sbus/lab.toml")
    assert main_file_of(SYSTEM) == Path("/etc/sbus/sbusd.toml")


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
    assert judge_descriptors(limit, connections, None).result is result


def test_descriptors_of_a_real_process() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert check_descriptors(os.getpid(), None, None) == judge_descriptors(soft, None, None)


def test_a_process_that_is_not_known_or_gone_is_skipped() -> None:
    assert check_descriptors(None, 3, None).result is CheckResult.SKIP
    # Above the highest number that the kernel gives, proc(5): /proc/sys/kernel/pid_max.
    assert check_descriptors((1 << 22) + 1, 3, None).result is CheckResult.SKIP
