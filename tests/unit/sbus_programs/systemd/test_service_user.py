"""The user of a service, as whom root checks its configuration."""

from __future__ import annotations

import grp
import os
import pwd
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sbus_programs.systemd import service_user
from sbus_programs.systemd.service_user import acting_as_user_of, parse_user, user_of, valid
from tests.support import skips
from tools.stage import ROOT

DAEMON = pwd.getpwnam("daemon")


def test_the_user_of_a_unit_is_known_by_name_or_number_with_its_groups() -> None:
    shown = {"LoadState": "loaded", "User": "daemon", "Group": "", "SupplementaryGroups": "mail"}
    found = parse_user(shown)
    assert found is not None
    assert (found.name, found.uid, found.gid) == ("daemon", DAEMON.pw_uid, DAEMON.pw_gid)
    assert {DAEMON.pw_gid, grp.getgrnam("mail").gr_gid} <= set(found.groups)
    by_number = parse_user(shown | {"User": str(DAEMON.pw_uid), "Group": "mail"})
    assert by_number is not None
    assert (by_number.name, by_number.gid) == ("daemon", grp.getgrnam("mail").gr_gid)


@pytest.mark.parametrize(
    "changed", [{"LoadState": "not-found"}, {"User": ""}, {"User": "root"}, {"User": "no-such-user"}, {"Group": "no-such-group"}]
)
def test_nothing_changes_without_such_a_user(changed: dict[str, str]) -> None:
    assert parse_user({"LoadState": "loaded", "User": "daemon"} | changed) is None


def test_only_files_of_the_machine_belong_to_its_services(tmp_path: Path) -> None:
    assert user_of("sbus.service", tmp_path / "sbusd.toml") is None


def test_root_reads_as_the_user_and_is_root_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skips.require_root()
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    user = parse_user({"LoadState": "loaded", "User": "daemon"})
    monkeypatch.setattr(service_user, "user_of", lambda unit, main_file: user)
    before = (os.geteuid(), os.getegid(), sorted(os.getgroups()))
    with acting_as_user_of("any.service", tmp_path) as name:
        assert (name, os.geteuid()) == ("daemon", DAEMON.pw_uid)
        with pytest.raises(PermissionError):
            secret.read_text()
    assert (os.geteuid(), os.getegid(), sorted(os.getgroups())) == before
    assert secret.read_text() == "x"
    assert valid(name) == "configuration is valid for the user daemon"


def test_each_program_that_checks_a_configuration_does_so_as_its_service() -> None:
    """A file that only root can read is valid for root, and stops the service at its next start."""
    checked = 0
    for unit in sorted((ROOT / "units/system").glob("*.service")):
        text = unit.read_text()
        program = re.search(r"^ExecStart=/usr/bin/(sbus\S+)", text, re.MULTILINE)
        if program is None or "User=root" in text or "@." in unit.name:
            continue
        entry = re.search(rf'^{program[1]} = "(sbus\S+):main"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert entry is not None
        source = (ROOT / f"{entry[1].replace('.', '/')}.py").read_text()
        has_check = "CheckOption" in source or '"--check' in source
        if (has_check and not unit.name.startswith("sbus-feed@")) or unit.name == "sbus-feed@dbus.service":
            # These act as the user of that unit, by default of {program}.service.
            call = rf'\b(check_configuration|run_configured)\(\s*"({unit.stem}"|{program[1]}".* unit="{unit.name}")'
            assert re.search(call, source), unit.name
            checked += 1
    assert checked >= 9


@pytest.mark.slow
def test_the_check_of_a_running_bus_is_its_own(tmp_path: Path) -> None:
    """A bus that root has started reads its files as root, also where the unit is installed."""
    imports = "from pathlib import Path; from sbus_programs.systemd.service_user import user_of"
    code = f"{imports}; print(user_of('x.service', Path('/etc/sbus/x.toml')))"
    environment = {**os.environ, service_user.CHECKS_FOR_ITSELF: "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=ROOT, timeout=60)
    assert done.stdout == "None\n"
