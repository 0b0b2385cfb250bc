"""One transaction of the package manager leaves a bus without faults and services with the new code; a reload returns when it holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import APT_INSTALL, BUS, boot

ADDONS = ("relay", "link", "store", "trigger", "metrics", "blob", "web", "recorder")

USER_UNITS = ("sbus.service", "sbus-store.service", "sbus-trigger.service", "sbus-web.service", "sbus-blob.service")

FAULTS = "sbusctl stats --json=short | grep --only-matching '\"configuration_faults\":[0-9]*'"


@pytest.fixture(scope="module")
def upgraded(built: Packages, newer: Packages) -> Iterator[Container]:
    """A machine with the bus running, and the same packages under a higher version in /opt/next."""
    machine = boot(built, {newer.folder: "/opt/next"}, installed=BUS)
    try:
        machine.run("sbusctl whoami")
        yield machine
    finally:
        machine.stop()


def _files(machine: Container, folder: str, *names: str) -> str:
    """Return the package files *names* of *folder*."""
    return " ".join(machine.output(f"ls {folder}/{name}_*.deb") for name in names)


def test_one_transaction_leaves_no_fault(upgraded: Container) -> None:
    """The bus is restarted before the users of the add-ons exist, which its configuration names."""
    bus = _files(upgraded, "/opt/packages", "python3-sbusd", "sbusd")
    for names in (("sbus-store", "sbus-recorder"), tuple(f"sbus-{name}" for name in ADDONS)):
        upgraded.run(f"{APT_INSTALL} --reinstall {bus} {_files(upgraded, '/opt/packages', *names)}")
        assert upgraded.output(FAULTS) == '"configuration_faults":0'
    checks = upgraded.run("sbusctl doctor --no-legend", check=False).stdout
    assert [line for line in checks.splitlines() if line.startswith("fail")] == []
    # dpkg alone has another order.
    upgraded.run(f"dpkg --install {bus} {_files(upgraded, '/opt/packages', 'sbus-blob', 'sbus-recorder')}")
    assert upgraded.output(FAULTS) == '"configuration_faults":0'


@pytest.mark.parametrize(("unit", "signal"), [("sbus.service", 12), ("sbus-store.service", 1)], ids=["bus", "store"])
def test_a_reload_returns_when_the_service_has_reloaded(upgraded: Container, unit: str, signal: int) -> None:
    """systemd sees the end of the command that sends the signal before a busy service has seen the signal."""
    folder = f"/etc/systemd/system/{unit}.d"
    upgraded.run(f"mkdir {folder} && printf '[Service]\\nWatchdogSec=1h\\n' >{folder}/slow.conf && systemctl daemon-reload")
    upgraded.run(f"systemctl restart {unit}; sbusctl whoami")
    pid = upgraded.output(f"systemctl show --property=MainPID --value {unit}")
    try:
        upgraded.run(f"kill -STOP {pid}")
        reload = upgraded.start(f"systemctl reload {unit}")
        pending = f"test $((0x$(awk '/^ShdPnd:/ {{ print $2 }}' /proc/{pid}/status) >> {signal - 1} & 1)) = 1"
        upgraded.wait_for(f"{pending} && test $(systemctl show --property=ControlPID --value {unit}) = 0")
        assert upgraded.output(f"systemctl show --property=ActiveState --value {unit}") == "reloading"
        assert reload.poll() is None
    finally:
        upgraded.run(f"kill -CONT {pid}; rm --recursive {folder}; systemctl daemon-reload")
    said = reload.communicate(timeout=120)
    assert reload.returncode == 0, said
    assert upgraded.output(f"systemctl show --property=ActiveState --value {unit}") == "active"


def test_a_rule_holds_when_the_reload_returns(upgraded: Container) -> None:
    file = "/etc/sbus/sbusd.toml.d/60-race.toml"
    text = '[[policy]]\nkeys = "race/"\npublish = "deny"\n'
    upgraded.run("sbusctl pub race/x y", user="alice")
    upgraded.run(f"cat >{file} && systemctl reload sbus.service", stdin=text)
    assert upgraded.run("sbusctl pub race/x y", user="alice", check=False).status != 0
    upgraded.run(f"rm {file} && systemctl reload sbus.service")


def test_a_reload_of_the_store_with_an_error_fails(upgraded: Container) -> None:
    upgraded.run("systemctl start sbus-store.service && cp /etc/sbus/store.toml /tmp/before && echo 'wrong =' >>/etc/sbus/store.toml")
    try:
        assert upgraded.run("systemctl reload sbus-store.service", check=False).status != 0
        assert upgraded.output("systemctl is-active sbus-store.service") == "active"
    finally:
        upgraded.run("cat /tmp/before >/etc/sbus/store.toml && systemctl reload sbus-store.service")


def test_an_upgrade_restarts_the_services_of_users(upgraded: Container, built: Packages) -> None:
    upgraded.run("loginctl enable-linger alice")
    upgraded.wait_for("systemctl is-active user@$(id --user alice).service")
    enabled = "sbus.socket sbus-store.service sbus-trigger.service sbus-web.service sbus-blob.socket"
    upgraded.run(f"systemctl --user daemon-reload; systemctl --user enable --now {enabled}; sbusctl --user whoami", user="alice")
    upgraded.run("systemctl --user start sbus-blob.service", user="alice")
    invocations = f"systemctl --user show --property=InvocationID,ActiveState {' '.join(USER_UNITS)}"
    before = upgraded.output(invocations, user="alice").splitlines()
    assert before.count("ActiveState=active") == len(USER_UNITS)
    upgraded.run(f"{APT_INSTALL} /opt/next/python3-sbusd_*.deb /opt/next/sbusd_*.deb /opt/next/sbus-*.deb")
    after = upgraded.output(invocations, user="alice").splitlines()
    assert after.count("ActiveState=active") == len(USER_UNITS)
    assert not {line for line in before if line.startswith("Invocation")} & set(after)
    assert upgraded.output(FAULTS) == '"configuration_faults":0'
    assert Path(upgraded.output("ls /opt/next/sbusd_*.deb")).name.split("_")[1] != built.version
