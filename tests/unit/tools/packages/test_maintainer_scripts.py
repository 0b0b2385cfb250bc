"""The scripts of the packages: one transaction leaves a bus that knows all users, and services, also those of users, with the new code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tools.stage import ROOT

DEBIAN = ROOT / "packaging/debian"
SPEC = (ROOT / "packaging/rpm/sbusd.spec").read_text()
RULES = "/usr/lib/sbus/sbusd.toml.d"

INSTALLED = {file.stem: file.read_text().split() for file in sorted(DEBIAN.glob("*.install"))}
WITH_RULES = [name for name, words in INSTALLED.items() if name != "sbusd" and any(word.startswith("etc/sbusd.toml.d/") for word in words)]
USER_SERVICES = [
    (name, service.name)
    for name, words in INSTALLED.items()
    for word in words
    if word.startswith("units/user/")
    for service in sorted(ROOT.glob(word))
    if service.suffix == ".service"
]
"""Each package with a service of users."""


def test_there_is_something_to_check() -> None:
    assert len(WITH_RULES) >= 7
    assert {name for name, _ in USER_SERVICES} == {"sbusd", "sbus-blob", "sbus-store", "sbus-trigger", "sbus-web"}


@pytest.mark.parametrize("name", WITH_RULES)
def test_a_package_with_rules_makes_the_bus_read_them_at_the_end_of_the_transaction(name: str) -> None:
    """The user that they name may be made after the bus was restarted, and configuring sbusd discards earlier activations."""
    assert f"activate-noawait {RULES}" in (DEBIAN / f"{name}.triggers").read_text().splitlines()
    assert f"interest-noawait {RULES}" in (DEBIAN / "sbusd.triggers").read_text().splitlines()


@pytest.mark.parametrize(("package", "service"), USER_SERVICES)
def test_an_upgrade_restarts_the_services_of_users(package: str, service: str) -> None:
    script = (DEBIAN / f"{package}.postinst").read_text()
    named = re.escape(service).replace("@", "@[*]")
    assert re.search(rf"^ *timeout \d+ systemctl --user --machine \S+ try-restart .*{named}", script, re.MULTILINE)
    section = "" if package == "sbusd" else f" -n {package}"
    restarted = re.search(rf"^%postun{section}\n((?:%.+\n)+)", SPEC, re.MULTILINE)
    assert restarted is not None
    assert re.search(rf"^%systemd_user_postun_with_restart .*{named}", restarted[1], re.MULTILINE)


@pytest.mark.parametrize(("package", "service"), USER_SERVICES)
def test_a_removal_stops_the_services_of_users(package: str, service: str) -> None:
    """One that runs on has code that is never upgraded, and perhaps a port."""
    named = re.escape(service).replace("@", "@[*]")
    script = (DEBIAN / f"{package}.prerm").read_text()
    assert re.search(rf"deb-systemd-invoke --user stop .*{named}", script)


@pytest.mark.slow
@pytest.mark.parametrize(("is_active", "started"), [(False, ["sbus-feed@udev.service", "sbus@lab.socket"]), (True, [])])
def test_enabled_instances_start_after_a_removal_and_not_in_an_upgrade(tmp_path: Path, *, is_active: bool, started: list[str]) -> None:
    """debhelper starts only units whose names it knows."""
    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    for folder in (wants, tmp_path / "run/systemd/system", tmp_path / "bin"):
        folder.mkdir(parents=True)
    for name in ("sbus-feed@udev.service", "sbus@lab.socket", "other.service"):
        (wants / name).symlink_to("/nonexistent")
    for name, answer in (
        ("systemctl", f"case $1 in is-active) exit {int(not is_active)};; is-failed) exit 1;; esac"),
        ("deb-systemd-invoke", ""),
    ):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/log\n{answer}\n')
        program.chmod(0o755)
    script = (DEBIAN / "sbusd.postinst").read_text()
    script = re.sub(r"/(?=etc/|run/systemd)", f"{tmp_path}/", script)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-s", "configure", "0.1.0"], input=script, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said = (tmp_path / "log").read_text().splitlines()
    assert sorted(line.split()[-1] for line in said if line.startswith("deb-systemd-invoke start ")) == started


@pytest.mark.parametrize("script", sorted(DEBIAN.glob("*.p*r*m")) + sorted(DEBIAN.glob("*.p*inst")), ids=lambda path: path.name)
def test_no_script_waits_for_the_manager_of_a_user_without_a_limit(script: Path) -> None:
    """A user can stop their own manager, and an upgrade or a removal must not wait for it."""
    for line in script.read_text().splitlines():
        assert not re.search(r"(systemctl|invoke) --user", line) or re.match(r"\s*timeout \d+ ", line), line


def test_the_readme_names_each_package_and_each_user_that_stays() -> None:
    readme = (ROOT / "packaging/README.md").read_text()
    packages = re.findall(r"^Package: (\S+)$", (DEBIAN / "control").read_text(), re.MULTILINE)
    first = re.search(r"^sudo make deb.*$", readme, re.MULTILINE)
    assert first is not None
    table = re.findall(r"^\| `(\S+)`", readme, re.MULTILINE)
    assert sorted(re.findall(r"[a-z0-9]+-?sbusd?-?[a-z]*|sbus-[a-z]+|sbusd", first[0].partition(":")[2])) == sorted(packages)
    assert sorted(table) == sorted(packages)
    users = [
        user for path in sorted((ROOT / "units/sysusers.d").iterdir()) for user in re.findall(r"^u (\S+) ", path.read_text(), re.MULTILINE)
    ]
    (kept,) = re.findall(r"The users ((?:`sbus\S*`(?:,| and)?\s+)+)remain", readme)
    assert sorted(re.findall(r"`([^`]+)`", kept)) == sorted(users)
