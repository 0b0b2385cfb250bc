"""The store of a user on the user bus; and that of the system with the netlink feed, as the package configures both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import APT_INSTALL, BUS, boot

OF_USER = """
[[stream]]
name = "notes"
keys = ["notes/"]
last = 1
on_subscribe = true
"""

RIGHTS = """
[rights]
vouch = { users = ["alice"] }
deliver = { users = ["alice"] }
"""

ON_THE_USER_BUS = "XDG_RUNTIME_DIR=/run/user/$(id -u) "


@pytest.fixture(scope="module")
def storing(built: Packages) -> Iterator[Container]:
    """A machine with the package, and nothing more."""
    machine = boot(built, installed=BUS)
    try:
        machine.run(f"{APT_INSTALL} /opt/packages/{built.store.name}")
        yield machine
    finally:
        machine.stop()


def test_the_links_of_the_machine_are_last_values(storing: Container) -> None:
    """The store and the feed have users of their own, and the rules of the package."""
    storing.run("systemctl enable --now sbus-store.service sbus-feed@netlink.service")
    storing.wait_for("sbusctl store last net/link/ | grep --quiet net/link/lo")
    assert storing.output("sbusctl sub --count 1 --timeout 60 net/link/lo", user="bob").startswith("net/link/lo\t{")
    refused = storing.run("sbusctl pub net/link/forged '{}'", user="bob", check=False)
    assert refused.status != 0
    assert "only the netlink feed publishes links" in refused.stderr
    storing.run("sbusctl store forget net net/link/lo", user="bob", check=False)
    assert "net/link/lo" in storing.output("sbusctl store last net/link/", user="bob")


def test_doctor_finds_the_service_and_its_rights(storing: Container) -> None:
    assert "sbus-store has: presence vouch deliver" in _said_by_doctor(storing)
    storing.run("systemctl stop sbus-store.service")
    assert "sbus-store.service is inactive and does not serve" in _said_by_doctor(storing)
    storing.run("systemctl start sbus-store.service")


def _said_by_doctor(machine: Container) -> str:
    """Return the findings in one line."""
    return " ".join(machine.run("sbusctl doctor", check=False).stdout.split())


def test_a_user_has_a_store_on_the_own_bus(storing: Container) -> None:
    storing.run("loginctl enable-linger alice")
    storing.wait_for("systemctl is-active user@$(id -u alice).service")
    assert storing.run("systemctl --user --machine=alice@ is-enabled sbus-store.service", check=False).stdout.strip() == "disabled"
    storing.run("mkdir --parents .config/sbus && cat >.config/sbus/sbusd.toml", user="alice", stdin=RIGHTS)
    storing.run("cat >.config/sbus/store.toml", user="alice", stdin=OF_USER)
    storing.run("systemctl --user --machine=alice@ enable --now sbus.socket sbus-store.service")
    storing.run(ON_THE_USER_BUS + "sbusctl --user store put notes/today write", user="alice")
    assert storing.output(ON_THE_USER_BUS + "sbusctl --user sub --count 1 --timeout 60 notes/", user="alice") == "notes/today\twrite"
    pid = storing.output("systemctl --user --machine=alice@ show --value --property=MainPID sbus-store.service")
    assert storing.output(f"stat --format=%U /proc/{pid}") == "alice"
    assert storing.output("find /home/alice -name store.sqlite -printf '%u %m'") == "alice 600"


def test_the_store_of_a_user_survives_a_kill_and_a_restart(storing: Container) -> None:
    manager = "systemctl --user --machine=alice@"
    before = storing.output(f"{manager} show --value --property=MainPID sbus-store.service")
    storing.run(f"{manager} kill --signal=KILL --kill-whom=main sbus-store.service")
    storing.wait_for(f"test $({manager} show --value --property=MainPID sbus-store.service) -gt 0")
    storing.wait_for(f"test $({manager} show --value --property=MainPID sbus-store.service) != {before}")
    storing.run(f"{manager} restart sbus-store.service")
    assert "write" in storing.output(ON_THE_USER_BUS + "sbusctl --user store last notes/", user="alice")


def test_removal_stops_the_services_and_keeps_what_is_the_users(storing: Container) -> None:
    storing.run("DEBIAN_FRONTEND=noninteractive apt-get purge --yes --quiet=2 sbus-store && systemctl daemon-reload")
    assert storing.run("pgrep --list-full sbus-store", check=False).stdout == ""
    found = "find / -xdev \\( -name '*sbus-store*' -o -name 'store.toml' \\) -not -path '/opt/*' -not -path '/proc/*' -not -path '/sys/*'"
    left = storing.output(f"{found} -not -path '/var/lib/dpkg/*' -not -path '/var/lib/systemd/*' -not -path '/home/*'")
    assert left == ""
    assert storing.output("find /home/alice -name store.sqlite") != ""
